"""Two plans of a response beside each other: how far apart their steps are, and what of time, memory and strategy differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cost_models.hardware import Calibration
from cost_models.strategies.fields import FIELDS
from cost_models.terms import MEMORY_NAMES, TIME_NAMES
from planner.answer.apart import steps_apart
from planner.request.job import Documents, resolve_pooled_job

Document = dict[str, Any]


def calibrations_of(
    request: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False
) -> list[Calibration]:
    """What the plans of a request are priced with, one for each pool.

    Args:
        request: the request with every default filled in.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether its `cluster.calibration` may be a path.

    Raises:
        InvalidInputError: the request describes no job.
        CalibrationError: the calibration cannot be found here.
    """
    return [job.calibration for job in resolve_pooled_job(request, extra=extra, allow_files=allow_files).jobs]


def pair(plan: Mapping[str, Any], other: Mapping[str, Any], *, calibrations: Sequence[Calibration]) -> Document:
    """What sets another plan apart from a plan; differences are the other's value less the plan's.

    Args:
        plan: a ranked plan whose evaluation has every stage.
        other: the plan that is compared with it.
        calibrations: what both were priced with; without any, whether they can be told apart stays open.

    Returns:
        `difference_s`, `difference_range_s` (its 80 % range, None without calibrations), `tied` (whether 0 lies in that range, or
        None), `time_s` and `memory_bytes` ({term: [plan's, other's]}; memory of the stage whose peak is highest), `stages` (those
        two stages) and `strategy` ({field: [plan's, other's]} of the fields that differ).
    """
    own, its = plan["evaluation"], other["evaluation"]
    # Whether a difference counts follows from how well each term is known, which the calibration tells.
    range_s, tied = None, None
    if calibrations:
        apart = steps_apart([own, its], leader=0, calibrations=calibrations)
        range_s, tied = [float(apart.low_s[1]), float(apart.high_s[1])], bool(apart.tied[1])
    stages = [fullest_stage(each) for each in (own, its)]
    return {
        "difference_s": its["step_time_s"] - own["step_time_s"],
        "difference_range_s": range_s,
        "tied": tied,
        "time_s": {
            name: [each["time_breakdown_s"].get(name, 0.0) for each in (own, its)] for name in TIME_NAMES
        },
        "memory_bytes": {
            name: [each["breakdown_bytes"].get(name, 0.0) for each in stages] for name in MEMORY_NAMES
        },
        "stages": [each["stage"] for each in stages],
        "strategy": dict(_differing(plan["strategy"], other["strategy"])),
    }  # fmt: skip


def fullest_stage(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stage whose peak of allocated memory is highest, the first of these."""
    stage: Mapping[str, Any] = max(evaluation["memory"]["stages"], key=lambda each: each["peak_allocated_bytes"])
    return stage


def _differing(strategy: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The fields in which two strategies differ, in the contract's order; grouped ones as "overlap.tp_comm"."""
    # In the table's order, so that degrees come first whatever the order in the document is.
    for field in FIELDS:
        own, its = (
            ((each.get(field.group) or {}) if field.group else each).get(field.part) for each in (strategy, other)
        )
        if own != its:
            yield field.name, [own, its]
