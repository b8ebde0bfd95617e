"""What each change of somebody's files gains alone.

A change is priced from their own row with its fields and nothing else, on as many GPUs and with the same batch: replicas and
accumulation steps follow from these, and what a degree decides, such as the layers of each stage, is left to the framework's own
rule. Changes that share a field are one. One that no framework would run alone is priced beside the first other one that makes it
legal, and counts what the two gain beyond the other; if there is none, its gain is null, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any

from planner.export.judge.changes import MICRO_BATCHES, Change
from planner.export.launch_plan import LaunchPlan
from planner.export.nearest import FOLLOWS, apply_values
from planner.export.quantities import Quantities

Json = dict[str, Any]
Evaluated = Callable[[Sequence[Mapping[str, Any]]], list[Json]]
_FOLLOWING = frozenset({"dp", MICRO_BATCHES})
_FOLLOWS_REASON = "It follows from the other changes: the GPUs and the batch stay the same."
_KEEPS_REASON = "It keeps what another change would alter otherwise."
_IDLE_REASON = "It makes no difference beside the other changes."
_NOT_WHOLE = "The GPUs are no multiple of tp * pp * cp."


def priced(
    row: Mapping[str, Any],
    current: Json,
    changes: Sequence[Change],
    changed: Mapping[str, tuple[Any, Any]],
    target: LaunchPlan,
    *,
    evaluated: Evaluated,
) -> list[Json]:
    """The contract's `changes`.

    Args:
        row: theirs.
        current: its evaluation.
        changed: the fields that differ, with both values.
        target: the best plan.
        evaluated: prices rows.
    """
    matters = Quantities(target, target="", version="").matters
    deciding = [
        tuple(name for name in each.fields if name in changed and name not in _FOLLOWING and matters(name))
        for each in changes
    ]
    groups = _groups(deciding)
    names = [tuple(dict.fromkeys(name for index in group for name in deciding[index])) for group in groups]
    values = {name: changed[name][1] for each in names for name in each}
    alone = _evaluations(row, [{name: values[name] for name in each} for each in names], evaluated)
    documents = [_document(each) for each in changes]
    for index, own in enumerate(deciding):
        if changes[index].reason:
            documents[index]["reason"] = changes[index].reason
        elif not own:
            names_of = changes[index].fields
            follows = any(name in _FOLLOWING for name in names_of)
            keeps = not any(name in changed for name in names_of)
            documents[index]["reason"] = _FOLLOWS_REASON if follows else _KEEPS_REASON if keeps else _IDLE_REASON
    counted_with: dict[int, int] = {}
    for number, group in enumerate(groups):
        first, base = group[0], current
        evaluation: Json | None = alone[number]
        if alone[number]["step_time_s"] is None:
            partner, evaluation = _beside(row, number, names, values, evaluated)
            if partner is None:
                documents[first]["reason"] = _reason(alone[number])
            else:
                documents[first]["together_with"] = list(groups[partner])
                # What the other gains by itself is counted with it, and what two gain only together with the first of them.
                base = current if alone[partner]["step_time_s"] is None else alone[partner]
                evaluation = None if counted_with.get(partner) == number else evaluation
                counted_with[number] = partner
        documents[first] |= _gains(base, evaluation)
        for other in group[1:]:
            documents[other]["together_with"] = [first]
    return documents


def _groups(fields: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """Places of changes that share a field, in the order of their first."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, own in enumerate(fields):
        if not own:
            continue
        joined = [group for group in groups if group[0] & set(own)]
        merged = (
            set(own).union(*(names for names, _ in joined)),
            sorted([index, *(i for _, held in joined for i in held)]),
        )
        groups = [group for group in groups if group not in joined] + [merged]
    return sorted(held for _, held in groups)


def _changed(row: Mapping[str, Any], values: Mapping[str, Any]) -> Json | None:
    """Their row with other values, on as many GPUs; None where no whole number of replicas fits these."""
    found = deepcopy(dict(row))
    strategy = found["strategy"]
    world = prod(strategy.get(name) or 1 for name in ("tp", "pp", "cp", "dp"))
    whole = strategy.get("zero_shard_size") == strategy["dp"] * (strategy.get("cp") or 1)
    # A degree resets what follows from it, so that it comes before a value of its own for that.
    for name in sorted(values, key=lambda name: name not in FOLLOWS):
        apply_values(found, {name: list(values[name]) if isinstance(values[name], tuple) else values[name]})
    ways = prod(strategy.get(name) or 1 for name in ("tp", "pp", "cp"))
    strategy["dp"] = world // ways
    if whole and "zero_shard_size" not in values:
        strategy.pop("zero_shard_size", None)
    return found if strategy["dp"] * ways == world else None


def _evaluations(row: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], evaluated: Evaluated) -> list[Json]:
    rows = [_changed(row, each) for each in changes]
    answers = iter(evaluated([each for each in rows if each is not None]))
    return [next(answers) if each is not None else {"step_time_s": None, "reasons": []} for each in rows]


def _beside(
    row: Mapping[str, Any],
    number: int,
    names: Sequence[tuple[str, ...]],
    values: Mapping[str, Any],
    evaluated: Evaluated,
) -> tuple[int | None, Json | None]:
    """The first other group that makes one legal, with the evaluation of both."""
    others = [each for each in range(len(names)) if each != number]
    # Three that are legal only together are rare, and would take a search of their own.
    pairs = [{name: values[name] for name in (*names[number], *names[other])} for other in others]
    for other, evaluation in zip(others, _evaluations(row, pairs, evaluated), strict=True):
        if evaluation["step_time_s"] is not None:
            return other, evaluation
    return None, None


def _document(change: Change) -> Json:
    return {
        "file": change.file, "line": change.line, "old": change.old, "new": change.new, "field": change.fields[0], "time_gain_s": None,
        "memory_gain_bytes": None, "together_with": [], "reason": None,
    }  # fmt: skip


def _gains(base: Json, evaluation: Json | None) -> Json:
    if evaluation is None or base["step_time_s"] is None:
        return {"time_gain_s": None, "memory_gain_bytes": None}
    return {
        "time_gain_s": base["step_time_s"] - evaluation["step_time_s"],
        "memory_gain_bytes": base["memory"]["peak_device_bytes"] - evaluation["memory"]["peak_device_bytes"],
    }


def _reason(evaluation: Json) -> str:
    return "; ".join(each["message"] for each in evaluation["reasons"]) or _NOT_WHOLE
