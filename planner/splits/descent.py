"""Splits over virtual stages that become better layer by layer: what thresholds found, as it runs event by event.

Thresholds know what every stage holds, not how its layers lie on its virtual stages. A descent moves one layer at a time, as long
as that makes a step shorter. It proves nothing, but mostly reaches the bound, and else gives CP-SAT a step time to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.strategies.strategy import Ints
from planner.splits.model import SplitModel, layers_in_order
from planner.splits.virtual_stages import VirtualStages

MOST_NEIGHBOURS = 1024
"""Ways to move one layer above which only those within a stage, among the chunks that stand in the same place on their stages, and
to the next virtual stage are tried."""
_TRIED = 8
"""Of these the shortest, which are asked whether they fit."""
_SHORTER = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Settled:
    """Layers of every virtual stage."""

    layers: tuple[int, ...]
    step_s: float
    """Step time by the cost models; infinite where it does not fit."""


def start_of(model: SplitModel, picked: Sequence[int], layers: tuple[int, ...] | None) -> Settled:
    """The best of some ways to lay what the stages hold on their virtual stages; `layers` is one that is known."""
    totals = [int(choices.layers[index]) for choices, index in zip(model.choices, picked, strict=True)]
    ways = [layers_in_order(totals, model.vpp), layers or model.spread(picked)]
    return priced(model, list(dict.fromkeys(ways)), model.counts(picked))


def settle(
    model: SplitModel,
    layers: Sequence[int],
    *,
    counts: Sequence[int] | None,
    bound_s: float,
    should_stop: Callable[[], bool],
) -> Settled:
    """The end of a descent from these layers of every virtual stage, at the latest where the bound is reached.

    `counts` are the layers that every stage recomputes where each has its own; layers then stay on their stage.
    """
    virtual, best = VirtualStages(model), priced(model, [tuple(layers)], counts)
    moves = _moves(model.pp, model.vpp, within=counts is not None)
    while best.step_s > bound_s / _SHORTER and not should_stop():
        near_NV = np.array(best.layers) + moves
        near_NV = near_NV[(near_NV >= 0).all(axis=1)]
        pipeline_s = virtual.pipeline_s(*virtual.passes_s(near_NV, virtual.recomputed(near_NV, counts)))
        order = np.argsort(pipeline_s, kind="stable")[:_TRIED]
        found = priced(model, [tuple(near_NV[index].tolist()) for index in order.tolist()], counts)
        # What rounding makes shorter would go round in circles.
        if found.step_s >= best.step_s * _SHORTER:
            break
        best = found
    return best


def priced(model: SplitModel, splits: Sequence[tuple[int, ...]], counts: Sequence[int] | None) -> Settled:
    """The best of these that fits."""
    step_s, fits = model.priced([model.layout_of(layers, counts) for layers in splits])
    step_s = np.where(fits, step_s, np.inf)
    best = int(step_s.argmin())
    return Settled(splits[best], float(step_s[best]))


def _moves(pp: int, vpp: int, *, within: bool) -> Ints:
    """One layer from one virtual stage to another, shape (moves, V)."""
    count = pp * vpp
    source, target = (each.reshape(-1) for each in np.indices((count, count)))
    kept = source != target
    if within or count * count > MOST_NEIGHBOURS:
        same = (source - target) % pp == 0
        kept &= same if within else same | (source // pp == target // pp) | (abs(source - target) == 1)
    source, target = source[kept], target[kept]
    moves = np.zeros((len(source), count), np.int64)
    moves[np.arange(len(source)), source] -= 1
    moves[np.arange(len(source)), target] += 1
    return moves
