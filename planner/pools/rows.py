"""One evaluate row on a cluster of several kinds of node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cost_models.evaluate import DEFAULT_HEADROOM_FRACTION, Verdict
from cost_models.job import PooledJob
from cost_models.pools.memory import pooled_memory
from planner.answer.evaluation import invalid_dict
from planner.answer.open_facts import Outcome, Reading, combined_readings, deciding, single_readings
from planner.pools.evaluation import pooled_evaluation
from planner.pools.strategy import resolve_on_pools
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import assumed_fields


def evaluate_on_pools(pooled: PooledJob, given: StrategyInput, *, row_id: str | int | None) -> dict[str, Any]:
    """The evaluation of a strategy on pools; where it does not fit, each fact that it leaves open is read every way."""
    resolved = resolve_on_pools(pooled, given)
    assumed = assumed_fields(pooled, resolved.assumed)
    if resolved.row is None:
        return invalid_dict(resolved.problems, row_id=row_id, assumed=assumed, job=pooled)
    answer = pooled_evaluation(
        pooled, resolved.row, headroom_fraction=DEFAULT_HEADROOM_FRACTION, row_id=row_id, assumed=assumed
    )
    if answer["verdict"] == Verdict.FITS.label or any(r["code"] == "host-memory" for r in answer["reasons"]):
        return answer
    verdict = Verdict.OOM if answer["verdict"] == Verdict.OOM.label else Verdict.AT_RISK
    outcomes = _outcomes(pooled, given, single_readings(pooled.jobs[0], resolved.assumed))
    if verdict == Verdict.OOM and all(outcome.verdict == Verdict.OOM for outcome in outcomes):
        low = answer["memory"]["peak_device_range_bytes"][0]
        outcomes += _outcomes(pooled, given, combined_readings(outcomes, priced_low_bytes=low))
    return _with_open_facts(answer, outcomes, verdict=verdict)


def _outcomes(pooled: PooledJob, given: StrategyInput, readings: Sequence[Reading]) -> list[Outcome]:
    """What becomes of the legal readings; the low end is that of the pool with the least to spare."""
    found = []
    for reading in readings:
        jobs = [reading.job(job) for job in pooled.jobs]
        if None in jobs:
            continue
        own = replace(pooled, jobs=tuple(job for job in jobs if job is not None))
        row = resolve_on_pools(own, reading.strategy(given)).row
        if row is None:
            continue
        memory = pooled_memory(own, row)
        tightest = memory.pools[int(memory.tightest_pool[0])].memory
        found.append(Outcome(reading, Verdict(int(memory.verdict[0])), float(tightest.device_low[0])))
    return found


def _with_open_facts(answer: dict[str, Any], outcomes: Sequence[Outcome], *, verdict: Verdict) -> dict[str, Any]:
    """The answer with the low end, the verdict and the reasons that its open facts give it."""
    told = deciding(outcomes, verdict=verdict)
    low, high = answer["memory"]["peak_device_range_bytes"]
    low = min([low, *(outcome.device_low_bytes for outcome in outcomes)])
    answer["memory"]["peak_device_range_bytes"] = [low, high]
    if told and verdict == Verdict.OOM:
        answer["verdict"] = Verdict.AT_RISK.label
        answer["reasons"] = [
            reason | {"code": "at-risk-of-memory"} if reason["code"] == "out-of-memory" else reason
            for reason in answer["reasons"]
        ]
    answer["reasons"] += told
    return answer
