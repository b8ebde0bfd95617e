"""The kind of link that pairs reveal, slow pairs and ranks by name, presets by the driver's names, speed variables."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from cost_models import presets
from cost_models.calibration import PairSample
from cost_models.units import GIB
from profiler.machine import topology
from profiler.machine.fingerprint import device_of, nvls_of, preset_of, speed_variables
from profiler.machine.topology import interconnect_of, slow_pairs, slow_ranks
from profiler.ranks import Ranks
from profiler.rig import Rig
from profiler.scale import gpu_scale
from profiler.timing import Stopwatch, Timing, summary

NVLINK = 450e9


def pairs(rate: float, *, link: str, ranks: int = 4) -> list[PairSample]:
    return [PairSample(first=i, second=j, bytes_per_s=rate, link=link) for i, j in combinations(range(ranks), 2)]


@pytest.mark.parametrize(
    ("measured", "kind"),
    [
        (pairs(290e9, link="nvlink"), "nvswitch"),  # 0.64 of 450 GB/s between one pair: all links
        (pairs(130e9, link="nvlink"), "nvlink-mesh"),  # 0.29: a third of the links, less overhead
        (pairs(25e9, link="pcie"), "pcie"),
        (pairs(25e9, link=""), "pcie"),  # no driver library: the measurement decides
        (pairs(290e9, link=""), "nvswitch"),
        ([], "pcie"),
    ],
)
def test_kind_of_link(measured: list[PairSample], kind: str) -> None:
    assert interconnect_of(measured, link_bytes_per_s=NVLINK, ranks_per_node=4) == kind


@pytest.mark.parametrize(
    ("measured", "link_bytes_per_s", "kind"),
    [
        (pairs(180e9, link="nvlink"), 400e9, "nvswitch"),  # exactly 0.45 of the data sheet
        (pairs(179e9, link="nvlink"), 400e9, "nvlink-mesh"),
        (pairs(180e9, link=""), 400e9, "nvswitch"),
        (pairs(179e9, link=""), 400e9, "pcie"),
        (pairs(290e9, link="pcie"), 400e9, "pcie"),  # the driver is believed
        (pairs(290e9, link=""), 0.0, "pcie"),  # the data sheet has no fast link
        ([], 0.0, "pcie"),
        (pairs(25e9, link="network"), 400e9, "pcie"),
        (pairs(9e9, link="loopback"), 400e9, "pcie"),
        ([], 400e9, "pcie"),  # several GPUs of which no pair was measured
    ],
)
def test_a_switch_gives_a_pair_almost_half_of_all_links_and_more(
    measured: list[PairSample], link_bytes_per_s: float, kind: str
) -> None:
    assert interconnect_of(measured, link_bytes_per_s=link_bytes_per_s, ranks_per_node=4) == kind


def test_the_fastest_undescribed_pair_and_the_middle_nvlink_pair_decide() -> None:
    """300, 100 and 100 GB/s of 400: one quick pair shows a switch where the driver says nothing, two slow ones a mesh of NVLink."""

    def mixed(link: str) -> list[PairSample]:
        quick, *others = pairs(100e9, link=link, ranks=3)
        return [quick.model_copy(update={"bytes_per_s": 300e9}), *others]

    assert interconnect_of(mixed(""), link_bytes_per_s=400e9, ranks_per_node=3) == "nvswitch"
    assert interconnect_of(mixed("nvlink"), link_bytes_per_s=400e9, ranks_per_node=3) == "nvlink-mesh"


def test_a_gpu_alone_has_a_switch_only_if_its_data_sheet_has_nvlink() -> None:
    assert interconnect_of([], link_bytes_per_s=0.0, ranks_per_node=1) == "pcie"


def test_the_pair_over_a_link_without_a_name_is_told_of_its_link() -> None:
    measured = [*pairs(100e9, link="", ranks=3), PairSample(first=0, second=3, bytes_per_s=1e9, link="")]
    (told,) = slow_pairs(measured)
    assert told == "slow pair: ranks 0 and 3 reach 1.0 GB/s over their link, where the median pair reaches 100.0"
    assert (
        slow_pairs([*pairs(9e9, link="loopback"), PairSample(first=4, second=5, bytes_per_s=1e9, link="loopback")])
        == []
    )


def test_bridges_between_pairs() -> None:
    """0-1 and 2-3 over NVLink, the rest over PCIe."""
    bridged = [
        p.model_copy(update={"link": "nvlink", "bytes_per_s": 200e9}) if (p.first, p.second) in {(0, 1), (2, 3)} else p
        for p in pairs(20e9, link="pcie")
    ]
    assert interconnect_of(bridged, link_bytes_per_s=NVLINK, ranks_per_node=4) == "nvlink-pairs"


@pytest.mark.parametrize("link_bytes_per_s", [1e-3, 0.5, 1.0, 450e9])
def test_any_rate_of_the_data_sheet_is_a_link(link_bytes_per_s: float) -> None:
    """One GPU to a node, of which other nodes are reached over the network."""
    for measured in ([], pairs(25e9, link="network", ranks=2)):
        assert interconnect_of(measured, link_bytes_per_s=link_bytes_per_s, ranks_per_node=1) == "nvswitch"


def test_a_single_gpu_keeps_its_data_sheets_link() -> None:
    assert interconnect_of([], link_bytes_per_s=NVLINK, ranks_per_node=1) == "nvswitch"


def test_a_slow_pair_is_named() -> None:
    """One of six pairs at 100 of 290 GB/s."""
    measured = pairs(290e9, link="nvlink")
    measured[3] = measured[3].model_copy(update={"bytes_per_s": 100e9})
    assert slow_pairs(measured) == [
        "slow pair: ranks 1 and 2 reach 100.0 GB/s over nvlink, where the median pair reaches 290.0",
    ]


def test_a_slow_rank_is_named() -> None:
    assert slow_ranks({0: [1.0] * 6, 1: [1.12] * 6, 2: [1.5]}) == [
        "slow rank: rank 1 takes 1.12 times as long as the median rank for the same work",
    ]


def test_a_rank_that_was_disturbed_once_is_not_slow_and_its_median_is_what_is_told() -> None:
    """One measurement of 3.0 among even ones; another rank is at 1.04, 1.08, 1.10, 1.2 and 1.9 of the middle one: 1.10. Exactly
    1.05 is not yet slow, and four measurements are too few to say.
    """
    measured = {
        0: [1.0, 1.0, 3.0, 1.0, 1.0],
        1: [1.9, 1.04, 1.2, 1.10, 1.08],
        2: [1.05] * 5,
        3: [1.5] * 4,
    }
    assert slow_ranks(measured) == [
        "slow rank: rank 1 takes 1.10 times as long as the median rank for the same work",
    ]


def test_a_pair_at_its_limit_is_not_slow_and_kinds_of_links_are_not_compared() -> None:
    """80 % of the median is not named; PCIe beside NVLink is a tenth as fast and fine."""
    fast, slow = pairs(300e9, link="nvlink", ranks=3), pairs(25e9, link="pcie", ranks=3)
    at_limit = [fast[0].model_copy(update={"bytes_per_s": 240e9}), *fast[1:]]
    assert slow_pairs(at_limit + slow) == []
    below = [fast[0].model_copy(update={"bytes_per_s": 239e9}), *fast[1:]]
    assert slow_pairs(below + slow) == [
        "slow pair: ranks 0 and 1 reach 239.0 GB/s over nvlink, where the median pair reaches 300.0",
    ]


@pytest.mark.parametrize(
    ("reported", "gib", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", 79.1, "H100-PCIe-80GB"),
        ("NVIDIA H200", 139.8, "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-SXM-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.5, None),  # a slice is no H100
        ("NVIDIA GeForce GTX 1080", 8.0, None),
    ],
)
def test_presets_by_the_drivers_names(reported: str, gib: float, preset: str | None) -> None:
    assert preset_of(reported, gib * GIB) == preset


@pytest.mark.parametrize(("value", "nvls"), [(None, "unknown"), ("0", "off"), ("1", "on"), ("2", "unknown")])
def test_nvls_is_read_from_the_environment(value: str | None, nvls: str) -> None:
    assert nvls_of({} if value is None else {"NCCL_NVLS_ENABLE": value}) == nvls


def test_only_variables_that_change_speed_are_kept() -> None:
    environment = {
        "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "x", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_VERSION": "2",
        "HOME": "h", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }  # fmt: skip
    assert list(speed_variables(environment).items()) == [("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NCCL_ALGO", "Ring")]


def test_a_timing_is_the_median_with_half_its_interquartile_range() -> None:
    """1, 2, 3, 4, 100: median 3, quartiles 2 and 4, so (4 - 2) / 2 / 3."""
    timing = summary([1.0, 2.0, 3.0, 4.0, 100.0], calls=7)
    assert timing.time_s == 3.0
    assert timing.spread_fraction == pytest.approx(1.0 / 3.0)


@pytest.mark.parametrize(
    ("share", "preset"), [(0.881, "H100-SXM-80GB"), (0.879, None), (1.119, "H100-SXM-80GB"), (1.121, None)]
)
def test_memory_may_differ_by_twelve_percent(share: float, preset: str | None) -> None:
    memory_bytes = presets.load("gpus", "H100-SXM-80GB").spec["memory_gib"] * GIB
    assert preset_of("NVIDIA H100 80GB HBM3", share * memory_bytes) == preset


def test_a_presets_data_sheet_is_in_base_units() -> None:
    """NVIDIA's H100 SXM: 989.4 TFLOP/s, 3.35 TB/s, 900 GB/s of NVLink both ways, PCIe 5.0 x16, 700 W."""
    device, without = device_of("H100-SXM-80GB"), device_of("H100-SXM-80GB", on_fast_link=False)
    assert device.peak_flops_per_s["bf16"] == pytest.approx(989.4e12)
    assert device.memory_bytes_per_s == pytest.approx(3.35e12, rel=0.001)
    assert (device.link_bytes_per_s, device.num_sms, device.power_limit_w) == (450e9, 132, 700.0)
    assert 50e9 <= without.link_bytes_per_s <= 64e9
    assert device_of("L40S-48GB") == device_of("L40S-48GB", on_fast_link=False)  # it has no NVLink


