"""Every way to lay the layers on virtual stages, where there are few: the best is then known without a solver.

The pipeline's seconds are computed for all ways at once, and with the least that can happen once a step they bound each. What may
still win is priced by the cost models, best bound first. Array suffixes: V virtual stages, N ways, J layer kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

import numpy as np

from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Bools, Floats, Ints
from planner.splits.builder import fewest_recomputed
from planner.splits.lone_stages import fits_alone
from planner.splits.model import SplitModel
from planner.splits.virtual_stages import VirtualStages

MOST_WAYS = 100_000
"""Ways to lay the layers up to which all are computed, in about a second."""
_AT_ONCE = 128
"""Ways that are priced at a time."""


@dataclass(frozen=True, slots=True)
class BestWay:
    """The best of all ways, None where none takes less than the target."""

    layout: Layout | None
    step_s: float
    ways: int
    """How many there are."""


def best_way(model: SplitModel, *, target_s: float, most: int = MOST_WAYS) -> BestWay | None:
    """The best way of all, if that takes less than `target_s`; None where there are too many ways."""
    totals = [np.unique(choices.layers).tolist() for choices in model.choices]
    layers_NV = ways(totals, vpp=model.vpp, num_layers=len(model.kind_of_layer), most=most)
    if layers_NV is None:
        return None
    tried = len(layers_NV)
    virtual, counts_NS = VirtualStages(model), None
    if model.per_stage_recompute:
        counts_NS = _fewest_counts(model, virtual, layers_NV)
        possible = (counts_NS >= 0).all(axis=1)
        layers_NV, counts_NS = layers_NV[possible], counts_NS[possible]
    bound_s = virtual.pipeline_s(*virtual.passes_s(layers_NV, virtual.recomputed(layers_NV, counts_NS)))
    bound_s = (bound_s + _least_once_s(model)) * model.factor
    order = np.argsort(bound_s, kind="stable")
    # Best bound first: as soon as one bound loses, so do all behind it.
    best, best_s = None, target_s
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        some = some[bound_s[some] < best_s]
        if not len(some):
            break
        own = [None] * len(some) if counts_NS is None else counts_NS[some].tolist()
        table = [model.layout_of(tuple(its), counts) for its, counts in zip(layers_NV[some].tolist(), own, strict=True)]
        step_s, fits = model.priced(table)
        step_s = np.where(fits, step_s, np.inf)
        first = int(step_s.argmin())
        if step_s[first] < best_s:
            best, best_s = table[first], float(step_s[first])
    return BestWay(best, best_s, tried)


def ways(totals: Sequence[Sequence[int]], *, vpp: int, num_layers: int, most: int) -> Ints | None:
    """All layers of every virtual stage with one of its totals on each stage, shape (N, V); None where there are more than `most`."""
    found_NV, left_N = np.zeros((1, 0), np.int64), np.array([num_layers])
    for stage, own in enumerate(totals):
        if len(found_NV) * sum(comb(total + vpp - 1, vpp - 1) for total in own) > 20 * most:
            return None
        chunks = np.array([way for total in own for way in _shares(total, vpp)], np.int64).reshape(-1, vpp)
        rest = totals[stage + 1 :]
        least, largest = (sum(int(edge(each)) for each in rest) for edge in (min, max))
        left_NC = left_N[:, None] - chunks.sum(axis=1)
        before, way = np.nonzero((left_NC >= least) & (left_NC <= largest))
        if len(before) > most:
            return None
        found_NV = np.concatenate([found_NV[before], chunks[way]], axis=1)
        left_N = left_NC[before, way]
    # Stages one after the other become chunks one after the other.
    return found_NV.reshape(-1, len(totals), vpp).transpose(0, 2, 1).reshape(len(found_NV), -1)


def _shares(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _shares(total - first, parts - 1):
            yield (first, *rest)


def _fewest_counts(model: SplitModel, virtual: VirtualStages, layers_NV: Ints) -> Ints:
    """Layers that every stage has to recompute to fit, -1 where it does not fit at all, shape (N, S).

    Fewer layers on a stage's first chunks leave fewer micro-batches in flight, so these counts depend on the chunks.
    """
    counts_NS = np.zeros((len(layers_NV), model.pp), np.int64)
    held_NVJ = virtual.held(layers_NV)
    for stage in range(model.pp):
        # Few stages differ among many ways, and the memory model is asked of each once.
        own = np.concatenate([layers_NV[:, stage :: model.pp], held_NVJ[:, stage :: model.pp].sum(axis=1)], axis=1)
        alike, which = np.unique(own, axis=0, return_inverse=True)
        chunks = [tuple(each) for each in alike[:, : model.vpp].tolist()]
        fits = partial(_fits, model, stage, alike[:, model.vpp :], chunks)
        counts_NS[:, stage] = fewest_recomputed(alike[:, model.vpp :], fits)[which.reshape(-1)]
    return counts_NS


def _fits(
    model: SplitModel, stage: int, held: Ints, chunks: Sequence[tuple[int, ...]], which: Ints, recomputed: Ints
) -> Bools:
    return fits_alone(
        model.jobs[model.pools[stage]],
        model.row.take(np.zeros(len(which), np.int64)),
        stage=np.full(len(which), stage),
        contents_NJ=held[which],
        recomputed=recomputed,
        headroom_fraction=model.headroom_fraction,
        chunks=[chunks[index] for index in which.tolist()],
    )


def _least_once_s(model: SplitModel) -> float:
    """Seconds that at least happen once a step: no level is below the largest of the stages' least."""
    contents = np.concatenate([choices.contents_CJ for choices in model.choices])
    times: Floats = np.concatenate([choices.time_s for choices in model.choices])
    floors = [max(float(each.min()) for each in level) for level in model.fixed_levels]
    return float(model.once_floor_s(contents, times, floors).min())
