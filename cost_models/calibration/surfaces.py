"""The efficiency surface of a cluster's GPU, assembled from its reference table and what a document measured.

Levels are carried over with care: a burst table is slowed to the sustained clock, a part with less power per operation by
its power, and a table borrowed from another generation keeps only its shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from cost_models.calibration.document import CalibrationDocument, GemmSample
from cost_models.constants import NOMINAL_GEMM_EFFICIENCY, SUSTAINED_CLOCK
from cost_models.gemm import (
    GemmSurface,
    Shape,
    bent_surface,
    median_ratio,
    median_shares,
    nominal_surface,
    table_surface,
)
from cost_models.specs.cluster import Gpu
from cost_models.terms import Tier

_HALF = frozenset({"bf16", "fp16"})


def power_ratio(gpu: Gpu, document: CalibrationDocument | None) -> float:
    """Sustained clock of a GPU with less power per peak operation than the measured one, over the latter's.

    The square root lies between the cube root of dynamic power's law and the linear one of a part held at its limit.
    """
    measured = document.device.power_limit_w if document is not None else None
    if document is None or measured is None or gpu.power_limit_w is None:
        return 1.0
    peak = gpu.peak_flops_per_s.get("bf16") or gpu.peak_flops_per_s["fp16"]
    return min(1.0, math.sqrt(gpu.power_limit_w / measured * document.device.half_flops_per_s / peak))


def surface_of(compute: CalibrationDocument | None, reference: CalibrationDocument | None, gpu: Gpu) -> GemmSurface:
    """The surface that prices a GPU's products: its table, bent by a measured document where there is one. [F-1]"""
    base = _reference_surface(reference, gpu)
    if compute is None or compute is reference:
        return base
    shares = median_shares(_rows(compute.gemm), peak_flops_per_s=compute.device.half_flops_per_s)
    if not shares:
        return base
    power = power_ratio(gpu, compute)
    own = compute.fingerprint.gpu == gpu.name
    bent = bent_surface(
        base,
        {shape: share * power for shape, share in shares.items()},
        sampled=Tier.MEASURED if own else Tier.EXTRAPOLATED,
        inside=Tier.INTERPOLATED if own else Tier.EXTRAPOLATED,
        outside=Tier.EXTRAPOLATED,
    )
    kinds, precisions = _ratios(bent, compute, power)
    return replace(bent, kind_ratio=kinds, precision_ratio=precisions)


def _ratios(
    surface: GemmSurface, compute: CalibrationDocument, power: float
) -> tuple[dict[str, float], dict[str, float]]:
    """How gradient layouts and other precisions compare with the forward bf16 surface, where they were measured."""
    by_kind: dict[str, float] = {}
    for layout in ("dgrad", "wgrad"):
        shares = median_shares(_rows(compute.gemm, layout), peak_flops_per_s=compute.device.half_flops_per_s)
        if shares:
            by_kind[layout] = median_ratio(surface, shares) * power
    by_precision: dict[str, float] = {}
    for precision in {s.dtype for s in compute.gemm} - _HALF & set(compute.device.peak_flops_per_s):
        peak = compute.device.peak_flops_per_s[precision]
        shares = median_shares(_rows(compute.gemm, dtypes=(precision,)), peak_flops_per_s=peak)
        if shares:
            by_precision[precision] = median_ratio(surface, shares) * power
    return by_kind, by_precision


def _rows(
    samples: tuple[GemmSample, ...], layout: str = "forward", *, dtypes: Collection[str] = _HALF
) -> list[tuple[Shape, float]]:
    chosen = [
        s for s in samples if s.dtype in dtypes and s.batch == 1 and s.layout == layout and s.output_dtype == "same"
    ]
    return [((float(s.m), float(s.n), float(s.k)), s.time_s) for s in chosen]


def _reference_surface(reference: CalibrationDocument | None, gpu: Gpu) -> GemmSurface:
    """The public table at a sustained clock; of another generation, its shape at that generation's nominal level."""
    level = NOMINAL_GEMM_EFFICIENCY[gpu.generation].value
    if reference is None or not reference.gemm:
        return nominal_surface(level * SUSTAINED_CLOCK[gpu.generation].value, num_sms=gpu.num_sms)
    scale = power_ratio(gpu, reference)
    if reference.load == "burst":
        scale *= SUSTAINED_CLOCK[gpu.generation].value
    inside, outside = Tier.INTERPOLATED, Tier.EXTRAPOLATED
    if reference.fingerprint.gpu != gpu.name:
        inside = Tier.EXTRAPOLATED
    if reference.device.generation != gpu.generation:
        inside = outside = Tier.NOMINAL
        scale *= level / NOMINAL_GEMM_EFFICIENCY[reference.device.generation].value
    shares = median_shares(_rows(reference.gemm), peak_flops_per_s=reference.device.half_flops_per_s)
    table = table_surface(
        {s: v * scale for s, v in shares.items()}, num_sms=gpu.num_sms, inside=inside, outside=outside
    )
    assert table is not None, f"reference table of {reference.name} is no full grid"
    return table
