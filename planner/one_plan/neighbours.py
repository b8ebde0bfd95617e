"""Strategies that differ from a plan in one thing, and what the plan gains or loses against each.

A ranking compares a plan with what also ranks. Here every degree is doubled and halved, every kind of recomputation, ZeRO stage,
dispatcher and exchange takes each other value, and every overlap that is on is turned off, whether or not the result fits: the
reason for a choice is often a neighbour that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cost_models.strategies.fields import FIELD
from cost_models.terms import TIME_NAMES
from planner.export.launch_plan import launch_plan
from planner.rows import evaluate_rows

Document = dict[str, Any]
Change = tuple[str, Document]
"""What is changed, in words, and the strategy that this makes."""
SAME_PRICE = 1e-6
"""Relative difference up to which two prices of one row are equal; the answer rounds no further."""
MOST_TERMS, LEAST_OF_LARGEST = 2, 0.1
"""Terms that are named as what makes a difference, and the share of the largest one below which another is not worth a word."""
_FOLLOWING = (
    "layers_per_stage",
    "schedule",
    "zero_shard_size",
    "zero_param_shard_size",
    "recompute_per_stage",
    "mtp_stage",
)
"""Fields that follow from the degrees, and are left to the framework's defaults where a degree changes."""
_RECOMPUTED = ("recompute_method", "recompute_num_layers", "recompute_modules", "recompute_per_stage")
_VERDICTS = ("fits", "at-risk", "oom")


class ChangedPriceError(ValueError):
    """The plan's own row is not priced as the plan was, so that neighbours would be compared with another price."""


def neighbours(row: Mapping[str, Any], evaluation: Mapping[str, Any], *, allow_files: bool = False) -> Document:
    """The neighbours of a plan as `{"priced": [...], "refused": [...]}`, those that fit first and the fastest of them first.

    Args:
        row: the plan's evaluate row.
        evaluation: its evaluation.
        allow_files: whether `cluster.calibration` may be a path.

    Raises:
        ChangedPriceError: the row is not priced as in `evaluation`.
    """
    # A response has every field filled in; one that was edited need not.
    plan = launch_plan(row, allow_files=allow_files)
    changed = list(_changes(plan.strategy, has_experts="moe" in plan.model))
    rows = [dict(row), *({**row, "strategy": strategy} for _, strategy in changed)]
    # The plan's own row is priced along with the others, to see that they are compared with the price that the reader is shown.
    own, *answers = evaluate_rows(rows, allow_files=allow_files)
    check_same_price(own, evaluation)
    found = [
        _compared(name, answer, evaluation)
        for (name, _), answer in zip(changed, answers, strict=True)
        if answer["verdict"] != "invalid"
    ]
    found.sort(key=lambda each: (_VERDICTS.index(each["verdict"]), each["step_time_s"]))
    refused = [
        {"change": name, "reason": answer["reasons"][0]["message"]}
        for (name, _), answer in zip(changed, answers, strict=True)
        if answer["verdict"] == "invalid"
    ]
    return {"priced": found, "refused": refused}


