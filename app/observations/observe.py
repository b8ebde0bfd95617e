"""An observation from a row and what was measured of it, with its prediction and with what is special about it.

Nothing is thrown away because it looks wrong: an observation that cannot be right is kept, says why, and corrects nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.fields import validated
from cost_models.inputs.pools import resolve_pools
from cost_models.units import GIB
from planner.request.checked_request import PRODUCT_VERSION
from planner.rows import evaluate_rows
from planner.schemas.observation import MeasuredRun, ObservationRequest
from planner.search.standing import IMPLAUSIBLE
from profiler.logs.read import read_log, reading_of_numbers
from profiler.logs.reading import LogReading

Document = dict[str, Any]
NOT_USED = frozenset({
    "coarse", "cumulative", "different-batch", "implausible", "not-predicted", "runs-differ", "sum-of-parts", "warm-up-only",
})  # fmt: skip
"""Flags of observations by which nothing is corrected."""
_REMARKS: Mapping[str, str] = {
    "coarse": "The times were printed with too few digits: two neighbouring numbers are further apart than the range of the prediction.",
    "cumulative": "The time is the mean of the whole run, start-up, evaluations and checkpoints included.",
    "different-batch": "The log is of another global batch than the row.",
    "few-steps": "There are fewer than three steps.",
    "implausible": "The measured time or memory is more than 50 times off the prediction. Check the unit and the row.",
    "line-cut": "The log ends within a line, which was not read.",
    "mixed-formats": "The log also holds steps of another program, which were not read.",
    "not-predicted": "There is no prediction for this row.",
    "resumed": "The run was resumed; the first interval after each start was left out.",
    "runs-differ": "The log holds several runs, whose steps take different times. The last one was read.",
    "several-runs": "The log holds several runs.",
    "sum-of-parts": "The time is the sum of the parts that were timed; what lies between them is missing.",
    "unclear-numbers": "Numbers that could be read in two ways, such as 1,234, were left out.",
    "unsteady": "The middle half of the steps spreads by more than a fifth of their median.",
    "warm-up-only": "Only the start of the run was logged, which takes longer than later steps.",
}
# The row could not be understood, in contrast to a plan that a framework would refuse.
_OF_INPUT = frozenset({
    "invalid-json", "invalid-field", "unknown-field", "missing-field", "invalid-input", "not-modelled", "unknown-preset",
    "unknown-model-type", "calibration",
})  # fmt: skip
_PARTS = ("id", "model", "cluster", "training", "strategy")


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a run before anything is predicted."""

    measured: Document
    """A `MeasuredRun`."""
    source: Document
    """An `ObservationSource`."""
    flags: Sequence[str] = field(default=())


def told_by_log(reading: LogReading, *, log_sha256: str | None) -> Told:
    """What a log says."""
    memory = reading.memory_bytes
    measured = {
        "step_time_s": reading.step_time_s,
        "peak_memory_gib": None if memory is None else memory / GIB,
        "memory_counter": reading.memory_counter,
        "memory_rank": reading.memory_rank,
        "kind": reading.kind,
        "num_steps": reading.num_steps,
        "digits": reading.digits,
        "resolution_fraction": reading.resolution_fraction,
    }
    lines = [_storable(line) for line in reading.lines]
    return Told(measured, {"format": reading.format, "log_sha256": log_sha256, "lines": lines}, reading.flags)


def told_by_numbers(given: Mapping[str, Any]) -> Told:
    """What somebody wrote down, completed by what the numbers' digits say."""
    told = told_by_log(reading_of_numbers(given), log_sha256=None)
    stated = {name: value for name, value in given.items() if value is not None}
    return Told({**told.measured, "kind": None, "num_steps": None, **stated}, told.source)


