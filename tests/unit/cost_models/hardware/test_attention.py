"""Attention times by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.hardware import Calibration, document_of, load_calibration
from cost_models.hardware.attention import flash_attention_s, math_attention_s
from cost_models.hardware.attention_kernels import visible_pairs
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
    """b=2, 32 heads, 4096 tokens, 128 wide, causal: 2*64*(4096^2/2)*256 = 274.9 GFLOP; at 0.60 of 312e12 and with
    (1 + 512/4096), 1.6519 ms and one launch; backward 2.5 times that at 0.50 and three launches.
    """
    time = flash_attention_s(
        sequences=2, heads=32, q_length=4096, kv_length=4096, d_qk=128, d_v=128, window=None,
        calibration=calibration(A100), kernel="fa2",
    )  # fmt: skip
    flops = 2 * 64 * 4096**2 / 2 * 256 * 1.125
    assert float(time.forward.seconds) == pytest.approx(flops / (312e12 * 0.60) + 2e-6)
    assert float(time.backward.seconds) == pytest.approx(2.5 * flops / (312e12 * 0.50) + 6e-6)
    assert int(time.forward.tier) == Tier.NOMINAL


def test_kernel_generations_on_hopper_differ_by_their_instruction() -> None:
    """FA-3 0.55, FA-2 0.60*0.62 = 0.372, FA-1 0.33*0.62 = 0.205 of the peak."""

    def net(kernel: str) -> float:
        time = flash_attention_s(
            sequences=1, heads=16, q_length=8192, kv_length=8192, d_qk=128, d_v=128, window=None,
            calibration=calibration(H100), kernel=kernel,  # type: ignore[arg-type]
        )  # fmt: skip
        return float(time.forward.seconds) - 2e-6

    assert net("fa2") / net("fa3") == pytest.approx(0.55 / 0.372)
    assert net("fa1") / net("fa2") == pytest.approx(0.60 / 0.33)
    assert net("cudnn") == net("fa3")


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
    """Width 64: half the operations of 128 at 0.85 of the speed. Width 80 pads to 96."""

    def net(width: float) -> float:
        time = flash_attention_s(
            sequences=1, heads=16, q_length=8192, kv_length=8192, d_qk=width, d_v=width, window=None,
            calibration=calibration(A100), kernel="fa2",
        )  # fmt: skip
        return float(time.forward.seconds) - 2e-6

    assert net(64) / net(128) == pytest.approx(0.5 / 0.85)
    assert net(80) == pytest.approx(net(96))


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
