"""What was measured several times counts by its median: three samples price everything as their middle one alone does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import dense_model, job_of, row_of
from cost_models.hardware import Calibration, document_of, load_calibration
from cost_models.hardware.attention import flash_attention_s, math_attention_s
from cost_models.inputs.cluster import resolve_cluster
from cost_models.step.optimizer import accumulation_s

GPU = "H100-SXM-80GB"
CLUSTER = resolve_cluster({"gpu": GPU, "num_nodes": 1, "gpus_per_node": 8})
MINIMAL: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-28", "fingerprint": {"gpu": GPU},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12, "fp8": 1978.9e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
}  # fmt: skip
RATES = [{"kind": kind, "size_bytes": 1e9, "bytes_per_s": 3e12} for kind in ("copy", "elementwise")]
PLAIN = {"m": 8192, "n": 4096, "k": 4096}
CALL = {"sequences": 4, "heads": 16, "kv_heads": 16, "q_length": 2048, "kv_length": 2048}
CHAIN = {"sequences": 4, "heads": 16, "q_length": 2048, "kv_length": 2048, "d": 128, "dropout": 0.0}


def calibration(group: str, samples: list[dict[str, Any]], others: list[dict[str, Any]]) -> Calibration:
    groups: dict[str, Any] = {"memory_bandwidth": RATES, group: [*others, *samples]}
    document = document_of({**MINIMAL, **groups})
    return load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})


def product(own: Calibration, **how: Any) -> float:
    return float(own.gemm_s(8192.0, 4096.0, 4096.0, **{"precision": "bf16", **how}).seconds)


def chain(own: Calibration, *, composed: bool) -> tuple[float, float]:
    priced = math_attention_s(**CHAIN, calibration=own, composed=composed)
    return float(priced.forward.seconds), float(priced.backward.seconds)


def flash(own: Calibration) -> float:
    sizes = {"sequences": 4, "heads": 16, "q_length": 2048, "kv_length": 2048, "d_qk": 128, "d_v": 128, "window": None}
    return float(flash_attention_s(**sizes, kernel="fa2", calibration=own).forward.seconds)


def accumulating(own: Calibration) -> float:
    job = replace(job_of(dense_model(), gpu=GPU), calibration=own)
    held = {"dense": np.array([1e9]), "expert": np.array([0.0]), "sharded": np.array([False])}
    return float(accumulation_s(job, row_of(job), **held)[0])


WGRAD = {"m": 4096, "n": 4096, "k": 8192, "layout": "wgrad"}
PRICES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]], float, Callable[[Calibration], Any]]] = {
    # Group of the document, sample without its time, other samples, middle time in seconds, what is priced.
    "products": ("gemm", PLAIN, [], 4e-4, product),
    "gradients": (
        "gemm", {"m": 8192, "n": 4096, "k": 4096, "layout": "dgrad"}, [PLAIN | {"time_s": 4e-4}], 5e-4,
        lambda own: product(own, kind="dgrad"),
    ),
    "eight bits": (
        "gemm", PLAIN | {"dtype": "fp8"}, [PLAIN | {"time_s": 4e-4}], 2.5e-4, lambda own: product(own, precision="fp8"),
    ),
    "grouped products": (
        "gemm", {"m": 2048, "n": 4096, "k": 4096, "batch": 8}, [PLAIN | {"time_s": 4e-4}], 1e-3,
        lambda own: product(own, batch=8.0),
    ),
    "batched products": (
        "gemm", {"m": 2048, "n": 2048, "k": 128, "batch": 64}, [], 3e-4, lambda own: chain(own, composed=False),
    ),
    "accumulating products": (
        "gemm", WGRAD | {"output_dtype": "fp32"}, [WGRAD | {"time_s": 4e-4}], 9e-4, accumulating,
    ),
    "plain products beside accumulating ones": (
        "gemm", WGRAD, [WGRAD | {"output_dtype": "fp32", "time_s": 3e-3}], 4e-4, accumulating,
    ),
    "unfused attention": (
        "math_attention", CALL | {"d": 128, "direction": "forward"}, [], 7e-3, lambda own: chain(own, composed=True),
    ),
    "fused attention": (
        "attention", CALL | {"d_qk": 128, "d_v": 128, "kernel": "fa2", "direction": "forward"}, [], 1e-3, flash,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRICES)
def test_the_middle_of_three_times_is_what_is_priced(name: str) -> None:
    """Neither the least nor the largest: with either of them alone the price is another one."""
    group, sample, others, middle_s, priced = PRICES[name]
    each = [sample | {"time_s": middle_s * factor} for factor in (0.8, 1.0, 1.7)]
    slow_first = [each[2], each[0], each[1]]
    low, middle, high = (priced(calibration(group, [one], others)) for one in each)
    assert priced(calibration(group, slow_first, others)) == pytest.approx(middle, rel=1e-12)
    assert len({low, middle, high}) == 3


def test_rates_and_slowdowns_count_by_their_medians_too() -> None:
    """Adam at 200, 300 and 700 GB/s is one at 300. Products and collectives that slow each other down by 10, 25 and 90 %, and by
    200, 100 and 30 %, are slowed down by 25 and 100 %: 0.25 x 2 / 1.25 = 0.4 is lost, 1.25 / 2 - 0.25 = 0.375 hidden.
    """
    adam = [{"ranks": 8, "parameters": 2**26, "threads": 8, "bytes_per_s": rate} for rate in (7e11, 2e11, 3e11)]
    assert calibration("host_adam", adam, []).host_adam_bytes_per_s.value == 3e11
    sizes = {"op": "all_gather", "ranks": 8, "size_bytes": 6.7e7, "m": 8192, "n": 8192, "k": 8192}
    slowed = [
        sizes | {"compute_slowdown_fraction": compute, "communication_slowdown_fraction": collective}
        for compute, collective in ((0.9, 0.3), (0.1, 2.0), (0.25, 1.0))
    ]
    found = calibration("overlap", slowed, []).beside["all_gather"]
    assert (found.lost_fraction, found.hidden_fraction) == pytest.approx((0.4, 0.375))
