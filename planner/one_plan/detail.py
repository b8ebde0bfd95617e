"""Everything that is known of one plan, as a document: what the response holds, and what follows from its request and strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.strategies.fields import V_SHAPED
from cost_models.strategies.layouts import Layout
from cost_models.terms import TIME_NAMES
from planner.answer.comparison import against, differing_knobs, listed_ranks
from planner.answer.step_cost import total_gpus
from planner.one_plan.given import Given, check_response, given_plan, other_revision, plan_of_checked
from planner.one_plan.neighbours import ChangedPriceError, check_same_price, neighbours
from planner.request.job import Documents
from planner.rows import evaluate_rows

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompletedPlan:
    """What a ranked plan and its request tell together."""

    row: Mapping[str, Any]
    """Its evaluate row."""
    evaluation: Mapping[str, Any]
    """Its evaluation with every stage."""
    layers: list[list[list[int]]] | None
    """The decoder layers of each stage, counted from 1, as [first, last] of each of its chunks."""


_FOLDED = frozenset(schedule.label for schedule in V_SHAPED)


def plan_detail(document: Mapping[str, Any], rank: int = 1, *, allow_files: bool = False) -> Document:
    """One plan in full.

    Args:
        document: a plan response, one ranked plan, or an evaluation.
        rank: rank of the plan, where the document is a response.
        allow_files: whether the request's `cluster.calibration` may be a path.

    Returns:
        `rank, row, strategy, evaluation` (with every stage), `gpus {total, used, idle}`, `layers` (of each stage, as [first, last]
        of each of its chunks, from 1), `ranking` (sentences on the plans beside it), `neighbours {priced, refused}`, and
        `not_shown` (why a part is missing). What the document does not tell is null.

    Raises:
        InvalidInputError: the document is none of the three, or lacks what can no longer be computed from its request.
    """
    given = given_plan(document, rank)
    evaluation, not_shown = given.evaluation, []
    if _lacks_stages(evaluation):
        (evaluation,) = _with_stages([given], extra=None, allow_files=allow_files)
    found, why = _neighbours(given, evaluation, allow_files=allow_files)
    if why:
        not_shown.append(why)
    if given.strategy is None:
        not_shown.append(
            "An evaluation does not hold its row, so that strategy, idle GPUs and neighbours are not shown."
        )
    return {
        "rank": None if given.entry is None else given.entry["rank"],
        "row": given.row,
        "strategy": given.strategy,
        "evaluation": evaluation,
        "gpus": _gpus(given),
        "layers": _layers(given.strategy),
        "ranking": [] if given.response is None else ranking(given.response, rank),
        "neighbours": found,
        "not_shown": not_shown,
    }


def completed_plans(
    response: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False
) -> list[CompletedPlan]:
    """Every ranked plan of a response with what it leaves out, best first; a summary's stages are priced again, all in one batch.

    Raises:
        InvalidInputError: the document is no plan response, or lacks what can no longer be computed from its request.
    """
    check_response(response)
    given = [plan_of_checked(response, plan["rank"]) for plan in response["plans"]]
    summaries = [each for each in given if _lacks_stages(each.evaluation)]
    priced = iter(_with_stages(summaries, extra=extra, allow_files=allow_files) if summaries else ())
    return [
        CompletedPlan(
            row=each.row or {},
            evaluation=next(priced) if _lacks_stages(each.evaluation) else each.evaluation,
            layers=_layers(each.strategy),
        )
        for each in given
    ]


def _gpus(given: Given) -> Document:
    used = given.evaluation["num_gpus_used"]
    total = None if given.request is None else total_gpus(given.request["cluster"])
    return {"total": total, "used": used, "idle": None if total is None or used is None else total - used}


def _layers(strategy: Mapping[str, Any] | None) -> list[list[list[int]]] | None:
    """The decoder layers of each stage, counted from 1, as [first, last] of each chunk that holds any."""
    if strategy is None or not strategy.get("layers_per_stage"):
        return None
    counts = tuple(strategy["layers_per_stage"])
    pp, vpp = strategy.get("pp") or 1, strategy.get("vpp") or 1
    if len(counts) != pp * vpp:
        message = f"layers_per_stage lists {len(counts)} virtual stages, but pp * vpp is {pp * vpp}"
        raise InvalidInputError([Problem("/strategy/layers_per_stage", message, "Give the plan as it was returned.")])
    folded = strategy.get("schedule") in _FOLDED
    # A layout of numbers instead of counts: which virtual stages a rank holds, by the same rule.
    places = Layout(pp, vpp, tuple(range(pp * vpp)), folded=folded)
    before = [sum(counts[:place]) for place in range(pp * vpp)]
    return [
        [[before[at] + 1, before[at] + counts[at]] for at in places.chunks_on_stage(stage) if counts[at]]
        for stage in range(pp)
    ]


def _lacks_stages(evaluation: Mapping[str, Any]) -> bool:
    return evaluation.get("memory") is not None and evaluation["memory"].get("stages") is None


def _with_stages(plans: Sequence[Given], *, extra: Documents | None, allow_files: bool) -> list[Mapping[str, Any]]:
    """The evaluations of one document's plans with the stages that the service's summaries leave out, priced again."""
    rows = [given.row for given in plans if given.row is not None]
    response = plans[0].response
    if response is None or len(rows) < len(plans):
        message = "the evaluation is a summary without the stages of its memory"
        hint = "Fetch the plan itself (GET /v1/plans/{id}/ranked/{rank}), or give the whole response."
        raise InvalidInputError([Problem("/memory/stages", message, hint, "summary")])
    if other := other_revision(response):
        message = f"the response is a summary without stages, and was written by {other}: the stages cannot be computed as it had them"
        hint = (
            "Show it with the version that wrote it, plan again with this one, or fetch /v1/plans/{id}/ranked/{rank}."
        )
        raise InvalidInputError([Problem("/model_revision", message, hint, "other-revision")])
    return [
        _whole_again(given.evaluation, again)
        for given, again in zip(plans, evaluate_rows(rows, extra=extra or {}, allow_files=allow_files), strict=True)
    ]


def _whole_again(summary: Mapping[str, Any], again: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary with the memory of the same plan's whole evaluation."""
    # The revision covers formulas and shipped data, but not a calibration that lies in a file: hence the comparison of prices.
    try:
        check_same_price(again, summary)
    except ChangedPriceError as changed:
        message = f"the response is a summary without stages, and the plan cannot be priced as it was: {changed}"
        hint = "Give the calibration that it was planned with, or plan again."
        raise InvalidInputError([Problem("/request", message, hint, "other-price")]) from changed
    return {**summary, "memory": again["memory"]}


