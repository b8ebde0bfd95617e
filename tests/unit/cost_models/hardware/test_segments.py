"""Which nodes share an NVLink domain where one spans nodes: segments as schedulers hand them out, NVL72 (18 nodes of 4)."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest

from builders import training_of
from cost_models.errors import InvalidInputError
from cost_models.hardware.groups import groups
from cost_models.hardware.segments import domain_gpus, segment_nodes, spans_nodes
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.pools import resolve_pools
from cost_models.specs.cluster import Cluster
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, DTYPES, Strategies
from planner.rows import evaluate_rows

TRAINING = training_of(seq_length=4096, global_batch_size=1024)


def racks(num_nodes: int, **fields: object) -> Cluster:
    return resolve_cluster({"preset": "gb200-nvl72", "num_nodes": num_nodes, **fields})


def rows(*degrees: dict[str, int]) -> Strategies:
    columns: dict[str, Any] = {
        name: np.array([row.get(name, 1) for row in degrees], dtype=DTYPES[name]) for name in ARRAY_FIELDS
    }
    return Strategies(**columns, layouts=cast(Layouts, None))  # placement never looks at layers


def strategy(**degrees: int) -> Strategies:
    return rows(degrees)


@pytest.mark.parametrize(
    ("num_nodes", "nodes"),
    [
        (18, 18),  # one rack
        (16, 16),  # inside one rack
        (64, 16),  # 4 x 16; 17 and 18 do not divide 64
        (256, 16),
        (36, 18),
        (144, 18),  # both 18 and 16 divide: the larger
        (20, 10),
        (38, 18),  # 19 does not fit, 2 would leave most of a rack unused: two racks and two nodes of a third
    ],
)
def test_a_segment_is_the_most_nodes_that_fit_a_domain_and_divide_the_job(num_nodes, nodes):
    assert segment_nodes(racks(num_nodes), world=num_nodes * 4) == nodes


def test_expert_groups_of_64_stay_inside_a_rack():
    """64 nodes in segments of 16: ranks 64...127 are the second segment. Packed by 72, they would be 8 and 56 of two racks."""
    found = groups(strategy(pp=4, dp=64, ep=64), racks(64)).ep
    assert (found.per_domain[0], found.domains[0], found.islands[0]) == (64, 1, 1)


def test_whole_groups_come_before_a_larger_segment():
    """144 nodes: 18 nodes hold 72 GPUs, which 64 does not divide; 16 nodes hold exactly one group of 64."""
    machine = racks(144)
    assert segment_nodes(machine, world=576, experts=64) == 16
    assert segment_nodes(machine, world=576, experts=8) == 18
    assert segment_nodes(machine, world=576, dense=16) == 16
    assert groups(strategy(dp=576, ep=64), machine).ep.domains[0] == 1


def test_a_stated_segment_decides_alone():
    """Nine nodes hold 36 GPUs, so that a group of 64 spans three segments."""
    machine = racks(64, segment_nodes=9)
    assert segment_nodes(machine, world=256) == 9
    found = groups(strategy(pp=4, dp=64, ep=64), machine).ep
    # in blocks of 36, group 1 (ranks 64...127) has 8, 36 and 20 members; group 3 (192...255) has 24, 36 and 4
    assert (found.per_domain[0], found.domains[0]) == (4, 3)
    # a job of one rack, too: its nodes may come from two
    assert groups(strategy(dp=64, ep=64), racks(16, segment_nodes=8)).ep.domains[0] == 2


def test_a_segment_larger_than_the_domain_is_refused_by_name():
    with pytest.raises(InvalidInputError) as caught:
        racks(64, segment_nodes=20)
    problem = caught.value.problems[0]
    assert problem.pointer == "/cluster/segment_nodes"
    assert "holds 18 nodes" in problem.message


def test_domains_inside_a_node_have_no_segments():
    machine = resolve_cluster({"preset": "dgx-h100", "num_nodes": 16, "segment_nodes": 4})
    assert not spans_nodes(machine)
    assert groups(strategy(dp=128, ep=16), machine).ep.per_domain[0] == 8


def test_a_batch_places_its_rows_by_their_own_segments():
    machine = racks(144)
    degrees = [{"dp": 576, "ep": 64}, {"dp": 576, "ep": 8}, {"dp": 256, "ep": 64}, {"tp": 8, "dp": 72, "ep": 36}]
    batch = rows(*degrees)
    assert domain_gpus(machine, batch).tolist() == [64, 72, 64, 72]
    together = groups(batch, machine)
    for index, row in enumerate(degrees):
        alone = groups(rows(row), machine)
        for name in ("tp", "ep", "edp", "dp_cp", "zero_shard"):
            one, of_batch = getattr(alone, name), getattr(together, name).take(np.array([index]))
            assert all(getattr(one, field) == getattr(of_batch, field) for field in one.__slots__), (name, row)


def evaluated(cluster: dict, strategy: dict) -> dict:
    row = {
        "id": 1,
        "model": {"preset": "qwen3-30b-a3b"},
        "cluster": cluster,
        "training": TRAINING,
        "strategy": strategy,
    }
    return next(iter(evaluate_rows([json.dumps(row)])))


def test_the_answer_names_the_segment_and_it_moves_the_price():
    plan = {"ep": 64, "zero": 1, "micro_batch_size": 1, "recompute": "full"}
    free = evaluated({"preset": "gb200-nvl72", "num_nodes": 64}, plan)
    assert free["assumed"]["segment_nodes"] == 16
    stated = evaluated({"preset": "gb200-nvl72", "num_nodes": 64, "segment_nodes": 16}, plan)
    assert "segment_nodes" not in stated["assumed"]
    assert stated["step_time_s"] == free["step_time_s"]
    small = evaluated({"preset": "gb200-nvl72", "num_nodes": 64, "segment_nodes": 8}, plan)
    assert small["time_breakdown_s"]["ep_comm"] > 2 * free["time_breakdown_s"]["ep_comm"]
    one_rack = evaluated({"preset": "gb200-nvl72", "num_nodes": 16}, plan)
    assert "segment_nodes" not in one_rack["assumed"]


def test_a_pool_has_a_segment_of_its_own():
    pool = {"gpu": "GB200-186GB", "num_nodes": 32, "gpus_per_node": 4, "nvlink_domain_gpus": 72}
    cluster = {"pools": [{**pool, "name": "a", "segment_nodes": 8}, {**pool, "name": "b"}]}
    assert [segment_nodes(p.cluster, world=128) for p in resolve_pools(cluster).pools] == [8, 16]
    plan = {"pp": 2, "ep": 64, "zero": 1, "micro_batch_size": 1, "recompute": "full", "pool_per_stage": ["a", "b"]}
    found = evaluated(cluster, plan)
    assert found["assumed"]["pools.b.segment_nodes"] == 16
    assert not {"segment_nodes", "pools.a.segment_nodes"} & set(found["assumed"])
