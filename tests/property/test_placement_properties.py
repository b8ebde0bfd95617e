"""Placement of a group against listing every rank of every group of its kind."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.hardware.placement import place
from cost_models.specs.cluster import Cluster, Gpu, Network

GPU = Gpu("A100-SXM-80GB", "ampere", 85e9, {"bf16": 312e12}, 2.0e12, 300e9, 25e9, 108)


def cluster(*, num_nodes: int, gpus_per_node: int, domain: int) -> Cluster:
    return Cluster(
        "drawn", GPU, num_nodes, gpus_per_node, domain, "nvswitch", 300e9, 3e-6, 4, 4,
        Network("infiniband", 25e9, gpus_per_node, 5e-6),
    )  # fmt: skip


def listed(size: int, stride: int, block: int, world: int) -> tuple[int, int]:
    """Fewest members in a block that holds any, most blocks spanned, over all groups inside `world`."""
    fewest, most = size, 1
    for start in range(0, max(world // (size * stride), 1) * size * stride, size * stride):
        for offset in range(stride):
            members = Counter((start + offset + i * stride) // block for i in range(size))
            fewest, most = min(fewest, *members.values()), max(most, len(members))
    return fewest, most


@given(
    size=st.integers(1, 24), stride=st.integers(1, 40), gpus_per_node=st.integers(1, 12), num_nodes=st.integers(1, 40)
)
@settings(max_examples=400, deadline=None)
def test_members_per_node_and_nodes_equal_a_listing_of_all_groups(
    size: int, stride: int, gpus_per_node: int, num_nodes: int
) -> None:
    world = max(num_nodes * gpus_per_node, size * stride)
    nodes = -(-world // gpus_per_node)
    found = place(
        size, stride=stride, cluster=cluster(num_nodes=nodes, gpus_per_node=gpus_per_node, domain=gpus_per_node)
    )
    assert (found.per_island[0], found.islands[0]) == listed(size, stride, gpus_per_node, nodes * gpus_per_node)
    assert (found.per_domain[0], found.domains[0]) == (found.per_island[0], found.islands[0])


@given(size=st.integers(1, 20), stride=st.integers(1, 20), domain=st.sampled_from([1, 2, 3, 4, 6, 8, 72]))
@settings(max_examples=300, deadline=None)
def test_fast_domains_smaller_or_larger_than_a_node_are_counted_apart(size: int, stride: int, domain: int) -> None:
    node = 4 if domain == 72 else 8
    nodes = max(-(-size * stride // node), 72 // node)
    found = place(size, stride=stride, cluster=cluster(num_nodes=nodes, gpus_per_node=node, domain=domain))
    assert (found.per_domain[0], found.domains[0]) == listed(size, stride, domain, nodes * node)
    assert (found.per_island[0], found.islands[0]) == listed(size, stride, max(node, domain), nodes * node)


@given(
    size=st.integers(1, 16), stride=st.integers(1, 24), switch=st.sampled_from([1, 2, 4]), socket=st.sampled_from([4, 8]),
    nodes_per_leaf=st.integers(1, 5), rails=st.booleans(),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_switches_sockets_and_leaves_equal_a_listing(
    size: int, stride: int, switch: int, socket: int, nodes_per_leaf: int, *, rails: bool
) -> None:
    """Nodes of 8 in NVLink pairs; off its rail a group of one rank a node has a leaf of its own on every node."""
    nodes = -(-size * stride // 8)
    network = Network("infiniband", 25e9, 8, 5e-6, rails, nodes_per_leaf, 2.0)
    machine = Cluster("drawn", GPU, nodes, 8, 2, "nvlink-pairs", 300e9, 3e-6, switch, socket, network)
    found = place(size, stride=stride, cluster=machine)
    assert found.switches[0] == listed(size, stride, switch, nodes * 8)[1]
    assert found.sockets[0] == listed(size, stride, socket, nodes * 8)[1]
    fewest, islands = listed(size, stride, min(8, nodes * 8), nodes * 8)
    off_rail = rails and fewest == 1 and stride % 8 != 0
    assert found.leaves[0] == (islands if off_rail else listed(size, stride, 8 * nodes_per_leaf, nodes * 8)[1])


@given(
    rows=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096)), min_size=1, max_size=20),
    gpus_per_node=st.integers(1, 16),
)
def test_a_batch_equals_its_rows(rows: list[tuple[int, int, int]], gpus_per_node: int) -> None:
    machine = cluster(num_nodes=512, gpus_per_node=gpus_per_node, domain=gpus_per_node)
    size, stride, world = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    batch = place(size, stride=stride, cluster=machine, world=world)
    for i in range(len(rows)):
        one = place(size[i], stride=stride[i], cluster=machine, world=world[i])
        assert (one.per_island[0], one.islands[0]) == (batch.per_island[i], batch.islands[i])
        assert (one.switches[0], one.sockets[0], one.leaves[0]) == (
            batch.switches[i],
            batch.sockets[i],
            batch.leaves[i],
        )
