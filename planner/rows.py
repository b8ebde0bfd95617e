"""Evaluates rows: JSON lines go in, and one evaluation for each comes out in the same order.

A bad line is answered with the verdict `invalid`, and the other lines are still priced. Lines are taken in windows that grow from
one, so that a reader at a terminal is answered at once while a file is priced in batches. Rows of a window whose jobs differ at
most in their global batch and in their number of nodes are evaluated together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.calibration import CalibrationDocument
from cost_models.corrections import CorrectionSet
from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from cost_models.hardware import read_document, reference_names, shipped_names
from cost_models.hints import shown
from cost_models.inputs.fields import validated
from cost_models.job import Job, PooledJob
from cost_models.layers.flops import repeated_flops_per_token
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.strategies.strategy import Ints
from cost_models.strict_json import strict_loads
from planner.answer.collectives import collectives_of
from planner.answer.evaluation import Reason, evaluation_dict, invalid_dict
from planner.answer.open_rows import OpenRow, with_open_facts
from planner.answer.open_time import with_open_time
from planner.answer.whole_run import conditions_of
from planner.request.job import Documents, cost_key, largest_job, resolve_pooled_job
from planner.request.methods import job_of, pool_problems
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools
from planner.strategies.parse import ResolvedStrategies
from planner.strategies.told import assumed_fields

LARGEST_WINDOW = 512
"""Most rows of a window: large enough that batches pay, small enough that answers keep flowing."""
Answer = dict[str, Any]


@dataclass(slots=True)
class _Row:
    """One line on its way to an answer."""

    row_id: str | int | None = None
    job: PooledJob | None = None
    strategy: StrategyInput | None = None
    problems: list[Reason] = field(default_factory=list)


def evaluate_rows(
    lines: Iterable[str | Mapping[str, Any]],
    *,
    calibration: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
    corrections: CorrectionSet | None = None,
    own_corrections: CorrectionSet | None = None,
) -> Iterator[Answer]:
    """One evaluation per row, in order; blank lines are skipped.

    Args:
        lines: rows as JSON texts or as parsed objects.
        calibration: a name or file that replaces the calibration of every row.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether a row's `cluster.calibration` may be a path.
        corrections: those that replace the corrections of every row.
        own_corrections: the caller's, for rows that say `auto` or nothing.

    Raises:
        CalibrationError: `calibration` cannot be read. (A bad calibration in a row makes only that row invalid.)
    """
    for answers in evaluate_arriving(
        [lines],
        calibration=calibration,
        extra=extra,
        allow_files=allow_files,
        corrections=corrections,
        own_corrections=own_corrections,
    ):
        yield from answers


def evaluate_arriving(
    batches: Iterable[Iterable[str | Mapping[str, Any]]],
    *,
    calibration: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
    corrections: CorrectionSet | None = None,
    own_corrections: CorrectionSet | None = None,
) -> Iterator[list[Answer]]:
    """The answers to rows that arrive in batches, a window's at a time. No window waits for another batch.

    Windows go on growing from batch to batch: a pipe hands over 64 KiB at once, and starting anew with one row for each would
    price most rows in small windows. Arguments and errors are those of `evaluate_rows`.
    """
    documents = {**(extra or {}), **_named(calibration, extra or {})}
    size = 1
    for lines in batches:
        source = (line for line in lines if not isinstance(line, str) or line.strip())
        while window := list(islice(source, size)):
            yield _answers(
                [
                    _parsed(
                        line,
                        calibration=calibration,
                        extra=documents,
                        allow_files=allow_files,
                        corrections=corrections,
                        own_corrections=own_corrections,
                    )
                    for line in window
                ]
            )
            size = min(2 * size, LARGEST_WINDOW)


def _named(calibration: str | None, extra: Documents) -> dict[str, CalibrationDocument]:
    """The document that a command line names, read once and before any row."""
    if calibration is None or calibration in (*shipped_names(), *reference_names(), *extra):
        return {}
    return {calibration: read_document(Path(calibration))}


def _parsed(
    line: object,
    *,
    calibration: str | None,
    extra: Documents,
    allow_files: bool,
    corrections: CorrectionSet | None,
    own_corrections: CorrectionSet | None,
) -> _Row:
    row = _Row()
    document = _document(line, row)
    if document is None:
        return row
    given_id = document.get("id")
    # Taken first, so that even the answer to an invalid row can be matched with its row.
    if isinstance(given_id, str | int) and not isinstance(given_id, bool):
        row.row_id = given_id
    try:
        row.job = resolve_pooled_job(
            document,
            calibration=calibration,
            extra=extra,
            allow_files=allow_files,
            corrections=corrections,
            own_corrections=own_corrections,
        )
    except InvalidInputError as error:
        row.problems.extend(_reason(problem) for problem in error.problems)
    except MeshwrightError as error:
        row.problems.append({"code": error.code, "message": error.message, "hint": error.hint})
    if "strategy" not in document:
        row.problems.append(_plain_reason("missing-field", "strategy is required", "Add 'strategy'."))
        return row
    try:
        row.strategy = validated(StrategyInput, document["strategy"], pointer="/strategy")
        if row.job is not None:
            row.job = job_of(row.job, row.strategy)
            row.problems += pool_problems(row.job)
    except InvalidInputError as error:
        row.problems.extend(_reason(problem) for problem in error.problems)
    return row


def _document(line: object, row: _Row) -> Mapping[str, Any] | None:
    found = line
    if isinstance(line, str):
        try:
            found = strict_loads(line)
        except (ValueError, RecursionError) as error:
            problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            row.problems.append(
                _plain_reason("invalid-json", f"the line is not JSON: {problem}", "Write one JSON object per line.")
            )
            return None
    if isinstance(found, Mapping):
        return found
    row.problems.append(
        _plain_reason("invalid-json", f"the row is {shown(found)}, not an object", "Write one JSON object per line.")
    )
    return None


def _plain_reason(code: str, message: str, hint: str) -> Reason:
    return {"code": code, "message": message, "hint": hint}


def _reason(problem: Problem) -> Reason:
    """A problem as a reason, with its pointer in front of the message, since a row has no other place for it."""
    where = problem.pointer.strip("/").replace("/", ".")
    return _plain_reason(problem.code, f"{where}: {problem.message}" if where else problem.message, problem.hint)


def _answers(rows: list[_Row]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        if row.job is None or row.strategy is None or row.problems:
            answers[position] = invalid_dict(row.problems, row_id=row.row_id, job=row.job)
        else:
            groups[cost_key(row.job)].append(position)
    for positions in groups.values():
        answers |= zip(positions, _group_answers([rows[position] for position in positions]), strict=True)
    return [answers[position] for position in range(len(rows))]


def _group_answers(members: list[_Row]) -> list[Answer]:
    """The answers to rows whose jobs have equal cost keys."""
    jobs, inputs = zip(*((row.job, row.strategy) for row in members if row.job and row.strategy), strict=True)
    resolved = resolve_on_pools(jobs, inputs)
    found = [list(problems) for problems in resolved.problems]
    legal = _judged(jobs, resolved, found)
    answers = [
        invalid_dict(problems, row_id=row.row_id, assumed=assumed_fields(job, assumed), job=job)
        for row, job, problems, assumed in zip(members, jobs, found, resolved.assumed, strict=True)
    ]
    if resolved.strategies is None or not len(legal):
        return answers
    all_legal = len(legal) == len(resolved.strategies)
    evaluated = evaluate_on_pools(
        largest_job(jobs), resolved.strategies if all_legal else resolved.strategies.take(legal)
    )
    priced = resolved.index[legal].tolist()
    given = [OpenRow(jobs[member], inputs[member], resolved.assumed[member]) for member in priced]
    evaluated, told = with_open_facts(with_open_time(evaluated, given), given)
    repeated: Sequence[float | None] = [None] * len(priced)  # on pools it is asked of the pool that the answer is about
    if not jobs[0].cluster.lists_pools:
        repeated = repeated_flops_per_token(jobs[0].jobs[0], evaluated.strategies).tolist()
    conditions = conditions_of(largest_job(jobs), evaluated.strategies)
    collectives = collectives_of(largest_job(jobs), evaluated.strategies)
    for index, member in enumerate(priced):
        answers[member] = evaluation_dict(
            evaluated,
            index,
            pooled=jobs[member],
            row_id=members[member].row_id,
            assumed=answers[member]["assumed"],
            repeated_flops=repeated[index],
            open_facts=told.get(index, ()),
            conditions=None if conditions is None else conditions[index],
            collectives=None if collectives is None else collectives[index],
        )
    return answers


def _judged(jobs: Sequence[PooledJob], resolved: ResolvedStrategies, found: list[list[Reason]]) -> Ints:
    """The rows of the batch that break no rule; the reasons of the others are added to `found`."""
    # Rules may look at the global batch, so rows are judged job by job even though they are priced together.
    if resolved.strategies is None:
        return resolved.index
    legal = np.ones(len(resolved.index), np.bool_)
    by_job: dict[tuple[Job, ...], list[int]] = defaultdict(list)
    for row, member in enumerate(resolved.index.tolist()):
        by_job[jobs[member].jobs].append(row)
    for batch_rows in by_job.values():
        alone = len(by_job) == 1
        strategies = resolved.strategies if alone else resolved.strategies.take(np.array(batch_rows))
        broken = violations_on_pools(jobs[int(resolved.index[batch_rows[0]])], strategies)
        legal[batch_rows] = broken.legal
        for position in (~legal[batch_rows]).nonzero()[0].tolist():
            found[int(resolved.index[batch_rows[position]])] += broken.reasons(position)
    return legal.nonzero()[0]
