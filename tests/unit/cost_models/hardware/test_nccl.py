"""Latencies of collectives against NCCL's own model, worked out here from src/graph/tuning.cc (2.28)."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.hardware import load_calibration
from cost_models.hardware.nccl import inside_choices, network_choices
from cost_models.hardware.placement import place
from cost_models.inputs.cluster import resolve_cluster
from cost_models.specs.cluster import Cluster


def network(op: str, *, members: float, nodes: float, network_s: float = 2.7e-6) -> dict[tuple[str, str], float]:
    """Microseconds by algorithm and protocol."""
    choices = network_choices(
        op, members=np.array([members]), nodes=np.array([nodes]), ranks=np.array([members * nodes]), hop="nvlink",
        extra_hop_s=0.0, network_s=network_s,
    )  # fmt: skip
    return {(c.algorithm, c.protocol): float(c.latency_s[0]) * 1e6 for c in choices}


def test_rings_of_512_ranks() -> None:
    """511 steps, 63 of them between nodes: LL128 14 + 448 * 1.9 + 63 * 4 = 1,117.2 us; LL's inner hop is the host's post."""
    found = network("all_gather", members=8, nodes=64)
    assert found["ring", "LL"] == pytest.approx(6.6 + 448 * 1.0 + 63 * 2.7)
    assert found["ring", "LL128"] == pytest.approx(1117.2)
    assert found["ring", "Simple"] == pytest.approx(8.4 + 448 * 3.4 + 63 * 14)
    assert set(found) == {("ring", protocol) for protocol in ("LL", "LL128", "Simple")}
    assert network("reduce_scatter", members=8, nodes=64) == found


def test_trees_and_rings_of_64_ranks() -> None:
    found = network("all_reduce", members=8, nodes=8)
    assert found["tree", "LL"] == pytest.approx(6.8 + 2 * (7 * 0.6 + 3 * 5))
    assert found["tree", "LL128"] == pytest.approx(14 + 2 * (7 * 1.25 + 3 * 8.5))
    assert found["tree", "Simple"] == pytest.approx(8.4 + 2 * (7 * 4 + 3 * 14))
    assert found["ring", "LL128"] == pytest.approx(14 + (126 - 14) * 1.9 + 14 * 4)
    assert found["ring", "Simple"] == pytest.approx(1.4 * (8.4 + 112 * 3.4 + 14 * 14))


def test_a_slower_network_adds_to_every_hop_and_twice_under_simple() -> None:
    """12.3 us more a hop; Simple also waits for its flush."""
    near, far = (network("all_gather", members=8, nodes=2, network_s=t) for t in (2.7e-6, 15e-6))
    assert far["ring", "LL"] - near["ring", "LL"] == pytest.approx(12.3)
    assert far["ring", "Simple"] - near["ring", "Simple"] == pytest.approx(24.6)


def test_inside_a_node() -> None:
    """H100's public curves start at 10.1 us (all-gather) and 15.6 us (all-reduce) for 8 ranks; PCIe's at 13.8 and 22.5."""

    def least(op: str, hop: str) -> float:
        choices = inside_choices(op, np.array([8.0]), hop=hop, extra_hop_s=0.0, generation="hopper")  # type: ignore[arg-type]
        return min(float(c.latency_s[0]) * 1e6 for c in choices)

    assert least("all_gather", "nvlink") == pytest.approx(6.6 + 7 * 0.6)
    assert least("all_reduce", "nvlink") == pytest.approx(6.6 + 14 * 0.6)
    assert least("all_gather", "pcie") == pytest.approx(6.6 + 7 * 1.0)
    assert least("all_reduce", "pcie") == pytest.approx(6.6 + 14 * 1.0)


def test_inside_a_node_trees_and_rings_keep_their_own_latency_and_bandwidth():
    """8 ranks over NVLink, tuning.cc at one node: tree 0.92, LL128 x 7/9, LL / 3.8; a ring's Simple hop is shorter, its LL128
    hop longer. Only all-reduce has trees.
    """
    each = {
        (c.algorithm, c.protocol): (float(c.latency_s[0]) * 1e6, c.bandwidth_share)
        for c in inside_choices("all_reduce", np.array([8.0]), hop="nvlink", extra_hop_s=0.0, generation="hopper")
    }
    assert each["ring", "LL128"] == pytest.approx((14 + 14 * 1.9, 0.92))
    assert each["ring", "Simple"] == pytest.approx((8.4 + 14 * 3.4, 1.0))
    assert each["tree", "LL"] == pytest.approx((6.8 + 14 * 0.6, 0.92 / 3.8))
    assert each["tree", "LL128"] == pytest.approx((14 + 14 * 1.25, 0.92 * 7 / 9))
    assert each["tree", "Simple"] == pytest.approx((8.4 + 14 * 4.0, 0.92))
    for op in ("all_gather", "reduce_scatter", "broadcast"):
        found = inside_choices(op, np.array([8.0]), hop="nvlink", extra_hop_s=0.0, generation="hopper")
        assert {c.algorithm for c in found} == {"ring"}
        assert {algorithm for algorithm, _ in network(op, members=8, nodes=4)} == {"ring"}


def dgx(num_nodes: int) -> Cluster:
    return resolve_cluster({"preset": "dgx-h100", "num_nodes": num_nodes})


@pytest.mark.parametrize(
    ("op", "ranks", "size", "nccl_us"),
    [
        ("all_gather", 512, 16e6, 1162),
        ("reduce_scatter", 512, 16e6, 1162),
        ("all_gather", 64, 1e6, 133),
        ("all_reduce", 64, 65536.0, 56.7),
        ("all_reduce", 64, 2.0**20, 93.1),
    ],
)
def test_calls_between_nodes_cost_what_nccl_expects(op, ranks, size, nccl_us):
    """NCCL's own choice on nodes of 8 H100 with 16 channels of 24 GB/s and Intel hosts, within a tenth.

    512 ranks and 16 MB, LL128: 1,117.2 us and 16e6 * 511/512 bytes at 0.92 * 384 GB/s, 45 us. 64 ranks and 1 MB, LL: 6.6 +
    56 + 7 * 2.7 = 81.5 us and 51 us at 20.4 GB/s.
    """
    on = dgx(ranks // 8)
    got = load_calibration(on).collective_s(op, size, placement=place(ranks, stride=1, cluster=on))
    assert float(got.seconds[0]) * 1e6 == pytest.approx(nccl_us, rel=0.1)


def test_a_small_gather_grows_with_the_ranks_and_a_large_one_with_its_bytes():
    """From 64 to 512 ranks seven times the steps; at 8 GiB both are 8 GiB at 0.8 of 400 GB/s and some milliseconds."""
    times = {}
    for ranks in (64, 512):
        on = dgx(ranks // 8)
        for size in (1e5, 2.0**33):
            got = load_calibration(on).collective_s("all_gather", size, placement=place(ranks, stride=1, cluster=on))
            times[ranks, size] = float(got.seconds[0])
    assert 6 < times[512, 1e5] / times[64, 1e5] < 8
    assert times[512, 2.0**33] / times[64, 2.0**33] == pytest.approx(1, abs=0.15)
