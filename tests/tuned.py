"""Documents of tunings for tests: `small()` with numbers that are worked out by head, `studied()` as a study writes it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from app.tuning.document import candidates_of, tuning_document
from planner.plan import plan
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome, Standing, Told

Json = dict[str, Any]
REQUEST: Json = {
    "model": {"preset": "llama-3.2-3b"},
    "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan"},
}
GIB = 1 << 30


def trial(number: int, **changed: Any) -> Json:
    """A trial of plan `number` + 1: 1 s predicted (0.9 to 1.1), 0.8 s measured, 40 GiB predicted, 50 GiB measured."""
    return {
        "number": number,
        "rank": number + 1,
        "strategy": {"dp": 2, "zero": 3, "micro_batch_size": number + 1},
        "status": "ok",
        "reason": None,
        "step_time_s": 0.8,
        "peak_allocated_bytes": 50 * GIB,
        "predicted_step_time_s": 1.0,
        "predicted_step_time_range_s": [0.9, 1.1],
        "predicted_peak_allocated_bytes": 40 * GIB,
        "predicted_terms_s": {"gemm": 0.6, "dp_comm": 0.4},
        "corrected_step_time_s": 1.0,
        "terms_s": None,
        "took_s": 30.0,
        "gpu_seconds": 60.0,
        "started_at": "2026-11-29T12:00:00Z",
        "record": {"step_s": [2.0, 0.8, 0.8], "machine": {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0"}},
    } | changed


def small(trials: list[Json], **changed: Any) -> Json:
    """A tuning of these trials, of which the fastest is the best; nothing was learnt, and the order stayed."""
    ran = sorted((each for each in trials if each["status"] == "ok"), key=lambda each: each["step_time_s"])
    first = next((each for each in ran if each["rank"] == 1), None)
    best = ran and {
        "strategy": ran[0]["strategy"],
        "rank": ran[0]["rank"],
        "step_time_s": ran[0]["step_time_s"],
        "gain_fraction": None if first is None else 1.0 - ran[0]["step_time_s"] / first["step_time_s"],
    }
    return {
        "id": "tuning_1",
        "status": "succeeded",
        "created_at": "2026-11-29T12:00:00Z",
        "product_version": "0.1.0",
        "request": REQUEST,
        "request_digest": "0" * 64,
        "backend": "pytorch",
        "trials": trials,
        "best": best or None,
        "corrections": [],
        "ranking": [],
        "limits": {"budget_s": 600.0, "max_trials": 8, "gpu_hours": None},
        "used": {"seconds": 30.0 * len(trials), "trials": len(trials), "gpu_hours": len(trials) / 60.0},
        "stopped": {"reason": "max-trials", "message": "All 8 trials were made."},
        "next": [],
        "knobs": None,
        "warnings": [],
    } | changed


@cache
def _studied_text() -> str:
    response = plan(REQUEST | {"top_k": 12})
    candidates = candidates_of(response)
    told: list[Told] = []
    standing = Standing(candidates, limits=Limits(budget_s=600.0, max_trials=8))
    while standing.closed is None:
        place = standing.choice
        assert place is not None
        expected_s = float(standing.belief.median_s()[place])
        told.append(Told(len(told), place, expected_s, _outcome(candidates[place], first=not told)))
        standing = Standing(candidates, told, limits=standing.limits)
    document = tuning_document(
        response,
        standing,
        tuning_id="tuning_2",
        status="succeeded",
        created_at="2026-11-29T12:00:00Z",
        backend="pytorch",
        corrections=[
            {"term": "dp_comm", "factor": 1.31, "kept": True, "trials": 5, "error_before": 0.081, "error_after": 0.024,
             "framework": "torchtitan", "model_impl": "torchtitan", "gpu": "H200-SXM-141GB", "enabled": True},
            {"term": "attention", "factor": 0.97, "kept": False, "trials": 5, "error_before": 0.024,
             "error_after": 0.027, "reason": "it did not help on trials that were left out", "enabled": True},
            {"term": "activations", "factor": 1.02, "kept": True, "trials": 5, "error_before": 0.012,
             "error_after": 0.007, "enabled": True},
        ],
    )  # fmt: skip
    return json.dumps(document)


def studied() -> Json:
    """The document of a study that chose and measured plans of a 3B model on two H200; what it measured is made up."""
    document: Json = json.loads(_studied_text())
    return document


def _outcome(candidate: Candidate, *, first: bool) -> Outcome:
    """The first plan runs out of memory, another one does not end; the others communicate for half as long again."""
    failed = {
        "status": "oom" if first else "hang",
        "reason": "CUDA out of memory" if first else "nothing came for 60 s",
    }
    terms = {name: value * (1.5 if name.endswith("comm") else 1.02) for name, value in candidate.terms_s.items()}
    step_s = sum(terms.values())
    is_measured = not first and candidate.strategy["pp"] == 1
    record = {
        "status": "ok", "reason": None, "step_time_s": step_s, "step_s": [3.0 * step_s, *[step_s] * 6],
        "peak_allocated_bytes": round(0.97 * candidate.device_bytes), "terms_s": terms,
    } if is_measured else failed | {"step_time_s": None, "step_s": []}  # fmt: skip
    record |= {
        "took_s": 31.0, "gpu_seconds": 62.0, "started_at": "2026-11-29T12:00:00Z",
        "machine": {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0"},
    }  # fmt: skip
    return Outcome.of_record(record)
