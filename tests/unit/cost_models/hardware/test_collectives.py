"""Prices of placed collectives: the measured points themselves, and every formula by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from cost_models.hardware import load_calibration
from cost_models.hardware.build_links import build_links
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.collectives import collective_s
from cost_models.hardware.placement import Placement, place
from cost_models.inputs.cluster import resolve_cluster
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.terms import Tier

H100 = Gpu(
    "H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12}, 3.35e12, 450e9, 63e9, 132, 700.0, reference="H100-SXM-80GB"
)
NETWORK = Network("infiniband", 50e9, 8, 4e-6)


def cluster(**changes: object) -> Cluster:
    base = Cluster("unit", H100, 16, 8, 8, "nvswitch", 450e9, 2e-6, 2, 4, NETWORK)
    return replace(base, **changes)  # type: ignore[arg-type]


def nominal() -> Cluster:
    """A custom link of 400 GB/s at NVLink's own latency, so that every curve is arithmetic."""
    return cluster(interconnect="custom", intra_bytes_per_s=400e9)


def of(size: float, *, stride: float, on: Cluster) -> Placement:
    return place(size, stride=stride, cluster=on)


def test_measured_points_come_back_exactly() -> None:
    """All-gather over 8 H100 from 1 MiB up: every row of the public table."""
    table = Path(__file__).resolve().parents[4] / "data" / "reference" / "nccl_curves.csv"
    rows = [
        (float(row["size_bytes"]), float(row["time_us"]) * 1e-6)
        for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines())
        if (row["gpu"], row["op"], row["ranks"]) == ("H100-SXM-80GB", "all_gather", "8")
        and row["source"].startswith("aiconfigurator")
    ]
    calibration = load_calibration(cluster())
    for size in {size for size, _ in rows if size >= 2**20}:
        expected = median(time_s for row_size, time_s in rows if row_size == size)
        got = calibration.collective_s("all_gather", size, placement=of(8, stride=1, on=cluster()))
        assert got.seconds[0] == pytest.approx(expected, rel=1e-9)
        assert got.tier[0] == Tier.INTERPOLATED


@pytest.mark.parametrize(
    ("size_mib", "bus_gb_per_s", "within"),
    [
        (0.25, 1.3, 0.15), (0.5, 2.8, 0.15), (1, 5.4, 0.15), (4, 18.9, 0.15), (16, 64.4, 0.25), (64, 156.7, 0.25), (256, 229.1, 0.25),
        (1024, 362.0, 0.25), (8192, 380.4, 0.25),
    ],
)  # fmt: skip
def test_efa_reaches_what_a_public_table_says(size_mib, bus_gb_per_s, within) -> None:
    """All-reduces of 32 B200 over four nodes with EFA (github.com/stas00/ml-engineering, network chapter); a hop decides up to 4 MiB."""
    given = {
        "gpu": "B200-SXM-180GB", "num_nodes": 4, "gpus_per_node": 8, "nics_per_node": 8, "nic_gbit_per_s": 400,
        "network": {"fabric": "efa"},
    }  # fmt: skip
    on, size = resolve_cluster(given), size_mib * 2**20
    got = load_calibration(on).collective_s("all_reduce", size, placement=of(32, stride=1, on=on)).seconds[0]
    assert got == pytest.approx(2 * 31 / 32 * size / (bus_gb_per_s * 1e9), rel=within)


def test_between_two_sizes_time_is_interpolated_in_logarithms() -> None:
    """Half way between S and 2S in log size, the time is the geometric mean of both."""
    price = load_calibration(cluster()).collective_s
    group = of(4, stride=1, on=cluster())
    ends = [price("all_reduce", size, placement=group).seconds[0] for size in (2.0**26, 2.0**27)]
    assert price("all_reduce", 2.0**26.5, placement=group).seconds[0] == pytest.approx((ends[0] * ends[1]) ** 0.5)


def test_the_last_cell_of_the_grid_is_interpolated_and_what_lies_beyond_grows_with_the_size() -> None:
    """Measured bandwidth still grows a little from 2^34 to 2^36 bytes, so a cell is less than twice as long as the one before it; twice
    2^36 bytes take twice as long, start included."""
    price = load_calibration(cluster()).collective_s
    group = of(4, stride=1, on=cluster())
    below, middle, last, beyond = (
        price("all_reduce", 2.0**power, placement=group).seconds[0] for power in (35, 35.5, 36, 37)
    )
    assert middle == pytest.approx((below * last) ** 0.5)
    assert 1.999 < last / below < 2.0 - 1e-4
    assert beyond == pytest.approx(2 * last)


