"""What a tuning found, as one JSON document: every trial beside its prediction, the best plan, the new ranking, and what to do next.

It follows from the plan response and from how the study stands. The command line, the service and the report read the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from planner.search.beliefs import Candidate
from planner.search.standing import SEPARATED_CHANCE, WORTH_FRACTION, Standing, Told

Json = dict[str, Any]
DocumentStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
MOST_NEXT = 3
"""Plans that the document proposes to measure next."""
_WORTH_SAYING = 0.01
"""Chance below which a plan is not proposed."""


def candidate_plans(response: Mapping[str, Any]) -> list[Json]:
    """The plans of a response that are worth a trial, best first.

    Of plans that run the same, such as ZeRO stages without a second replica, the best ranked stands for all. Near-copies that run
    otherwise stay: what no term tells may still set them apart by more than their predictions do.
    """
    has_experts = "moe" in response["request"]["model"]
    found: dict[str, Json] = {}
    for plan in response["plans"]:
        found.setdefault(json.dumps(_what_runs(plan["strategy"], has_experts=has_experts), sort_keys=True), plan)
    return list(found.values())


def _what_runs(strategy: Mapping[str, Any], *, has_experts: bool) -> Json:
    """A strategy without the fields that name nothing under it."""
    idle, idle_overlap = set(), set()
    if strategy["dp"] * strategy["cp"] == 1:
        # There is nobody to share with.
        idle |= {"zero", "zero_shard_size", "zero_param_shard_size", "grad_sync"}
        idle_overlap |= {"grad_reduce", "param_gather"}
    if strategy["cp"] == 1:
        idle.add("cp_comm")
    if not has_experts:
        idle |= {"moe_dispatcher", "flex_backend", "etp"}
        idle_overlap.add("moe_all_to_all")
    told = {name: value for name, value in strategy.items() if name not in idle}
    return told | {"overlap": {name: on for name, on in strategy["overlap"].items() if name not in idle_overlap}}


def candidates_of(response: Mapping[str, Any]) -> list[Candidate]:
    """The same as candidates of a tuning."""
    return [Candidate.of_plan(plan) for plan in candidate_plans(response)]


def tuning_document(
    response: Mapping[str, Any],
    standing: Standing,
    *,
    tuning_id: str,
    status: DocumentStatus,
    created_at: str,
    backend: str,
    corrections: Sequence[Mapping[str, Any]] = (),
    knobs: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Json:
    """The document of a tuning.

    Args:
        response: the plan response that it started from.
        standing: how its study stands; its candidates are `candidates_of(response)`.
        tuning_id: what it is called.
        status: of the whole tuning.
        created_at: RFC 3339.
        backend: what runs its trials, "pytorch" or "export".
        corrections: what its trials teach of the terms, as JSON.
        knobs: the tuning of the best plan's run-time knobs.
        warnings: whole sentences.
    """
    plans = {plan["rank"]: plan for plan in response["plans"]}
    stop, used, limits = standing.stop, standing.used, standing.limits
    return {
        "id": tuning_id,
        "status": status,
        "created_at": created_at,
        "product_version": response["product_version"],
        "request": response["request"],
        "request_digest": response["request_digest"],
        "backend": backend,
        "trials": [
            trial_document(number, told, standing, plans[standing.candidates[told.candidate].rank])
            for number, told in enumerate(standing.told, start=1)
        ],
        "best": _best(standing),
        "corrections": [dict(each) for each in corrections],
        "ranking": _ranking(standing),
        "limits": asdict(limits),
        "used": asdict(used),
        "stopped": None if stop is None else {"reason": stop.reason, "message": stop.message},
        "next": _next(standing),
        "knobs": None if knobs is None else dict(knobs),
        "warnings": [*warnings, *_warnings(standing)],
    }


def now() -> str:
    """This moment as RFC 3339 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def trial_document(number: int, told: Told, standing: Standing, plan: Mapping[str, Any]) -> Json:
    """A trial that ended beside the prediction of its plan.

    Args:
        number: its number in the order in which trials ended, from 1.
        told: the trial.
        standing: of its study.
        plan: its plan as the response ranks it.
    """
    candidate, evaluation = standing.candidates[told.candidate], plan["evaluation"]
    record = dict(told.outcome.record or {})
    return {
        "number": number,
        "rank": candidate.rank,
        "strategy": dict(candidate.strategy),
        "status": told.outcome.status,
        "reason": record.get("reason"),
        "step_time_s": told.outcome.step_time_s,
        "peak_allocated_bytes": record.get("peak_allocated_bytes"),
        "predicted_step_time_s": candidate.step_time_s,
        "predicted_step_time_range_s": list(candidate.range_s),
        "predicted_peak_allocated_bytes": evaluation["memory"]["peak_allocated_bytes"],
        "predicted_terms_s": dict(candidate.terms_s),
        "corrected_step_time_s": told.expected_step_time_s,
        "terms_s": record.get("terms_s"),
        "took_s": told.outcome.took_s,
        "gpu_seconds": told.outcome.gpu_seconds,
        "started_at": record.get("started_at"),
        "record": record or None,
    }


