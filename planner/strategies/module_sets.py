"""Which sets of modules a search lets selective recomputation repeat: a front of time against memory.

With M modules there are up to 2^M sets. Tried are the framework's default, every module alone that saves something worth naming,
and the sets that grow from these by the memory that a module saves for each second: any other set of as much time saves little more,
if at all. The report of the search names what is tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.layers.costs import layer_costs
from cost_models.memory.batch import build_batch
from cost_models.strategies.fields import MOE_MODULE, RECOMPUTE_MODULES, Recompute
from planner.rules import violations
from planner.strategies.space import Space

LEAST_SAVED = 0.01
"""Share of a model's activations that a module must save to be tried."""
# A mixture layer as a whole holds these modules.
_INSIDE_MOE = sum(1 << RECOMPUTE_MODULES.index(name) for name in ("moe_act", "shared_experts"))
Floats = NDArray[np.float64]


def module_sets(space: Space) -> tuple[int, ...]:
    """The sets to try, the framework's default first."""
    own = space.module_sets
    asked = Recompute.SELECTIVE in space.recompute_modes and "recompute_modules" not in space.knobs
    if not (asked and space.job.framework.choices.recompute_modules and len(space.degrees)):
        return own
    saved_bytes, repeated_s = _worth(space)
    useful = np.flatnonzero(saved_bytes >= LEAST_SAVED)
    sets = [1 << int(bit) for bit in useful]
    grown = 0
    for bit in useful[np.argsort(-saved_bytes[useful] / np.maximum(repeated_s[useful], 1e-30), kind="stable")].tolist():
        grown |= 1 << bit
        sets.append(grown & ~_INSIDE_MOE if grown & MOE_MODULE else grown)
    sets = list(dict.fromkeys(sets))
    totals = {each: (_total(each, saved_bytes), _total(each, repeated_s)) for each in sets}
    kept = [each for each in sets if not any(_beats(totals[other], totals[each]) for other in sets)]
    return tuple(dict.fromkeys((*own, *sorted(kept, key=lambda each: totals[each][1]))))


def _total(modules: int, each: Floats) -> float:
    return float(sum(value for bit, value in enumerate(each.tolist()) if modules >> bit & 1))


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether one set saves no less memory in no more time than another, and is better in one of them."""
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def _worth(space: Space) -> tuple[Floats, Floats]:
    """By module, the share of the activations of all layers that it saves, 0 where it cannot be told, and the seconds that it repeats;
    shape (M,) each. A mesh amidst the others stands for all.
    """
    job, count = space.job, len(RECOMPUTE_MODULES)
    middle = space.degrees.rows(np.array([len(space.degrees) // 2]))
    columns: dict[str, Any] = {name: np.repeat(column[-1:], count) for name, column in middle.items()}
    ones = np.ones(count, np.int64)
    columns |= {
        "vpp": ones,
        "layout": 0 * ones,
        "zero": min(space.zeros) * ones,
        "recompute": Recompute.SELECTIVE * ones,
    }
    columns |= {"recompute_method": 0 * ones, "recompute_num_layers": 0 * ones}
    columns |= {name: np.full(count, values[0]) for name, values in space.knobs.items()}
    rows = space.build(columns | {"recompute_modules": 1 << np.arange(count)})
    table, costs = build_batch(job, rows).table, layer_costs(job, rows)
    counts_J = [job.model.layer_kinds.count(kind) for kind in job.model.distinct_kinds]
    whole = sum(layers * whole for layers, whole in zip(counts_J, table.whole_J, strict=True))
    kept = sum(layers * kept for layers, kept in zip(counts_J, table.kept_J, strict=True))
    legal = violations(job, rows).only(frozenset({"recompute-modules-unsupported"})).legal
    return np.where(legal, 1.0 - kept / whole, 0.0), np.array(counts_J, float) @ costs.modules_JMU[:, :, 0]