def test_bus_factors_are_nccl_tests() -> None:
    assert bus_factor("all_reduce", np.array([8.0]))[0] == pytest.approx(1.75)
    assert bus_factor("all_gather", np.array([8.0]))[0] == pytest.approx(0.875)
    assert bus_factor("all_to_all", np.array([4.0]))[0] == pytest.approx(0.75)
    assert bus_factor("send_recv", np.array([2.0]))[0] == 1.0
    assert bus_factor("all_reduce", np.array([1.0]))[0] == 0.0


def test_other_group_sizes_take_the_bus_factor_of_the_nearest() -> None:
    """6 ranks at 512 MiB from 8: the part above the start goes with (5/6)/(7/8) = 0.952."""
    links = load_calibration(cluster()).links
    table = links.domain["all_gather"]
    start, whole = (float(table.seconds(np.array([8.0]), np.array([x]))[0][0]) for x in (512.0, 2.0**29))
    start_6 = float(table.seconds(np.array([6.0]), np.array([512.0]))[0][0])
    seconds, tier = table.seconds(np.array([6.0]), np.array([2.0**29]))
    assert seconds[0] == pytest.approx(start_6 + (whole - start) * (5 / 6) / (7 / 8), rel=1e-6)
    assert tier[0] == Tier.EXTRAPOLATED


def test_all_reduce_of_a_strided_group_shares_the_nics() -> None:
    """16 ranks, one a node (stride 8), 1 GiB: one GPU's NIC share is 50e9*0.8 = 40e9 bytes/s.

    2*15/16 * 2^30 / 40e9 = 50.33 ms. A tree under Simple: 8.4 us and 2*log2(16) hops of NCCL's 14 us, each 2*(4 - 2.7) us
    longer here; LL128 would carry 0.92 of the bandwidth.
    """
    got = collective_s(
        "all_reduce", 2.0**30, placement=of(16, stride=8, on=cluster()), links=load_calibration(cluster()).links
    )
    assert got.seconds[0] == pytest.approx(1.875 * 2**30 / 40e9 + 8.4e-6 + 8 * 16.6e-6)
    assert got.tier[0] == Tier.NOMINAL


def test_all_gather_of_whole_nodes_pays_every_hop_of_the_ring() -> None:
    """128 ranks on 16 nodes, 8 KiB under LL: 6.6 us, 128-16 steps inside nodes that the host posts in 1 us, 15 of 4 us.

    LL carries at most 20.4 GB/s between more than two nodes (NCCL's llMaxBws).
    """
    on = nominal()
    got = collective_s("all_gather", 8192.0, placement=of(128, stride=1, on=on), links=build_links(on, None))
    assert got.seconds[0] == pytest.approx(6.6e-6 + 112e-6 + 60e-6 + 8192 * (127 / 128) / 20.4e9, rel=1e-6)


def test_all_to_all_sends_over_the_network_only_what_leaves_the_node() -> None:
    """32 ranks, 8 a node, 1 GiB each: 24/32 of the buffer over 40e9 bytes/s, then 7+4 us and 24 peers of 1 us."""
    on = nominal()
    got = collective_s("all_to_all", 2.0**30, placement=of(32, stride=1, on=on), links=build_links(on, None))
    assert got.seconds[0] == pytest.approx(0.75 * 2**30 / 40e9 + 11e-6 + 24e-6)


@pytest.mark.parametrize(
    ("stride", "nics", "bytes_per_s"),
    [
        (8, 8, 40e9),  # every GPU of the node sends at once: one NIC each
        (8, 4, 20e9),  # four NICs for eight senders
        (16, 8, 40e9),
    ],
)
def test_sends_between_stages_share_the_nics(stride: int, nics: int, bytes_per_s: float) -> None:
    on = cluster(network=replace(NETWORK, nics_per_node=nics))
    got = collective_s("send_recv", 1e9, placement=of(2, stride=stride, on=on), links=build_links(on, None))
    assert got.seconds[0] == pytest.approx(1e9 / bytes_per_s + 11e-6)


def test_a_lone_sender_has_one_nic_not_all() -> None:
    """Stages of 2 GPUs on nodes of 8: at a node's edge two senders share 8 NICs, but a flow uses one."""
    got = collective_s("send_recv", 1e9, placement=of(8, stride=2, on=cluster()), links=build_links(cluster(), None))
    assert got.seconds[0] == pytest.approx(1e9 / 40e9 + 11e-6)


