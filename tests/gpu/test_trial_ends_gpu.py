"""Trials on a real GPU: what is measured adds up, what ends badly is told, and the GPU is free afterwards.

Deselected where there is no CUDA device. Models are small: a step takes tens of milliseconds.
"""

from __future__ import annotations

from typing import Any

import pytest

from profiler.machine.nvml import Nvml
from profiler.trial.gpus import visible
from profiler.trial.launch import run_trial
from profiler.trial.watch import Limits

pytestmark = pytest.mark.gpu
GIB = 2**30
MODEL = {
    "num_layers": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "vocab_size": 32000,
}
NVML = Nvml.open()
GPUS = visible(NVML, {}) if NVML is not None else []


def _row(**strategy: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "training": {"seq_length": 2048, "global_batch_size": 8},
        "strategy": {"micro_batch_size": 2, **strategy},
    }


def _used_bytes() -> float:
    assert NVML is not None
    return sum(NVML.read(gpu.handle).used_bytes or 0.0 for gpu in GPUS)


def test_terms_sum_to_the_step_and_products_take_most_of_it() -> None:
    """271 million parameters are multiplied with 16,384 tokens: 6 N T is 26.6 T operations, hence 27 ms at a thousand T a second."""
    before = _used_bytes()
    trial = run_trial(_row(), deadline_s=120)
    assert trial.status == "ok", trial.reason
    assert trial.notes == ()
    assert trial.terms_s is not None
    assert trial.step_time_s is not None
    assert sum(trial.terms_s.values()) == pytest.approx(trial.step_time_s)
    assert trial.step_time_s > 0.026
    assert 0.3 * trial.step_time_s < trial.terms_s["gemm"] + trial.terms_s["head"] < trial.step_time_s
    assert not any(name.endswith("_comm") for name in trial.terms_s)
    # Of 337 million parameters, the embedding's too: fp32 values, gradients and two moments, 16 bytes each.
    assert (
        16 * 336e6
        < (trial.peak_allocated_bytes or 0)
        < (trial.peak_reserved_bytes or 0)
        < (trial.peak_device_bytes or 0)
    )
    assert trial.machine.driver
    assert abs(_used_bytes() - before) < GIB


@pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("strategy", "term"),
    [
        ({"dp": 2, "zero": 3}, "dp_comm"),
        ({"tp": 2, "sequence_parallel": True}, "tp_comm"),
        ({"pp": 2, "micro_batch_size": 1}, "pp_bubble"),
    ],
)
def test_each_communication_has_its_term(strategy: dict[str, Any], term: str) -> None:
    trial = run_trial(_row(**strategy), deadline_s=120)
    assert trial.status == "ok", trial.reason
    assert trial.terms_s is not None, trial.notes
    assert trial.terms_s[term] > 0
    others = {"dp_comm", "tp_comm", "pp_bubble"} - {term}
    assert all(trial.terms_s.get(other, 0.0) < trial.terms_s[term] for other in others)


def test_memory_that_does_not_suffice_is_told_and_the_next_trial_runs() -> None:
    """Its states alone take 5.4 GB; two hundredths of an H200 are 2.8 GiB."""
    small = Limits(deadline_s=120.0, gpu_fraction=0.02)
    trial = run_trial(_row(), deadline_s=120, limits=small)
    assert trial.status == "oom"
    assert "out of memory" in str(trial.reason)
    again = run_trial(_row(), deadline_s=120, steps=2, trace=False)
    assert again.status == "ok", again.reason
