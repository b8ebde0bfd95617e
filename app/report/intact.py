"""Whether a response is as the planner writes it: what its schema lets be absent or of any size, every report's figures need.

The schema is also that of queued plans, of strategies that cannot run and of older versions, so that most of its fields may be
null. A report is drawn from an answer of this very version, in which none of them is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import child, shown
from cost_models.terms import MEMORY_NAMES, TIME_NAMES
from planner.request.checked_request import parse_request
from planner.schemas.plan_request import PlanRequest

Json = Mapping[str, Any]
LARGEST = 1e18
"""Largest number of a plan, whatever it counts: above it sums and squares leave what doubles and 64 bits hold."""
_HINT = "Give the response as it was written: what was changed by hand cannot be drawn."
_FIGURES = ("num_gpus_used", "num_micro_batches", "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu")
_OF_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "capacity_bytes")
_OF_A_POINT = ("step_time_s", "peak_device_bytes", "num_gpus", "cost_per_token")
_OF_A_VARIANT = ("num_gpus", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "peak_device_bytes")


def require_intact(response: Json) -> None:
    """Refuses a response that was changed since it was written, as far as its pages would not survive the change.

    Args:
        response: a plan response of this version, whose plans `completed_plans` could complete.

    Raises:
        InvalidInputError: the first thing that is wrong, with its place, its value and what it has to be.
    """
    _raise_first(_problems(response))


def require_intact_evaluation(evaluation: Json) -> None:
    """The same for an evaluation that stands alone.

    Args:
        evaluation: what its schema has passed, with numbers unless its verdict is "invalid".

    Raises:
        InvalidInputError: the first thing that is wrong.
    """
    if evaluation["step_time_s"] is not None:
        _raise_first(itertools.chain(_too_large(evaluation, ""), _of_evaluation(evaluation, "")))


def _raise_first(problems: Iterator[Problem]) -> None:
    problem = next(problems, None)
    if problem is not None:
        raise InvalidInputError([problem])


def _problems(response: Json) -> Iterator[Problem]:
    for name in ("plans", "changed_plans", "pareto", "what_if", "nearest_infeasible", "inexpressible_best"):
        yield from _too_large(response.get(name), f"/{name}")
    yield from _of_request(response["request"])
    if response["search"] is None or "not_searched" not in response["search"]:
        yield _wrong("/search/not_searched", "the search does not say what it left out")
    plans = response["plans"]
    ranks = [plan["rank"] for plan in plans]
    for at, plan in enumerate(plans):
        if plan["rank"] != at + 1:
            yield _wrong(
                f"/plans/{at}/rank", f"rank is {shown(plan['rank'])}; it must be {at + 1}, since ranks count from 1"
            )
        yield from _of_plan(plan, f"/plans/{at}")
    for at, tie in enumerate(response.get("ties") or ()):
        for name in ("ranks", "measure"):
            for unknown in set(tie[name]) - set(ranks):
                yield _wrong(f"/ties/{at}/{name}", f"{name} holds {shown(unknown)}, which is the rank of no plan")
    for at, point in enumerate(response.get("pareto") or ()):
        yield from _positive(point, _OF_A_POINT, f"/pareto/{at}")
    yield from _of_variants(response.get("what_if") or (), has_plans=bool(plans))


def _too_large(value: Any, pointer: str) -> Iterator[Problem]:
    """Numbers that no plan has, wherever they stand."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _too_large(each, child(pointer, name))
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _too_large(each, f"{pointer}/{at}")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        yield _wrong(pointer, f"{_name(pointer)} is {shown(value)}; no plan has a number above {LARGEST:g}")


def _of_request(request: Json) -> Iterator[Problem]:
    """A request is echoed with every default filled in, and passes its own schema."""
    for name in ("constraints", "targets"):
        fields = PlanRequest.model_fields[name].annotation
        for field in getattr(fields, "model_fields", ()):
            if not isinstance(request.get(name), Mapping) or field not in request[name]:
                yield _wrong(f"/request/{name}/{field}", f"the request has no {field} among its {name}")
    try:
        parse_request(request)
    except InvalidInputError as error:
        yield from (Problem(f"/request{each.pointer}", each.message, each.hint, each.code) for each in error.problems)


