"""Attention times by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.hardware import Calibration, document_of, load_calibration
from cost_models.hardware.attention import flash_attention_s, math_attention_s
from cost_models.hardware.attention_kernels import flash_curve, visible_pairs
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.terms import Tier

A100 = Gpu("A100-SXM-80GB", "ampere", 85e9, {"bf16": 312e12, "fp16": 312e12}, 2.0e12, 300e9, 31e9, 108, 400.0,
           reference="A100-SXM-80GB")  # fmt: skip
H100 = Gpu("H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12}, 3.352e12, 450e9, 63e9, 132, 700.0,
           reference="H100-SXM-80GB")  # fmt: skip


def calibration(gpu: Gpu) -> Calibration:
    network = Network("infiniband", 25e9, 8, 4e-6)
    return load_calibration(Cluster("unit", gpu, 1, 8, 8, "nvswitch", gpu.link_bytes_per_s, 2e-6, 2, 4, network))


def test_fa2_on_a100() -> None:
    """b=2, 32 heads, 4096 tokens, 128 wide, causal: 2*64*(4096^2/2)*256 = 274.9 GFLOP. Published forward: 4 x 32 heads take 2.780 ms
    at 4096 tokens (198 TFLOP/s), so half as many heads half of that; backward 2.5 times the operations at 0.50 of 312e12, with
    (1 + 512/4096) and three launches.
    """
    time = flash_attention_s(
        sequences=2, heads=32, q_length=4096, kv_length=4096, d_qk=128, d_v=128, window=None,
        calibration=calibration(A100), kernel="fa2",
    )  # fmt: skip
    flops = 2 * 64 * 4096**2 / 2 * 256
    assert float(time.forward.seconds) == pytest.approx(2.779694e-3 / 2, rel=0.03)
    assert float(time.backward.seconds) == pytest.approx(2.5 * flops * 1.125 / (312e12 * 0.50) + 6e-6)
    assert int(time.forward.tier) == Tier.NOMINAL


def rate(kernel: str, *, tokens: int, width: int = 128, gpu: Gpu = H100, pieces: int = 1) -> tuple[float, float]:
    """TFLOP/s of causal attention, forward and backward, as benchmarks count them: half of the square."""
    time = flash_attention_s(
        sequences=16, heads=32, q_length=tokens, kv_length=tokens, d_qk=width, d_v=width, window=None,
        calibration=calibration(gpu), kernel=kernel, pieces=pieces,  # type: ignore[arg-type]
    )  # fmt: skip
    flops = 16 * 4 * 32 * tokens**2 / 2 * width / 1e12
    return flops / float(time.forward.seconds), 2.5 * flops / float(time.backward.seconds)


@pytest.mark.parametrize(
    ("kernel", "tokens", "width", "forward", "backward"),
    [
        ("cudnn", 4096, 128, 505, 429), ("cudnn", 8192, 128, 547, 465), ("cudnn", 32768, 128, 582, 524),
        ("cudnn", 131072, 128, 570, 556), ("cudnn", 8192, 64, 422, 383), ("cudnn", 32768, 64, 435, 404),
        ("fa2", 8192, 128, 321, 287), ("fa2", 131072, 128, 324, 328),
    ],
)  # fmt: skip
def test_hopper_holds_what_was_measured_after_seconds_of_load(kernel, tokens, width, forward, backward) -> None:
    """An H100 at its power limit, TFLOP/s (data/measured_h100, sustained.jsonl)."""
    modelled = rate(kernel, tokens=tokens, width=width)
    assert modelled[0] == pytest.approx(forward, rel=0.07)
    assert modelled[1] == pytest.approx(backward, rel=0.07)


def test_short_sequences_lose_as_much_as_was_measured() -> None:
    """cuDNN, heads of 128 on an H200, cool: 1024 tokens run at 333 and 228 TFLOP/s, 16384 at 584 and 549."""
    short, long = rate("cudnn", tokens=1024), rate("cudnn", tokens=16384)
    assert short[0] / long[0] == pytest.approx(333 / 584, rel=0.05)
    assert short[1] / long[1] == pytest.approx(228 / 549, rel=0.08)


def test_kernel_generations_on_hopper_differ_by_their_instruction() -> None:
    """FA-1 has 0.33*0.62 = 0.205 of the peak, FA-2 0.383 with T = 550 where FA-1 has 512; FA-3's authors measure what cuDNN reaches."""
    fa1, fa2, fa3, cudnn = (rate(kernel, tokens=8192)[0] for kernel in ("fa1", "fa2", "fa3", "cudnn"))
    assert fa2 / fa1 == pytest.approx(0.383 / (1 + 550 / 8192) / (0.33 * 0.62 / (1 + 512 / 8192)), rel=1e-3)
    assert fa3 == cudnn > 1.6 * fa2


