"""The efficiency surface of a cluster's GPU, assembled from its reference table and from what a document measured. [F-1]

Levels are carried over with care. A burst table is slowed to the clock that the GPU's power per operation sustains. A table
borrowed within a generation keeps the measured waits rather than the share of a very different peak. One borrowed from
another generation keeps only its shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import GemmSample
from cost_models.constants import FP32_SHARE, NOMINAL_GEMM_EFFICIENCY, PEAKS_OVER_HALF, SUSTAINED_CLOCK
from cost_models.hardware.efficiency import carried_share, precision_efficiency
from cost_models.hardware.gemm import (
    Box,
    GemmSurface,
    Shape,
    bent_surface,
    grouped_ratio,
    median_ratio,
    median_shares,
    net_share,
    nominal_surface,
    table_surface,
)
from cost_models.hardware.products import is_grouped
from cost_models.specs.cluster import Gpu
from cost_models.terms import Tier

_HALF = frozenset({"bf16", "fp16"})


def power_ratio(gpu: Gpu, document: CalibrationDocument | None, *, precision: str = "bf16") -> float:
    """Clock that a GPU's power per peak operation sustains, over that of the measured GPU.

    The square root lies between the cube root of dynamic power's law and the linear law of a part that is held at its limit.
    """
    power = _power_over_measured(gpu, document)
    if document is None or power is None:
        return 1.0
    return math.sqrt(power / peak_ratio(gpu, document, precision=precision))


def _power_over_measured(gpu: Gpu, document: CalibrationDocument | None) -> float | None:
    """Power limit over the measured GPU's; None where it is not known or the user's own machine was measured."""
    if document is None or (document.kind == "measured" and document.fingerprint.gpu == gpu.name):
        return None
    measured = document.device.power_limit_w
    return None if measured is None or gpu.power_limit_w is None else gpu.power_limit_w / measured


def sustained_clock(gpu: Gpu, document: CalibrationDocument | None, *, precision: str = "bf16") -> float:
    """Sustained over data-sheet clock; a GPU with more power per operation than the measured one is slowed less."""
    return min(1.0, SUSTAINED_CLOCK[gpu.generation].value * power_ratio(gpu, document, precision=precision))


def waiting_clock(gpu: Gpu, document: CalibrationDocument | None) -> float:
    """Clock of what a GPU waits for, over the data sheet's: its power limit slows it, its peak does not."""
    power = _power_over_measured(gpu, document)
    return min(1.0, SUSTAINED_CLOCK[gpu.generation].value * math.sqrt(1.0 if power is None else power))


def peak_ratio(gpu: Gpu, document: CalibrationDocument, *, precision: str = "bf16") -> float:
    """Peak of a precision over that of the measured GPU."""
    half, peaks = document.device.half_flops_per_s, gpu.peak_flops_per_s
    if precision in _HALF:
        return (peaks.get(precision) or peaks.get("fp16") or peaks["bf16"]) / half
    other = document.device.peak_flops_per_s.get(precision) or half * PEAKS_OVER_HALF[precision]
    return peaks[precision] / other


def precision_surfaces(
    compute: CalibrationDocument | None, reference: CalibrationDocument | None, gpu: Gpu
) -> dict[str, GemmSurface]:
    """Surfaces of precisions that bf16's does not serve: those of a GPU whose peaks are not the reference's, each carried from its own
    peak, and fp32's on Hopper, whose share hardly depends on the shape. [F-1]
    """
    return _carried_surfaces(compute, reference, gpu) | _plain_surfaces(compute, gpu)


def _plain_surfaces(compute: CalibrationDocument | None, gpu: Gpu) -> dict[str, GemmSurface]:
    """fp32's surface where it was measured on this generation and no document measured it on the user's GPU."""
    if gpu.generation != "hopper" or "fp32" not in gpu.peak_flops_per_s:
        return {}
    if compute is not None and any(s.dtype == "fp32" for s in compute.gemm):
        return {}
    return {"fp32": nominal_surface(FP32_SHARE.value, num_sms=gpu.num_sms)}


