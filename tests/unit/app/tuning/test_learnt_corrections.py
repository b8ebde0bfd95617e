"""What the trials of a tuning teach: a term that every plan takes longer for, and nothing from another kind of device."""

from __future__ import annotations

from typing import Any

import pytest

from app.tuning.document import candidates_of
from app.tuning.learnt import corrections_of
from app.tuning.rows import trial_row
from builders import llama_model, request_of
from planner.plan import plan
from planner.search.standing import Outcome, Standing, Told

SLOWER = 1.25


def test_a_term_that_takes_longer_in_every_trial_is_corrected() -> None:
    asked = request_of(
        llama_model(8), "torchtitan", gpu="H200-SXM-141GB", cluster={"gpus_per_node": 4}, seq_length=4096
    )
    response = plan(asked | {"top_k": 12})
    candidates = candidates_of(response)

    def standing(gpu: str) -> Standing:
        told = []
        for place, candidate in enumerate(candidates):
            step_s = candidate.step_time_s + (SLOWER - 1.0) * candidate.terms_s["gemm"]
            record: dict[str, Any] = {
                "row": trial_row(response, candidate.rank), "status": "ok", "step_time_s": step_s,
                "peak_allocated_bytes": None, "terms_s": None, "machine": {"gpu": gpu, "gpus": 4},
            }  # fmt: skip
            told.append(Told(place, place, candidate.step_time_s, Outcome("ok", step_s, 20.0, 80.0, record)))
        return Standing(candidates, told)

    found = {each["term"]: each for each in corrections_of(response, standing("H200-SXM-141GB"))}
    # Matrix products are most of a step. What the other terms cannot explain is left to them, less what the prior holds back.
    assert found["gemm"]["kept"]
    assert found["gemm"]["factor"] == pytest.approx(SLOWER, rel=0.08)
    assert found["gemm"]["error_after"] < found["gemm"]["error_before"] / 2
    assert found["gemm"]["trials"] == len(candidates)
    assert found["gemm"]["gpu"] == "H200-SXM-141GB"
    # The same times on processors say nothing of that GPU.
    assert corrections_of(response, standing("CPU")) == []