def test_widths_between_two_measured_ones_lie_between_them() -> None:
    """96 lies log2(96/64) = 0.585 of the way from 64 to 128: 0.539 + 0.585*(0.685 - 0.539) of the peak, T = 1270 - 0.585*420."""
    share, short = flash_curve("hopper", "cudnn", np.array([64.0, 96.0, 128.0, 192.0, 512.0]), backward=False)
    assert share[1] == pytest.approx(0.539 + 0.58496 * 0.146, rel=1e-5)
    assert short[1] == pytest.approx(1270 - 0.58496 * 420, rel=1e-5)
    assert share[2] < share[3] < share[4]  # 0.685, between, 0.704 of 256 and wider
    assert (share[0], share[4]) == (0.539, 0.704)


def test_a_ring_runs_kernels_over_fewer_keys() -> None:
    """Eight pieces of 65536 keys lose what 8192 keys lose: (1 + 850/8192) over (1 + 850/65536)."""
    whole, ring = rate("cudnn", tokens=65536), rate("cudnn", tokens=65536, pieces=8)
    assert whole[0] / ring[0] == pytest.approx((1 + 850 / 8192) / (1 + 850 / 65536), rel=1e-3)
    assert whole[1] / ring[1] == pytest.approx((1 + 1580 / 8192) / (1 + 1580 / 65536), rel=1e-3)


def test_context_parallel_ranks_share_the_pairs_evenly() -> None:
    whole = visible_pairs(np.array(8192.0), np.array(8192.0), None)
    quarter = visible_pairs(np.array(2048.0), np.array(8192.0), None)
    assert float(whole) == 8192**2 / 2
    assert float(quarter) == float(whole) / 4


def test_a_window_limits_what_each_query_sees() -> None:
    """1024 of 8192: 8192*1024 - 1024^2/2 pairs; a window beyond the sequence changes nothing."""
    length = np.array(8192.0)
    assert float(visible_pairs(length, length, 1024)) == 8192 * 1024 - 1024**2 / 2
    assert float(visible_pairs(length, length, 10**6)) == float(visible_pairs(length, length, None))


def test_narrow_heads_are_slower_per_operation_and_odd_widths_pad() -> None:
    """FA-2 on A100, 4 x 32 heads, 8192 tokens: 6.196 ms 64 wide and 10.663 ms 128 wide (published). Width 80 pads to 96, and is as slow
    per operation as 80 is: 0.322 of the way from 64's 0.615 to 128's 0.706, where 96 is 0.585 of the way.
    """

    def net(width: float) -> float:
        time = flash_attention_s(
            sequences=4, heads=32, q_length=8192, kv_length=8192, d_qk=width, d_v=width, window=None,
            calibration=calibration(A100), kernel="fa2",
        )  # fmt: skip
        return float(time.forward.seconds) - 2e-6

    assert net(64) / net(128) == pytest.approx(6.196142 / 10.662884, rel=0.03)
    speed_80, speed_96 = (0.615 + x * 0.091 for x in (0.32193, 0.58496))
    short_80, short_96 = (1 + (630 - x * 90) / 8192 for x in (0.32193, 0.58496))
    assert net(80) / net(96) == pytest.approx(speed_96 / speed_80 * short_80 / short_96)


def test_narrow_heads_on_blackwell_wait_for_exponentials() -> None:
    """FA-4 on B200, causal: 384, 561 and 708 TFLOP/s 64 wide where 128 wide has 660, 899 and 1062, at 1k, 2k and 4k tokens."""
    assert 0.9 * 384 / 660 < 0.65 < 1.1 * 561 / 899
    narrow, wide = (flash_curve("blackwell", "cudnn", np.array([x]), backward=False)[0][0] for x in (64.0, 128.0))
    assert narrow / wide == pytest.approx(0.65)