def _of_plan(plan: Json, pointer: str) -> Iterator[Problem]:
    for name in ("variant_of", "folded_under"):
        better = plan.get(name)
        if better is not None and not 1 <= better < plan["rank"]:
            yield _wrong(f"{pointer}/{name}", f"{name} is {shown(better)}; it must be the rank of a better plan")
    verdict = plan["evaluation"]["verdict"]
    if verdict not in ("fits", "at-risk"):
        yield _wrong(f"{pointer}/evaluation/verdict", f"verdict is {shown(verdict)}; a ranked plan fits or is at risk")
        return
    yield from _of_evaluation(plan["evaluation"], f"{pointer}/evaluation")
    stages = plan["evaluation"]["memory"].get("stages")
    if stages is not None and len(stages) != plan["strategy"]["pp"]:
        message = f"stages holds {len(stages)} stages; it must be {shown(plan['strategy']['pp'])}, since that is pp"
        yield _wrong(f"{pointer}/evaluation/memory/stages", message)


def _of_evaluation(evaluation: Json, pointer: str) -> Iterator[Problem]:
    """The evaluation of a strategy that could run."""
    yield from _positive(evaluation, _FIGURES, pointer)
    yield from _share(evaluation, pointer)
    yield from _ordered(evaluation, "step_time_range_s", pointer)
    yield from _complete(evaluation["time_breakdown_s"], TIME_NAMES, f"{pointer}/time_breakdown_s")
    yield from _complete(evaluation["provenance"]["terms"], TIME_NAMES, f"{pointer}/provenance/terms")
    memory, pointer = evaluation["memory"], f"{pointer}/memory"
    yield from _positive(memory, _OF_MEMORY, pointer)
    yield from _ordered(memory, "peak_device_range_bytes", pointer)
    if memory.get("stages") is not None:
        yield from _of_stages(memory["stages"], f"{pointer}/stages")


def _of_stages(stages: Sequence[Json], pointer: str) -> Iterator[Problem]:
    if not stages:
        yield _wrong(pointer, "stages holds 0 stages; there is at least one")
    for at, stage in enumerate(stages):
        if stage["stage"] != at:
            yield _wrong(f"{pointer}/{at}/stage", f"stage is {shown(stage['stage'])}; it must be {at}")
        yield from _positive(stage, ("peak_allocated_bytes",), f"{pointer}/{at}")
        yield from _complete(stage["breakdown_bytes"], MEMORY_NAMES, f"{pointer}/{at}/breakdown_bytes")


def _of_variants(variants: Sequence[Json], *, has_plans: bool) -> Iterator[Problem]:
    if not variants:
        return
    # The answer to the request itself is the one that all others are compared with.
    if not has_plans or sum(each.get("value") is None for each in variants) != 1:
        yield _wrong("/what_if", "what_if must hold the job as it was asked once, and only where there are plans")
        return
    for at, each in enumerate(variants):
        pointer = f"/what_if/{at}"
        if each.get("plan") is not None:
            yield from _positive(each, _OF_A_VARIANT, pointer)
            yield from _share(each, pointer)
            if each.get("value") is not None or "speedup" in each:
                yield from _positive(each, ("speedup",), pointer)
        elif not each.get("reason") or "plan" not in each:
            yield _wrong(pointer, "the variant has neither a plan nor a reason why it has none")


def _positive(document: Json, names: Iterable[str], pointer: str) -> Iterator[Problem]:
    for name in names:
        value = document.get(name)
        if value is None or not value > 0:
            yield _wrong(f"{pointer}/{name}", f"{name} is {shown(value)}; it must be a number above 0")


def _share(document: Json, pointer: str) -> Iterator[Problem]:
    # Null where no peak of the precision is known, but always there.
    value = document.get("mfu", 0.0)
    if value is not None and not value > 0:
        yield _wrong(
            f"{pointer}/mfu", f"mfu is {shown(document.get('mfu'))}; it must be there: a number above 0, or null"
        )


def _ordered(document: Json, name: str, pointer: str) -> Iterator[Problem]:
    low, high = document[name]
    if not 0 < low <= high:
        yield _wrong(f"{pointer}/{name}", f"{name} goes from {shown(low)} to {shown(high)}; it must rise from above 0")


def _complete(document: Json, names: Iterable[str], pointer: str) -> Iterator[Problem]:
    missing = [name for name in names if name not in document]
    if missing:
        yield _wrong(f"{pointer}/{missing[0]}", f"{_name(pointer)} has no {', '.join(missing)}")
    for name, value in document.items():
        if isinstance(value, int | float) and value < 0:
            yield _wrong(f"{pointer}/{name}", f"{name} is {shown(value)}; it must not be below 0")


def _name(pointer: str) -> str:
    return pointer.rpartition("/")[2]


def _wrong(pointer: str, message: str) -> Problem:
    return Problem(pointer, message, _HINT, "not-a-response")
