"""The nearest plan that a target can say, where it refuses a field of the one that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from cost_models.errors import MeshwrightError, NotExpressibleError
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.rows import evaluate_rows

_MOST_CHANGES = 8
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "pp": ("layers_per_stage", "schedule", "dp", "zero_shard_size", "recompute_per_stage", "pool_per_stage"),
    "vpp": ("layers_per_stage", "schedule"),
    "tp": ("dp", "zero_shard_size", "etp"),
    "cp": ("dp", "zero_shard_size"),
    "zero": ("zero_shard_size", "zero_param_shard_size", "grad_sync"),
    "recompute": ("recompute_method", "recompute_num_layers", "recompute_modules", "recompute_per_stage"),
}
"""Fields that are decided anew where another one changes."""


def with_nearest(
    refusal: NotExpressibleError, row: Mapping[str, Any], said: Callable[[LaunchPlan], Any]
) -> NotExpressibleError:
    """The refusal with the nearest plan that the target can say: `context["nearest_plan"]` holds what changes and its step time.

    Args:
        row: the evaluate row that was refused.
        said: writes a plan, or raises another refusal.
    """
    changed: dict[str, Any] = {}
    current: NotExpressibleError | None = refusal
    candidate = deepcopy(dict(row))
    while current is not None:
        nearest = current.context.get("nearest") or {}
        if (
            not nearest
            or len(changed) > _MOST_CHANGES
            or any(changed.get(name, value) != value for name, value in nearest.items())
        ):
            return refusal
        changed |= nearest
        apply_values(candidate, nearest)
        current = _refused(candidate, said)
        if isinstance(current, _IllegalError):
            return refusal
    evaluation = next(iter(evaluate_rows([candidate])))
    if evaluation["step_time_s"] is None:
        return refusal
    refusal.context["nearest_plan"] = {
        "changes": changed, "strategy": candidate["strategy"], "step_time_s": evaluation["step_time_s"], "verdict": evaluation["verdict"],
    }  # fmt: skip
    words = ", ".join(f"{name} {value}" for name, value in changed.items())
    refusal.hint = f"The nearest plan that it can say has {words}: {evaluation['step_time_s']:.4g} s a step, {evaluation['verdict']}."
    return refusal


class _IllegalError(NotExpressibleError):
    """The changed row is none that the framework could run."""


def _refused(row: Mapping[str, Any], said: Callable[[LaunchPlan], Any]) -> NotExpressibleError | None:
    try:
        said(launch_plan(row))
    except NotExpressibleError as error:
        return error
    except MeshwrightError as error:
        return _IllegalError(error.message)
    return None


def apply_values(row: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets fields of a row in place, by the names of `Quantities`; what follows from them is left to the defaults."""
    for name, value in values.items():
        group, _, field = name.rpartition(".")
        document = row["strategy"]
        if group in ("training", "model"):
            document = row[group]
        elif group:
            document = row["strategy"].setdefault(group, {})
        else:
            for follower in FOLLOWS.get(name, ()):
                document.pop(follower, None)
        document[field] = value
