"""Where a process is, from the launcher's variables, and which groups of ranks are measured."""

from __future__ import annotations

import pytest

from cost_models.errors import InvalidInputError
from profiler.rank_groups import placements
from profiler.ranks import first_host, ranks_from


def test_no_launcher_is_a_world_of_one() -> None:
    place = ranks_from({"HOME": "/"})
    assert (place.rank, place.world, place.launcher, place.num_nodes) == (0, 1, "none", 1)


def test_torchrun_places_ranks_node_by_node() -> None:
    """Rank 5 of 8 with 4 a node is on node 1."""
    place = ranks_from({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert (place.node, place.num_nodes, place.launcher) == (1, 2, "torchrun")


def test_slurm_gives_the_first_host_and_a_port_of_the_job() -> None:
    place = ranks_from(
        {
            "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            "SLURM_STEP_NODELIST": "gpu[003-004]", "SLURM_JOB_ID": "1234567", "SLURM_STEP_ID": "0",
        }
    )  # fmt: skip
    assert (place.master_address, place.local_world, place.num_nodes) == ("gpu003", 4, 2)
    assert place.master_port == 20_000 + 1_234_567 % 20_000


@pytest.mark.parametrize(
    ("listed", "first"),
    [("node[003-006,009],x1", "node003"), ("a1,a2", "a1"), ("lonely", "lonely"), ("r[1,7]n2", "r1")],
)
def test_first_host_of_slurms_lists(listed: str, first: str) -> None:
    assert first_host(listed) == first


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "five"},
        {"RANK": "0", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"},
        {"RANK": "9", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "4,3"},
    ],
)
def test_contradicting_variables_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        ranks_from(environment)


def test_four_ranks_of_one_node() -> None:
    """Whole node; pairs alone, side by side, strided, strided side by side; and three of four."""
    placed = placements(local_world=4, num_nodes=1)
    assert {p.label: p.groups for p in placed} == {
        "4x1.s1.c1": ((0, 1, 2, 3),),
        "2x1.s1.c1": ((0, 1),),
        "2x1.s1.c2": ((0, 1), (2, 3)),
        "2x1.s2.c1": ((0, 2),),
        "2x1.s2.c2": ((0, 2), (1, 3)),
        "3x1.s1.c1": ((0, 1, 2),),
    }


def test_two_nodes_of_two() -> None:
    """All four; one rank of each node alone and with its sibling group; the pair inside a node."""
    placed = {p.label: p.groups for p in placements(local_world=2, num_nodes=2)}
    assert placed["2x2.s1.c1"] == ((0, 1, 2, 3),)
    assert placed["1x2.s2.c2"] == ((0, 2), (1, 3))
    assert placed["1x2.s2.c1"] == ((0, 2),)
    assert placed["2x1.s1.c1"] == ((0, 1),)


def test_one_rank_has_no_groups() -> None:
    assert placements(local_world=1, num_nodes=1) == []