def _neighbours(given: Given, evaluation: Mapping[str, Any], *, allow_files: bool) -> tuple[Document | None, str]:
    """The neighbours, or why there are none."""
    if given.response is None or given.row is None:
        return None, ""
    if other := other_revision(given.response):
        return None, f"Neighbours are not priced: the response was written by {other}. Plan again to see them."
    try:
        return neighbours(given.row, evaluation, allow_files=allow_files), ""
    except ChangedPriceError as changed:
        return None, f"Neighbours are not priced, because the plan cannot be priced as it was: {changed}"


def _complete(plan: Mapping[str, Any]) -> Document:
    """The plan with 0 for the time terms that its version did not know."""
    evaluation = plan["evaluation"]
    return {
        **plan,
        "evaluation": {
            **evaluation,
            "time_breakdown_s": dict.fromkeys(TIME_NAMES, 0.0) | evaluation["time_breakdown_s"],
        },
    }


def ranking(response: Mapping[str, Any], rank: int) -> list[str]:
    """Sentences on how a plan compares with those beside it in the ranking."""
    request, plans = response["request"], response["plans"]
    by_rank = {plan["rank"]: plan for plan in plans}
    plan = by_rank[rank]
    told = []
    if (leader := plan.get("folded_under")) is not None and leader in by_rank:
        knobs = ", ".join(differing_knobs(by_rank[leader], plan)) or "details"
        told.append(f"Plan {rank} is a near-copy of plan {leader}, as fast to within 1 %; it differs in {knobs}.")
    if rank - 1 in by_rank:
        before = by_rank[rank - 1]
        sentence = before.get("against_next") or ""
        # What is told there may be about a later plan, where this one is a near-copy of the one before.
        if not re.search(rf"\bplan {rank}\b", sentence):
            sentence = against(
                _complete(before),
                _complete(plan),
                objective=request.get("objective", "step_time"),
                cluster=request["cluster"],
            )
        told.append(f"Plan {rank - 1} is {sentence}.")
    if plan.get("against_next"):
        told.append(f"Plan {rank} is {plan['against_next']}.")
    tied = [other["rank"] for other in plans if other["tie_group"] == plan["tie_group"]]
    if len(tied) > 1:
        told.append(f"Too close to call: plans {listed_ranks(tied)}.")
    return told
