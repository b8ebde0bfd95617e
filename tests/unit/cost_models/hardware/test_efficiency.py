"""Shares of peak on GPUs that borrow another's curves, by hand from the public tables."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from cost_models.calibration.samples import GemmSample
from cost_models.hardware import Calibration, load_calibration, reference_document
from cost_models.hardware.attention import flash_attention_s
from cost_models.hardware.efficiency import carried_share
from cost_models.hardware.surfaces import precision_surfaces
from cost_models.inputs.cluster import resolve_cluster

TABLE = Path(__file__).resolve().parents[4] / "data" / "reference" / "gemm_bf16.csv"
FLOOR_S = 2e-6


def calibration(gpu: str | dict) -> Calibration:
    return load_calibration(resolve_cluster({"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8}))


def measured_us(gpu: str, shape: tuple[int, int, int]) -> float:
    """Microseconds of the public table."""
    for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
        if row["gpu"] == gpu and (int(row["m"]), int(row["n"]), int(row["k"])) == shape:
            return float(row["time_us"])
    raise AssertionError(shape)


def rate(gpu: str | dict, precision: str = "bf16", size: int = 8192) -> float:
    """Operations a second of a square product, its start taken out."""
    return 2 * size**3 / (float(calibration(gpu).gemm_s(size, size, size, precision=precision).seconds) - FLOOR_S)


@pytest.mark.parametrize("share", [0.2, 0.55, 0.8, 0.93])
def test_at_the_measured_peak_the_share_is_the_measured_one(share):
    assert carried_share(share, ratio=1.0, clock=0.88, waiting_clock=0.88) == pytest.approx(share * 0.88)


def test_an_h20_waits_as_long_as_an_h100_and_multiplies_at_its_own_peak():
    """148 of 989.4 TFLOP/s and 400 of 700 W: 0.88 sqrt(0.571 / 0.1496) is above 1, so the clock is the data sheet's; what it
    waits for runs at 0.88 sqrt(0.571) = 0.665 of it. H100's share of its peak would give 94 TFLOP/s.
    """
    share = 2 * 4096**3 / ((measured_us("H100-SXM-80GB", (4096, 4096, 4096)) * 1e-6 - FLOOR_S) * 989.4e12)
    waits = (1 / share - 1 / 0.94) / (989.4e12 * 0.88 * sqrt(400 / 700))
    assert 1 / rate("H20-SXM-96GB", size=4096) == pytest.approx(1 / (148e12 * 0.94) + waits)
    assert 120e12 < rate("H20-SXM-96GB") < 139.2e12


@pytest.mark.parametrize(
    ("kernel", "measured_tflops"),
    [
        ("fa3", 107.8),  # flash-attention issue 1310: H20, 128 wide, 2,048 tokens, causal, forward
        ("cudnn", 107.8),
        ("fa2", 65.9),
    ],
)
def test_attention_on_an_h20_comes_near_its_published_speeds(kernel, measured_tflops):
    """H100's share of the peak gave 59 (FA-3) and 40 TFLOP/s (FA-2)."""
    time = flash_attention_s(
        sequences=2, heads=16, q_length=2048.0, kv_length=2048.0, d_qk=128.0, d_v=128.0, window=None,
        calibration=calibration("H20-SXM-96GB"), kernel=kernel,
    )  # fmt: skip
    flops = 2 * 2 * 16 * 2048**2 / 2 * 256
    assert flops / float(time.forward.seconds) / 1e12 == pytest.approx(measured_tflops, rel=0.15)


def test_mma_sync_bounds_flash_attention_2_on_any_hopper():
    """The instruction reaches 0.62 of the peak at most, on an H20 too."""
    time = flash_attention_s(
        sequences=2, heads=16, q_length=2.0**17, kv_length=2.0**17, d_qk=128.0, d_v=128.0, window=None,
        calibration=calibration("H20-SXM-96GB"), kernel="fa2",
    )  # fmt: skip
    share = 2 * 2 * 16 * 2.0**33 * 256 / float(time.forward.seconds) / 148e12
    assert 0.45 < share < 0.62


@pytest.mark.parametrize(("gpu", "ratio"), [("B200-SXM-180GB", 0.98), ("H100-SXM-80GB", 0.88)])
def test_fp8_s_share_of_its_own_peak_is_the_generation_s(gpu, ratio):
    """Best shapes of a search: B200 3,432.5 of 4,500 against 1,745 of 2,250, H100 1,402.6 of 1,979 against 794.5 of 989."""
    assert rate(gpu, "fp8") / rate(gpu) == pytest.approx(2 * ratio, rel=1e-3)
    best = {"B200-SXM-180GB": (3432.5 / 4500, 1745 / 2250), "H100-SXM-80GB": (1402.6 / 1979, 794.5 / 989)}[gpu]
    assert best[0] / best[1] == pytest.approx(ratio, abs=0.005)


