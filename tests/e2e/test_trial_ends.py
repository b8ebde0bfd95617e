"""How trials end: real processes on this machine's processors, and the programs that agents would run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from cost_models.errors import InvalidInputError, MeasurementError
from cost_models.terms import TIME_NAMES
from profiler.trial.attempt import ranks_of
from profiler.trial.launch import run_trial

MODEL = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 128}


def _row(**strategy: Any) -> dict[str, Any]:
    training = {"seq_length": 32, "global_batch_size": 4}
    return {"model": MODEL, "training": training, "strategy": {"micro_batch_size": 2, **strategy}}


def test_a_trial_that_is_ended_early_tells_what_it_has_and_where_its_time_went() -> None:
    """Thousands of steps are asked for; after the third the caller has seen enough. The trace comes after what was timed."""
    seen: list[int] = []

    def goes_on(number: int, _took_s: float) -> bool:
        seen.append(number)
        return number < 2

    trial = run_trial(_row(), deadline_s=240, device="cpu", warm_up=1, steps=5000, trace=True, goes_on=goes_on)
    assert trial.status == "ok", trial.reason
    assert seen[:3] == [0, 1, 2]
    # As many more as are run until the word comes, which is a matter of how busy this machine is.
    assert 3 <= len(trial.step_s) < 5001
    assert trial.notes == (f"ended early, after {len(trial.step_s)} of 5001 steps",)
    counted = sorted(trial.step_s[1:])
    assert counted[0] <= (trial.step_time_s or 0.0) <= counted[-1]
    assert trial.terms_s is not None
    assert set(trial.terms_s) <= set(TIME_NAMES)
    assert {"gemm", "attention", "elementwise", "embedding", "head", "loss", "optimizer"} <= set(trial.terms_s)
    assert sum(trial.terms_s.values()) == pytest.approx(trial.step_time_s)
    assert (trial.machine.gpu, trial.machine.gpus, trial.peak_allocated_bytes) == ("CPU", 1, None)


def test_a_plan_that_cannot_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidInputError, match="offload"):
        run_trial(_row(offload={"optimizer_fraction": 1.0}), deadline_s=60, device="cpu")
    with pytest.raises(
        InvalidInputError, match=r"the plan is for 2 ranks \(tp 1 x pp 1 x cp 1 x dp 2\), and 4 processes"
    ):
        run_trial(_row(dp=2), world=4, deadline_s=60, device="cpu")
    with pytest.raises(InvalidInputError, match="/cluster/num_nodes: num_nodes is 2; trials run on one machine"):
        ranks_of({**_row(), "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 2}})


def test_without_a_gpu_a_trial_says_so() -> None:
    # CUDA sees none, on machines with GPUs, too.
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(MeasurementError, match="no GPU to run trials on") as caught:
            run_trial(_row(), deadline_s=60)
    assert "processors" in caught.value.hint
