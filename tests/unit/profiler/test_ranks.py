"""Where a process is, from the launcher's variables, and which groups of ranks are measured."""

from __future__ import annotations

import pytest

from cost_models.errors import InvalidInputError
from profiler.rank_groups import placements
from profiler.ranks import Ranks, first_host, ranks_from


def test_no_launcher_is_a_world_of_one() -> None:
    place = ranks_from({"HOME": "/"})
    assert (place.rank, place.world, place.launcher, place.num_nodes) == (0, 1, "none", 1)


def test_torchrun_places_ranks_node_by_node() -> None:
    """Rank 5 of 8 with 4 a node is on node 1."""
    place = ranks_from({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert (place.node, place.num_nodes, place.launcher) == (1, 2, "torchrun")


def test_what_torchrun_leaves_out_is_one_node_at_its_usual_port() -> None:
    place = ranks_from({"RANK": "5", "WORLD_SIZE": "6"})
    assert place == Ranks(5, 6, 0, 6, "torchrun", "127.0.0.1", 29_500)
    assert (place.node, place.num_nodes) == (0, 1)
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "first", "MASTER_PORT": "1234"}
    assert ranks_from(given) == Ranks(0, 1, 0, 1, "torchrun", "first", 1234)
    assert ranks_from({"RANK": "3"}).launcher == "none"
    assert ranks_from({"WORLD_SIZE": "3"}).launcher == "none"


SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "3(x2)", "SLURM_NODELIST": "a[07,12]"}


def test_slurms_step_goes_before_its_job_and_a_given_address_before_both() -> None:
    """Step 3 of job 40,005: port 20,000 + (40,005 + 7 x 3) mod 20,000."""
    place = ranks_from(SLURM)
    assert place == Ranks(1, 6, 0, 3, "slurm", "a07", 20_000)
    step = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "b[1-3]", "SLURM_LOCALID": "1"}
    place = ranks_from(step | {"SLURM_JOB_ID": "40005", "SLURM_STEP_ID": "3"})
    assert place == Ranks(1, 6, 1, 2, "slurm", "b1", 20_026)
    assert ranks_from(step | {"MASTER_ADDR": "given", "MASTER_PORT": "99"}) == Ranks(1, 6, 1, 2, "slurm", "given", 99)
    bare = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    assert ranks_from(bare) == Ranks(1, 2, 0, 2, "slurm", "127.0.0.1", 20_000)


def test_one_process_of_a_slurm_job_was_not_started_by_srun() -> None:
    """sbatch sets SLURM's variables too."""
    assert ranks_from({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}).launcher == "none"
    assert ranks_from({"SLURM_PROCID": "0"}).launcher == "none"


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
        {"RANK": "8", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
        {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "0"},
        {"RANK": "-1", "WORLD_SIZE": "8"},
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


def groups_of(*, local_world: int, num_nodes: int) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    return [(each.label, each.groups) for each in placements(local_world=local_world, num_nodes=num_nodes)]


def test_six_ranks_are_split_in_two_and_three_and_the_most_telling_comes_first() -> None:
    """The node; halves and thirds alone, then side by side; the same at the widest stride; then four and five of the six."""
    assert groups_of(local_world=6, num_nodes=1) == [
        ("6x1.s1.c1", ((0, 1, 2, 3, 4, 5),)),
        ("3x1.s1.c1", ((0, 1, 2),)),
        ("2x1.s1.c1", ((0, 1),)),
        ("3x1.s1.c2", ((0, 1, 2), (3, 4, 5))),
        ("2x1.s1.c3", ((0, 1), (2, 3), (4, 5))),
        ("3x1.s2.c1", ((0, 2, 4),)),
        ("3x1.s2.c2", ((0, 2, 4), (1, 3, 5))),
        ("2x1.s3.c1", ((0, 3),)),
        ("2x1.s3.c3", ((0, 3), (1, 4), (2, 5))),
        ("4x1.s1.c1", ((0, 1, 2, 3),)),
        ("5x1.s1.c1", ((0, 1, 2, 3, 4),)),
    ]


def test_three_nodes_are_measured_whole_and_two_of_them_too() -> None:
    """One rank of each node, beside its sibling and alone; two nodes show the network without congestion."""
    assert groups_of(local_world=2, num_nodes=3) == [
        ("2x1.s1.c1", ((0, 1),)),
        ("2x3.s1.c1", ((0, 1, 2, 3, 4, 5),)),
        ("1x2.s2.c2", ((0, 2), (1, 3))),
        ("1x2.s2.c1", ((0, 2),)),
        ("1x3.s2.c2", ((0, 2, 4), (1, 3, 5))),
        ("1x3.s2.c1", ((0, 2, 4),)),
        ("2x2.s1.c1", ((0, 1, 2, 3),)),
    ]


def test_groups_across_nodes_have_whole_parts_of_each_node() -> None:
    """Of three ranks a node, one alone or all; one GPU a node has neither parts nor a node to measure."""
    found = groups_of(local_world=3, num_nodes=2)
    assert [label for label, _ in found] == ["3x1.s1.c1", "3x2.s1.c1", "1x2.s3.c3", "1x2.s3.c1", "2x1.s1.c1"]
    assert dict(found)["1x2.s3.c3"] == ((0, 3), (1, 4), (2, 5))
    assert dict(groups_of(local_world=4, num_nodes=2))["2x2.s1.c2"] == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert groups_of(local_world=1, num_nodes=2) == [("1x2.s1.c1", ((0, 1),))]


def test_one_rank_has_no_groups() -> None:
    assert placements(local_world=1, num_nodes=1) == []
