"""Evaluated rows whose verdict depends on facts that they leave open: each is read in every way and judged by the leanest.

Only rows that do not fit as priced are read again, and all of these at once: readings whose jobs price strategies alike share
one evaluation of memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated, Verdict
from cost_models.job import Job, PooledJob
from cost_models.pools.evaluate import pooled_memory
from planner.answer.evaluation import Reason
from planner.answer.open_facts import Outcome, Reading, combined_readings, deciding, single_readings
from planner.request.job import cost_key, largest_job
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An evaluated row as it was given."""

    job: PooledJob
    given: StrategyInput
    assumed: Mapping[str, Any]
    """The defaults that were applied to its strategy."""


_Task = tuple[int, Reading, PooledJob]
"""The position of a row, a reading of it, and the job under that reading."""


def with_open_facts(evaluated: Evaluated, rows: Sequence[OpenRow]) -> tuple[Evaluated, dict[int, list[Reason]]]:
    """The evaluation with memory ranges and verdicts that hold for every reading of the rows, and the facts that decide.

    Args:
        evaluated: N rows whose jobs have equal cost keys (`planner.request.job`).
        rows: the same N rows as they were given.

    Returns:
        The evaluation, and by position the reasons for rows whose verdict an open fact decides.
    """
    # A row that fits as priced fits under its leanest reading too, and host memory is not among the open facts.
    unsure = np.flatnonzero((evaluated.verdict != Verdict.FITS) & ~evaluated.host_exceeded).tolist()
    readings = {index: single_readings(rows[index].job.jobs[0], rows[index].assumed) for index in unsure}
    outcomes = _outcomes(readings, rows)
    # Combinations are tried only where no fact is enough alone: a reason that names one fact is the easier one to act on.
    out = [index for index, found in outcomes.items() if evaluated.verdict[index] == Verdict.OOM and _all_out(found)]
    low = evaluated.pools.device_low
    combined = {index: combined_readings(outcomes[index], priced_low_bytes=float(low[index])) for index in out}
    together = _outcomes(combined, rows)
    told: dict[int, list[Reason]] = {}
    for index, single in outcomes.items():
        found = [*single, *together.get(index, [])]
        low[index] = min([low[index], *(outcome.device_low_bytes for outcome in found)])
        told[index] = deciding(found, verdict=Verdict(int(evaluated.verdict[index])))
    # A reading that decides needs no more than the capacity, so that the row may fit after all.
    decided = np.array([bool(told.get(index)) for index in range(len(rows))], np.bool_)
    return replace(evaluated, pools=evaluated.pools.lowered(low, at_risk=decided)), told


def _all_out(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.verdict == Verdict.OOM for outcome in outcomes)


def _outcomes(readings: Mapping[int, Sequence[Reading]], rows: Sequence[OpenRow]) -> dict[int, list[Outcome]]:
    """The outcomes of each row's readings; readings that no framework could run are left out."""
    tasks: dict[Hashable, list[_Task]] = defaultdict(list)
    for index, row_readings in readings.items():
        for reading in row_readings:
            job = _read(rows[index].job, reading)
            if job is not None:
                tasks[cost_key(job)].append((index, reading, job))
    found: dict[int, list[Outcome]] = defaultdict(list)
    for alike in tasks.values():
        for (index, reading, _), verdict, low_bytes in _judged(alike, rows):
            found[index].append(Outcome(reading, verdict, low_bytes))
    return found


def _read(pooled: PooledJob, reading: Reading) -> PooledJob | None:
    """The job as a reading has it on every pool; None where its training is refused on one."""
    jobs = [reading.job(job) for job in pooled.jobs]
    return None if None in jobs else replace(pooled, jobs=tuple(job for job in jobs if job is not None))


def _judged(tasks: Sequence[_Task], rows: Sequence[OpenRow]) -> list[tuple[_Task, Verdict, float]]:
    """Verdict and low end (bytes) of the legal readings among some whose jobs have equal cost keys."""
    jobs = [job for _, _, job in tasks]
    inputs = [reading.strategy(rows[index].given) for index, reading, _ in tasks]
    resolved = resolve_on_pools(jobs, inputs)
    if resolved.strategies is None:
        return []
    memory = pooled_memory(largest_job(jobs), resolved.strategies)
    low, members = memory.device_low, resolved.index.tolist()
    legal = np.zeros(len(members), np.bool_)
    # Rules may look at the global batch, so that each job judges its own.
    by_job: dict[tuple[Job, ...], list[int]] = defaultdict(list)
    for position, member in enumerate(members):
        by_job[jobs[member].jobs].append(position)
    for some in by_job.values():
        own = resolved.strategies if len(by_job) == 1 else resolved.strategies.take(np.array(some))
        legal[some] = violations_on_pools(jobs[members[some[0]]], own).legal
    return [
        (tasks[member], Verdict(int(memory.verdict[position])), float(low[position]))
        for position, member in enumerate(members)
        if legal[position] and not memory.host_exceeded[position]
    ]
