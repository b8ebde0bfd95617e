"""Knobs that a search takes of its own accord, although the request says nothing of them.

How tokens reach their experts, and whether they travel beside another micro-batch's computation, costs memory and saves time, so
neither value of these knobs is always the better one. What the rules refuse everywhere is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.fields import V_SHAPED, Recompute, Schedule
from cost_models.strategies.strategy import Strategies
from planner.rules import violations
from planner.strategies.expansion import DISPATCHER_CODES, OFFLOAD_CODES, OFFLOADED, SCHEDULE_CODES
from planner.strategies.module_sets import module_sets
from planner.strategies.parts import Part
from planner.strategies.space import Space


def with_searched_knobs(space: Space) -> Space:
    """The space with the knobs that are searched although the request does not list them."""
    found = _with_expert_knobs(_with_legal_schedules(space))
    return found if Part.MODULE_SETS in space.without else replace(found, module_sets=module_sets(found))


def unasked_codes(space: Space) -> frozenset[str]:
    """Rules that refuse values which the search tries of its own accord: nobody asked for these, so they count as no rejections."""
    codes = frozenset() if "schedule" in space.chosen else SCHEDULE_CODES
    codes |= OFFLOAD_CODES if space.falls_back else frozenset()
    return codes | DISPATCHER_CODES if "moe_dispatcher" in space.searched_knobs else codes


def with_fallback_offload(space: Space) -> Space | None:
    """The space of strategies that keep something in host memory, for a request of which nothing else fits; None where the
    framework offloads nothing or the request says itself what is offloaded.
    """
    fallback = space.job.framework.strategy.fallback_offload
    if not fallback or any(name in space.knobs for name in OFFLOADED) or Part.OFFLOAD in space.without:
        return None
    searched = space.searched_knobs | frozenset(fallback)
    return replace(space, knobs={**space.knobs, **fallback}, searched_knobs=searched)


def _with_legal_schedules(space: Space) -> Space:
    """The space without the schedules that cannot run in this job, which nobody asked for."""
    found = space
    for schedule in (*V_SHAPED, Schedule.GPIPE) if "schedule" not in space.chosen else ():
        if schedule in space.schedules and not _runs(space, schedule):
            found = replace(found, schedules=tuple(value for value in found.schedules if value != schedule))
    pairs = {
        pp: tuple(pair for pair in pairs if found.splits.schedules(pair[1])) for pp, pairs in found.layout_index.items()
    }
    return found if found is space else replace(found, layout_index=pairs)


def _runs(space: Space, schedule: int) -> bool:
    """Whether some strategy with this schedule breaks no rule on schedules."""
    pairs = [(pp, *pair) for pp, pairs in space.layout_index.items() for pair in pairs]
    fitting = [each for each in pairs if schedule in space.splits.schedules(each[2])]
    meshes = [np.flatnonzero(space.degrees.mesh["pp"] == pp) for pp, _, _ in fitting[:1]]
    if not meshes:
        return True
    _, vpp, layout = fitting[0]
    modes = space.recompute_modes
    columns = {name: np.repeat(column[:1], len(modes)) for name, column in space.degrees.rows(meshes[0][:1]).items()}
    ones = np.ones(len(modes), np.int64)
    columns |= {
        "vpp": vpp * ones,
        "layout": layout * ones,
        "zero": min(space.zeros) * ones,
        "recompute": np.array(modes),
    }
    columns |= {"recompute_method": 0 * ones, "recompute_num_layers": 0 * ones, "schedule": schedule * ones}
    columns |= {name: np.full(len(modes), values[0]) for name, values in space.knobs.items()}
    return bool(violations(space.job, space.build(columns)).only(SCHEDULE_CODES).legal.any())


def _with_expert_knobs(space: Space) -> Space:
    job, probe = space.job, _probe(space)
    if job.model.moe is None or probe is None:
        return space
    knobs: dict[str, tuple[Any, ...]] = {}
    if "moe_dispatcher" not in space.knobs and Part.DISPATCHERS not in space.without:
        tried = [
            replace(probe, moe_dispatcher=np.full(len(probe), code, np.int8))
            for code in job.framework.choices.dispatchers
        ]
        legal = [violations(job, rows).only(DISPATCHER_CODES).legal.any() for rows in tried]
        found = [code for code, runs in zip(job.framework.choices.dispatchers, legal, strict=True) if runs]
        own = job.framework.strategy.moe_dispatcher
        # The framework's own comes first: it stands for all where the knob has no effect.
        if len(found) > 1 and own in found:
            knobs["moe_dispatcher"] = (own, *(code for code in found if code != own))
    overlaps = job.framework.strategy.searches_expert_overlap and Part.EXPERT_OVERLAP not in space.without
    if "overlap_moe_all_to_all" not in space.knobs and overlaps:
        spread = probe.take(probe.ep > 1)
        on = replace(spread, overlap_moe_all_to_all=np.ones(len(spread), np.bool_))
        ways = {**space.knobs, **knobs}.get("moe_dispatcher", (job.framework.strategy.moe_dispatcher,))
        each = (replace(on, moe_dispatcher=np.full(len(on), code, np.int8)) for code in ways)
        if any(violations(job, rows).only(frozenset({"overlap-unsupported"})).legal.any() for rows in each):
            knobs["overlap_moe_all_to_all"] = (False, True)
    return replace(space, knobs={**space.knobs, **knobs}, searched_knobs=frozenset(knobs)) if knobs else space


def _probe(space: Space) -> Strategies | None:
    """One row for each (ep, etp) of several ranks, without a pipeline or recomputation; None where there is none.

    Ranks that share experts exchange tokens whether they hold different experts or parts of the same.
    """
    inner = space.degrees.inner
    several = np.flatnonzero(inner["ep"] * inner["etp"] > 1)
    if not len(several) or not len(space.degrees):
        return None
    key = inner["ep"][several] * (int(inner["etp"].max()) + 1) + inner["etp"][several]
    rows = several[np.unique(key, return_index=True)[1]]
    group = np.searchsorted(space.degrees.first, rows, side="right") - 1
    order = np.argsort(space.degrees.group, kind="stable")
    meshes = order[np.searchsorted(space.degrees.group[order], group)]
    columns: dict[str, NDArray[Any]] = {name: column[meshes] for name, column in space.degrees.mesh.items()}
    columns |= {name: column[rows] for name, column in inner.items()}
    ones = np.ones(len(rows), np.int64)
    columns |= {"vpp": ones, "layout": 0 * ones, "zero": min(space.zeros) * ones, "recompute": Recompute.NONE * ones}
    columns |= {"recompute_method": 0 * ones, "recompute_num_layers": 0 * ones}
    columns |= {name: np.full(len(rows), values[0]) for name, values in space.knobs.items()}
    found = space.build(columns)
    return replace(found, pp=np.ones(len(rows)), vpp=np.ones(len(rows)))
