"""The knobs of a tuning's best plan, with trials that are answered by a formula: the defaults first, and what the best values gain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.tuning.knobs import tune_knobs
from builders import llama_model, request_of
from cost_models.errors import MeasurementError, NotExpressibleError
from planner.plan import plan

BUCKET = "reduce_bucket_size"


class FormulaBackend:
    """A step takes 1 s, and longer the further the bucket is from 100 million; one bucket in four runs out of memory."""

    name: Any = "export"

    def __init__(self) -> None:
        self.buckets: list[float] = []

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        raise AssertionError(row)

    def run(
        self, row: Mapping[str, Any], *, deadline_s: float, hopeless: Any = None, knobs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        assert knobs is not None
        bucket = knobs["config"]["zero_optimization"][BUCKET]
        self.buckets.append(bucket)
        failed = len(self.buckets) % 4 == 0
        return {
            "status": "oom" if failed else "ok", "reason": "CUDA out of memory" if failed else None,
            "step_time_s": None if failed else 1.0 + abs(bucket - 1e8) / 1e9, "took_s": 30.0,
        }  # fmt: skip


def test_knobs_are_tuned_with_real_trials_from_the_defaults_on() -> None:
    asked = request_of(llama_model(8), "deepspeed", cluster={"gpus_per_node": 2}, seq_length=1024)
    response = plan(asked | {"top_k": 1, "constraints": {"fixed": {"zero": 2, "dp": 2, "tp": 1, "pp": 1}}})
    backend = FormulaBackend()
    told: list[Any] = []
    found = tune_knobs(
        response, 1, backend, trials=9, deadline_s=60.0, storage="sqlite://", name="k", seed=0,
        tell=lambda values, record: told.append((values, record)),
    )  # fmt: skip
    assert (found["told"], found["failed"], found["open"]) == (7, 2, 0)
    assert [each["status"] for each in found["trials"]].count("oom") == 2
    # DeepSpeed's default is a bucket of 500 million elements: 1 + 0.4 s.
    assert backend.buckets[0] == 500_000_000
    assert found["default_step_time_s"] == pytest.approx(1.4)
    best = min(each["step_time_s"] for each in found["trials"] if each["step_time_s"] is not None)
    assert found["best"]["step_time_s"] == best
    assert found["gain_fraction"] == pytest.approx(1.0 - best / 1.4)
    assert len(told) == len(found["trials"]) == 9


class EndingBackend(FormulaBackend):
    """Answers as many trials as it is told to, and then fails as a machine does, or is interrupted."""

    def __init__(self, trials: int, error: BaseException) -> None:
        super().__init__()
        self.left, self.error = trials, error

    def run(
        self, row: Mapping[str, Any], *, deadline_s: float, hopeless: Any = None, knobs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        if not self.left:
            raise self.error
        self.left -= 1
        return super().run(row, deadline_s=deadline_s, knobs=knobs)


def test_a_tuning_of_knobs_that_ends_early_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    asked = request_of(llama_model(8), "deepspeed", cluster={"gpus_per_node": 2}, seq_length=1024)
    response = plan(asked | {"top_k": 1, "constraints": {"fixed": {"zero": 2, "dp": 2, "tp": 1, "pp": 1}}})
    how: Any = {"deadline_s": 60.0, "storage": f"sqlite:///{tmp_path / 'k.db'}", "name": "k", "trials": 3}
    found = tune_knobs(response, 1, EndingBackend(1, MeasurementError("GPU 1 is in use", hint="Wait.")), **how)
    assert (found["told"], len(found["trials"])) == (1, 1)
    assert found["stopped"] == {"reason": "failed", "message": "GPU 1 is in use Wait."}
    found = tune_knobs(response, 1, EndingBackend(1, KeyboardInterrupt()), **how)
    assert (found["told"], found["stopped"]["reason"], found["default_step_time_s"]) == (2, "cancelled", 1.4)
    # Two of three were told before.
    found = tune_knobs(response, 1, EndingBackend(9, KeyboardInterrupt()), **how)
    assert (found["told"], len(found["trials"]), found["stopped"]) == (3, 1, None)


def test_a_plan_without_knobs_says_so() -> None:
    response = plan(request_of(llama_model(8), "torchtitan", cluster={"gpus_per_node": 2}) | {"top_k": 1})
    with pytest.raises(NotExpressibleError, match="no knob"):
        tune_knobs(response, 1, FormulaBackend(), trials=1, deadline_s=60.0, storage="sqlite://", name="k")
