"""The best strategy of a small request by trying every split of its layers: written from the contract, not from the planner's search.

Every way to put the layers on pp * vpp virtual stages is tried, with every ZeRO stage, every recomputation and every count up to
the longest chunk. `planner.rules` says what is legal, `cost_models.evaluate` what it costs and whether it fits. Virtual stages without
layers are tried where they hold the embedding or the head; others are too many for larger jobs, and stand in `tests/brute_force.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from cost_models.evaluate import Verdict, evaluate
from cost_models.strategies.layouts import Layout, build_layouts
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

HEADROOM = 0.03
"""The contract's `memory_headroom_fraction` where a request states none."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What enumeration found."""

    count: int
    """Strategies that were legal and priced."""
    steps_s: tuple[float, ...]
    """Seconds of a step of all that surely fit, best first."""
    best: tuple[Mapping[str, Any], tuple[int, ...]] | None
    """Fields and layers of the best."""


def compositions(layers: int, stages: int, *, least: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every list of so many layers over these stages, none of which holds fewer than its least."""
    if stages == 1:
        if layers >= least[0]:
            yield (layers,)
        return
    for first in range(least[0], layers - sum(least[1:]) + 1):
        for rest in compositions(layers - first, stages - 1, least=least[1:]):
            yield (first, *rest)


def recomputations(longest: int) -> list[dict[str, Any]]:
    """Every recomputation of a chunk of so many layers; `block` with all of them is the plain `full`."""
    blocks = [
        {"recompute": "full", "recompute_method": "block", "recompute_num_layers": count} for count in range(1, longest)
    ]
    return [{"recompute": "none"}, {"recompute": "selective"}, *blocks, {"recompute": "full"}]


def enumerated(
    request: Mapping[str, Any], *, vpp: tuple[int, ...], zero: tuple[int, ...], most_steps: int = 10
) -> Tried:
    """Every strategy of a request whose other degrees are fixed."""
    job = resolve_job(dict(request))
    fixed = request["constraints"]["fixed"]
    layers, pp = job.model.num_layers, fixed["pp"]
    count, best_s, best, found = 0, np.inf, None, []
    for chunks in vpp:
        stages = pp * chunks
        least = (0, *(1,) * (stages - 2), 0)
        table = [Layout(pp, chunks, split) for split in compositions(layers, stages, least=least)]
        if not table:
            continue
        longest = np.array([max(layout.layers) for layout in table])
        layouts = build_layouts(table, model=job.model, all_stages=True)
        for stage, again in product(zero, recomputations(int(longest.max()))):
            fields = {**fixed, "vpp": chunks, "zero": stage, **again, "layers_per_stage": list(table[0].layers)}
            resolved = resolve_strategies(job, [StrategyInput.model_validate(fields)]).strategies
            if resolved is None or not len(resolved):
                continue
            # With no chunk longer than the count, `block` repeats what the plain `full` does.
            which = np.flatnonzero(longest > again.get("recompute_num_layers", 0))
            rows = replace(resolved.take(np.zeros(len(which), np.int64)), layout=which, layouts=layouts)
            legal = np.flatnonzero(violations(job, rows).legal)
            if not len(legal):
                continue
            priced = evaluate(job, rows.take(legal), headroom_fraction=HEADROOM)
            count += len(legal)
            fits = np.flatnonzero(priced.verdict == Verdict.FITS)
            if not len(fits):
                continue
            step_s = np.asarray(priced.step_time_s)[fits]
            found.append(step_s)
            if step_s.min() < best_s:
                at = int(step_s.argmin())
                best_s, best = float(step_s[at]), (fields, table[int(which[legal[fits[at]]])].layers)
    steps = np.sort(np.concatenate(found))[:most_steps] if found else np.zeros(0)
    return Tried(count, tuple(steps.tolist()), best)
