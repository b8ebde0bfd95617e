"""A model that is too large for the GPUs at hand, measured as two smaller ones: fewer of the same layers, drawn on as a line.

A step consists of what happens once (the ends of the model, clipping) and of what every layer costs, so that time, each of its terms,
and memory are straight lines over the number of layers per stage. Noise is drawn on, too: the farther, the less the figures are worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import LayerKind
from profiler.trial.record import Extrapolation, TrialRecord, one_line

# Spellings of Hugging Face's configurations.
_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def smaller_row(row: Mapping[str, Any], *, layers: int) -> dict[str, Any]:
    """The row with the first `layers` layers of its model, split evenly; what counts layers, or lists them, means the same of these.

    Raises:
        InvalidInputError: the model is not given field by field, its layers do not repeat, or so many of them would be another mixture
            or other stages.
    """
    model, strategy = row["model"], row["strategy"]
    if not isinstance(model, Mapping):
        message = "the model is not given field by field, so that it cannot be made smaller"
        raise InvalidInputError([Problem("/model", message, "Give the model as an object with num_layers.")])
    whole = resolve_model(model)
    pp = int(strategy.get("pp", 1))
    chunks = pp * int(strategy.get("vpp", 1))
    _require_repeats(whole.layer_kinds, layers, chunks)
    small = _first_of_lists(model, whole.num_layers, layers)
    if "num_layers" in small or "hf_config" not in small:
        small["num_layers"] = layers
    else:
        config = small["hf_config"]
        small["hf_config"] = {**config, **{name: layers for name in _NAMES if name in config}}
    if resolve_model(small).layer_kinds != whole.layer_kinds[:layers]:
        message = f"{layers} layers of the model are not its first {layers} ones"
        raise InvalidInputError([Problem("/model", message, "Measure it whole, on more GPUs.")])
    return {**row, "model": small, "strategy": _fewer(strategy, whole.num_layers, layers, pp=pp, chunks=chunks)}


def _require_repeats(kinds: Sequence[LayerKind], layers: int, chunks: int) -> None:
    """A line needs the same shape at every number of layers: what comes once, and then what repeats, the same in each stage."""
    hint = "Measure it whole, on more GPUs."
    once_and_period = _once_and_period(kinds)
    if once_and_period is None:
        message = "the model has layers of several kinds, and nothing of its layers repeats"
        raise InvalidInputError([Problem("/model", message, hint)])
    once, period = once_and_period
    if once and chunks > 1:
        message = f"the model is split over {chunks} chunks of a pipeline, and its first {once} layers are others than those behind them"
        raise InvalidInputError([Problem("/model", message, hint)])
    unit = period * chunks
    if once < layers < len(kinds) and not (layers - once) % unit and not (len(kinds) - once) % unit:
        return
    if once:
        needed = f"{once} more than multiples of {period}, the layers that repeat"
    elif period == 1:
        needed = f"multiples of the {chunks} chunks of the pipeline"
    elif chunks == 1:
        needed = f"multiples of the {period} layers that repeat"
    else:
        needed = f"multiples of {unit}, the {period} layers that repeat in {chunks} chunks of the pipeline"
    message = (
        f"{layers} layers do not stand for {len(kinds)}; fewer of them are needed, and both numbers must be {needed}"
    )
    raise InvalidInputError([Problem("/model/num_layers", message, "Choose another number of layers.")])


def _once_and_period(kinds: Sequence[LayerKind]) -> tuple[int, int] | None:
    """How many layers come once, and of how many what follows consists again and again; as few as can be. None where nothing repeats."""
    number = len(kinds)
    for both in range(1, number):
        for once in range(both):
            period = both - once
            rest = number - once
            if rest % period or rest < 2 * period:
                continue
            if all(kinds[place] == kinds[place + period] for place in range(once, number - period)):
                return once, period
    return (0, 1) if number == 1 else None


def _first_of_lists(given: Mapping[str, Any], number: int, layers: int) -> dict[str, Any]:
    """The same with the beginning of each list that has an entry for every layer."""

    def first(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _first_of_lists(value, number, layers)
        return value[:layers] if isinstance(value, list | tuple) and len(value) == number else value

    return {name: first(value) for name, value in given.items()}


def _fewer(strategy: Mapping[str, Any], number: int, layers: int, *, pp: int, chunks: int) -> dict[str, Any]:
    """The strategy for fewer layers: counts of some layers stay, and counts of all are of all again."""
    found = dict(strategy)
    given = found.pop("layers_per_stage", None)
    if given is not None and set(given) != {number // chunks}:
        message = f"layers_per_stage {list(given)} is uneven; fewer layers would be split otherwise"
        raise InvalidInputError(
            [Problem("/strategy/layers_per_stage", message, "Leave it out, or measure the plan whole.")]
        )

    def counted(pointer: str, counts: Sequence[int], parts: int, *, in_units: bool = False) -> list[int]:
        of_whole, of_small = number // parts, layers // parts
        if all(count >= of_whole for count in counts):
            return [of_small] * len(counts)
        if all(count <= of_small and not (in_units and (of_whole - of_small) % count) for count in counts):
            return list(counts)
        said = ", ".join(map(str, counts))
        message = (
            f"{said} of {of_whole} layers in each chunk or stage is a part that says nothing, and not of {of_small}"
        )
        raise InvalidInputError(
            [Problem(f"/strategy/{pointer}", message, "Choose more layers, or measure the plan whole.")]
        )

    if (count := found.get("recompute_num_layers")) is not None:
        in_units = found.get("recompute_method") == "uniform"
        (found["recompute_num_layers"],) = counted("recompute_num_layers", [count], chunks, in_units=in_units)
    if (counts := found.get("recompute_per_stage")) is not None:
        found["recompute_per_stage"] = counted("recompute_per_stage", counts, pp)
    offload = found.get("offload") or {}
    if count := offload.get("activation_layers"):
        (few,) = counted("offload/activation_layers", [count], pp)
        found["offload"] = {**offload, "activation_layers": few}
    return found


def extrapolated(row: Mapping[str, Any], first: TrialRecord, second: TrialRecord) -> TrialRecord:
    """The record of a row from those of two smaller ones; where one of them failed, how it failed.

    Args:
        row: the whole row.
        first: a measured `smaller_row` of it.
        second: another one, with another number of layers.
    """
    layers = [resolve_model(each["model"]).num_layers for each in (first.row, second.row, row)]
    took: dict[str, Any] = {
        "took_s": first.took_s + second.took_s,
        "gpu_seconds": first.gpu_seconds + second.gpu_seconds,
    }
    for record, number in zip((first, second), layers, strict=False):
        if record.status != "ok":
            reason = one_line(f"with {number} layers: {record.reason}")
            return replace(record, row=row, reason=reason, **took)
    assert first.step_time_s is not None
    assert second.step_time_s is not None
    a, b, whole = layers
    reach = (whole - a) / (b - a)

    def drawn(one: float, other: float) -> float:
        return max(0.0, one + (other - one) * reach)

    def drawn_bytes(one: int | None, other: int | None) -> int | None:
        return None if one is None or other is None else round(drawn(one, other))

    step_time_s = drawn(first.step_time_s, second.step_time_s)
    if not step_time_s:
        steps = f"steps of {a} layers take {first.step_time_s:g} s and of {b} layers {second.step_time_s:g} s"
        reason = f"{steps}, which says nothing of one with {whole}"
        nothing: dict[str, Any] = {"step_time_s": None, "step_s": (), "warm_up": 0, "ranks": (), "terms_s": None}
        return replace(second, row=row, status="crash", reason=reason, **nothing, **took)
    note = f"drawn on from models of {a} and {b} layers to one of {whole}, and their noise with them"
    return replace(
        second, row=row, step_time_s=step_time_s, step_s=(), warm_up=0, ranks=(), **took,
        peak_allocated_bytes=drawn_bytes(first.peak_allocated_bytes, second.peak_allocated_bytes),
        peak_reserved_bytes=drawn_bytes(first.peak_reserved_bytes, second.peak_reserved_bytes),
        peak_device_bytes=drawn_bytes(first.peak_device_bytes, second.peak_device_bytes),
        terms_s=_drawn_terms(first.terms_s, second.terms_s, reach, step_time_s),
        extrapolated=Extrapolation(layers_run=[a, b], layers=whole), started_at=first.started_at,
        notes=(*first.notes, *second.notes, note),
    )  # fmt: skip


def _drawn_terms(
    first: Mapping[str, float] | None, second: Mapping[str, float] | None, reach: float, step_time_s: float
) -> dict[str, float] | None:
    """Each term drawn on, none below zero, in sum the step."""
    if first is None or second is None:
        return None
    # A term that only one of the two has, such as a bubble, was nothing in the other.
    one = {name: first.get(name, 0.0) for name in {**first, **second}}
    drawn = {name: max(0.0, value + (second.get(name, 0.0) - value) * reach) for name, value in one.items()}
    total = sum(drawn.values())
    return {name: value * step_time_s / total for name, value in drawn.items() if value > 0} if total else None
