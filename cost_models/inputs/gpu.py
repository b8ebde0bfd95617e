"""The GPU as a user writes it: a preset's name, or an object that states its own peaks, memory and links.

What an object leaves out is borrowed from the preset of its family, which is found by name, and listed in `assumed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from cost_models import presets
from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import child
from cost_models.inputs.fields import STRICT, Count, Name, Quantity, QuantityOrZero
from cost_models.specs.cluster import Generation, Gpu
from cost_models.units import GB, GIB, TERA

FAMILIES: tuple[tuple[str, str], ...] = (
    ("GB300", "GB200-186GB"), ("GB200", "GB200-186GB"), ("B300", "B200-SXM-180GB"), ("B200", "B200-SXM-180GB"),
    ("B100", "B200-SXM-180GB"), ("GH200", "GH200-96GB"), ("H200", "H200-SXM-141GB"), ("H20", "H20-SXM-96GB"),
    ("H800", "H800-SXM-80GB"), ("H100", "H100-SXM-80GB"), ("A800", "A800-SXM-80GB"), ("A100", "A100-SXM-80GB"),
    ("V100", "V100-SXM-32GB"), ("L40", "L40S-48GB"), ("RTX40", "RTX4090-24GB"), ("RTX 40", "RTX4090-24GB"),
    ("4090", "RTX4090-24GB"), ("MI250", "MI250X-128GB"), ("MI300", "MI300X-192GB"), ("MI325", "MI300X-192GB"),
    ("MI350", "MI355X-288GB"), ("MI355", "MI355X-288GB"),
)  # fmt: skip
"""Which preset lends a custom GPU the facts that it does not state, by a part of its name; the first match counts."""
ULTRA: Mapping[str, Mapping[str, float]] = {
    "GB300": {"power_limit_w": 1400.0, "num_sms": 160}, "B300": {"power_limit_w": 1100.0, "num_sms": 160},
}  # fmt: skip
"""What Blackwell Ultra has otherwise than the preset that lends to it, by the first matching part of a name.

Source: verda.com/blog/gb300-nvl72-architecture (data sheets side by side: 1.4, 1.2, 1.1 and 1.0 kW for GB300, GB200, B300 and B200);
NVIDIA, "Inside NVIDIA Blackwell Ultra" (160 multiprocessors).
"""
CARDS: tuple[tuple[str, str], ...] = (("H100", "H100-PCIe-80GB"), ("A100", "A100-PCIe-80GB"))
"""The same for PCIe cards, recognized by their name: their NVLink bridges join pairs."""
_CARD = re.compile(r"PCI-?E|\bNVL\b")
_NO_PEERS = re.compile(r"GEFORCE|\b(RTX|GTX)[ -]?\d0[5-9]0")
"""GeForce cards, whose driver refuses peer access (tinygrad/open-gpu-kernel-modules, README: a driver of its own allows it). RTX A6000
and RTX 6000 have it."""
_UNKNOWN, _UNKNOWN_CARD = "A100-SXM-80GB", "L40S-48GB"
"""Preset that lends to GPUs of no known family, and the one that lends their server where they have no NVLink. One preset serves
all speeds: with the nearest in speed, a faster GPU would borrow other links and another efficiency and could come out slower."""


class PeakInput(Documented):
    """Dense peak rates in 1e12 operations per second."""

    model_config = STRICT

    bf16: Quantity | None = None
    """Peak of bf16 products without sparsity, 1e12 operations per second."""
    fp16: Quantity | None = None
    """Peak of fp16 products without sparsity, 1e12 operations per second."""
    fp8: Quantity | None = None
    """Peak of fp8 products without sparsity, 1e12 operations per second."""
    nvfp4: Quantity | None = None
    """Peak of nvfp4 products without sparsity, 1e12 operations per second."""
    fp32: Quantity | None = None
    """Peak of fp32 products without sparsity, 1e12 operations per second."""


class GpuInput(Documented):
    """A GPU that is not among the presets."""

    model_config = STRICT

    name: Name
    """What the GPU is called. A known family in it, such as H100, lends the facts that are missing here."""
    memory_gib: Annotated[Quantity, Field(le=1e6)]
    """Memory that the driver offers to one process, GiB: about 79.1 on an 80 GB H100."""
    peak_tflops: PeakInput
    """Dense peak rates by precision."""
    memory_bandwidth_gb_per_s: Annotated[Quantity, Field(le=1e9)]
    """Bandwidth of the GPU's memory, GB/s."""
    nvlink_gb_per_s: Annotated[QuantityOrZero, Field(le=1e9)] = 0.0
    """Bandwidth of all NVLink or xGMI links of the GPU together in one direction, GB/s; 0 where it has none."""
    pcie_gb_per_s: Annotated[Quantity, Field(le=1e9)] | None = None
    """Bandwidth of the PCIe link in one direction, GB/s."""
    generation: Generation | None = None
    """Architecture, which decides what kernels there are."""
    num_sms: Annotated[Count, Field(le=100_000)] | None = None
    """Number of multiprocessors."""
    power_limit_w: Annotated[Quantity, Field(le=1e6)] | None = None
    """Power limit, in watts."""
    reference: Name | None = None
    """Preset whose measured curves are borrowed."""