def _carried_surfaces(
    compute: CalibrationDocument | None, reference: CalibrationDocument | None, gpu: Gpu
) -> dict[str, GemmSurface]:
    """Surfaces of the other precisions of a GPU whose peaks are not the reference's; each is carried from its own peak.
    [F-1]
    """
    if reference is None or (compute is not None and compute is not reference):
        return {}
    ratios = {precision: peak_ratio(gpu, reference, precision=precision) for precision in gpu.peak_flops_per_s}
    same = all(math.isclose(ratio, 1.0, rel_tol=1e-3) for ratio in ratios.values())
    # With equal peaks every precision has the same ratio as bf16, and one surface serves all of them.
    return {} if same else {p: _reference_surface(reference, gpu, precision=p) for p in ratios if p != "bf16"}


def surface_of(compute: CalibrationDocument | None, reference: CalibrationDocument | None, gpu: Gpu) -> GemmSurface:
    """The surface that prices a GPU's products: its table, bent by a measured document where there is one. [F-1]"""
    # A profile's few shapes cannot show a library's wave and tile edges; the public table's grid does.
    base = _reference_surface(reference, gpu)
    if compute is None or compute is reference:
        return base
    shares = _measured_shares(compute, gpu)
    if not shares:
        return base
    own = compute.fingerprint.gpu == gpu.name
    bent = bent_surface(
        base,
        shares,
        sampled=Tier.MEASURED if own else Tier.EXTRAPOLATED,
        inside=Tier.INTERPOLATED if own else Tier.EXTRAPOLATED,
        outside=Tier.EXTRAPOLATED,
    )
    kinds, precisions = _ratios(bent, compute, gpu)
    found = replace(bent, kind_ratio=kinds, precision_ratio=precisions, boxes=_boxes(compute))
    grouped = [_grouped_share(s, compute) for s in compute.gemm if own and is_grouped(s)]
    return replace(found, grouped_ratio=grouped_ratio(found, grouped)) if grouped else found


def _boxes(compute: CalibrationDocument) -> dict[str, Box]:
    """Smallest and largest measured sizes by precision; bf16 and fp16 count together."""
    boxes: dict[str, Box] = {}
    for fit in compute.gemm_fits:
        lows, highs = zip(fit.m_range, fit.n_range, fit.k_range, strict=True)
        low, high = (tuple(float(np.log2(max(size, 1))) for size in sizes) for sizes in (lows, highs))
        for name in _HALF if fit.dtype in _HALF else (fit.dtype,):
            before = boxes.get(name, (low, high))
            boxes[name] = (
                tuple(map(min, before[0], low)),  # type: ignore[assignment]  # three sizes each
                tuple(map(max, before[1], high)),
            )
    return boxes


def _grouped_share(sample: GemmSample, compute: CalibrationDocument) -> tuple[Shape, float, float]:
    """Shape, number of products and share of peak of a kernel of several products."""
    m, n, k, batch = float(sample.m), float(sample.n), float(sample.k), float(sample.batch)
    share = net_share((m * batch, n, k), sample.time_s, peak_flops_per_s=compute.device.half_flops_per_s)
    return (m, n, k), batch, share


def _measured_shares(
    compute: CalibrationDocument, gpu: Gpu, *, layout: str = "forward", precision: str = "bf16"
) -> dict[Shape, float]:
    """Shares of a document's samples as this GPU would reach them: its own as they are, another GPU's carried over."""
    half = precision in _HALF
    peak = compute.device.half_flops_per_s if half else compute.device.peak_flops_per_s[precision]
    rows = _rows(compute.gemm, layout, dtypes=_HALF if half else (precision,))
    shares = median_shares(rows, peak_flops_per_s=peak)
    if compute.fingerprint.gpu == gpu.name:
        # A sustained profile has the clock in it; only a burst must be slowed.
        kept = SUSTAINED_CLOCK[gpu.generation].value if compute.load == "burst" else 1.0
        return {shape: share * kept for shape, share in shares.items()}
    if compute.device.generation != gpu.generation:
        # Shares of another generation say nothing of this one's waits, so only the power limit is carried over.
        power = min(1.0, power_ratio(gpu, compute))
        return {shape: share * power for shape, share in shares.items()}
    kept = 1.0 if compute.load == "burst" else SUSTAINED_CLOCK[gpu.generation].value
    return _carried({shape: share / kept for shape, share in shares.items()}, gpu, compute, precision=precision)


