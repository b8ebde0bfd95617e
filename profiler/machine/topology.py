"""How the devices are linked: what the driver says, and then what every pair of ranks reaches when it is measured.

A pair or a rank that falls behind others of its kind is named, because one bad link slows every collective that crosses it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.calibration import PairSample
from cost_models.specs.cluster import Interconnect
from profiler.bench.collectives import collective_call
from profiler.machine.nvml import Nvml
from profiler.rig import Rig
from profiler.tasks import Findings, Task, rounded

# Equal pairs on one machine differ by a few percent; a link that has lost lanes or is retrained loses a quarter or half.
_SLOW_PAIR, _SLOW_RANK = 0.80, 1.05
"""A pair below this share of the median of its kind, and a rank above this multiple of the median rank, are named."""
# In a mesh of four a pair gets a third of the links at most, with a switch all of them; what is reached is some 80 % of the data
# sheet, so the bound lies between 0.27 and 0.8.
_SWITCHED = 0.45
"""Share of a device's link bandwidth that a pair reaches only with NVSwitch, which gives it all links of the device."""
# Enough for all 28 pairs of a node with eight GPUs. Each takes about a quarter of a second, so more would eat up the budget.
_MAX_PAIRS = 64


def tasks(rig: Rig, links: Mapping[tuple[int, int], str]) -> list[Task]:
    """One task for all pairs of ranks, one after the other. Beyond 64 pairs these are the first node's and those along a rail."""
    if rig.place.world < 2:
        return []
    pairs = _pairs(rig.place.world, rig.place.local_world)

    def run(rig: Rig) -> Findings:
        return {"pairs": [_pair(rig, pair, links.get(pair, "")) for pair in pairs]}

    each_s = rig.scale.effort.expected_s + 0.15
    return [Task("topology/pairs", 38, each_s * len(pairs), run, "pairs of ranks")]


def _pairs(world: int, local_world: int) -> list[tuple[int, int]]:
    everyone = list(combinations(range(world), 2))
    if len(everyone) <= _MAX_PAIRS:
        return everyone
    inside = [pair for pair in everyone if pair[1] < local_world]
    rails = [(rank, rank + local_world) for rank in range(world - local_world)]
    return (inside + rails)[: 2 * _MAX_PAIRS]


def _pair(rig: Rig, pair: tuple[int, int], link: str) -> dict[str, Any]:
    elements = int(rig.scale.pair_bytes) // (2 if rig.on_gpu else 4)
    call = None
    if rig.place.rank in pair:
        world = rig.torch.distributed.group.WORLD
        call = collective_call(rig, "send_recv", elements, ranks=pair, group=world)
    timing = rig.joint(call)
    bytes_per_s = rounded(rig.scale.pair_bytes / timing.time_s, 4)
    return {"first": pair[0], "second": pair[1], "bytes_per_s": bytes_per_s, "link": link}


# --- what the driver says ---------------------------------------------------------------------------------------------


def discover(rig: Rig, nvml: Nvml | None) -> dict[tuple[int, int], str]:
    """Kind of link between every two ranks: nvlink, pcie or network, or between processes on processors loopback."""
    place, torch = rig.place, rig.torch
    handles: list[Any] = []
    if nvml is not None and rig.on_gpu:
        visible = range(torch.cuda.device_count())
        handles = [nvml.handle_of(torch, torch.device("cuda", index)) for index in visible]

    def kind(first: int, second: int) -> str:
        if first // place.local_world != second // place.local_world:
            return "network"
        if not rig.on_gpu:
            return "loopback"
        a, b = first % place.local_world, second % place.local_world
        if nvml is None or max(a, b) >= len(handles):
            return ""
        return "nvlink" if nvml.has_nvlink(handles[a], handles[b]) else "pcie"

    return {(i, j): kind(i, j) for i, j in combinations(range(place.world), 2)}


def numa_node(pci_bus_id: str) -> int | None:
    """NUMA node of a PCI device as the kernel states it; None if it does not."""
    path = Path("/sys/bus/pci/devices") / pci_bus_id / "numa_node"
    try:
        node = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def network_cards() -> list[str]:
    """Names and rates of this node's InfiniBand or RoCE ports, or if it has none of its Ethernet cards."""
    cards = []
    for rate in sorted(Path("/sys/class/infiniband").glob("*/ports/*/rate")):
        try:
            cards.append(f"{rate.parts[4]} {rate.read_text(encoding='ascii').strip()}")
        except OSError:
            continue
    if cards:
        return cards
    for card in sorted(Path("/sys/class/net").glob("*")):
        try:
            speed = int((card / "speed").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if card.name != "lo" and speed > 0:
            cards.append(f"{card.name} {speed} Mbit/s")
    return cards


def host_name() -> str:
    """Name of this node."""
    return socket.gethostname()


# --- what the measurement says ----------------------------------------------------------------------------------------


def interconnect_of(pairs: Sequence[PairSample], *, link_bytes_per_s: float, ranks_per_node: int) -> Interconnect:
    """The kind of fast link inside a node: what the driver says, confirmed by what pairs reach."""
    inside = [p for p in pairs if p.link not in {"network", "loopback"}]
    fast = [p for p in inside if p.link == "nvlink"]
    if not inside:
        return "nvswitch" if ranks_per_node == 1 and link_bytes_per_s > 0 else "pcie"
    if not fast:
        told = any(p.link for p in inside)
        reached = max(p.bytes_per_s for p in inside)
        return "pcie" if told or reached < _SWITCHED * link_bytes_per_s or link_bytes_per_s <= 0 else "nvswitch"
    if len(fast) < len(inside):
        return "nvlink-pairs"
    reached = median(p.bytes_per_s for p in fast)
    return "nvswitch" if reached >= _SWITCHED * link_bytes_per_s else "nvlink-mesh"


def slow_pairs(pairs: Sequence[PairSample]) -> list[str]:
    """Sentences that name pairs far below others of the same kind of link."""
    sentences = []
    for link in sorted({p.link for p in pairs} - {"loopback"}):
        alike = [p for p in pairs if p.link == link]
        middle = median(p.bytes_per_s for p in alike)
        sentences += [
            f"slow pair: ranks {p.first} and {p.second} reach {p.bytes_per_s / 1e9:.1f} GB/s over {link or 'their link'}, "
            f"where the median pair reaches {middle / 1e9:.1f}"
            for p in alike
            if p.bytes_per_s < _SLOW_PAIR * middle
        ]
    return sentences


def slow_ranks(ratios: Mapping[int, Sequence[float]]) -> list[str]:
    """Sentences that name ranks slower than the median one at work that all ranks did alike."""
    return [
        f"slow rank: rank {rank} takes {median(values):.2f} times as long as the median rank for the same work"
        for rank, values in sorted(ratios.items())
        if len(values) >= 5 and median(values) > _SLOW_RANK
    ]
