"""Documents of tunings for tests: `small()` with numbers that are worked out by head, `measured()` from trials that really ran.

Terms of a step that was traced are made up in both: each predicted term times a factor, so that they sum to what was measured.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from planner.rows import evaluate_rows

Json = dict[str, Any]
TRIALS = Path(__file__).resolve().parents[1] / "data" / "measured_h200" / "trials_1.jsonl"
REQUEST: Json = {
    "model": {"preset": "llama-3.2-3b", "name": "llama-3.2-3b"},
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
def _measured_text() -> str:
    wanted = ("1.3b-0", "1.3b-1", "1.3b-2", "1.3b-4", "1.3b-7", "1.3b-8", "1.3b-17")
    runs = {run["id"]: run for run in map(json.loads, TRIALS.read_text("utf-8").splitlines()) if run["id"] in wanted}
    rows = [{name: run[name] for name in ("model", "cluster", "training", "strategy")} for run in runs.values()]
    found = list(zip(runs.values(), evaluate_rows(rows, calibration="h200x2-nvls-off-2026-11-28"), strict=True))
    order = sorted(range(len(found)), key=lambda place: found[place][1]["step_time_s"])
    ranks = {place: rank + 1 for rank, place in enumerate(order)}
    trials = [
        _trial(number, ranks[place], *found[place], learnt=0.04 * (number - 1))
        for number, place in enumerate(order, start=1)
    ]
    ran = [each for each in trials if each["step_time_s"]]
    after = [*sorted(ran, key=lambda each: each["step_time_s"]), *(each for each in trials if not each["step_time_s"])]
    document = small(
        trials,
        request={name: rows[0][name] for name in ("model", "cluster", "training")},
        corrections=[
            {"term": "dp_comm", "factor": 1.31, "kept": True, "trials": len(ran), "error_before": 0.081, "error_after": 0.024,
             "framework": "torchtitan", "model_impl": "torchtitan", "gpu": "H200-SXM-141GB", "enabled": True},
            {"term": "attention", "factor": 0.97, "kept": False, "trials": len(ran), "error_before": 0.024,
             "error_after": 0.027, "reason": "it did not help on trials that were left out", "enabled": True},
            {"term": "activations", "factor": 1.02, "kept": True, "trials": len(ran), "error_before": 0.012,
             "error_after": 0.007, "enabled": True},
        ],
        ranking=[
            {"strategy": each["strategy"], "rank_before": each["rank"], "rank_after": place + 1 if each["step_time_s"] else None,
             "predicted_step_time_s": each["predicted_step_time_s"],
             "corrected_step_time_s": each["corrected_step_time_s"],
             "corrected_range_s": [0.97 * each["corrected_step_time_s"], 1.03 * each["corrected_step_time_s"]],
             "measured_step_time_s": each["step_time_s"]}
            for place, each in enumerate(after)
        ],
        next=[{"rank": trials[-1]["rank"], "strategy": trials[-1]["strategy"], "why": "It did not end in time, and its corrected range reaches below the best."}],
        stopped={"reason": "separated", "message": "No other plan is more than 1 % faster with a probability above 10 %."},
    )  # fmt: skip
    return json.dumps(document)


def measured() -> Json:
    """A tuning of seven plans of a 1.3B model on two H200, one of which did not end; learnt factors are made up."""
    document: Json = json.loads(_measured_text())
    return document


def _trial(number: int, rank: int, run: Json, evaluation: Json, *, learnt: float) -> Json:
    result = run["result"] or {}
    step_s, predicted_s, terms = result.get("step_time_s"), evaluation["step_time_s"], evaluation["time_breakdown_s"]
    corrected_s = predicted_s if step_s is None else predicted_s + (step_s - predicted_s) * min(learnt * 4.0, 0.9)
    return trial(
        number,
        rank=rank,
        strategy=run["strategy"],
        status=run["status"],
        reason=run["reason"],
        step_time_s=step_s,
        peak_allocated_bytes=max((each["peak_allocated_bytes"] for each in result.get("ranks", ())), default=None),
        predicted_step_time_s=predicted_s,
        predicted_step_time_range_s=evaluation["step_time_range_s"],
        predicted_peak_allocated_bytes=evaluation["memory"]["peak_allocated_bytes"],
        predicted_terms_s=terms,
        corrected_step_time_s=corrected_s,
        terms_s=None if step_s is None else {name: value * step_s / predicted_s for name, value in terms.items()},
        took_s=run["took_s"],
        gpu_seconds=2.0 * run["took_s"],
        record={"step_s": run["step_s"], "machine": {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0+cu130"}},
    )
