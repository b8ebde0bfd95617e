"""How strategies and what was assumed about them are told: the way back from the cost models' arrays to the contract's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.job import PooledJob
from cost_models.layers.expert_loop import has_looped_modules
from cost_models.strategies.fields import FIELDS, MoeDispatcher, StrategyField
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Strategies
from planner.strategies.defaults import assumed_by_pool
from planner.strategies.habits import with_habits


def strategy_dict(strategies: Strategies, index: int) -> dict[str, Any]:
    """Strategy `index` in the contract's names with everything filled in. It can be parsed as a `StrategyInput` again."""
    layout = strategies.layouts.table[int(strategies.layout[index])]
    found: dict[str, Any] = {}
    for entry in FIELDS:
        column = entry.column
        if entry.is_rare and not (column and strategies.differs(column, index)):
            continue
        value = entry.decoded(getattr(strategies, column)[index].item()) if column else _held_by(layout, entry)
        holder = found.setdefault(entry.group, {}) if entry.group else found
        holder[entry.part] = value
    # Fields that say nothing for this strategy are left out or null, since giving them back would be refused.
    if found["recompute_method"] is None:
        found["recompute_num_layers"] = None
    found["recompute_modules"] = found["recompute_modules"] or None
    if not layout.pool_per_stage:
        del found["pool_per_stage"]
    if layout.mtp is not None:
        found["mtp_stage"] = layout.mtp[0]
    if found["moe_dispatcher"] != MoeDispatcher.FLEX.label:
        del found["flex_backend"]
    return found


def _held_by(layout: Layout, entry: StrategyField) -> list[Any] | None:
    """The value in a layout of a field that has one entry per stage; None where there is none."""
    counts = {
        "layers_per_stage": layout.layers,
        "recompute_per_stage": layout.recompute_per_stage,
        "pool_per_stage": layout.pool_per_stage,
    }[entry.name]
    return list(counts) if counts else None


def assumed_fields(job: PooledJob, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Every default that was applied to a job and one of its strategies, by contract field.

    Defaults from recipes are named as such. A training default that differs between pools is listed by their names.
    """
    first = job.jobs[0]
    left_out: dict[str, Any] = {"mtp_num_layers": 0} if first.model.mtp_num_layers > first.mtp_num_layers else {}
    # transformers 5 calls a loop over experts "eager" in `experts_implementation` of a model's configuration.
    if has_looped_modules(first):
        left_out["experts_implementation"] = "eager"
    training = first.training.assumed if len(job.jobs) == 1 else assumed_by_pool(job)
    assumed = {**first.model.assumed, **left_out, **job.cluster.assumed, **training, **strategy}
    return with_habits(first, assumed)
