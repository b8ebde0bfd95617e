"""The best split over pools by thresholds, with a bound that proves it where the two meet.

A split costs (m - 1/v) times the slowest stage, 1/v times the sum of all, and the longest of what stages do once a step. For
one slowest stage a dynamic program over (stage, layers placed) finds the split with the least sum; for one kind of layer
that is filling the fastest pools first. Lowering the limit on the once-a-step time, split by split, bounds that slowest
stage's costs from below. Of equal sums the lexicographically smallest split is taken. Virtual stages hold one kind of layer:
the order of several would be for more than a sum of stages to know.
"""

from __future__ import annotations

import numpy as np

from cost_models.strategies.strategy import Bools, Floats, Ints
from planner.pools.split_model import PooledSplit
from planner.splits.thresholds import Balanced, positions_table

_NEVER = 1 << 60
"""Time steps of what cannot be placed."""
_MOST_LIMITS = 60
"""Limits on once-a-step time that are tried for one slowest stage."""
_STEPS = 1e12
"""Time steps in the longest stage: sums of equal times stay equal, whatever the order of addition."""


def balance_pools(model: PooledSplit, *, limit_s: float = np.inf) -> Balanced | None:
    """The best split by thresholds, None where no split fits; above `limit_s` bounds may stay loose."""
    return _Thresholds(model).best(limit_s)


