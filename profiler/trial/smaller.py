"""A model that is too large for the GPUs at hand, measured as two smaller ones: fewer of the same layers, drawn on as a line.

A step consists of what happens once (the ends of the model, clipping) and of what every layer costs, so that time, each of its terms,
and memory are straight lines over the number of layers per stage. Noise is drawn on, too: the farther, the less the figures are worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.model import resolve_model
from profiler.trial.record import Extrapolation, TrialRecord, one_line

# Spellings of our own models and of Hugging Face's configurations.
_NAMES = ("num_layers", "num_hidden_layers")
_SPLITS = ("layers_per_stage", "recompute_per_stage")


def smaller_row(row: Mapping[str, Any], *, layers: int) -> dict[str, Any]:
    """The row with fewer layers, split evenly.

    Raises:
        InvalidInputError: the model is not given field by field, its layers differ, or stages would be uneven.
    """
    model, strategy = row["model"], row["strategy"]
    name = next((name for name in _NAMES if isinstance(model, Mapping) and name in model), None)
    if name is None:
        message = "the model is not given field by field, so that it cannot be made smaller"
        raise InvalidInputError([Problem("/model", message, "Give the model as an object with num_layers.")])
    chunks = int(strategy.get("pp", 1)) * int(strategy.get("vpp", 1))
    whole = resolve_model(model)
    if len(whole.distinct_kinds) > 1:
        message = "the model has layers of several kinds, of which fewer layers would be another mixture"
        raise InvalidInputError([Problem("/model", message, "Measure it whole, on more GPUs.")])
    if not 0 < layers < whole.num_layers or layers % chunks or whole.num_layers % chunks:
        message = (
            f"{layers} layers do not stand for {whole.num_layers}; fewer of them are needed, and both numbers must be "
            f"multiples of the {chunks} chunks of the pipeline"
        )
        raise InvalidInputError([Problem(f"/model/{name}", message, f"Choose a multiple of {chunks}.")])
    # Even stages, because a line needs the same shape at every number of layers.
    rest = {field: value for field, value in strategy.items() if field not in _SPLITS}
    return {**row, "model": {**model, name: layers}, "strategy": rest}


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
