"""What must hold for every collective on every cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.hardware import load_calibration, reference_document
from cost_models.hardware.build_links import build_links
from cost_models.hardware.collectives import collective_s
from cost_models.hardware.link_tables import OPS
from cost_models.hardware.placement import place
from cost_models.specs.cluster import Cluster, Gpu, Network

H100 = Gpu(
    "H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12}, 3.35e12, 450e9, 63e9, 132, 700.0, reference="H100-SXM-80GB"
)
REFERENCE = reference_document(H100)

ops = st.sampled_from(OPS)
sizes = st.floats(1.0, 2.0**38)
ranks = st.integers(1, 256)
clusters = st.builds(
    lambda domain, kind, link, nic, nics, latency: Cluster(
        "drawn", H100, 64, 8, 1 if kind == "pcie" else domain, kind, link, 2e-6, 2, 4,
        Network("infiniband", nic, nics, latency),
    ),
    st.sampled_from([2, 4, 8, 72]),
    st.sampled_from(["nvswitch", "nvlink-pairs", "pcie", "custom"]),
    st.floats(2e10, 2e12),
    st.floats(1e9, 1e11),
    st.integers(1, 8),
    st.floats(0.0, 1e-4),
)  # fmt: skip


def seconds(cluster: Cluster, op: str, size: float, n: int, stride: int) -> float:
    links = build_links(cluster, REFERENCE)
    estimate = collective_s(op, size, placement=place(n, stride=stride, cluster=cluster), links=links)  # type: ignore[arg-type]
    assert np.all(np.isfinite(estimate.seconds))
    assert np.all(estimate.seconds >= 0)
    return float(estimate.seconds[0])


@given(clusters, ops, sizes, ranks, st.integers(1, 64), st.floats(1.0, 8.0))
@settings(max_examples=200, deadline=None)
def test_more_bandwidth_or_less_latency_is_never_slower(
    cluster: Cluster, op: str, size: float, n: int, stride: int, factor: float
) -> None:
    before = seconds(cluster, op, size, n, stride)
    net = cluster.network
    faster = [
        replace(cluster, network=replace(net, nic_wire_bytes_per_s=net.nic_wire_bytes_per_s * factor)),
        replace(cluster, network=replace(net, nics_per_node=net.nics_per_node + 1)),
        replace(cluster, network=replace(net, latency_s=net.latency_s / factor)),
        replace(cluster, intra_bytes_per_s=cluster.intra_bytes_per_s * factor),
        replace(cluster, gpu=replace(H100, pcie_bytes_per_s=H100.pcie_bytes_per_s * factor)),
    ]
    for changed in faster:
        assert seconds(changed, op, size, n, stride) <= before * (1 + 1e-12)


@given(clusters, ops, sizes, ranks, st.integers(1, 64), st.floats(1.0, 4.0))
@settings(max_examples=200, deadline=None)
def test_more_bytes_are_never_faster(
    cluster: Cluster, op: str, size: float, n: int, stride: int, factor: float
) -> None:
    assert seconds(cluster, op, size, n, stride) <= seconds(cluster, op, size * factor, n, stride) * (1 + 1e-12)


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), sizes, st.integers(1, 63))
@settings(max_examples=100, deadline=None)
def test_one_more_node_never_makes_a_call_cheaper(op: str, size: float, nodes: int) -> None:
    cluster = Cluster("n", H100, 64, 8, 8, "nvswitch", 450e9, 2e-6, 2, 4, Network("infiniband", 50e9, 8, 4e-6))
    assert seconds(cluster, op, size, 8 * nodes, 1) <= seconds(cluster, op, size, 8 * nodes + 8, 1) * (1 + 1e-12)


@given(clusters, ops, st.lists(st.tuples(sizes, ranks, st.integers(1, 64)), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_batch_equals_its_rows(cluster: Cluster, op: str, rows: list[tuple[float, int, int]]) -> None:
    size, n, stride = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    links = build_links(cluster, REFERENCE)
    batch = collective_s(op, size, placement=place(n, stride=stride, cluster=cluster), links=links)  # type: ignore[arg-type]
    for i in range(len(rows)):
        one = collective_s(op, size[i], placement=place(n[i], stride=stride[i], cluster=cluster), links=links)  # type: ignore[arg-type]
        assert one.seconds[0] == batch.seconds[i]
        assert one.tier[0] == batch.tier[i]


@given(ops, sizes, st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_a_calibration_prices_like_its_links(op: str, size: float, n: int) -> None:
    cluster = Cluster("n", H100, 2, 8, 8, "nvswitch", 450e9, 2e-6, 2, 4, Network("infiniband", 50e9, 8, 4e-6))
    group = place(n, stride=1, cluster=cluster)
    priced = load_calibration(cluster).collective_s(op, size, placement=group)  # type: ignore[arg-type]
    assert priced.seconds[0] == seconds(cluster, op, size, n, 1)
