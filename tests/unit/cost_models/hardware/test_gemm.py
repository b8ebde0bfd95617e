"""Matrix products: table points come back, edges and floors by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.constants import KERNEL_FLOOR_S
from cost_models.errors import CalibrationError
from cost_models.hardware import Calibration, document_of, load_calibration
from cost_models.hardware.gemm import bent_surface, gemm_s, nominal_surface, table_surface
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.terms import Tier

DATA = Path(__file__).resolve().parents[4] / "data" / "reference"
A100 = Gpu("A100-SXM-80GB", "ampere", 85e9, {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12}, 2.039e12, 300e9, 31e9,
           108, 400.0, reference="A100-SXM-80GB")  # fmt: skip
H100 = Gpu("H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12, "fp8": 1978.9e12}, 3.352e12, 450e9, 63e9, 132, 700.0,
           reference="H100-SXM-80GB")  # fmt: skip
H200 = replace(H100, name="H200-SXM-141GB", memory_bytes_per_s=4.8e12, reference="H200-SXM-141GB")


def calibration(gpu: Gpu, *names: str) -> Calibration:
    network = Network("infiniband", 25e9, 8, 4e-6)
    return load_calibration(
        Cluster("unit", gpu, 1, 8, 8, "nvswitch", gpu.link_bytes_per_s, 2e-6, 2, 4, network, calibration=names)
    )


def priced(gpu: Gpu, shape: tuple[float, float, float], **options: Any) -> float:
    return float(calibration(gpu).gemm_s(*shape, precision="bf16", **options).seconds)


def test_the_a100_table_reproduces_all_its_points() -> None:
    """A100 keeps its clock, so every row of the public table comes back as it is."""
    rows = list(csv.DictReader((DATA / "gemm_bf16.csv").read_text(encoding="utf-8").splitlines()))
    own = [row for row in rows if row["gpu"] == "A100-SXM-80GB"]
    m, n, k, time_us = (np.array([float(row[key]) for row in own]) for key in ("m", "n", "k", "time_us"))
    got = calibration(A100).gemm_s(m, n, k, precision="bf16")
    assert len(own) == 330
    np.testing.assert_allclose(got.seconds, time_us * 1e-6, rtol=1e-9)
    assert set(got.tier) == {Tier.INTERPOLATED}


def test_h100_burst_times_are_slowed_by_the_sustained_clock() -> None:
    """1024^3 takes 6.16 us in the burst table: (6.16 - 2) / 0.88 + 2 = 6.727 us."""
    assert priced(H100, (1024, 1024, 1024)) == pytest.approx(6.727e-6, rel=1e-3)


def test_the_shipped_profile_reproduces_its_own_points_as_measured() -> None:
    samples = json.loads((DATA / "h100x4_profile.json").read_text(encoding="utf-8"))["gemm"]
    m, n, k, time_s = (np.array([float(row[key]) for row in samples]) for key in ("m", "n", "k", "time_s"))
    got = calibration(H100, "h100x4-nvls-off-2026").gemm_s(m, n, k, precision="bf16")
    np.testing.assert_allclose(got.seconds, time_s, rtol=1e-5)
    assert set(got.tier) == {Tier.MEASURED}


def test_a_profile_bends_the_table_near_its_shapes_and_says_how_it_knows() -> None:
    surface = calibration(H100, "h100x4-nvls-off-2026")
    tiers = [int(surface.gemm_s(*shape, precision="bf16").tier) for shape in (
        (4096, 4096, 4096), (3000, 5000, 3500), (2**17, 4096, 4096),
    )]  # fmt: skip
    assert tiers == [Tier.MEASURED, Tier.INTERPOLATED, Tier.EXTRAPOLATED]


def test_between_two_table_sizes_the_share_of_peak_is_linear_in_the_logarithm() -> None:
    """Grid of two m: share 0.4 at 1024, 0.8 at 4096; at 2048 it is 0.6. 2*2048*1024*1024/(0.6 * 1e14) + 2 us."""
    shares = {(m, 1024.0, 1024.0): share for m, share in ((1024.0, 0.4), (4096.0, 0.8))}
    surface = table_surface(shares, num_sms=64, inside=Tier.INTERPOLATED, outside=Tier.EXTRAPOLATED)
    assert surface is not None
    got = gemm_s(
        np.array([2048.0]), np.array([1024.0]), np.array([1024.0]), surface=surface, peak_flops_per_s=1e14,
        memory_bytes_per_s=1e15, input_bytes=2.0, output_bytes=2.0,
    )  # fmt: skip
    assert got.seconds[0] == pytest.approx(2 * 2048 * 1024 * 1024 / 0.6e14 + 2e-6)


def test_one_row_past_a_tile_costs_a_whole_edge_tile() -> None:
    """m = 4097 works like 4160 = 65*64 rows: 1.5 % more than 4096 and a hair of interpolation."""
    ratio = (priced(H100, (4097, 4096, 4096)) - 2e-6) / (priced(H100, (4096, 4096, 4096)) - 2e-6)
    assert 1.0 < ratio < 1.03
    assert priced(H100, (4097, 4096, 4096)) == pytest.approx(priced(H100, (4160, 4096, 4096)))


def test_below_the_table_waves_decide() -> None:
    """512 x 4096 x 4096 on 108 SMs: 4*32 = 128 tiles in 2 waves, occupancy 512*4096/(2*108*16384) = 0.5926;
    the table's edge m = 1024 has 256 tiles in 3 waves, 1024*4096/(3*108*16384) = 0.7901; ratio 0.75.
    """
    edge = priced(A100, (1024, 4096, 4096)) - 2e-6
    assert priced(A100, (512, 4096, 4096)) - 2e-6 == pytest.approx(edge / 2 / 0.75, rel=1e-6)


def test_a_thin_product_is_bound_by_memory() -> None:
    """16 x 8192 x 8192 reads 2*8192^2 + ... bytes: (16*8192*2 + 8192*8192) * 2 = 134.7 MB at 2.039 TB/s, + 2 us."""
    expected = (16 * 8192 * 2 + 8192 * 8192) * 2 / 2.039e12 + 2e-6
    assert priced(A100, (16, 8192, 8192)) >= expected
    surface = nominal_surface(1e6, num_sms=108)  # compute for free
    got = gemm_s(
        np.array(16.0), np.array(8192.0), np.array(8192.0), surface=surface, peak_flops_per_s=312e12,
        memory_bytes_per_s=2.039e12, input_bytes=2.0, output_bytes=2.0,
    )  # fmt: skip
    assert float(got.seconds) == pytest.approx(expected)


def test_a_width_that_is_no_multiple_of_eight_is_slow() -> None:
    """(T, 10922, 4096) against (T, 10944, 4096): the share of peak falls to 0.68."""
    slow, fast = priced(H100, (8192, 10922, 4096)), priced(H100, (8192, 10944, 4096))
    assert (fast - 2e-6) / (slow - 2e-6) == pytest.approx(0.68, rel=1e-6)  # both pad to 171 tiles of 64
    assert priced(H100, (8190, 8192, 4096)) == pytest.approx(priced(H100, (8192, 8192, 4096)))  # tokens are free
    assert priced(H100, (8190, 8192, 4096), kind="wgrad") > priced(H100, (8192, 8192, 4096), kind="wgrad")


def test_batched_products_fill_the_device_together() -> None:
    """64 products of 128 rows are cheaper than 64 calls, and no cheaper than one product of 8192 rows."""
    together, one = priced(H100, (128, 2048, 4096), batch=64.0), priced(H100, (128, 2048, 4096))
    assert priced(H100, (8192, 2048, 4096)) <= together < 64 * one


@pytest.mark.parametrize(
    ("experts", "tokens", "k", "n", "forward_ms", "weight_ms"),
    [
        # H200, one torch._grouped_mm (data/measured_h200, experts.jsonl); few tokens wait for weights, many for the multiply units.
        (128, 16, 4096, 3072, 1.050, 1.29), (128, 64, 4096, 3072, 1.024, 1.34), (32, 128, 4096, 3072, 0.250, 0.403),
        (32, 512, 4096, 3072, 0.552, 0.697), (128, 1024, 2048, 1536, 1.160, 1.32), (8, 2048, 7168, 4096, 1.243, 1.42),
    ],
)  # fmt: skip
def test_experts_in_one_kernel_by_tokens_an_expert(experts, tokens, k, n, forward_ms, weight_ms) -> None:
    """The model's clock is that of minutes of load, 0.88 of such a burst's, so that compute comes out up to 1.3 times as long."""
    assert 0.85 * forward_ms < 1e3 * priced(H200, (tokens, n, k), batch=float(experts)) < 1.3 * forward_ms
    assert 0.85 * weight_ms < 1e3 * priced(H200, (n, k, tokens), batch=float(experts), kind="wgrad") < 1.35 * weight_ms


def test_fp8_reaches_less_of_its_own_peak_and_is_extrapolated() -> None:
    """Twice the peak at 0.88 of the share: 1/1.76 of the bf16 time without the floor, for a compute-bound shape."""
    both = [calibration(H100).gemm_s(8192, 8192, 8192, precision=p) for p in ("bf16", "fp8")]
    ratio = (float(both[1].seconds) - 2e-6) / (float(both[0].seconds) - 2e-6)
    assert ratio == pytest.approx(989.4 / (1978.9 * 0.88))
    assert int(both[1].tier) == Tier.EXTRAPOLATED


def test_arithmetic_a_gpu_lacks_is_refused() -> None:
    with pytest.raises(CalibrationError, match="A100-SXM-80GB has no fp8 peak"):
        calibration(A100).gemm_s(1024, 1024, 1024, precision="fp8")


def test_scattered_samples_come_back_and_pull_their_neighbours() -> None:
    """A base share of 0.5 everywhere; one shape measured at 0.25: there 0.25, and all others halved too."""
    base = nominal_surface(0.5, num_sms=1)
    bent = bent_surface(
        base,
        {(8192.0, 4096.0, 8192.0): 0.25},
        sampled=Tier.MEASURED,
        inside=Tier.INTERPOLATED,
        outside=Tier.EXTRAPOLATED,
    )
    at = [int(i) for i in np.argwhere(bent.sampled_MNK)[0]]
    assert bent.share_MNK[tuple(at)] == pytest.approx(0.25)
    assert bent.share_MNK.max() == pytest.approx(0.25)


def test_measured_gradient_layouts_and_precisions_scale_the_forward_surface() -> None:
    """Forward 1 ms, weight gradient of that shape twice the net time, fp8 0.6 of it: 0.5 and 1/0.6/2 of the share."""
    base = calibration(H100)
    net_s = 2 * 8192**3 / 989.4e12
    times = {"forward": 2 * net_s + 2e-6, "wgrad": 4 * net_s + 2e-6}
    rows = [{"m": 8192, "n": 8192, "k": 8192, "layout": kind, "time_s": t} for kind, t in times.items()]
    rows.append({"m": 8192, "n": 8192, "k": 8192, "dtype": "fp8", "time_s": 1.2 * net_s + 2e-6})
    document = document_of(
        {
            "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-27", "gemm": rows,
            "fingerprint": {"gpu": "H100-SXM-80GB"},
            "device": {
                "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12, "fp8": 1978.9e12},
                "memory_bytes_per_s": 3.352e12, "link_bytes_per_s": 450e9, "num_sms": 132,
            },
        }
    )  # fmt: skip
    own = load_calibration(replace(base.cluster, calibration=("mine",)), extra={"mine": document})
    shape = (8192.0, 8192.0, 8192.0)
    assert float(own.gemm_s(*shape, precision="bf16").seconds) == pytest.approx(times["forward"], rel=1e-5)
    assert float(own.gemm_s(*shape, precision="bf16", kind="wgrad").seconds) == pytest.approx(times["wgrad"], rel=1e-5)
    fp8 = own.gemm_s(*shape, precision="fp8")
    assert float(fp8.seconds) == pytest.approx(1.2 * net_s + 2e-6, rel=1e-5)
    assert int(fp8.tier) == Tier.MEASURED


@pytest.mark.parametrize(
    ("precision", "inputs", "output"),
    [("bf16", 2, 2), ("fp16", 2, 2), ("tf32", 4, 4), ("fp32", 4, 4), ("fp8", 1, 2), ("nvfp4", 0.5625, 2)],
)
def test_a_narrow_product_takes_as_long_as_what_it_moves(precision: str, inputs: float, output: float) -> None:
    """At 1 TB/s on a device whose products cost nothing: (m k + k n) elements of the inputs, nvfp4 with a byte of scale per 16, and
    m n of the result, which no low precision narrows.
    """
    m, n, k = 8192.0, 4096.0, 128.0
    peaks = dict.fromkeys(("bf16", "fp16", "tf32", "fp32", "fp8", "nvfp4"), 1e21)
    found = calibration(Gpu("unit", "blackwell", 80e9, peaks, 1e12, 450e9, 63e9, 132, 700.0))
    seconds = float(found.gemm_s(m, n, k, precision=precision).seconds)
    moved = inputs * (m * k + k * n) + output * m * n
    assert seconds - KERNEL_FLOOR_S.value == pytest.approx(moved / 1e12)