class _Thresholds:
    """Splits of one model under limits on stage time and on once-a-step time."""

    def __init__(self, model: PooledSplit) -> None:
        self.model = model
        self.num_layers = len(model.kind_of_layer)
        self.m = float(model.row.num_micro_batches[0])
        self.levels = np.unique(np.concatenate([choices.time_s for choices in model.choices]))
        longest_s = max(float(choices.time_s.max()) for choices in model.choices)
        self.step_s = longest_s / _STEPS
        self.steps = [np.rint(choices.time_s / self.step_s).astype(np.int64) for choices in model.choices]
        self.one_kind = model.choices[0].contents_CJ.shape[1] == 1
        counted = any(((c.recomputed > 0) & (c.recomputed < c.layers)).any() for c in model.choices)
        self.plain = self.one_kind and not counted
        assert self.one_kind or model.vpp == 1, "chunks of several kinds of layer are not in one order"
        self.tables = [] if self.plain else [positions_table(model, stage) for stage in range(model.pp)]
        self.best_s, self.picked = np.inf, None  # type: float, list[int] | None

    def best(self, limit_s: float) -> Balanced | None:
        """The best split found, with the bound."""
        model = self.model
        everything = self.split(np.inf)
        if everything is None:
            return None
        least_sum_s, floor_s = self._sum_s(everything), model.once_floor_s
        limit = limit_s / model.factor
        bound_s = np.inf
        for slowest_s in self.levels[self._least_level() :].tolist():
            loose_s = model.pipeline_s(slowest_s, least_sum_s) + floor_s
            if loose_s >= min(self.best_s, limit) * (1.0 - 1e-12):
                bound_s = min(bound_s, loose_s)  # a longer stage is worse
                break
            split = self.split(slowest_s)
            assert split is not None
            paced_s = model.pipeline_s(slowest_s, self._sum_s(split)) + floor_s
            if paced_s >= min(self.best_s, limit) * (1.0 - 1e-12):
                bound_s = min(bound_s, paced_s)
                continue
            for stage, index in self._slowest_of(slowest_s):
                bound_s = min(bound_s, self._class_bound_s(slowest_s, stage, index, floor_s, limit))
        bound_s = min(bound_s, self.best_s)
        picked = None if self.picked is None else tuple(self.picked)
        return Balanced(picked, self.best_s * model.factor, bound_s * model.factor)

    def _least_level(self) -> int:
        """Position of the least slowest stage with which all layers find a place."""
        levels = self.levels
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.split(float(levels[middle])) is not None else (middle + 1, high)
        return low

    def _slowest_of(self, slowest_s: float) -> list[tuple[int, int]]:
        """Stages and their choices that take so long; of stages that may hold the same, the last."""
        model = self.model
        found: dict[tuple[int, ...], tuple[int, int]] = {}
        for stage, choices in enumerate(model.choices):
            for index in np.flatnonzero(choices.time_s == slowest_s).tolist():
                ends = (stage == 0, stage == model.pp - 1)
                alike = (model.pools[stage], *ends, *choices.layers[[0, -1, index]].tolist())
                found[alike if self.one_kind else (stage, index)] = (stage, index)
        return list(found.values())

    def _class_bound_s(self, slowest_s: float, stage: int, index: int, floor_s: float, limit: float) -> float:
        """Seconds that no split beats whose slowest stage is this one with this choice; the split under each limit is tried.

        Let x have the least sum under a limit. Splits whose once-a-step time is no less than x's take at least what x's own
        numbers say; the others obey a limit just below it.
        """
        model = self.model
        bound_s, most_s = np.inf, np.inf
        split = self.split(slowest_s, slowest=(stage, index))
        if split is None:
            return bound_s
        paced_s = model.pipeline_s(slowest_s, self._sum_s(split))
        if paced_s + floor_s >= min(self.best_s, limit) * (1.0 - 1e-12):
            return paced_s + floor_s
        contents_J = model.choices[stage].contents_CJ[index]
        ends = model.stage_ends_s(model.pools[stage], contents_J, slowest_s)
        fixed_s = float(model.fixed_s[contents_J.sum()])
        for _ in range(_MOST_LIMITS):
            self._try(split)
            longest_s = max(float(each[choice]) for each, choice in zip(ends, split, strict=True))
            bound_s = min(bound_s, paced_s + fixed_s + longest_s)
            most_s = float(np.nextafter(longest_s, 0.0))
            split = self.split(slowest_s, slowest=(stage, index), ends=ends, most_s=most_s)
            if split is None:
                return bound_s
            paced_s = model.pipeline_s(slowest_s, self._sum_s(split))
            if paced_s + floor_s >= min(self.best_s, limit) * (1.0 - 1e-12):
                break
        return min(bound_s, paced_s + floor_s)

    def _sum_s(self, split: list[int]) -> float:
        return float(sum(c.time_s[index] for c, index in zip(self.model.choices, split, strict=True)))

    def _try(self, split: list[int]) -> None:
        """Keeps a split if it is the best yet."""
        step_s = self.model.step_s(split) / self.model.factor
        if step_s < self.best_s * (1.0 - 1e-12):
            self.best_s, self.picked = step_s, split

    def split(
        self,
        slowest_s: float,
        *,
        slowest: tuple[int, int] | None = None,
        ends: list[Floats] | None = None,
        most_s: float = np.inf,
    ) -> list[int] | None:
        """The split within these limits whose stages together take least, None where there is none.

        Args:
            slowest_s: seconds per micro-batch that no stage exceeds.
            slowest: a stage and the choice that it takes.
            ends: once-a-step seconds of every choice.
            most_s: that none may exceed.
        """
        allowed = [choices.time_s <= slowest_s for choices in self.model.choices]
        if ends is not None:
            allowed = [mask & (each <= most_s) for mask, each in zip(allowed, ends, strict=True)]
        if slowest is not None:
            stage, index = slowest
            allowed[stage] = allowed[stage] & (np.arange(len(allowed[stage])) == index)
        return self._by_filling(allowed) if self.plain else self._by_positions(allowed)

    def _by_filling(self, allowed: list[Bools]) -> list[int] | None:
        """One kind of layer, each as long as any other of its pool: the fastest pools take all they can."""
        model = self.model
        low, high, start = [], [], []
        for choices, mask in zip(model.choices, allowed, strict=True):
            held = choices.layers[mask]
            if not len(held):
                return None
            assert held[-1] - held[0] == len(held) - 1, "fitting is monotone in layers"
            low.append(int(held[0]))
            high.append(int(held[-1]))
            start.append(int(np.flatnonzero(mask)[0]))
        rest = self.num_layers - sum(low)
        if not 0 <= rest <= sum(high) - sum(low):
            return None
        taken = list(low)
        each_s = [self._layer_s(pool) for pool in model.pools]
        for seconds in sorted(set(each_s)):
            for stage in reversed(range(model.pp)):  # later stages first: the smallest split of equal ones
                if each_s[stage] == seconds:
                    more = min(rest, high[stage] - low[stage])
                    taken[stage] += more
                    rest -= more
        return [first + count - least for first, count, least in zip(start, taken, low, strict=True)]

    def _layer_s(self, pool: int) -> float:
        numbers = self.model.numbers[pool]
        again = self.model.choices[self.model.pools.index(pool)].recomputed.any()
        return float(numbers.layer_JN[0, 0] + (numbers.again_JN[0, 0] if again else 0.0))

    def _by_positions(self, allowed: list[Bools]) -> list[int] | None:
        """The dynamic program, from the last stage back; then forward, fewest layers first."""
        after = np.full(len(self.tables[0][0]), _NEVER, np.int64)
        after[-1] = 0
        costs: list[Ints] = []
        for (index, target), steps, mask in zip(
            reversed(self.tables), reversed(self.steps), reversed(allowed), strict=True
        ):
            own = np.where(mask, steps, _NEVER)
            cost = np.where(index >= 0, np.minimum(own[index] + after[target], _NEVER), _NEVER)
            costs.append(cost)
            after = cost.min(axis=1)
        if after[0] >= _NEVER:
            return None
        position, picked = 0, []
        for (index, target), cost in zip(self.tables, reversed(costs), strict=True):
            width = int(cost[position].argmin())
            picked.append(int(index[position, width]))
            position = int(target[position, width])
        return picked