def filled(assumed: dict[str, object], name: str, value: Any) -> Any:
    """The value, which is noted as assumed."""
    assumed[name] = value
    return value


def resolve_gpu(
    given: str | GpuInput | None, assumed: dict[str, object], pointer: str
) -> tuple[Gpu, Mapping[str, Any], tuple[str, ...]]:
    """The GPU, the nominal facts of its reference server, and warnings.

    Raises:
        InvalidInputError: the preset is unknown, or a custom GPU states neither bf16 nor fp16.
    """
    assert given is not None
    if isinstance(given, str):
        preset = presets.load("gpus", given, pointer=pointer)
        warning = preset.facts.get("warning")
        return _preset_gpu(preset), preset.facts["nominal"], (warning,) if warning else ()
    peaks = given.peak_tflops.model_dump(exclude_none=True)
    if "bf16" not in peaks and "fp16" not in peaks:
        message = "peak_tflops has neither bf16 nor fp16"
        raise InvalidInputError([Problem(child(pointer, "peak_tflops"), message, "Add the dense bf16 peak.")])
    # Both types have the same dense peak on every preset that has both.
    if "fp16" not in peaks:
        peaks["fp16"] = filled(assumed, "gpu.peak_tflops.fp16", peaks["bf16"])
    if given.reference is not None:
        presets.load("gpus", given.reference, pointer=child(pointer, "reference"))
    name = given.name.upper()
    families = (CARDS + FAMILIES) if _CARD.search(name) else FAMILIES
    family = next((preset for part, preset in families if part in name), None)
    lender = presets.load("gpus", family or _UNKNOWN)
    gpu = _custom_gpu(given, peaks, lender, assumed, generation=lender.spec["generation"] if family else "unknown")
    # Without NVLink it is a card, and its server has no switch either.
    server = lender if family or given.nvlink_gb_per_s > 0 else presets.load("gpus", _UNKNOWN_CARD)
    return gpu, _custom_nominal(given, server), () if family else ("gpu-family-unknown",)


def _custom_gpu(
    given: GpuInput,
    peaks: dict[str, float],
    lender: presets.Preset,
    assumed: dict[str, object],
    *,
    generation: Generation,
) -> Gpu:
    ultra: Mapping[str, float] = next((facts for part, facts in ULTRA.items() if part in given.name.upper()), {})
    spec = {**lender.spec, **ultra}
    power = given.power_limit_w
    # Names such as "H100 500W" state the power limit, which decides the clock that a GPU sustains.
    if power is None and (stated := re.search(r"(?<!\d)(\d{2,4})W\b", given.name)):
        power = filled(assumed, "gpu.power_limit_w", float(stated.group(1)))
    if power is None and generation != "unknown":
        power = filled(assumed, "gpu.power_limit_w", float(spec["power_limit_w"]))
    return Gpu(
        name=given.name,
        generation=given.generation or filled(assumed, "gpu.generation", generation),
        memory_bytes=given.memory_gib * GIB,
        peak_flops_per_s={name: value * TERA for name, value in peaks.items()},
        memory_bytes_per_s=given.memory_bandwidth_gb_per_s * GB,
        link_bytes_per_s=given.nvlink_gb_per_s * GB,
        pcie_bytes_per_s=GB * (given.pcie_gb_per_s or filled(assumed, "gpu.pcie_gb_per_s", spec["pcie_gb_per_s"])),
        num_sms=given.num_sms or filled(assumed, "gpu.num_sms", spec["num_sms"]),
        power_limit_w=power,
        reference=given.reference or filled(assumed, "gpu.reference", spec["reference"]),
        peer_access=_has_peer_access(given.name),
    )


def _has_peer_access(name: str) -> bool:
    """Whether cards of this name reach each other's memory over PCIe."""
    return not _NO_PEERS.search(name.upper())


def _custom_nominal(given: GpuInput, lender: presets.Preset) -> Mapping[str, Any]:
    nominal = dict(lender.facts["nominal"])
    if given.nvlink_gb_per_s == 0:
        nominal.update(intra_node="pcie")
        nominal.pop("nvlink_domain_gpus", None)
    elif nominal["intra_node"] == "pcie":
        nominal["intra_node"] = "nvlink-pairs"
    return nominal


def _preset_gpu(preset: presets.Preset) -> Gpu:
    spec = preset.spec
    return Gpu(
        name=preset.name,
        generation=spec["generation"],
        memory_bytes=spec["memory_gib"] * GIB,
        peak_flops_per_s={name: value * TERA for name, value in spec["peak_tflops"].items()},
        memory_bytes_per_s=spec["memory_bandwidth_gb_per_s"] * GB,
        link_bytes_per_s=spec["nvlink_gb_per_s"] * GB,
        pcie_bytes_per_s=spec["pcie_gb_per_s"] * GB,
        num_sms=spec["num_sms"],
        power_limit_w=float(spec["power_limit_w"]),
        reference=spec["reference"],
        peer_access=_has_peer_access(preset.name),
    )
