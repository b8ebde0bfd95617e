"""The best split of an open model by thresholds, with a bound that proves it where the two meet.

A split's step is made of its slowest stage, the sum of all stages, and what happens once a step, which the largest of some
levels decides (`SplitModel`). Under limits on the slowest stage and on levels, a dynamic program over (stage, layers
placed) finds the split with the least sum, the lexicographically smallest among equals; for one kind of layer that is
filling the fastest stages first. For each slowest stage that split's sum, with the least that can happen once a step beside
it, is a bound: every other split under the same limits has no smaller sum. Where a split reaches the least bound of all
slowest stages nothing is left to search. Over virtual stages the program places layers of several kinds without their
order: its bound holds, since it places them in more ways than the model allows; its splits count only where layers in order
can be arranged to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from cost_models.strategies.strategy import Bools, Floats, Ints
from planner.splits.arrangements import arrangements
from planner.splits.model import ByChoice, SlowestStage, SplitModel, largest

# Sums of weights stay far below it, and adding two of it does not overflow 64 bits.
_NEVER = 1 << 60
"""Weight of what cannot be placed."""
# Where these do not suffice, the least bound of the ranges that are left is still valid, and CP-SAT closes the gap.
_MOST_RANGES = 400
"""Ranges of slowest-stage times that are bounded."""
_MOST_BOXES = 60
"""Limits on levels that are tried for one slowest stage."""
_LOSES = 1.0 - 1e-12
"""A bound this close to the best split cannot hide a better one that rounding would tell apart."""


@dataclass(frozen=True, slots=True)
class Balanced:
    """The best split that thresholds found."""

    picked: tuple[int, ...] | None
    """A choice for each stage, None where only the bound is known."""
    step_s: float
    bound_s: float
    """Seconds that no split of the model beats."""
    layers: tuple[int, ...] | None = None
    """Layers of its virtual stages, where its choices do not say them."""


def balance(model: SplitModel, *, limit_s: float = np.inf) -> Balanced | None:
    """The best split by thresholds, None where no split fits; above `limit_s` bounds may stay loose."""
    return _Thresholds(model, limit_s / model.factor).best()


class _Thresholds:
    """Splits of one model under limits on stage time and levels."""

    def __init__(self, model: SplitModel, limit_s: float) -> None:
        self.model, self.limit_s = model, limit_s
        self.num_layers = len(model.kind_of_layer)
        self.times = np.unique(np.concatenate([choices.time_s for choices in model.choices]))
        one_kind = model.num_kinds == 1
        recomputed, layers = (
            np.concatenate([getattr(choices, name) for choices in model.choices]) for name in ("recomputed", "layers")
        )
        self.plain = one_kind and (not recomputed.any() or bool((recomputed == layers).all()))
        self.is_ordered = model.is_ordered
        place = positions_table if self.is_ordered else unordered_table
        self.tables = [] if self.plain else [place(model, stage) for stage in range(model.pp)]
        self.best_s = np.inf
        self.picked: list[int] | None = None
        self.layers: tuple[int, ...] | None = None

    # Three steps: find the least possible slowest stage, bound every slowest stage from there on, and refine the lowest bounds
    # until the best split reaches them.
    def best(self) -> Balanced | None:
        """The best split found, with the bound."""
        model, longest_s = self.model, float(self.times[-1])
        everything = self.split(longest_s)
        if everything is None:
            return None
        if not model.binds_slowest:
            self._try(everything)
        least = self._least(self.times, self.split)
        self._price(float(self.times[least]), [self._least_of(level) for level in model.fixed_levels])
        bound_s = min(self._search(least), self.best_s)
        picked = None if self.picked is None else tuple(self.picked)
        return Balanced(picked, self.best_s * model.factor, bound_s * model.factor, self.layers)

    def _price(self, least_s: float, floors: Sequence[float]) -> None:
        """The least that can happen once a step beside every choice that can be the slowest, beside the least of the levels."""
        slow = [choices.take(choices.time_s >= least_s) for choices in self.model.choices]
        self.slow_s = np.concatenate([choices.time_s for choices in slow])
        contents = np.concatenate([choices.contents_CJ for choices in slow])
        self.slow_once_s = self.model.once_floor_s(contents, self.slow_s, floors)

    def _search(self, least: int) -> float:
        """Bound over all slowest-stage times: ranges of them are halved, the lowest bound first, then refined."""
        last = len(self.times) - 1
        ranges = [(self._range_bound_s(least, last), least, last, False)]
        for _ in range(_MOST_RANGES):
            bound_s, first, last, is_final = ranges[0]
            if is_final or self._loses(bound_s):
                break
            heappop(ranges)
            if first == last:
                refined_s = [self._refined_s(slowest) for slowest in self.model.slowest_at(float(self.times[first]))]
                heappush(ranges, (max(bound_s, min(refined_s)), first, last, True))
                continue
            middle = (first + last) // 2
            for part in ((first, middle), (middle + 1, last)):
                heappush(ranges, (max(bound_s, self._range_bound_s(*part)), *part, False))
        return ranges[0][0]

    def _loses(self, bound_s: float) -> bool:
        """Whether nothing above this bound is worth finding."""
        return bound_s >= min(self.best_s, self.limit_s) * _LOSES

    def _range_bound_s(self, first: int, last: int) -> float:
        """Seconds that no split beats whose slowest stage lies in this range.

        All of them obey the range's longest time, so none has a smaller sum than the best split under that.
        """
        split = self.split(float(self.times[last]))
        assert split is not None  # the range starts at the least time under which all layers find a place
        which = (self.slow_s >= self.times[first]) & (self.slow_s <= self.times[last])
        paced_s = self.model.pipeline_s(self.slow_s[which], self.model.sum_s(split))
        bound_s = float((paced_s + self.slow_once_s[which]).min())
        if bound_s < self.best_s and not self.model.binds_slowest:
            self._try(split)
        return bound_s

    def _refined_s(self, slowest: SlowestStage) -> float:
        """The bound of one slowest stage over boxes of limits on levels; the split under each is tried.

        Let x have the least sum within a box. Splits all of whose levels reach x's take at least what x's own numbers say;
        each of the others lies below x in some level, so in a box that ends just below x there.
        """
        model, slowest_s = self.model, slowest.time_s
        floor_s = float(self.slow_once_s[self.slow_s == slowest_s].min())
        levels: tuple[ByChoice, ...] = ()
        bound_s = np.inf
        boxes: list[list[float]] = [[]]
        for _ in range(_MOST_BOXES):
            if not boxes:
                return bound_s
            box = boxes.pop(0)
            split = self.split(slowest_s, zip(levels if box else (), box, strict=True), slowest=slowest)
            if split is None:
                continue
            paced_s = float(model.pipeline_s(slowest_s, model.sum_s(split)))
            loses = self._loses(paced_s + floor_s)
            if not (loses and self.is_ordered):  # what the order of kinds makes of a split may be better than the split
                self._try(split)
            # Nothing in this box can win, so its bound may stay loose: it lies above what is known already.
            if loses:
                bound_s = min(bound_s, paced_s + floor_s)
                continue
            levels = levels or model.levels_beside(slowest)
            fullest = largest(levels, split)
            bound_s = min(bound_s, paced_s + model.once_s(slowest, fullest))
            whole = box or [np.inf] * len(fullest)
            for number, most in enumerate(fullest):
                # A level of zero cannot be undercut, so there is no box below it.
                if most > 0.0:
                    boxes.append([*whole[:number], float(np.nextafter(most, 0.0)), *whole[number + 1 :]])
        return -np.inf if boxes else bound_s

    def _try(self, split: list[int]) -> None:
        """Keeps a split if it is the best yet; where the order of kinds was left open, what it really holds."""
        if self.is_ordered:
            self._keep(split, None)
            return
        # The order can only make a split slower or move it elsewhere, so both are worth knowing.
        known = self.best_s
        for layers in arrangements(
            self.model, split, exactly=self.model.step_s(split) / self.model.factor < known * _LOSES
        ):
            real = self.model.picked_by(layers)
            if real is not None:
                self._keep(list(real), layers)

    def _keep(self, split: list[int], layers: tuple[int, ...] | None) -> None:
        step_s = self.model.step_s(split) / self.model.factor
        if step_s < self.best_s * _LOSES:
            self.best_s, self.picked, self.layers = step_s, split, layers

    def _least_of(self, level: ByChoice) -> float:
        """The smallest limit on this level under which all layers find a place."""
        values, longest_s = np.unique(np.concatenate(level)), float(self.times[-1])
        return float(values[self._least(values, lambda most: self.split(longest_s, [(level, most)]))])

    @staticmethod
    def _least(levels: Floats, ask: Callable[[float], object]) -> int:
        """Position of the smallest level for which `ask` finds a split; the largest one is known to have one."""
        # Bisection is valid because a higher limit allows every split that a lower one does.
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            if ask(float(levels[middle])) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def split(
        self,
        slowest_s: float,
        limits: Iterable[tuple[ByChoice, float]] = (),
        *,
        slowest: SlowestStage | None = None,
    ) -> list[int] | None:
        """The smallest split of the least sum within these limits, None where there is none.

        Args:
            slowest_s: seconds per micro-batch that no stage exceeds.
            limits: levels, and what no stage's exceeds.
            slowest: what its stage must hold, where the model binds it.
        """
        allowed = [choices.time_s <= slowest_s for choices in self.model.choices]
        for level, most in limits:
            allowed = [mask & (each <= most) for mask, each in zip(allowed, level, strict=True)]
        if slowest is not None and self.model.binds_slowest:
            stage = slowest.stage
            allowed[stage] = allowed[stage] & (np.arange(len(allowed[stage])) == slowest.choice)
        return self._by_filling(allowed) if self.plain else self._by_positions(allowed)

    def _by_filling(self, allowed: list[Bools]) -> list[int] | None:
        """One kind of layer, each as long as any other of its pool: the fastest stages take all they can, later ones first."""
        low, high, start = [], [], []
        for choices, mask in zip(self.model.choices, allowed, strict=True):
            held = choices.layers[mask]
            if not len(held):
                return None
            # One kind of layer: if a number of layers fits, so does any smaller one that is allowed, so the choices have no gap.
            assert held[-1] - held[0] == len(held) - 1, "fitting is monotone in layers"
            low.append(int(held[0]))
            high.append(int(held[-1]))
            start.append(int(np.flatnonzero(mask)[0]))
        rest = self.num_layers - sum(low)
        if not 0 <= rest <= sum(high) - sum(low):
            return None
        taken, layer_s = list(low), self.model.layer_s
        for seconds in sorted(set(layer_s)):
            for stage in reversed(range(len(taken))):  # later stages first: the smallest split of equal ones
                if layer_s[stage] == seconds:
                    more = min(rest, high[stage] - low[stage])
                    taken[stage] += more
                    rest -= more
        return [first + count - least for first, count, least in zip(start, taken, low, strict=True)]

    def _by_positions(self, allowed: list[Bools]) -> list[int] | None:
        """The dynamic program, from the last stage back; then forward, fewest layers first."""
        # From the back, the least sum from every position on; from the front, the smallest choice that attains it. Argmin takes
        # the first of equal sums, which is the choice with the fewest layers.
        after = np.full(len(self.tables[0][0]), _NEVER, np.int64)
        after[-1] = 0
        costs: list[Ints] = []
        for (index, target), weights, mask in zip(
            reversed(self.tables), reversed(self.model.weights), reversed(allowed), strict=True
        ):
            own = np.where(mask, weights, _NEVER)
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


Table = tuple[Ints, Ints]
"""Choice of a stage by what is placed before it and how much it takes, -1 where there is none; what is placed after it."""


def positions_table(model: SplitModel, stage: int) -> Table:
    """Behind so many layers in model order, runs of so many, shape (positions, widths); widths rise."""
    choices, num_layers = model.choices[stage], len(model.kind_of_layer)
    kinds = choices.contents_CJ.shape[1]
    before = np.zeros((num_layers + 1, kinds), np.int64)
    before[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[model.kind_of_layer], axis=0)
    # The counts of all kinds as one number, so that a choice is found by a binary search.
    radix = (num_layers + 1) ** np.arange(kinds)
    widths = np.unique(choices.layers)
    target = np.arange(num_layers + 1)[:, None] + widths
    inside = target <= num_layers
    target = np.minimum(target, num_layers)
    codes = choices.contents_CJ @ radix
    order = np.argsort(codes, kind="stable")
    wanted = (before[target] - before[:, None]) @ radix
    if kinds == 1:
        wanted = np.broadcast_to(widths, target.shape)
    at = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
    found = inside & (codes[order][at] == wanted)
    return np.where(found, order[at], -1), target


def unordered_table(model: SplitModel, stage: int) -> Table:
    """After so many layers of each kind, any choice that leaves enough of them, shape (states, choices)."""
    choices = model.choices[stage]
    counts_J = np.bincount(model.kind_of_layer, minlength=choices.contents_CJ.shape[1])
    sizes = tuple((counts_J + 1).tolist())
    states = np.stack([axis.reshape(-1) for axis in np.indices(sizes)], axis=1)
    order = np.argsort(choices.layers, kind="stable")
    target = states[:, None, :] + choices.contents_CJ[order]
    inside = (target <= counts_J).all(axis=2)
    code = np.ravel_multi_index(tuple(np.minimum(target, counts_J).transpose(2, 0, 1)), sizes)
    return np.where(inside, order, -1), code