def check_same_price(again: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Checks that a row is priced as it was.

    Raises:
        ChangedPriceError: it is invalid now, or takes another time.
    """
    if again["verdict"] == "invalid":
        raise ChangedPriceError(again["reasons"][0]["message"])
    now, then = again["step_time_s"], before["step_time_s"]
    if abs(now - then) > SAME_PRICE * then:
        raise ChangedPriceError(f"it takes {now:.6g} s a step now and took {then:.6g} s when it was planned")


def _compared(name: str, answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Document:
    own, its = plan["time_breakdown_s"], answer["time_breakdown_s"]
    more = {term: its[term] - own.get(term, 0.0) for term in TIME_NAMES}
    largest = max(map(abs, more.values()))
    # Waiting for the slowest rank follows the rest of the step, so that it never is the reason.
    reasons = [term for term in more if term != "jitter" and abs(more[term]) >= LEAST_OF_LARGEST * largest > 0.0]
    told = sorted(reasons, key=lambda term: -abs(more[term]))[:MOST_TERMS]
    return {
        "change": name,
        "verdict": answer["verdict"],
        "step_time_s": answer["step_time_s"],
        "difference_s": answer["step_time_s"] - plan["step_time_s"],
        "peak_device_bytes": answer["memory"]["peak_device_bytes"],
        "largest_terms_s": {term: more[term] for term in told},
    }


def _changes(own: Mapping[str, Any], *, has_experts: bool) -> Iterator[Change]:
    """Every change that is tried, from a strategy with every field filled in; the rules refuse some of them."""
    for size in _doubled_and_halved(own["micro_batch_size"]):
        yield f"micro_batch_size {size}", {**own, "micro_batch_size": size}
    # Another degree would need another placement on the pools, which only a search can choose.
    if not own.get("pool_per_stage"):
        yield from _degrees(own, has_experts=has_experts)
    yield from _choices(own)
    for stage in range(4):
        if stage != own["zero"]:
            # How often gradients are reduced and over how many ranks states are sharded follows from the stage.
            plain = _without(own, "grad_sync", "zero_shard_size", "zero_param_shard_size")
            yield f"zero {stage}", {**plain, "zero": stage}
    yield from _overlaps(own)
    if any(own["offload"].values()):
        yield "no offload", _without(own, "offload")


def _doubled_and_halved(number: int) -> list[int]:
    return [2 * number, *([number // 2] if number % 2 == 0 else [])]


def _degrees(own: Mapping[str, Any], *, has_experts: bool) -> Iterator[Change]:
    """Each degree doubled and halved: ranks come from the data-parallel ones and go back to them, so that the GPUs stay the same."""
    for name in ("tp", "pp", "cp"):
        for degree in _doubled_and_halved(own[name]):
            if own[name] * own["dp"] % degree:
                continue
            replicas = own[name] * own["dp"] // degree
            plain = _without(own, *_FOLLOWING, *(("etp",) if own["etp"] == own["tp"] else ()))
            vpp = {"vpp": 1} if name == "pp" and degree == 1 else {}
            yield f"{name} {degree} (dp {replicas})", {**plain, name: degree, "dp": replicas, **vpp}
    for degree in _doubled_and_halved(own["ep"]) if has_experts else ():
        yield f"ep {degree}", {**own, "ep": degree}
    for degree in _doubled_and_halved(own["vpp"]) if own["pp"] > 1 else ():
        # Where sends can overlap depends on whether stages are interleaved, so that this is left to the framework's default.
        plain = {**_without(own, "layers_per_stage", "schedule"), "overlap": _without(own["overlap"], "p2p")}
        yield f"vpp {degree}", {**plain, "vpp": degree}


def _choices(own: Mapping[str, Any]) -> Iterator[Change]:
    """Every other kind of recomputation, and of exchange between context-parallel ranks and experts, where there is one."""
    following = {"recompute": _RECOMPUTED, "cp_comm": ("cp_a2a_size",), "moe_dispatcher": ("flex_backend",)}
    exchanged = {"recompute": True, "cp_comm": own["cp"] > 1, "moe_dispatcher": own["ep"] > 1}
    for name, tried in exchanged.items():
        for value in FIELD[name].spellings if tried else ():
            if value != own[name]:
                yield f"{name} {value}", {**_without(own, *following[name]), name: value}


def _overlaps(own: Mapping[str, Any]) -> Iterator[Change]:
    """Each overlap turned off, and sequence parallelism turned over; overlaps that need what is off go with it."""
    needed_by = {"grad_reduce": ("param_gather",), "sequence_parallel": ("tp_comm",)}

    def off(*parts: str) -> tuple[str, Document]:
        on = [part for part in parts if own["overlap"][part]]
        named = on[0] if len(on) == 1 else f"{{{', '.join(on)}}}"
        return f"overlap.{named} false" if on else "", {
            **own,
            "overlap": {**own["overlap"], **dict.fromkeys(on, False)},
        }

    for part, is_on in own["overlap"].items():
        if is_on:
            yield off(part, *needed_by.get(part, ()))
    if own["tp"] > 1 and own["sequence_parallel"]:
        named, changed = off(*needed_by["sequence_parallel"])
        yield "sequence_parallel false" + (f", {named}" if named else ""), {**changed, "sequence_parallel": False}
    elif own["tp"] > 1:
        yield "sequence_parallel true", {**own, "sequence_parallel": True}


def _without(document: Mapping[str, Any], *names: str) -> Document:
    return {key: value for key, value in document.items() if key not in names}


def told_terms(largest_terms_s: Mapping[str, float], phrases: Mapping[str, str]) -> Sequence[str]:
    """The terms in which a neighbour differs most, such as "+0.12 s recomputation"."""
    return [f"{seconds:+.3g} s {phrases[term]}" for term, seconds in largest_terms_s.items()]
