"""The groups of a strategy on real nodes, by hand."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from cost_models.hardware.groups import groups
from cost_models.hardware.placement import Placement
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, DTYPES, Strategies

GPU = Gpu("A100-SXM-80GB", "ampere", 85e9, {"bf16": 312e12}, 2.0e12, 300e9, 25e9, 108)


def cluster(*, num_nodes: int, gpus_per_node: int = 8, domain: int | None = None) -> Cluster:
    network = Network("infiniband", 25e9, 8, 4e-6)
    fast = domain or gpus_per_node
    return Cluster("unit", GPU, num_nodes, gpus_per_node, fast, "nvswitch", 3e11, 2e-6, 2, 4, network)


def strategy(**degrees: float) -> Strategies:
    ones: dict[str, Any] = {name: np.ones(1, dtype=DTYPES[name]) for name in ARRAY_FIELDS}
    chosen = {name: np.array([float(value)]) for name, value in degrees.items()}
    return Strategies(**ones | chosen, layouts=cast(Layouts, None))  # placement never looks at layers


def shape(placement: Placement) -> tuple[float, float, float]:
    """(ranks, members on an island, islands)."""
    return float(placement.ranks[0]), float(placement.per_island[0]), float(placement.islands[0])


def test_groups_of_a_dense_plan() -> None:
    """tp 4, cp 2, dp 4, pp 2 on 8 nodes of 8: a node holds tp and cp of one replica, dp is one rank a node."""
    found = groups(strategy(tp=4, cp=2, dp=4, pp=2, zero_shard_size=2), cluster(num_nodes=8))
    assert shape(found.tp) == (4, 4, 1)
    assert shape(found.cp) == (2, 2, 1)
    assert shape(found.dp) == (4, 1, 4)
    assert shape(found.dp_cp) == (8, 2, 4)
    assert shape(found.zero_shard) == (2, 2, 1)
    assert shape(found.zero_replica) == (4, 1, 4)
    assert shape(found.pp) == (2, 1, 2)
    assert shape(found.embedding) == (2, 1, 2)


def test_expert_groups_regroup_the_same_ranks() -> None:
    """tp 2, dp 16, ep 8, etp 1: ep fills a node with stride 1; edp = 32/8 = 4, one rank a node."""
    found = groups(strategy(tp=2, dp=16, ep=8, etp=1), cluster(num_nodes=4))
    assert shape(found.ep) == (8, 8, 1)
    assert shape(found.edp) == (4, 1, 4)
    assert float(found.edp.stride[0]) == 8


def test_first_and_last_stage_of_a_pipeline_inside_one_node_stay_inside() -> None:
    """pp 8 of single GPUs on one node: ranks 0 and 7 share it, though their distance is 7."""
    found = groups(strategy(pp=8), cluster(num_nodes=4))
    assert shape(found.pp) == (8, 8, 1)
    assert shape(found.embedding) == (2, 2, 1)
    assert shape(groups(strategy(dp=8), cluster(num_nodes=4)).embedding) == (1, 1, 1)


def test_tensor_parallelism_of_six_straddles_nodes_of_eight() -> None:
    """Ranks 6-11 are the second group: 2 members on node 0, 4 on node 1; the worst group counts."""
    found = groups(strategy(tp=6, dp=4), cluster(num_nodes=3))
    assert shape(found.tp) == (6, 2, 2)


def test_unused_gpus_hold_no_groups() -> None:
    """One group of 6 alone sits in one node; only a second one would straddle."""
    assert shape(groups(strategy(tp=6), cluster(num_nodes=3)).tp) == (6, 6, 1)


def test_nodes_inside_a_larger_fast_domain() -> None:
    """NVL72 of 18 nodes of 4: tp 8 spans two nodes and no network; dp 18 with stride 8 spans two domains of 72."""
    found = groups(strategy(tp=8, dp=18), cluster(num_nodes=36, gpus_per_node=4, domain=72))
    assert shape(found.tp) == (8, 8, 1)
    assert shape(found.dp) == (18, 9, 2)
