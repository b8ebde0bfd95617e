"""Lower bounds on the step time of stages on pools, over all splits of the layers.

A pool whose layers take 1/r of the first pool's time does r of the first pool's seconds of work in a second (of several
kinds of layer, the one it is best at counts). The slowest stage then takes at least what evens all stages out; the bubble is
least where the fastest pools do as much as a slowest stage's time allows. Array suffixes: P pools, J layer kinds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from cost_models.job import PooledJob
from cost_models.pools.time import pooled_jitter_fraction, sends_s
from cost_models.step.stage_costs import build_tables, least_ends_s
from cost_models.step.total import stage_end_s
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.pools.placements import Sites
from planner.splits.model import SplitNumbers, slowest_allowed_s, split_numbers, virtual_share
from planner.strategies.expansion import layer_variants, least_zero
from planner.strategies.space import Space

SITES_AT_ONCE = 1 << 18
"""Sites that are bounded at a time."""
Layers = Literal["whole", "fractions"]
# Longer than any communication: passes of this length hide everything that can hide.
_HIDES_ALL_S = 1e30
# Twelve halvings leave 1/4096 of a layer. The lower end is returned, so what is left keeps the bound valid.
_HALVINGS = 12
"""Of one layer's time, to find the least slowest stage of whole layers."""
_NEVER_S = 1e30
"""What no pool takes: finite, since it may be multiplied by 0."""


@dataclass(frozen=True, eq=False)
class Work:
    """Seconds per micro-batch of what stages are made of, on every pool, shape (P, N) unless a suffix says otherwise."""

    layer_PJN: Floats
    first: Floats
    last: Floats

    def take(self, index: Ints) -> Work:
        """The work of the rows at these positions."""
        return Work(**{field.name: getattr(self, field.name)[..., index] for field in fields(self)})


def base_work(pooled: PooledJob, space: Space, base: Strategies) -> Work:
    """What every expansion of these base rows takes at least: the fastest of the listed knobs, nothing recomputed."""
    layer, first, last = [], [], []
    for job in pooled.jobs:
        rows_of = layer_variants(space.job, space.layer_knobs, base)
        variants = [(rows, build_tables(job, least_zero(space.zeros, rows))) for rows in rows_of]
        layer.append(np.min([each.layers.cases.spread(each.layers.whole) for _, each in variants], axis=0))
        ends = [least_ends_s(job, rows, each) for rows, each in variants]
        first.append(ends[0][0])
        last.append(np.min([each for _, each in ends], axis=0))
    return Work(np.stack(layer), np.stack(first), np.stack(last))


def row_numbers(pooled: PooledJob, rows: Strategies) -> tuple[SplitNumbers, ...]:
    """What the stages of these strategies are made of, by pool."""
    return tuple(split_numbers(job, rows) for job in pooled.jobs)


def row_work(
    numbers: tuple[SplitNumbers, ...], rows: Strategies, *, num_layers: int, any_count: Bools | None = None
) -> Work:
    """The work of strategies whose recomputation is known: of k layers recomputed a stage the share that a stage with all
    layers would have, which no stage has less of. Those of `any_count` stand for recomputing any number of layers.
    """
    block = rows.recompute_method == RecomputeMethod.BLOCK
    share = np.where(block, np.minimum(rows.recompute_num_layers / num_layers, 1.0), 1.0)
    if any_count is not None:
        share = np.where(any_count, 1.0 / num_layers, share)
    share = np.where(rows.recompute == Recompute.FULL, share, 0.0)
    return Work(
        np.stack([each.layer_JN + share * each.again_JN for each in numbers]),
        np.stack([each.first for each in numbers]),
        np.stack([each.last for each in numbers]),
    )


