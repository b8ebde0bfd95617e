"""Why not mine: what speaks against a strategy for the job of a response, and what the strategies that many would try first come to.

A strategy is answered by the first rule that it breaks, by its memory, or by its price beside the first plan's. All strategies of a
question are priced in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import validated
from cost_models.job import PooledJob
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.terms import TIME_NAMES
from planner.answer.evaluation import evaluation_dict, invalid_dict
from planner.answer.ranking import close_plans
from planner.answer.step_cost import gpu_weight, total_gpus
from planner.one_plan.listed import job_of_response
from planner.request.job import Documents
from planner.request.methods import job_of, pool_problems
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools
from planner.strategies.told import assumed_fields, strategy_dict

Document = dict[str, Any]
LEAST_OF_LARGEST, LEAST_OF_STEP = 0.1, 0.001
"""Shares of the largest difference in a term and of the first plan's step below which a difference is not told."""
MOST_TERMS = 3
_VERDICTS = ("fits", "at-risk", "oom", "invalid")
_MICRO_BATCHES, _RECOMPUTED = (1, 2, 4), ("none", "selective", "full")


def why_not(
    response: Mapping[str, Any],
    strategy: Mapping[str, Any],
    *,
    extra: Documents | None = None,
    allow_files: bool = False,
) -> Document:
    """What speaks against a strategy, or for it.

    Args:
        response: a plan response.
        strategy: in the contract's names; what it leaves out is the framework's default.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    Returns:
        `strategy` (completed, or as it was given where a rule refuses it), `verdict`, `reasons` (the first rule that is broken comes
        first), `excluded` (sentences on what of the request's constraints leaves it out), `rank` (of the listed plan that it is; null
        where it is none), `place` (where it would stand among the listed plans by its objective, from 1; null unless it is priced),
        `step_time_s`, `step_time_range_s`, `peak_device_bytes`, `capacity_bytes`, and against the first plan, null without one:
        `difference_s`, `too_close`, `largest_terms_s` (seconds that it takes longer, by term).

    Raises:
        InvalidInputError: a field of the strategy is wrong, or the response is of another revision.
    """
    given = validated(StrategyInput, strategy, pointer="/strategy")
    pooled = job_of(job_of_response(response, extra=extra, allow_files=allow_files), given)
    if refused := pool_problems(pooled):
        raise InvalidInputError([Problem("/strategy", each["message"], each["hint"], each["code"]) for each in refused])
    return _judged(response, pooled, [given])[0]


def usual_choices(
    response: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False
) -> list[Document]:
    """The answers to the strategies that many would try first, and to the nearest ones that do not fit.

    Of each usual choice the micro-batches 1, 2 and 4 and all kinds of recomputation are priced; the best that fits is answered, else
    the one that needs the least memory, else the first. On pools only the nearest infeasible ones are there, since every other strategy
    would need a placement.

    Returns:
        Documents as of `why_not`, each with `choice`: a name of `CHOICES`, or "nearest" and then `smallest_change`.

    Raises:
        InvalidInputError: the response is of another revision.
    """
    pooled = job_of_response(response, extra=extra, allow_files=allow_files)
    tried: list[tuple[str, Document]] = []
    if not pooled.cluster.lists_pools:
        tried = list(_usual(pooled, gpus=_gpus_in_use(response)))
    nearest = response.get("nearest_infeasible") or []
    inputs = [StrategyInput.model_validate(strategy) for _, strategy in tried]
    inputs += [StrategyInput.model_validate(each["strategy"]) for each in nearest]
    answers = _judged(response, pooled, inputs)
    found: list[Document] = []
    for choice in CHOICES:
        its = [answer for (name, _), answer in zip(tried, answers, strict=False) if name == choice]
        # The best variant speaks for the choice: nobody who tries it would stay with one that does not fit.
        best = min(its, key=_standing, default=None)
        # Two choices can come to one strategy, as FSDP's defaults and ZeRO 3 do.
        if best is not None and all(best["strategy"] != other["strategy"] for other in found):
            found.append({"choice": choice, **best})
    for each, answer in zip(nearest, answers[len(tried) :], strict=True):
        found.append({"choice": "nearest", "smallest_change": each["smallest_change"], **answer})
    return found