def _ratios(surface: GemmSurface, compute: CalibrationDocument, gpu: Gpu) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios of gradient layouts and of other precisions to the forward bf16 surface, where they were measured."""
    by_kind: dict[str, float] = {}
    for layout in ("dgrad", "wgrad"):
        shares = _measured_shares(compute, gpu, layout=layout)
        if shares:
            by_kind[layout] = median_ratio(surface, shares)
    by_precision: dict[str, float] = {}
    known = set(compute.device.peak_flops_per_s) & set(gpu.peak_flops_per_s)
    for precision in {s.dtype for s in compute.gemm} - _HALF & known:
        shares = _measured_shares(compute, gpu, precision=precision)
        if shares:
            by_precision[precision] = median_ratio(surface, shares)
    return by_kind, by_precision


def _rows(
    samples: tuple[GemmSample, ...], layout: str = "forward", *, dtypes: Collection[str] = _HALF
) -> list[tuple[Shape, float]]:
    """Shape and seconds of the plain products among these samples."""
    chosen = [
        s for s in samples if s.dtype in dtypes and s.batch == 1 and s.layout == layout and s.output_dtype == "same"
    ]
    return [((float(s.m), float(s.n), float(s.k)), s.time_s) for s in chosen]


def _carried(
    shares: Mapping[Shape, float],
    gpu: Gpu,
    document: CalibrationDocument,
    *,
    precision: str = "bf16",
    efficiency: float = 1.0,
) -> dict[Shape, float]:
    """Shares of a burst, carried to this GPU; its power alone slows what it waits for, whatever its peak.

    Args:
        shares: share of the measured GPU's peak by shape.
        gpu: the GPU to carry them to.
        document: what was measured.
        precision: whose peaks are compared.
        efficiency: factor by which a precision misses the given shares; `Calibration` applies it to the peak.
    """
    ratio = peak_ratio(gpu, document, precision=precision)
    clock, waiting = sustained_clock(gpu, document, precision=precision), waiting_clock(gpu, document)
    return {
        shape: carried_share(share * efficiency, ratio=ratio, clock=clock, waiting_clock=waiting) / efficiency
        for shape, share in shares.items()
    }


def _reference_surface(reference: CalibrationDocument | None, gpu: Gpu, *, precision: str = "bf16") -> GemmSurface:
    """The public table at a sustained clock, carried to the GPU's peak.

    Of a table of another generation only the shape is kept, at this generation's nominal level.
    """
    level = NOMINAL_GEMM_EFFICIENCY[gpu.generation].value
    if reference is None or not reference.gemm:
        return nominal_surface(level * SUSTAINED_CLOCK[gpu.generation].value, num_sms=gpu.num_sms)
    inside, outside = Tier.INTERPOLATED, Tier.EXTRAPOLATED
    if reference.fingerprint.gpu != gpu.name:
        inside = Tier.EXTRAPOLATED
    measured = reference.device.generation
    assert reference.load == "burst", f"{reference.name} is no table of short runs, which the public ones all are"
    shares = median_shares(_rows(reference.gemm), peak_flops_per_s=reference.device.half_flops_per_s)
    if measured != gpu.generation:
        # Another generation lends the shape of its surface and no level, so nothing of it is more than nominal.
        inside = outside = Tier.NOMINAL
        scale = min(1.0, power_ratio(gpu, reference, precision=precision)) * level
        scale *= SUSTAINED_CLOCK[gpu.generation].value / NOMINAL_GEMM_EFFICIENCY[measured].value
        shares = {shape: share * scale for shape, share in shares.items()}
    else:
        missed = precision_efficiency(gpu.generation, precision)
        shares = _carried(shares, gpu, reference, precision=precision, efficiency=missed)
    table = table_surface(shares, num_sms=gpu.num_sms, inside=inside, outside=outside)
    assert table is not None, f"reference table of {reference.name} is no full grid"
    return table
