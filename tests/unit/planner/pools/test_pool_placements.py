"""Placements against a listing of every order of pools and every number of stages on each; sites and their prices by hand."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from builders import Document, cluster_of, dense_model, row_of, rows_of, training_of
from cost_models.job import PooledJob
from planner.pools.placements import NodeLimits, Sites, build_sites, price_weight
from planner.request.job import resolve_pooled_job

POOLS: tuple[Document, ...] = (
    {"name": "a", **cluster_of(gpus_per_node=8), "num_nodes": 1, "price_per_gpu_hour": 2.0},
    {"name": "b", **cluster_of("A100-SXM-80GB", gpus_per_node=4), "num_nodes": 3, "price_per_gpu_hour": 0.5},
    {"name": "c", **cluster_of("A100-SXM-40GB", gpus_per_node=6), "num_nodes": 2, "price_per_gpu_hour": 0.25},
)
SIZES = ((1, 8), (3, 4), (2, 6))
"""Nodes and GPUs of a node of each pool."""


def pooled(*pools: Document) -> PooledJob:
    network = {"fabric": "infiniband"}
    training = training_of(global_batch_size=192)
    return resolve_pooled_job(
        {"model": dense_model(48), "cluster": {"pools": list(pools), "network": network}, "training": training}
    )


ALL = pooled(*POOLS)


def listed(pp: int, gpus: int, limits: NodeLimits, *, fixed: tuple[str, ...] | None = None) -> set[tuple[int, ...]]:
    """The pool of every stage of every placement of `pp` stages of so many GPUs."""
    found = set()
    for counts in product(range(pp + 1), repeat=len(SIZES)):
        nodes = [count * gpus / per_node for count, (_, per_node) in zip(counts, SIZES, strict=True)]
        whole = all(used == int(used) and used <= there for used, (there, _) in zip(nodes, SIZES, strict=True))
        if sum(counts) != pp or not whole or not limits.least <= sum(nodes) <= limits.most:
            continue
        for order in permutations([pool for pool, count in enumerate(counts) if count]):
            found.add(tuple(pool for pool in order for _ in range(counts[pool])))
    return {each for each in found if fixed is None or tuple("abc"[pool] for pool in each) == fixed}


SPLITS = (
    {"pp": 1, "dp": 8}, {"pp": 2, "dp": 8}, {"pp": 2, "dp": 4}, {"pp": 4, "dp": 4}, {"pp": 3, "dp": 4}, {"pp": 2, "dp": 6},
    {"pp": 2, "dp": 12}, {"pp": 1, "dp": 12}, {"pp": 4, "dp": 2}, {"pp": 8, "tp": 2, "dp": 1}, {"pp": 6, "dp": 1}, {"pp": 1, "dp": 16},
)  # fmt: skip
ROWS = rows_of(ALL.jobs[0], *SPLITS)


@pytest.mark.parametrize("limits", [NodeLimits(1, 6), NodeLimits(3, 4), NodeLimits(2, 2), NodeLimits(6, 6)])
def test_every_split_lies_on_every_placement_of_whole_nodes(limits: NodeLimits) -> None:
    """Pools of 8, 12 and 12 GPUs; stages of 16 GPUs have room on none of them."""
    found, homeless = build_sites(ALL, ROWS, limits=limits, fixed=None)
    assert homeless.tolist() == [11]
    sites = [(base, found.pools(index)) for index, base in enumerate(found.base.tolist())]
    assert len(sites) == len(set(sites))
    for number, each in enumerate(SPLITS):
        gpus = each["dp"] * each.get("tp", 1)
        here = {pools for base, pools in sites if base == number}
        assert here == listed(each["pp"], gpus, limits), each


@pytest.mark.parametrize("fixed", [("a", "a", "b"), ("b", "a", "a"), ("b",), ("c", "b"), ("a", "b")])
def test_only_the_pools_that_a_request_fixes_are_placed_on(fixed: tuple[str, ...]) -> None:
    limits = NodeLimits(1, 6)
    found, _ = build_sites(ALL, ROWS, limits=limits, fixed=fixed)
    assert len(found)
    for number, each in enumerate(SPLITS):
        here = {found.pools(index) for index in np.flatnonzero(found.base == number).tolist()}
        assert here == listed(each["pp"], each["dp"] * each.get("tp", 1), limits, fixed=fixed), each


def test_the_ends_of_a_pipeline_are_on_its_first_and_last_pool_with_stages() -> None:
    stages_PN = np.array([[2, 0, 1], [0, 0, 3], [1, 4, 1]])
    order_PN = np.array([[2, 2, 1], [0, 0, 2], [1, 1, 0]])
    sites = Sites(np.arange(3), stages_PN, order_PN)
    assert sites.first_pool.tolist() == [2, 2, 1]
    assert sites.last_pool.tolist() == [0, 2, 0]
    assert [sites.pools(index) for index in range(3)] == [(2, 0, 0), (2, 2, 2, 2), (1, 1, 1, 2, 0)]
    assert sites.take(np.array([2])).pools(0) == (1, 1, 1, 2, 0)
    assert len(sites.take(np.array([True, False, True]))) == 2


def test_a_cost_is_the_price_of_the_gpus_in_use_or_their_number() -> None:
    """Stages of four GPUs: 2 at 2.0, 1 at 0.5 and 3 at 0.25 an hour; where one pool has no price all count alike."""
    stages_PN, gpus = np.array([[2], [1], [3]]), np.array([4.0])
    assert price_weight(ALL, stages_PN, gpus).tolist() == [4 * (2 * 2.0 + 0.5 + 3 * 0.25)]
    unpriced: dict[str, Any] = {name: value for name, value in POOLS[1].items() if name != "price_per_gpu_hour"}
    assert price_weight(pooled(POOLS[0], unpriced, POOLS[2]), stages_PN, gpus).tolist() == [24.0]


def test_where_nothing_has_room_there_are_no_sites() -> None:
    rows = row_of(ALL.jobs[0], pp=1, dp=16)
    found, homeless = build_sites(ALL, rows, limits=NodeLimits(1, 6), fixed=None)
    assert (len(found), found.stages_PN.shape, found.order_PN.shape, homeless.tolist()) == (0, (3, 0), (3, 0), [0])