def pace_s(
    pooled: PooledJob, work: Work, rows: Strategies, sites: Sites, *, vpp: Floats, layers: Layers = "whole"
) -> tuple[Floats, Floats]:
    """Least seconds of a step's work and bubble, jitter left out, and of all stages together per micro-batch, shape (N,).

    Both hold for every split; the first is the least over how long the slowest stage takes. Fractions of layers are looser
    and sooner computed.
    """
    counts_J = _counts(pooled)
    columns = np.arange(len(sites))
    # Of several kinds of layer each pool is credited with the one at which it is fastest, so no split is underrated.
    speed = (work.layer_PJN[:1] / work.layer_PJN).max(axis=1)
    layers_s = counts_J @ work.layer_PJN[0]
    ends = np.zeros_like(speed)
    ends[sites.first_pool, columns] += work.first[sites.first_pool, columns]
    ends[sites.last_pool, columns] += work.last[sites.last_pool, columns]
    fastest = np.argsort(-speed, axis=0, kind="stable")
    stages, ends, speed = (np.take_along_axis(each, fastest, axis=0) for each in (sites.stages_PN, ends, speed))
    rate, ahead = np.cumsum(stages * speed, axis=0), np.cumsum(ends * speed, axis=0)
    m, share = rows.num_micro_batches, 1.0 / vpp
    even_s = np.where(rate > 0, (layers_s + ahead) / np.maximum(rate, 1e-30), _NEVER_S)
    least_s = even_s[-1]
    if len(counts_J) == 1 and layers == "whole":
        least_s = np.maximum(least_s, _whole_layers_s(work, sites, num_layers=counts_J[0], above_s=least_s))
    pace, all_s = np.full(len(sites), np.inf), np.full(len(sites), np.inf)
    for slowest_s in (least_s, *np.maximum(even_s[:-1], least_s)):
        sum_s = _least_sum_s(slowest_s, layers_s, stages=stages, ends=ends, speed=speed)
        pace, all_s = np.minimum(pace, (m - share) * slowest_s + share * sum_s), np.minimum(all_s, sum_s)
    return pace, all_s


def _least_sum_s(slowest_s: Floats, layers_s: Floats, *, stages: Ints, ends: Floats, speed: Floats) -> Floats:
    """Least seconds of all stages together where none is slower: the fastest pools, which come first, do what they can."""
    left, sum_s = layers_s.copy(), ends.sum(axis=0)
    for stages_N, ends_N, speed_N in zip(stages, ends, speed, strict=True):
        done = np.clip((stages_N * slowest_s - ends_N) * speed_N, 0.0, left)
        left = left - done
        sum_s = sum_s + done / speed_N
    return np.asarray(sum_s)


def _whole_layers_s(work: Work, sites: Sites, *, num_layers: float, above_s: Floats) -> Floats:
    """Time below which the slowest stage is not, since whole layers of one kind must all find a place, shape (N,)."""
    columns = np.arange(len(sites))
    layer_PN = work.layer_PJN[:, 0]
    one = sites.stages_PN.sum(axis=0) == 1
    first, last = (getattr(work, name)[which, columns] for name, which in _ends_of(sites))
    first = np.where(one, first + last, first)
    inner_PN = sites.stages_PN.astype(np.float64)
    inner_PN[sites.first_pool, columns] -= 1.0
    inner_PN[sites.last_pool, columns] -= ~one
    first_layer, last_layer = layer_PN[sites.first_pool, columns], layer_PN[sites.last_pool, columns]
    low = above_s
    high = above_s + np.where(sites.stages_PN > 0, layer_PN, 0.0).max(axis=0)  # fractions of a layer become whole
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        room = (inner_PN * np.floor(middle / layer_PN + 1e-9)).sum(axis=0)
        room += np.floor((middle - first) / first_layer + 1e-9)
        room += np.where(one, 0.0, np.floor((middle - last) / last_layer + 1e-9))
        enough = (room >= num_layers) & (middle >= first) & (one | (middle >= last))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


def _ends_of(sites: Sites) -> tuple[tuple[str, Ints], tuple[str, Ints]]:
    return ("first", sites.first_pool), ("last", sites.last_pool)


def base_bound_s(
    pooled: PooledJob, work: Work, rows: Strategies, sites: Sites, *, vpp: Floats, layers: Layers
) -> Floats:
    """Seconds of a step that no expansion and no split of these sites beats; `rows` and `work` are of each site."""
    pace, _ = pace_s(pooled, work, rows, sites, vpp=vpp, layers=layers)
    return np.asarray(pace * (1.0 + pooled_jitter_fraction(pooled, rows, sites.stages_PN)))