def test_nvl72_groups_of_72_never_touch_the_network() -> None:
    on = cluster(num_nodes=18, gpus_per_node=4, nvlink_domain_gpus=72, interconnect="custom", intra_bytes_per_s=900e9)
    got = collective_s("all_gather", 2.0**30, placement=of(72, stride=1, on=on), links=build_links(on, None))
    # Simple: 8.4 us, 71 hops of 3.4 us, 71/72 GiB at 0.75*900 GB/s
    assert got.seconds[0] == pytest.approx(8.4e-6 + 71 * 3.4e-6 + (71 / 72) * 2**30 / 675e9)


def test_pairs_fall_back_to_pcie_beyond_the_bridge() -> None:
    """8 GPUs in NVLink pairs: two ranks use the bridge, four ranks PCIe at 0.63 of 63 GB/s."""
    on = cluster(num_nodes=1, nvlink_domain_gpus=2, interconnect="nvlink-pairs", intra_bytes_per_s=300e9)
    links = build_links(on, None)
    pair = collective_s("all_gather", 2.0**28, placement=of(2, stride=1, on=on), links=links)
    four = collective_s("all_gather", 2.0**28, placement=of(4, stride=1, on=on), links=links)
    assert pair.seconds[0] == pytest.approx(8.4e-6 + 3.4e-6 + 2**27 / 225e9)
    assert four.seconds[0] == pytest.approx(8.4e-6 + 3 * 5.7e-6 + 0.75 * 2**28 / (63e9 * 0.63))


def test_the_odd_l40s_server_prices_no_other() -> None:
    """Its public curves: 512 MiB all-reduced by 8 cards in 649 ms, 1.45 of 31.5 GB/s. Over both sockets 0.63 * 0.73 do."""
    l40s = Gpu("L40S-48GB", "ada", 48e9, {"bf16": 362.05e12}, 864e9, 0.0, 31.5e9, 142, 350.0, reference="L40S-48GB")
    on = cluster(gpu=l40s, num_nodes=1, nvlink_domain_gpus=1, interconnect="pcie", intra_bytes_per_s=31.5e9)
    on = replace(on, intra_latency_s=4e-6)
    got = load_calibration(on).collective_s("all_reduce", 2.0**29, placement=of(8, stride=1, on=on))
    # a ring under Simple, 8.4 us and 14 hops of 5.7 us; the way over the socket slows the whole call
    assert got.seconds[0] == pytest.approx((8.4e-6 + 14 * 5.7e-6 + 1.75 * 2**29 / (31.5e9 * 0.63)) / 0.73)
    assert got.tier[0] == Tier.NOMINAL


def test_a_narrower_nvlink_slows_the_bytes_alone() -> None:
    """A100's link is 300 GB/s, A800's 200: twice the bytes lose twice as much, and of very many nearly half is added."""
    a100 = Gpu("A100-SXM-80GB", "ampere", 85e9, {"bf16": 312e12}, 2e12, 300e9, 31e9, 108, 400.0, "A100-SXM-80GB")
    a800 = replace(a100, name="A800-SXM-80GB", link_bytes_per_s=200e9)
    both = [cluster(gpu=a100, intra_bytes_per_s=300e9), cluster(gpu=a800, intra_bytes_per_s=200e9)]
    calibrations = [load_calibration(on) for on in both]
    group = of(8, stride=1, on=both[0])

    def times(size: float) -> tuple[float, float]:
        wide, narrow = (float(c.collective_s("all_gather", size, placement=group).seconds[0]) for c in calibrations)
        return wide, narrow - wide

    (_, lost_28), (_, lost_29), (whole, lost) = times(2.0**28), times(2.0**29), times(2.0**36)
    assert lost_29 == pytest.approx(2 * lost_28)
    assert lost / whole == pytest.approx(0.5, rel=1e-3)
    tiers = [c.collective_s("all_gather", 2.0**29, placement=group).tier[0] for c in calibrations]
    assert tiers == [Tier.INTERPOLATED, Tier.EXTRAPOLATED]


def test_one_rank_and_empty_calls_cost_nothing() -> None:
    price = load_calibration(cluster()).collective_s
    assert price("all_reduce", 1e9, placement=of(1, stride=8, on=cluster())).seconds[0] == 0.0
    assert price("all_gather", 0.0, placement=of(64, stride=1, on=cluster())).seconds[0] == 0.0


def test_send_recv_of_two_ranks_is_half_of_their_all_to_all() -> None:
    """Two ranks exchanging S in all send S/2 each: 256 MiB sent costs what a 512 MiB all-to-all does."""
    price = load_calibration(cluster()).collective_s
    pair = of(2, stride=1, on=cluster())
    sent = price("send_recv", 2.0**28, placement=pair).seconds[0]
    assert sent == pytest.approx(price("all_to_all", 2.0**29, placement=pair).seconds[0])