CHOICES = ("defaults", "zero_3", "tensor_in_node", "tensor_and_pipeline", "pipeline")
"""The framework's defaults alone; ZeRO 3 over all GPUs; tensor parallelism over a node without and with a pipeline; a pipeline alone."""


def _usual(pooled: PooledJob, *, gpus: int | None) -> Iterable[tuple[str, Document]]:
    """Name and strategy of every variant of the usual choices."""
    job = pooled.jobs[0]
    cluster = job.cluster
    world = gpus or cluster.num_gpus
    node = min(cluster.gpus_per_node, world)
    # No framework chooses a micro-batch by itself.
    yield "defaults", {"dp": world, "micro_batch_size": 1}
    bases: list[tuple[str, Document]] = [
        ("zero_3", {"tp": 1, "pp": 1, "cp": 1, "dp": world, "zero": 3}),
        *([("tensor_in_node", {"tp": node, "pp": 1, "cp": 1, "dp": world // node})] if node > 1 else []),
    ]
    # As many stages as divide both the nodes and the layers: what a script that splits evenly can be given.
    for pp in range(2, min(world, job.model.num_layers) + 1):
        if job.model.num_layers % pp:
            continue
        if node > 1 and (world // node) % pp == 0:
            bases.append(("tensor_and_pipeline", {"tp": node, "pp": pp, "cp": 1, "dp": world // node // pp}))
        if world % pp == 0:
            bases.append(("pipeline", {"tp": 1, "pp": pp, "cp": 1, "dp": world // pp}))
    for choice, base in bases:
        split = [{}] if base["tp"] == 1 else [{"sequence_parallel": True}, {"sequence_parallel": False}]
        for size, recompute, sequence in product(_MICRO_BATCHES, _RECOMPUTED, split):
            yield choice, {**base, "micro_batch_size": size, "recompute": recompute, **sequence}


def _gpus_in_use(response: Mapping[str, Any]) -> int | None:
    plans = response["plans"]
    return int(plans[0]["evaluation"]["num_gpus_used"]) if plans else None


def _judged(response: Mapping[str, Any], pooled: PooledJob, inputs: Sequence[StrategyInput]) -> list[Document]:
    """The answer to each strategy."""
    if not inputs:
        return []
    resolved = resolve_on_pools([pooled] * len(inputs), inputs)
    refused = {place: list(problems) for place, problems in enumerate(resolved.problems)}
    evaluations: list[Document] = []
    rows: dict[int, int] = {}
    completed: dict[int, Document] = {}
    if resolved.strategies is not None:
        broken = violations_on_pools(pooled, resolved.strategies)
        for row, place in enumerate(resolved.index.tolist()):
            completed[place] = strategy_dict(resolved.strategies, row)
            if not broken.legal[row]:
                refused[place] += broken.reasons(row)
        legal = np.flatnonzero(broken.legal)
        if len(legal):
            headroom = response["request"]["constraints"]["memory_headroom_fraction"]
            evaluated = evaluate_on_pools(pooled, resolved.strategies.take(legal), headroom_fraction=headroom)
            rows = {int(resolved.index[row]): position for position, row in enumerate(legal.tolist())}
            evaluations = [
                evaluation_dict(
                    evaluated, position, pooled=pooled, assumed=assumed_fields(pooled, resolved.assumed[place])
                )
                for place, position in rows.items()
            ]
    found = []
    for place, given in enumerate(inputs):
        # A strategy that cannot be built has no completed form; then what was given is the most that can be shown.
        strategy = completed.get(place) or given.model_dump(mode="json", exclude_none=True)
        evaluation = evaluations[rows[place]] if place in rows else invalid_dict(refused[place])
        found.append(_answer(response, pooled, strategy, evaluation))
    return found


def _answer(
    response: Mapping[str, Any], pooled: PooledJob, strategy: Document, evaluation: Mapping[str, Any]
) -> Document:
    priced = evaluation["verdict"] != "invalid"
    memory = evaluation["memory"] or {}
    plans = response["plans"]
    against: Document = {"difference_s": None, "too_close": None, "largest_terms_s": {}}
    if priced and plans:
        against = _against(response, pooled, {"strategy": strategy, "evaluation": evaluation})
    return {
        "strategy": strategy,
        "verdict": evaluation["verdict"],
        "reasons": list(evaluation["reasons"]),
        "excluded": _excluded(response["request"], strategy) if priced else [],
        "rank": next((plan["rank"] for plan in plans if plan["strategy"] == strategy), None),
        "place": _place(response, strategy, evaluation) if priced else None,
        "step_time_s": evaluation["step_time_s"],
        "step_time_range_s": evaluation.get("step_time_range_s"),
        "num_gpus_used": evaluation["num_gpus_used"],
        "peak_device_bytes": memory.get("peak_device_bytes"),
        "capacity_bytes": memory.get("capacity_bytes"),
        **against,
    }


def _against(response: Mapping[str, Any], pooled: PooledJob, own: Document) -> Document:
    """How a priced strategy compares with the first plan."""
    first, request = response["plans"][0], response["request"]
    # By the rule of tie groups: what two plans share cancels, so that their own ranges do not tell.
    close = close_plans(
        [first, own],
        calibrations=[job.calibration for job in pooled.jobs],
        objective=request.get("objective", "step_time"),
        cluster=request["cluster"],
    )
    its, theirs = own["evaluation"]["time_breakdown_s"], first["evaluation"]["time_breakdown_s"]
    more = {term: its[term] - theirs.get(term, 0.0) for term in TIME_NAMES}
    least_s = max(LEAST_OF_LARGEST * max(map(abs, more.values())), LEAST_OF_STEP * first["evaluation"]["step_time_s"])
    # Waiting for the slowest rank follows the rest of the step, so that it never is the reason.
    told = [term for term in more if term != "jitter" and abs(more[term]) >= least_s]
    told.sort(key=lambda term: -abs(more[term]))
    return {
        "difference_s": own["evaluation"]["step_time_s"] - first["evaluation"]["step_time_s"],
        "too_close": bool(close(np.array([1, 0]))[1]),
        "largest_terms_s": {term: more[term] for term in told[:MOST_TERMS]},
    }


def _value(response: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[float, float]:
    """What the objective orders plans by, of which less is better."""
    objective, evaluation = response["request"].get("objective", "step_time"), plan["evaluation"]
    step_s = float(evaluation["step_time_s"])
    if objective == "cost":
        return gpu_weight(plan, response["request"]["cluster"]) * step_s, step_s
    return (float(evaluation["num_gpus_used"]) if objective == "fewest_gpus" else 0.0), step_s


def _place(response: Mapping[str, Any], strategy: Document, evaluation: Mapping[str, Any]) -> int:
    own = _value(response, {"strategy": strategy, "evaluation": evaluation})
    return 1 + sum(_value(response, plan) < own for plan in response["plans"])


def _standing(answer: Mapping[str, Any]) -> tuple[int, float]:
    """Order among the variants of one choice: what fits by its time, what does not by its memory."""
    verdict = _VERDICTS.index(answer["verdict"])
    if answer["verdict"] == "invalid":
        return verdict, 0.0
    return verdict, answer["step_time_s"] if answer["verdict"] == "fits" else answer["peak_device_bytes"]


def _excluded(request: Mapping[str, Any], strategy: Mapping[str, Any]) -> list[str]:
    """Sentences on the constraints of the request that a strategy does not meet."""
    constraints = request["constraints"]
    told = []
    for name, value in _flat(constraints.get("fixed") or {}):
        if value is not None and (own := _at(strategy, name)) != value:
            told.append(f"The request fixes {name} to {_spelled(value)}, and here it is {_spelled(own)}.")
    for name, values in _flat(constraints.get("allowed") or {}):
        if values is not None and (own := _at(strategy, name)) not in values:
            told.append(f"The request allows {name} {_spelled(values)}, and here it is {_spelled(own)}.")
    # Whether constraints hold is asked of the completed strategy, as the search would have had it.
    used = int(np.prod([strategy.get(name) or 1 for name in ("tp", "pp", "cp", "dp")]))
    total = total_gpus(request["cluster"])
    if used < total and not constraints.get("allow_idle_gpus", True):
        told.append(f"The request allows no idle GPUs, and this uses {used:,} of {total:,}.")
    return told


def _flat(document: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{part}", its) for part, its in value.items())
        else:
            yield name, value


def _at(strategy: Mapping[str, Any], name: str) -> Any:
    group, _, part = name.partition(".")
    value = strategy.get(group)
    return (value or {}).get(part) if part else value


def _spelled(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " or ".join(map(_spelled, value)) if value else "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