def observation(
    row: Mapping[str, Any],
    told: Told,
    *,
    extra: Mapping[str, CalibrationDocument] | None = None,
    allow_files: bool = False,
    at: datetime | None = None,
) -> Document:
    """The observation, an `Observation`.

    Args:
        row: the evaluate row of the run.
        told: what was measured.
        extra: calibrations that the row may name, by id.
        allow_files: whether the row may name a calibration by its file.
        at: when it was made; now where nothing is said.

    Raises:
        InvalidInputError: the row cannot be understood.
    """
    kept = {name: row[name] for name in _PARTS if row.get(name) is not None}
    (answer,) = evaluate_rows([kept], extra=extra, allow_files=allow_files)
    _require_understood(answer["reasons"])
    measured = {name: told.measured.get(name) for name in MeasuredRun.model_fields}
    counter = measured["memory_counter"] or "allocated"
    predicted = _predicted(answer, counter)
    flags = sorted({*told.flags, *_flags_beside(predicted, measured)})
    named = json.dumps([kept, measured, told.source], sort_keys=True, separators=(",", ":"))
    return {
        "id": f"observation-{hashlib.sha256(named.encode()).hexdigest()[:24]}",
        "created_at": _rfc3339(at or datetime.now(UTC)),
        "product_version": PRODUCT_VERSION,
        "row": kept,
        "measured": measured,
        "source": dict(told.source),
        "predicted": predicted,
        "used": not NOT_USED & set(flags),
        "flags": flags,
        "remarks": [_REMARKS[flag] for flag in flags],
    }


def observed(asked: Mapping[str, Any], *, extra: Mapping[str, CalibrationDocument] | None = None) -> Document:
    """The observation that an `ObservationRequest` asks for.

    Raises:
        InvalidInputError: the request does not match its schema, tells both a log and numbers or neither, or cannot be read.
    """
    request = validated(ObservationRequest, asked, pointer="")
    row = asked["row"]
    if (request.log is None) == (request.measured is None):
        what = "neither a log nor numbers" if request.log is None else "a log and numbers"
        hint = "Send `log` with what the run printed, or `measured` with its numbers."
        raise InvalidInputError([Problem("", f"the request holds {what}", hint)])
    if request.log is not None:
        if request.source is not None or request.flags:
            part = "source" if request.source is not None else "flags"
            message = f"{part} is what the log itself says"
            raise InvalidInputError([Problem(f"/{part}", message, "Leave it out beside `log`.")])
        digest = hashlib.sha256(request.log.encode()).hexdigest()
        told = told_by_log(read_log(request.log, row=row, format=request.format), log_sha256=digest)
    else:
        told = told_by_numbers(asked["measured"])
        if request.source is not None:
            told = Told(told.measured, request.source.model_dump(mode="json"), request.flags)
    return observation(row, told, extra=extra)


def stored_form(asked: Mapping[str, Any], *, extra: Mapping[str, CalibrationDocument] | None = None) -> Document:
    """The observation that is asked for (`document`), with the `framework` and `gpu` by which it is found again.

    Raises:
        InvalidInputError: as in `observed`.
    """
    document = observed(asked, extra=extra)
    row = document["row"]
    cluster = row["cluster"]
    # Several kinds of node have several names; a name of somebody's own may be as long as they like.
    if cluster.get("pools") is None:
        gpu = resolve_cluster(cluster).gpu.name
    else:
        gpu = ", ".join(dict.fromkeys(pool.cluster.gpu.name for pool in resolve_pools(cluster).pools))
    return {"document": document, "framework": str(row["training"]["framework"]), "gpu": gpu[:64]}


def _storable(line: str) -> str:
    """A line as every database and terminal can hold it."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "\ufffd", line)


def _require_understood(reasons: Iterable[Mapping[str, str]]) -> None:
    problems = [
        Problem("/row", reason["message"], reason["hint"], reason["code"])
        for reason in reasons
        if reason["code"] in _OF_INPUT
    ]
    if problems:
        raise InvalidInputError(problems)


def _predicted(answer: Mapping[str, Any], counter: str) -> Document | None:
    if answer["step_time_s"] is None:
        return None
    return {
        "step_time_s": answer["step_time_s"],
        "step_time_range_s": list(answer["step_time_range_s"]),
        "peak_memory_gib": answer["memory"][f"peak_{counter}_bytes"] / GIB,
        "verdict": answer["verdict"],
        "calibration": answer["provenance"]["calibration"],
    }


def _flags_beside(predicted: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> Iterator[str]:
    """What only the prediction shows."""
    if predicted is None:
        yield "not-predicted"
        return
    low, high = predicted["step_time_range_s"]
    if (measured["resolution_fraction"] or 0.0) * measured["step_time_s"] > high - low:
        yield "coarse"
    for name in ("step_time_s", "peak_memory_gib"):
        value, expected = measured[name], predicted[name]
        if value is not None and not expected / IMPLAUSIBLE <= value <= expected * IMPLAUSIBLE:
            yield "implausible"


def _rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