def test_fp8_of_an_h20_loses_little_of_its_peak():
    """What costs an H100 12 % in fp8 is waiting too: 296 TFLOP/s behind the same memory keep busy."""
    assert 0.8 * 296e12 < rate("H20-SXM-96GB", "fp8") < 0.94 * 296e12


def test_more_power_for_each_operation_is_held_back_less():
    """GB200: 1,200 W for 2,500 TFLOP/s against 1,000 W for 2,250, so 0.73 sqrt(1.08) = 0.759 of the clock."""
    assert calibration("GB200-186GB").sustained_clock == pytest.approx(0.73 * sqrt(1.2 * 2250 / 2500))
    assert calibration("H20-SXM-96GB").sustained_clock == 1.0
    ultra = {
        "memory_gib": 268, "peak_tflops": {"bf16": 2500}, "memory_bandwidth_gb_per_s": 8000, "nvlink_gb_per_s": 900,
    }  # fmt: skip
    for name, watts in (("GB300 x", 1400), ("B300-SXM", 1100), ("B300 1000W", 1000)):
        gpu = resolve_cluster({"gpu": {"name": name, **ultra}, "num_nodes": 1, "gpus_per_node": 8}).gpu
        assert (gpu.power_limit_w, gpu.num_sms) == (watts, 160)
        clock = load_calibration(
            resolve_cluster({"gpu": {"name": name, **ultra}, "num_nodes": 1, "gpus_per_node": 8})
        ).sustained_clock
        assert clock == pytest.approx(min(1.0, 0.73 * sqrt(watts / 1000 * 2250 / 2500)))
    assert calibration("H100-SXM-80GB").sustained_clock == pytest.approx(0.88)


PEAKS = {
    "name": "H100-mine", "memory_gib": 80, "peak_tflops": {"bf16": 989.4, "fp8": 1978.9},
    "memory_bandwidth_gb_per_s": 3352, "power_limit_w": 700,
}  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("raised", ["bf16", "fp8"])
def test_raising_one_precision_s_peak_never_slows_another(precision, raised):
    """Small and large products; the reference's own figures to begin with."""
    faster = {**PEAKS, "peak_tflops": {**PEAKS["peak_tflops"], raised: PEAKS["peak_tflops"][raised] * 1.7}}
    for size in (256, 2048, 16384):
        assert rate(faster, precision, size) >= rate(PEAKS, precision, size) * (1 - 1e-12)
    assert (rate(faster, precision) > 1.1 * rate(PEAKS, precision)) is (precision == raised)


@pytest.mark.parametrize(("more", "carried"), [(1.0, False), (1.0008, False), (1.0012, True)])
def test_peaks_within_a_thousandth_are_the_measured_gpus_own(more, carried):
    """Data sheets round to a thousandth; a GPU that differs by more has each other precision carried from its own peak."""
    gpu = calibration("H100-SXM-80GB").cluster.gpu
    reference = reference_document(gpu)
    peaks = {name: more * peak for name, peak in gpu.peak_flops_per_s.items()}
    found = precision_surfaces(None, reference, replace(gpu, peak_flops_per_s=peaks))
    assert set(found) == (set(peaks) - {"bf16"} if carried else {"fp32"})  # fp32 has a surface of its own on Hopper


@pytest.mark.parametrize(
    ("shape", "measured"),
    [
        ((4096, 3072, 3072), (1.525, 1.535, 1.564)), ((8192, 8192, 8192), (21.551, 21.619, 20.591)),
        ((4096, 8192, 3072), (4.038, 4.031, 3.982)), ((4096, 128256, 3072), (62.927, 63.976, 60.396)),
    ],
)  # fmt: skip
def test_plain_fp32_products_of_hopper(shape, measured):
    """Milliseconds on an H200, forward, data gradient, weight gradient; H100 has the same units (data/measured_h200)."""
    for gpu in ("H200-SXM-141GB", "H100-SXM-80GB"):
        sizes = (np.array([float(size)]) for size in shape)
        passes = calibration(gpu).gemm_passes_s(*sizes, precision="fp32", batch=np.ones(1))
        assert passes.seconds[:, 0] * 1e3 == pytest.approx(measured, rel=0.1)


def test_a_profile_that_measured_fp32_is_believed():
    """Where the user's own fp32 products are known, they bend the surface as those of any precision."""
    gpu = resolve_cluster({"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 8}).gpu
    reference = reference_document(gpu)
    assert reference is not None
    sample = GemmSample(m=4096, n=4096, k=4096, dtype="fp32", time_s=2.8e-3)
    assert "fp32" in precision_surfaces(reference, reference, gpu)
    own = reference.model_copy(update={"gemm": (*reference.gemm, sample)})
    assert "fp32" not in precision_surfaces(own, own, gpu)
    a100 = resolve_cluster({"gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}).gpu
    assert "fp32" not in precision_surfaces(None, reference_document(a100), a100)
