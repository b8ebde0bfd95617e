"""What trials on real GPUs must hold: terms and memory that add up, ends that are told, and a GPU that is free afterwards.

Each check is a function without arguments that fails by its assertions. Models are small: a step takes tens of milliseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from profiler.machine.nvml import Nvml
from profiler.trial.gpus import visible
from profiler.trial.launch import run_trial
from profiler.trial.watch import Limits

_GIB = 2**30
_MODEL = {
    "num_layers": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "vocab_size": 32000,
}


def _row(**strategy: Any) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "training": {"seq_length": 2048, "global_batch_size": 8},
        "strategy": {"micro_batch_size": 2, **strategy},
    }


def _used_bytes() -> float:
    driver = Nvml.open()
    assert driver is not None
    return sum(driver.read(gpu.handle).used_bytes or 0.0 for gpu in visible(driver, {}))


def terms_sum_to_the_step_and_products_take_most_of_it() -> None:
    """271 million parameters are multiplied with 16,384 tokens: 6 N T is 26.6 T operations, hence 27 ms at a thousand T a second."""
    before = _used_bytes()
    trial = run_trial(_row(), deadline_s=120)
    assert trial.status == "ok", trial.reason
    assert trial.notes == (), trial.notes
    assert trial.terms_s is not None
    assert trial.step_time_s is not None
    assert math.isclose(sum(trial.terms_s.values()), trial.step_time_s, rel_tol=1e-6), trial.terms_s
    assert trial.step_time_s > 0.026, trial.step_time_s
    products_s = trial.terms_s["gemm"] + trial.terms_s["head"]
    assert 0.3 * trial.step_time_s < products_s < trial.step_time_s, trial.terms_s
    assert not any(name.endswith("_comm") for name in trial.terms_s), trial.terms_s
    # Of 337 million parameters, the embedding's too: fp32 values, gradients and two moments, 16 bytes each.
    peaks = [16 * 336e6, trial.peak_allocated_bytes, trial.peak_reserved_bytes, trial.peak_device_bytes]
    told = [peak for peak in peaks if peak is not None]
    assert len(told) == len(peaks), peaks
    assert sorted(set(told)) == told, peaks
    assert trial.machine.driver
    assert abs(_used_bytes() - before) < _GIB


def communication_has_its_term(strategy: Mapping[str, Any], term: str) -> None:
    """On two GPUs, the term of the plan's communication is there and larger than those of others."""
    trial = run_trial(_row(**strategy), deadline_s=120)
    assert trial.status == "ok", trial.reason
    assert trial.terms_s is not None, trial.notes
    assert trial.terms_s[term] > 0
    others = {"dp_comm", "tp_comm", "pp_bubble"} - {term}
    assert all(trial.terms_s.get(other, 0.0) < trial.terms_s[term] for other in others), trial.terms_s


def memory_that_does_not_suffice_is_told_and_the_next_trial_runs() -> None:
    """Its states alone take 5.4 GB; two hundredths of an H200 are 2.8 GiB."""
    trial = run_trial(_row(), deadline_s=120, limits=Limits(deadline_s=120.0, gpu_fraction=0.02))
    assert trial.status == "oom", trial.status
    assert "out of memory" in str(trial.reason), trial.reason
    again = run_trial(_row(), deadline_s=120, steps=2, trace=False)
    assert again.status == "ok", again.reason


def checks(gpus: int) -> dict[str, Callable[[], None]]:
    """What so many GPUs can be held to, by what it says."""
    found: dict[str, Callable[[], None]] = {}
    if gpus >= 1:
        found["terms sum to the step"] = terms_sum_to_the_step_and_products_take_most_of_it
        found["memory that does not suffice is told"] = memory_that_does_not_suffice_is_told_and_the_next_trial_runs
    if gpus >= 2:
        several: Mapping[str, Mapping[str, Any]] = {
            "dp_comm": {"dp": 2, "zero": 3},
            "tp_comm": {"tp": 2, "sequence_parallel": True},
            "pp_bubble": {"pp": 2, "micro_batch_size": 1},
        }
        found |= {f"{term} is told": partial(communication_has_its_term, each, term) for term, each in several.items()}
    return found


def outcome(check: Callable[[], None]) -> dict[str, Any]:
    """How a check ended: {"held", "took_s"}, and of one that did not hold {"why"}."""
    begun_at = time.monotonic()
    try:
        check()
    except Exception as error:  # noqa: BLE001 - one that fails takes no other with it
        why = {"why": f"{type(error).__name__}: {error}"[:1500]}
    else:
        why = {}
    return {"held": not why, "took_s": round(time.monotonic() - begun_at, 1), **why}
