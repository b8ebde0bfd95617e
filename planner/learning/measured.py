"""Measured runs beside their predictions, from the documents that trials and observations leave. [T-6] [M-21]

A document holds an evaluate row and what was measured of it. The row is priced here as the models alone do it, whatever corrections
there are, so that what is learnt is always learnt about today's models. What cannot be used is named with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cost_models import presets
from cost_models.corrections import CorrectionSet, Measured
from cost_models.inputs.fields import LARGEST
from cost_models.inputs.pools import lists_pools
from cost_models.job import Job
from cost_models.step.range_widths import range_widths
from cost_models.terms import TIME_TERMS, Tier
from cost_models.units import GIB
from planner.request.job import Documents, resolve_pooled_job
from planner.rows import evaluate_rows
from planner.search.standing import IMPLAUSIBLE, PROCESSORS

_UNCORRECTED = CorrectionSet(())
_TIERS = {tier.label: tier for tier in Tier}


@dataclass(frozen=True, slots=True)
class Left:
    """A document that teaches nothing."""

    position: int
    """Its place among the documents, from 0."""
    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """What documents hold for learning."""

    runs: list[Measured] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Figures:
    """What was measured, in SI units."""

    step_time_s: float | None
    allocated_bytes: float | None
    terms_s: Mapping[str, float] | None


def measured_of(
    document: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False
) -> Measured | Left:
    """One document as a measured run, or why it is none; arguments as of `measured_runs`."""
    found = measured_runs([document], extra=extra, allow_files=allow_files)
    return found.runs[0] if found.runs else found.left[0]


def measured_runs(
    documents: Sequence[Mapping[str, Any]], *, extra: Documents | None = None, allow_files: bool = False
) -> MeasuredRuns:
    """Trial records and observations as measured runs, in their order.

    Args:
        documents: objects with a `row`, and either the fields of a trial record or the `measured` of an observation.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether a row's `cluster.calibration` may be a path.
    """
    found = MeasuredRuns()
    usable: list[tuple[int, Mapping[str, Any], _Figures]] = []
    for position, document in enumerate(documents):
        figures = _figures(document)
        if isinstance(figures, str):
            found.left.append(Left(position, _id(document, position), figures))
        else:
            usable.append((position, document["row"], figures))
    answers = evaluate_rows(
        [row for _, row, _ in usable], extra=extra, allow_files=allow_files, corrections=_UNCORRECTED
    )
    for (position, row, figures), answer in zip(usable, answers, strict=True):
        name = _id(documents[position], position)
        reason = _unusable(answer, figures)
        if reason is None:
            job = resolve_pooled_job(row, extra=extra, allow_files=allow_files, corrections=_UNCORRECTED).jobs[0]
            found.runs.append(_run(answer, figures, job=job, source=name))
        else:
            found.left.append(Left(position, name, reason))
    found.left.sort(key=lambda each: each.position)
    return found


def _id(document: Mapping[str, Any], position: int) -> str:
    row = document.get("row")
    names = (document.get("id"), row.get("id") if isinstance(row, Mapping) else None)
    return str(next((name for name in names if name is not None), f"run {position + 1}"))[:300]


def _figures(document: Mapping[str, Any]) -> _Figures | str:
    """What was measured, or in one sentence why it cannot be used."""
    row = document.get("row")
    if not isinstance(row, Mapping):
        return "It has no row, so that nothing can be predicted for it."
    if lists_pools(row.get("cluster")):
        return "Its cluster has several kinds of node, for which nothing is corrected."
    status = document.get("status", "ok")
    if status != "ok":
        return f"Its status is {status}: it was not measured to the end."
    machine = document.get("machine")
    # Such a trial shows that a plan runs; its row names GPUs all the same.
    if isinstance(machine, Mapping) and machine.get("gpu") == PROCESSORS:
        return "It ran on processors, which teaches nothing of GPUs."
    planned = _gpu_of(row)
    if isinstance(machine, Mapping) and presets.are_other_gpus(planned, machine.get("gpu")):
        return f"It ran on {machine['gpu']}, but its row is of {planned}."
    if document.get("used") is False:
        flags = ", ".join(map(str, document["flags"])) if isinstance(document.get("flags"), list) else ""
        flags = flags or "no flag"
        return f"It is marked as not used ({flags})."
    measured = document.get("measured")
    if isinstance(measured, Mapping):  # an observation
        gib = _positive(measured.get("peak_memory_gib")) if _is_of_fullest_rank(measured, row) else None
        figures = _Figures(_positive(measured.get("step_time_s")), gib and gib * GIB, None)
    else:
        terms = document.get("terms_s")
        figures = _Figures(
            _positive(document.get("step_time_s")),
            _positive(document.get("peak_allocated_bytes")),
            _positive_terms(terms) if isinstance(terms, Mapping) else None,
        )
    if figures.step_time_s is None and figures.allocated_bytes is None:
        return "It holds neither a step time nor a peak of allocated memory."
    return figures


def _gpu_of(row: Mapping[str, Any]) -> object:
    """What a row names as its GPU; None where it has no cluster."""
    cluster = row.get("cluster")
    gpu = cluster.get("gpu") if isinstance(cluster, Mapping) else None
    return gpu.get("name") if isinstance(gpu, Mapping) else gpu


def _is_of_fullest_rank(measured: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the peak is one of the allocator, of a rank of the fullest stage: the only peak whose terms are known."""
    strategy = row.get("strategy")
    pipelined = isinstance(strategy, Mapping) and strategy.get("pp") not in (None, 1)
    # Ranks hold alike without a pipeline; with one, a rank that is named by its number may be of any stage.
    of_one_rank = isinstance(measured.get("memory_rank"), int) and pipelined
    return measured.get("memory_counter") in (None, "allocated") and not of_one_rank


