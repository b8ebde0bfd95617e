"""The best plan of the same job on other numbers of GPUs, with other micro-batch sizes and with other sequence lengths.

Each variant is planned like the request itself, so its plan is just as exact. Other sequence lengths keep the tokens of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cost_models.errors import MeshwrightError
from cost_models.job import Job
from planner.answer.rejections import rejections

Document = dict[str, Any]
NODE_FACTORS = (0.5, 2.0, 4.0)
MICRO_BATCH_FACTORS = (0.5, 2.0, 4.0)
SEQUENCE_FACTORS = (0.5, 2.0, 4.0)
MOST_REASONS = 2
"""Reasons that are named where a variant has no plan."""


def what_if(
    request: Mapping[str, Any],
    job: Job,
    plans: list[Document],
    *,
    solve: Callable[[Document], Document],
    should_stop: Callable[[], bool] | None = None,
) -> list[Document]:
    """The contract's `what_if`: the request itself, then each variant with its best plan and how that compares.

    Args:
        request: the request as it was asked.
        job: the job of that request.
        plans: the plans that were ranked for it.
        solve: plans another request and returns its response.
        should_stop: asked before each variant; true leaves out the rest.
    """
    if not plans:
        return []
    tokens = job.training.tokens_per_step
    base = _entry("as asked", None, plans[0], tokens=tokens)
    found = [base]
    for field, value, changed in _variants(request, job, plans[0]["strategy"]):
        if should_stop is not None and should_stop():
            break
        found.append(_solved(field, value, changed, tokens=tokens, solve=solve, base=base))
    return found


def _variants(request: Mapping[str, Any], job: Job, best: Mapping[str, Any]) -> Iterator[tuple[str, int, Document]]:
    """Field, value and changed request of every variant."""
    # One plan each is enough, and further analyses of the variants would take their time again; open splits stay, since a
    # plan without them could not be compared with the request's own.
    plain = {key: value for key, value in request.items() if key != "include"} | {"top_k": 1}
    if "open_splits" in request.get("include", ()):
        plain["include"] = ["open_splits"]
    cluster, training = dict(request["cluster"]), dict(request["training"])
    for nodes in _scaled(job.cluster.num_nodes, NODE_FACTORS):
        without = {key: value for key, value in plain.items() if key != "constraints"}
        constraints = {key: value for key, value in plain.get("constraints", {}).items() if key != "num_nodes"}
        changed = without | {"constraints": constraints, "cluster": cluster | {"num_nodes": nodes}}
        yield "cluster.num_nodes", nodes, changed
    for size in _scaled(int(best["micro_batch_size"]), MICRO_BATCH_FACTORS):
        yield "strategy.micro_batch_size", size, plain | {"constraints": _fixed_micro_batch(plain, size)}
    # A step has as many documents whatever the length of padded rows, so that no other batch would compare.
    factors = () if job.training.is_padded else SEQUENCE_FACTORS
    for length in _scaled(job.training.seq_length, factors):
        batch, rest = divmod(job.training.seq_length * job.training.global_batch_size, length)
        if not rest and batch:
            other = {key: value for key, value in training.items() if key != "global_batch_tokens"}
            changed = plain | {"training": other | {"seq_length": length, "global_batch_size": batch}}
            yield "training.seq_length", length, changed


def _scaled(value: int, factors: tuple[float, ...]) -> list[int]:
    return [int(value * factor) for factor in factors if value * factor >= 1 and (value * factor) % 1 == 0]


def _fixed_micro_batch(request: Mapping[str, Any], size: int) -> Document:
    constraints = dict(request.get("constraints", {}))
    allowed = {key: value for key, value in constraints.get("allowed", {}).items() if key != "micro_batch_size"}
    return constraints | {"allowed": allowed, "fixed": {**constraints.get("fixed", {}), "micro_batch_size": size}}


def _solved(
    field: str,
    value: int,
    changed: Document,
    *,
    tokens: float,
    solve: Callable[[Document], Document],
    base: Document,
) -> Document:
    try:
        response = solve(changed)
    except (
        MeshwrightError
    ) as error:  # a variant that cannot run, such as a sequence beyond the model's positions, is an answer
        return {"field": field, "value": value, "plan": None, "reason": error.message}
    if not response["plans"]:
        told = rejections(response["rejected"], most=MOST_REASONS)
        reasons = f"of the strategies, {told}" if told else "no strategy exists"
        return {"field": field, "value": value, "plan": None, "reason": reasons}
    entry = _entry(field, value, response["plans"][0], tokens=tokens)
    return entry | {
        "proof": response["search"]["proof"],
        "speedup": base["step_time_s"] / entry["step_time_s"],
        "scaling_efficiency": entry["tokens_per_s_per_gpu"] / base["tokens_per_s_per_gpu"],
    }


def _entry(field: str, value: int | None, plan: Document, *, tokens: float) -> Document:
    evaluation = plan["evaluation"]
    return {
        "field": field,
        "value": value,
        "num_gpus": evaluation["num_gpus_used"],
        "step_time_s": evaluation["step_time_s"],
        "tokens_per_s": tokens / evaluation["step_time_s"],
        "tokens_per_s_per_gpu": evaluation["tokens_per_s_per_gpu"],
        "mfu": evaluation["mfu"],
        "peak_device_bytes": evaluation["memory"]["peak_device_bytes"],
        "plan": plan["strategy"],
    }