def _best(standing: Standing) -> Json | None:
    if standing.best is None:
        return None
    # The gain is between two measured times: a predicted one may be off by more than all that there is to gain.
    plan, step_s = standing.candidates[standing.best], standing.measured_s[standing.best]
    # Plan 1 may be one that the back end cannot run; then no other stands for what one would have run without a tuning.
    first_s = next((s for place, s in standing.measured_s.items() if standing.candidates[place].rank == 1), None)
    return {
        "strategy": dict(plan.strategy),
        "rank": plan.rank,
        "step_time_s": step_s,
        "gain_fraction": None if first_s is None else 1.0 - step_s / first_s,
    }


def _ranking(standing: Standing) -> list[Json]:
    """The plans in their new order: measured ones by what was measured, others by what is believed of them now, failed ones last."""
    # A plan that was left out for want of memory gets no rank, as one that ran out of it.
    low_N, high_N = standing.belief.range_s()
    median_N = standing.belief.median_s()
    failed = {told.candidate for told in standing.told if told.outcome.status != "ok"} | standing.left_out.keys()
    places = range(len(standing.candidates))
    expected_s = {place: standing.measured_s.get(place, float(median_N[place])) for place in places}
    order = sorted(places, key=lambda place: (place in failed, expected_s[place], place))
    return [
        {
            "strategy": dict(standing.candidates[place].strategy),
            "rank_before": standing.candidates[place].rank,
            "rank_after": None if place in failed else after,
            "predicted_step_time_s": standing.candidates[place].step_time_s,
            "corrected_step_time_s": float(median_N[place]),
            "corrected_range_s": [float(low_N[place]), float(high_N[place])],
            "measured_step_time_s": standing.measured_s.get(place),
        }
        for after, place in enumerate(order, start=1)
    ]


def _next(standing: Standing) -> list[Json]:
    """The plans that are most likely to be faster than the best one, with the reason to measure them."""
    if standing.best is None:
        some = standing.left[:MOST_NEXT]
        return [
            _proposed(standing, place, "Nothing was measured yet, and this plan is predicted to be among the fastest.")
            for place in some
        ]
    best = standing.candidates[standing.best]
    likely = [item for item in standing.chances_of_better().items() if item[1] >= _WORTH_SAYING]
    return [
        _proposed(
            standing, place,
            f"The chance that it is more than {WORTH_FRACTION:.0%} faster than plan {best.rank}, the best measured one, is {chance:.0%}.",
        )
        for place, chance in likely[:MOST_NEXT]
    ]  # fmt: skip


def _proposed(standing: Standing, place: int, why: str) -> Json:
    plan = standing.candidates[place]
    return {"rank": plan.rank, "strategy": dict(plan.strategy), "why": why}


def _warnings(standing: Standing) -> list[str]:
    # That the best is not separated is what a reader must know before building on it; the message of the stop tells only why.
    notes = (note for told in standing.told for note in (told.outcome.record or {}).get("notes", ()))
    found = list(dict.fromkeys(notes))
    for place, ratio in standing.implausible.items():
        rank = standing.candidates[place].rank
        found.append(
            f"The step of plan {rank} took {ratio:.3g} times as long as predicted, so that it was of something else. It decides nothing."
        )
    if standing.left_out:
        ranks = ", ".join(str(standing.candidates[place].rank) for place in standing.left_out)
        reason = next(iter(standing.left_out.values()))
        found.append(f"Plans {ranks} were not measured. The first of them is {reason}.")
    stop = standing.stop
    if stop is not None and stop.reason not in ("separated", "nothing-left") and standing.best is not None:
        chance = standing.chance_of_better
        if chance >= SEPARATED_CHANCE:
            found.append(
                f"The best plan is not yet separated: the chance that {standing.any_left} is more than "
                f"{WORTH_FRACTION:.0%} faster is {chance:.0%}."
            )
    return found