def _positive(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Whole numbers of JSON may be larger than any float.
    return float(value) if is_number and 0 < value <= LARGEST else None  # type: ignore[operator, arg-type]


def _positive_terms(terms: Mapping[str, object]) -> dict[str, float]:
    return {name: seconds for name, value in terms.items() if (seconds := _positive(value)) is not None}


def _unusable(answer: Mapping[str, Any], figures: _Figures) -> str | None:
    """Why a priced row teaches nothing, in one sentence."""
    if answer["verdict"] == "invalid":
        return f"Its row cannot be priced: {answer['reasons'][0]['message']}."
    for measured, predicted, what in (
        (figures.step_time_s, answer["step_time_s"], "step time"),
        (figures.allocated_bytes, answer["memory"]["peak_allocated_bytes"], "allocated memory"),
    ):
        if measured is not None and not 1.0 / IMPLAUSIBLE < measured / predicted < IMPLAUSIBLE:
            return (
                f"Its {what} is {measured / predicted:.3g} times the predicted one, so that it was of something else."
            )
    return None


def _run(answer: Mapping[str, Any], figures: _Figures, *, job: Job, source: str) -> Measured:
    tiers = answer["provenance"]["terms"]
    fullest = max(answer["memory"]["stages"], key=lambda stage: stage["peak_allocated_bytes"])
    low, high = answer["step_time_range_s"]
    return Measured(
        scope=job.scope,
        terms_s=answer["time_breakdown_s"],
        step_time_s=figures.step_time_s,
        range_s=(low, high),
        measured_terms_s=figures.terms_s,
        memory_bytes=fullest["breakdown_bytes"],
        allocated_bytes=figures.allocated_bytes,
        widths={term.name: job.calibration.residual(term.family, _TIERS[tiers[term.name]]) for term in TIME_TERMS},
        common_width=range_widths().machine(is_profiled=job.calibration.is_profiled),
        source=source,
    )


def told(left: Iterable[Left]) -> list[str]:
    """Sentences for those that were left out."""
    return [f"{each.id}: {each.reason}" for each in left]
