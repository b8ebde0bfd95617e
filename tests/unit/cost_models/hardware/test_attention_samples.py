"""Ratios of a profile's calls of fused attention, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.hardware import load_calibration, shipped_document
from cost_models.hardware.attention import flash_attention_s
from cost_models.hardware.attention_samples import AttentionRatios
from cost_models.specs.cluster import Cluster, Gpu, Network

H200X2 = "h200x2-nvls-off-2026-11-28"


def test_ratios_lie_on_lines_over_the_logarithms_of_keys_and_width() -> None:
    """128 wide: 0.8 at 1,024 keys and 1.0 at 4,096, so 0.9 at 2,048; 64 wide 0.6 throughout; 2^6.5 wide half way between."""
    ratios = AttentionRatios.of([(128, 1024, 0.8), (128, 4096, 1.0), (64, 2048, 0.6)])
    at = ratios.at(np.array([128.0, 128.0, 64.0, 2**6.5]), np.array([2048.0, 1024.0, 2048.0, 2048.0]))
    assert at == pytest.approx([0.9, 0.8, 0.6, 0.75])


def test_what_lies_outside_the_samples_takes_the_nearest_of_them() -> None:
    ratios = AttentionRatios.of([(64, 1024, 0.7), (128, 1024, 0.8), (128, 4096, 1.0)])
    at = ratios.at(np.array([256.0, 128.0, 32.0]), np.array([32768.0, 128.0, 8192.0]))
    assert at == pytest.approx([1.0, 0.8, 0.7])


def test_of_several_samples_at_one_place_the_median_counts() -> None:
    ratios = AttentionRatios.of([(128, 1024, 0.8), (128, 1024, 0.9), (128, 1024, 1.7)])
    assert ratios.at(np.array([128.0]), np.array([1024.0])) == pytest.approx([0.9])


def test_a_sample_is_priced_at_what_it_took() -> None:
    """At a place with one sample the ratio is that of this sample, and so the price is its time; short and long ones alike."""
    document = shipped_document(H200X2)
    assert document is not None
    priced = load_calibration(_h200())
    places: dict[tuple[str, str, int, int], list[float]] = {}
    for s in document.attention:
        time = flash_attention_s(
            sequences=s.sequences, heads=s.heads, q_length=s.q_length, kv_length=s.kv_length, d_qk=s.d_qk, d_v=s.d_v,
            window=s.window, calibration=priced, kernel=s.kernel,
        )  # fmt: skip
        seconds = float(getattr(time, s.direction).seconds)
        places.setdefault((s.kernel, s.direction, s.d_qk, s.kv_length), []).append(seconds / s.time_s)
    alone = {place: errors[0] for place, errors in places.items() if len(errors) == 1}
    assert {place[3] for place in alone} == {1024, 8192, 16384}
    assert list(alone.values()) == pytest.approx([1.0] * len(alone))


def _h200() -> Cluster:
    gpu = Gpu("H200-SXM-141GB", "hopper", 150e9, {"bf16": 989.4e12, "fp16": 989.4e12}, 4.8e12, 450e9, 63e9, 132, 700.0,
              reference="H200-SXM-141GB")  # fmt: skip
    network = Network("infiniband", 50e9, 8, 4e-6)
    return Cluster("unit", gpu, 1, 2, 2, "nvswitch", 450e9, 2e-6, 2, 4, network, calibration=(H200X2,))