def test_math_attention_moves_the_scores_and_multiplies_twice() -> None:
    """Korthikanti's 22B layer: b=4, 64/8 heads, s=2048, d=96: S = 4*8*2048^2 = 134.2 M scores.

    bmm: 2*S*96 / (312e12 * 0.475*96/160) = 289.8 us, more than 2S/2e12 = 134 us; dropout: forward (4+5) S / 1.6e12 =
    755 us, backward (6+5) S / 1.6e12 = 923 us.
    """
    scores = 4 * 8 * 2048**2
    time = math_attention_s(
        sequences=4, heads=8, q_length=2048, kv_length=2048, d=96, dropout=0.1, calibration=calibration(A100)
    )
    bmm = 2 * scores * 96 / (312e12 * 0.475 * 96 / 160) + 2e-6
    assert float(time.forward.seconds) == pytest.approx(2 * bmm + 9 * scores / 1.6e12 + 2 * 1.5e-6)
    assert float(time.backward.seconds) == pytest.approx(4 * bmm + 11 * scores / 1.6e12 + 2 * 1.5e-6)


@pytest.mark.parametrize(
    ("heads", "tokens", "width", "forward", "backward"),
    [(24, 4096, 128, 9.317, 10.764), (64, 2048, 64, 4.743, 5.115), (64, 2048, 128, 5.898, 7.301)],
)
def test_unfused_attention_in_fp32_is_what_pytorch_takes(heads, tokens, width, forward, backward) -> None:
    """Milliseconds on an H200 (data/measured_h200, fp32_and_unfused.jsonl)."""
    gpu = replace(H100, peak_flops_per_s={"bf16": 989.4e12, "fp32": 66.9e12}, memory_bytes_per_s=4.8e12)
    time = math_attention_s(
        sequences=1, heads=heads, q_length=tokens, kv_length=tokens, d=width, dropout=0.0, calibration=calibration(gpu),
        precision="fp32", composed=True,
    )  # fmt: skip
    assert float(time.forward.seconds) * 1e3 == pytest.approx(forward, rel=0.08)
    assert float(time.backward.seconds) * 1e3 == pytest.approx(backward, rel=0.08)


def test_math_attention_pays_for_widths_no_multiple_of_eight() -> None:
    """108 wide (BLOOM sweep): 108 = 8*13.5, so the products run at 0.2 of the speed; 120 = 8*15 at 0.8."""

    def products(width: float) -> float:
        time = math_attention_s(
            sequences=1, heads=16, q_length=2048, kv_length=2048, d=width, dropout=0.0, calibration=calibration(A100)
        )
        scores = 16 * 2048**2
        return (float(time.forward.seconds) - 4 * scores / 1.6e12 - 1.5e-6) / 2 - 2e-6

    def alone(width: float) -> float:
        return 2 * 16 * 2048**2 * width / (312e12 * 0.475 * width / (width + 64))

    assert products(108) == pytest.approx(alone(108) / 0.2)
    assert products(120) == pytest.approx(alone(120) / 0.8)
    assert products(112) == pytest.approx(alone(112))


def test_a_calibrations_own_samples_set_the_level() -> None:
    """Half the speed of the formula at one shape halves it at all, and the tier says interpolated."""
    plain = calibration(H100)
    shape = {"q_length": 4096, "kv_length": 4096, "d_qk": 128, "d_v": 128}
    formula = flash_attention_s(
        sequences=1,
        heads=16,
        **shape,
        window=None,
        calibration=plain,
        kernel="fa3",  # type: ignore[arg-type]
    )
    document = document_of(
        {
            "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-27",
            "fingerprint": {"gpu": "H100-SXM-80GB"},
            "device": {
                "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
                "link_bytes_per_s": 450e9, "num_sms": 132, "power_limit_w": 700.0,
            },
            "attention": [
                {
                    "kernel": "fa3", "direction": "forward", "sequences": 1, "heads": 16, "kv_heads": 16, **shape,
                    "time_s": 2 * float(formula.forward.seconds),
                }
            ],
        }
    )  # fmt: skip
    own = load_calibration(replace(plain.cluster, calibration=("mine",)), extra={"mine": document})
    time = flash_attention_s(
        sequences=3,
        heads=16,
        **shape,
        window=None,
        calibration=own,
        kernel="fa3",  # type: ignore[arg-type]
    )
    wider = flash_attention_s(
        sequences=3,
        heads=16,
        **shape,
        window=None,
        calibration=plain,
        kernel="fa3",  # type: ignore[arg-type]
    )
    assert float(time.forward.seconds) == pytest.approx(2 * float(wider.forward.seconds))
    assert float(time.backward.seconds) == float(wider.backward.seconds)
    assert (int(time.forward.tier), int(time.backward.tier)) == (Tier.INTERPOLATED, Tier.NOMINAL)