def test_one_described_pair_is_enough_to_believe_the_driver() -> None:
    measured = [*pairs(290e9, link="", ranks=3), PairSample(first=0, second=3, bytes_per_s=290e9, link="pcie")]
    assert interconnect_of(measured, link_bytes_per_s=NVLINK, ranks_per_node=4) == "pcie"


# --- which pairs are measured -----------------------------------------------------------------------------------------


class HalfSecond(Rig):
    """A rig on which every pair takes half a second."""

    def joint(self, call: Any, **_how: Any) -> Timing:
        assert call is None  # this rank is in no pair
        return Timing(0.5, 0.0, 1, (0.5,))


@pytest.mark.parametrize(
    ("world", "local_world", "expected"),
    [
        (3, 3, [(0, 1), (0, 2), (1, 2)]),
        (4, 2, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        # Three nodes of four: 66 pairs are too many. Six are inside the first node, and each rank has its twin on the next.
        (12, 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), *((rank, rank + 4) for rank in range(8))]),
        # A hundred nodes of two: the pair inside the first, and rails until there are 128 pairs.
        (200, 2, [(0, 1), *((rank, rank + 2) for rank in range(127))]),
    ],
)
def test_which_pairs_are_measured(world: int, local_world: int, expected: list[tuple[int, int]]) -> None:
    """A rank that is in no pair stands by while each of them is timed."""
    device = SimpleNamespace(type="cuda")
    place = Ranks(world, world, 0, local_world, "torchrun")
    rig = HalfSecond(None, device, place, gpu_scale(budget_s=300.0), Stopwatch(None, device))
    (task,) = topology.tasks(rig, {expected[-1]: "network"})
    found = task.run(rig)["pairs"]
    assert [(pair["first"], pair["second"]) for pair in found] == expected
    assert [pair["link"] for pair in found] == [""] * (len(expected) - 1) + ["network"]
    assert {pair["bytes_per_s"] for pair in found} == {float(f"{2 * rig.scale.pair_bytes:.4g}")}