def spread(nodes_per_leaf: int | None, oversubscription: float, *, rail_optimized: bool = True) -> Cluster:
    """16 nodes of 8 whose leaves hold so many nodes and whose uplinks carry 1/oversubscription of them."""
    return cluster(
        network=replace(
            NETWORK, nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, rail_optimized=rail_optimized
        )
    )


@pytest.mark.parametrize(
    ("size", "stride", "on", "factor"),
    [
        (4, 8, spread(4, 2.0), 1.0),  # four neighbouring nodes: one leaf, no uplink
        (16, 8, spread(4, 2.0), 1.0),  # 4 leaves of 4 nodes: 4 of 16 ring edges leave, 2 x 4/16 < 1
        (16, 8, spread(4, 8.0), 2.0),  # 8 x 4/16
        (4, 32, spread(4, 2.0), 2.0),  # a node in each leaf: every edge leaves
        (16, 8, spread(None, 2.0), 2.0),  # leaves unknown: everything is taken to leave
        (16, 8, spread(4, 1.0), 1.0),
        (2, 12, spread(16, 2.0), 2.0),  # ranks 0 and 12 have other places in their nodes, so other rails
        (2, 12, spread(16, 2.0, rail_optimized=False), 1.0),
    ],
)
def test_only_what_leaves_its_leaf_pays_oversubscription(size: int, stride: int, on: Cluster, factor: float) -> None:
    """An all-gather of a GiB, one rank a node, at 40e9 bytes/s a GPU: (n-1)/n S / 40e9, times the factor."""
    got = collective_s("all_gather", 2.0**30, placement=of(size, stride=stride, on=on), links=build_links(on, None))
    latency = 8.4e-6 + (size - 1) * 16.6e-6  # one rank a node: n - 1 network hops of 14 + 2 * (4 - 2.7) us under Simple
    assert got.seconds[0] == pytest.approx(factor * (size - 1) / size * 2**30 / 40e9 + latency, rel=1e-6)


def test_all_to_all_pays_for_what_goes_to_other_leaves() -> None:
    """32 ranks on 4 nodes, 2 nodes a leaf: 24 of 32 parts leave the node, 16 the leaf; 4 x 16/24 = 2.667."""
    on = replace(nominal(), network=replace(NETWORK, nodes_per_leaf=2, oversubscription=4.0))
    got = collective_s("all_to_all", 2.0**30, placement=of(32, stride=1, on=on), links=build_links(on, None))
    assert got.seconds[0] == pytest.approx(0.75 * 2**30 / 40e9 * 4 * 16 / 24 + 11e-6 + 24e-6)


@pytest.mark.parametrize(("stride", "factor"), [(8, 1.0), (16, 2.0), (32, 4.0), (64, 4.0)])
def test_stages_near_each_other_seldom_leave_their_leaf(stride: int, factor: float) -> None:
    """32 GPUs a leaf, uplinks of a quarter: stride/32 of a leaf's ranks send out of it."""
    on = spread(4, 4.0)
    pair = of(128 // stride, stride=stride, on=on)
    got = collective_s("send_recv", 1e9, placement=pair, links=build_links(on, None))
    assert got.seconds[0] == pytest.approx(factor * 1e9 / 40e9 + 11e-6)


@pytest.mark.parametrize(
    ("size", "stride", "bytes_per_s"),
    [
        (2, 1, 63e9 * 0.7),  # GPUs 0 and 1: one switch
        (2, 2, 63e9 * 0.63),  # 0 and 2: two switches of a socket
        (4, 1, 63e9 * 0.63),
        (2, 4, 63e9 * 0.63 * 0.73),  # 0 and 4: both sockets
        (8, 1, 63e9 * 0.63 * 0.73),
    ],
)
def test_pcie_groups_pay_for_the_highest_thing_they_cross(size: int, stride: int, bytes_per_s: float) -> None:
    """Switches of 2, sockets of 4, no NVLink: the slope between 256 MiB and 512 MiB is bus / bandwidth."""
    on = cluster(num_nodes=1, nvlink_domain_gpus=1, interconnect="pcie", intra_bytes_per_s=63e9)
    group, links = of(size, stride=stride, on=on), build_links(on, None)
    small, large = (
        collective_s("all_gather", 2.0**exponent, placement=group, links=links).seconds[0] for exponent in (28, 29)
    )
    assert 2**28 * (size - 1) / size / (large - small) == pytest.approx(bytes_per_s, rel=1e-6)