def site_bounds_s(
    pooled: PooledJob, space: Space, base: Strategies, work: Work, sites: Sites, *, layers: Layers
) -> Floats:
    """Seconds of a step that nothing at each of these sites of base rows beats, so many sites at a time."""
    found = np.zeros(len(sites))
    for start in range(0, len(sites), SITES_AT_ONCE):
        part = np.arange(start, min(start + SITES_AT_ONCE, len(sites)))
        some = sites.take(part)
        rows = base.take(some.base)
        vpp = space.splits.most_vpp[rows.pp.astype(np.int64)]
        found[part] = base_bound_s(pooled, work.take(some.base), rows, some, vpp=vpp, layers=layers)
    return found


@dataclass(frozen=True, eq=False)
class RowBound:
    """Bounds of strategies on sites, shape (N,)."""

    step_s: Floats
    """Seconds of a step that no split beats, memory aside."""
    once_s: Floats
    """Of these what happens once a step, at least."""
    sends_s: Floats
    """Of these the exposed sends, the same for every split."""
    factor: Floats
    """What straggling multiplies a step with."""
    all_s: Floats
    """Least seconds of all stages together per micro-batch."""

    def take(self, index: Ints) -> RowBound:
        """The bounds at these positions."""
        return RowBound(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def again(self, pooled: PooledJob, numbers: tuple[SplitNumbers, ...], rows: Strategies, sites: Sites) -> RowBound:
        """The same where these strategies recompute other numbers of layers, which changes nothing that happens once a step."""
        work = row_work(numbers, rows, num_layers=int(_counts(pooled).sum()))
        pace, all_s = pace_s(pooled, work, rows, sites, vpp=1.0 / virtual_share(rows))
        return replace(self, step_s=(pace + self.once_s) * self.factor, all_s=all_s)

    def slowest_allowed_s(self, rows: Strategies, limit_s: Floats) -> Floats:
        """Longest stage with which work, bubble and once-a-step time stay within a step time, shape (N,)."""
        allowed = slowest_allowed_s(rows, self.all_s, limit_s / self.factor - self.once_s)
        return np.where(rows.num_micro_batches > virtual_share(rows), allowed, limit_s)


def row_bound(
    pooled: PooledJob,
    numbers: tuple[SplitNumbers, ...],
    rows: Strategies,
    sites: Sites,
    *,
    any_count: Bools | None = None,
) -> RowBound:
    """Bounds of these strategies over all splits. [P-1] [C-13]

    Some stage holds at least the average parameters; whatever its pool, everything that can hide counts as hidden.
    """
    counts_J = _counts(pooled)
    work = row_work(numbers, rows, num_layers=int(counts_J.sum()), any_count=any_count)
    pace, all_s = pace_s(pooled, work, rows, sites, vpp=1.0 / virtual_share(rows))
    sends, _ = sends_s(pooled, rows, sites.stages_PN)
    first = numbers[0]
    dense = (counts_J @ first.dense_JN + first.embedding + first.head) / rows.pp
    expert = counts_J @ first.expert_JN / rows.pp
    passes = np.full(len(rows), _HIDES_ALL_S)
    ends = np.full(len(rows), np.inf)
    for job, stages_N in zip(pooled.jobs, sites.stages_PN, strict=True):
        terms, _ = stage_end_s(
            job,
            rows,
            dense=dense,
            expert=expert,
            forward_s=passes,
            backward_s=passes,
        )
        ends = np.where(stages_N > 0, np.minimum(ends, np.sum(list(terms.values()), axis=0)), ends)
    factor = 1.0 + pooled_jitter_fraction(pooled, rows, sites.stages_PN)
    once_s = sends + ends
    return RowBound((pace + once_s) * factor, once_s, sends, factor, all_s)


def _counts(pooled: PooledJob) -> Floats:
    """Layers of each kind."""
    model = pooled.jobs[0].model
    return np.array([float(model.layer_kinds.count(kind)) for kind in model.distinct_kinds])
