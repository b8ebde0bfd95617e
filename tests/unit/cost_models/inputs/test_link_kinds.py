"""Which part of a GPU's links a group uses: meshes, bridged pairs, switches, PCIe, and links stated by their bandwidth."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.errors import InvalidInputError
from cost_models.hardware import load_calibration
from cost_models.hardware.placement import place
from cost_models.inputs.cluster import resolve_cluster

CARD = {
    "name": "card", "memory_gib": 48, "peak_tflops": {"bf16": 320}, "memory_bandwidth_gb_per_s": 1792
}  # fmt: skip
GIB = 2.0**30


def seconds(document: dict, op: str, size: float, ranks: int, stride: int = 1) -> float:
    cluster = resolve_cluster({"num_nodes": 1, **document})
    group = place(ranks, stride=stride, cluster=cluster)
    return float(load_calibration(cluster).collective_s(op, size, placement=group).seconds[0])


def bus_gb_per_s(document: dict, ranks: int) -> float:
    """Slope of an all-reduce between 1 and 2 GiB, as nccl-tests' bus bandwidth."""
    taken = seconds(document, "all_reduce", 2 * GIB, ranks) - seconds(document, "all_reduce", GIB, ranks)
    return 2 * (ranks - 1) / ranks * GIB / taken / 1e9


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 3), (5, 4), (8, 7)])
def test_a_group_in_a_full_mesh_uses_a_link_for_each_other_member(ranks, links):
    """MI300X: seven links of 64 GB/s, 0.75 of which a collective reaches."""
    assert bus_gb_per_s({"preset": "mi300x-8"}, ranks) == pytest.approx(links * 64 * 0.75, rel=1e-3)


def test_a_message_in_a_mesh_takes_one_link():
    slope = seconds({"preset": "mi300x-8"}, "send_recv", 2 * GIB, 8) - seconds(
        {"preset": "mi300x-8"}, "send_recv", GIB, 8
    )
    assert GIB / slope / 1e9 == pytest.approx(64 * 0.75)


def test_half_of_a_board_still_has_seven_links():
    """Four of the eight MI300X of a board reach each other over three of them."""
    document = {"gpu": "MI300X-192GB", "gpus_per_node": 4}
    assert bus_gb_per_s(document, 4) == pytest.approx(3 * 64 * 0.75, rel=1e-3)


def test_four_a100_without_a_switch_are_a_mesh():
    """300 GB/s are four links of 25 GB/s to each of three others, so that a pair has 100."""
    document = {"gpu": "A100-SXM-80GB", "gpus_per_node": 4, "intra_node": "nvlink-mesh"}
    switched = {**document, "intra_node": "nvswitch"}
    assert bus_gb_per_s(document, 4) == pytest.approx(bus_gb_per_s(switched, 4))
    assert bus_gb_per_s(document, 2) == pytest.approx(bus_gb_per_s(switched, 2) / 3, rel=0.02)


def test_a_pair_over_a_bridge_is_not_the_whole_box():
    """Two A100 cards over their bridge; four and eight over PCIe 4 at 0.70 of its lanes in a switch, 0.63 * 0.73 across."""
    pairs = {"preset": "a100-pcie-pairs-8"}
    assert bus_gb_per_s(pairs, 2) > 150
    assert bus_gb_per_s(pairs, 4) == pytest.approx(31.5 * 0.70, rel=1e-3)
    assert bus_gb_per_s(pairs, 8) == pytest.approx(31.5 * 0.63 * 0.73, rel=1e-3)


@pytest.mark.parametrize("name", ["A100-PCIe-40GB", "A100 80GB PCIe", "H100 PCIe", "H100 NVL", "L40-NVLINK"])
def test_a_card_with_a_bridge_joins_pairs(name):
    gpu = {**CARD, "name": name, "nvlink_gb_per_s": 300}
    cluster = resolve_cluster({"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8})
    assert (cluster.interconnect, cluster.nvlink_domain_gpus) == ("nvlink-pairs", 2)


@pytest.mark.parametrize(
    "gpu", ["A100-PCIe-80GB", "H100-PCIe-80GB", {**CARD, "name": "H100 NVL", "nvlink_gb_per_s": 300}]
)
@pytest.mark.parametrize("link", ["nvswitch", "nvlink-mesh"])
def test_a_switch_between_bridged_cards_is_refused(gpu, link):
    with pytest.raises(InvalidInputError) as caught:
        resolve_cluster({"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8, "intra_node": link})
    assert caught.value.problems[0].pointer == "/cluster/intra_node"
    assert "joins two cards" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("preset", "gb_per_s"),
    [
        ("dgx-h100", 450), ("dgx-a100-80gb", 300), ("dgx-b200", 900), ("mi300x-8", 448), ("l40s-pcie-8", 31.5),
        ("rtx4090-pcie-8", 31.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_a_stated_bandwidth_costs_what_the_preset_of_that_bandwidth_does(preset, gb_per_s, op):
    named, stated = {"preset": preset}, {"preset": preset, "intra_node": {"bandwidth_gb_per_s": gb_per_s}}
    for size in (1e3, 1e6, 1e8, 1e10):
        for ranks, stride in ((2, 1), (2, 4), (4, 1), (8, 1)):
            one, other = (seconds(d, op, size, ranks, stride) for d in (named, stated))
            assert other == pytest.approx(one, rel=1e-9)


def test_links_do_not_depend_on_the_peak_of_the_multiply_units():
    """A card of 148 to 1,000 TFLOP/s on the same PCIe; with the nearest preset in speed, 362 took 26 times as long."""
    document = {"gpus_per_node": 8, "intra_node": "pcie"}
    times = [
        seconds({**document, "gpu": {**CARD, "peak_tflops": {"bf16": peak}}}, "all_gather", GIB, 8)
        for peak in (148, 165, 200, 320, 362, 1000)
    ]
    assert max(times) == min(times)
    # both sockets: 0.63 * 0.73 of PCIe 4's 31.5 GB/s
    assert times[0] == pytest.approx(0.875 * GIB / (31.5e9 * 0.63 * 0.73), rel=0.01)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_a_faster_stated_link_is_never_slower(op):
    """From PCIe's rates past 64 GB/s, where a custom link on a card is taken for a switch."""
    base = {"gpu": CARD, "gpus_per_node": 8}
    for size in (1e4, 1e6, 1e8):
        for ranks, stride in ((2, 1), (2, 4), (4, 1), (8, 1)):
            rates = (5, 20, 31.5, 50, 63, 64, 65, 80, 150, 300, 450, 900)
            times = [
                seconds({**base, "intra_node": {"bandwidth_gb_per_s": rate}}, op, size, ranks, stride) for rate in rates
            ]
            assert np.all(np.diff(times) <= 1e-12 * np.array(times[:-1])), (size, ranks, stride, times)
