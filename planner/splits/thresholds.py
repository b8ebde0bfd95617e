"""Splits that balance a pipeline, found by thresholds: the least slowest stage, the least fullest one, and a bound.

For one set of thresholds a dynamic program over (stage, layers placed) finds the split with the fewest recomputed layers,
the lexicographically smallest among equals. The bound prices each slowest stage with the least fullest one under it, so
where a split reaches it nothing is left to search. Over virtual stages the program places layers of several kinds without
their order: its bound holds, its splits count only where the order gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from cost_models.strategies.strategy import Bools, Floats, Ints
from planner.splits.model import OpenModel, SplitModel, layers_in_order

_NEVER = 1 << 40
"""Recomputed layers of what cannot be placed."""
_MOST_RANGES = 400
"""Ranges of slowest-stage times that are bounded."""
_MOST_BOXES = 60
"""Limits on the fullest stage that are tried for one of these times."""


@dataclass(frozen=True, slots=True)
class Balanced:
    """The best split that thresholds found."""

    picked: tuple[int, ...] | None
    """A choice for each stage, None where only the bound is known."""
    step_s: float
    bound_s: float
    """Seconds that no split of the model beats."""


def balance(model: SplitModel, *, limit_s: float = np.inf) -> Balanced | None:
    """The best split by thresholds, None where no split fits; above `limit_s` bounds may stay loose."""
    return _Thresholds(model).best(limit_s)


class _Thresholds:
    """Splits of one model under limits on stage time and parameters."""

    def __init__(self, model: SplitModel) -> None:
        self.model = model
        self.num_layers = len(model.kind_of_layer)
        self.times, self.dense, self.expert = (
            np.unique(np.concatenate([getattr(choices, name) for choices in model.choices]))
            for name in ("time_s", "dense", "expert")
        )
        one_kind = len(model.forward_J) == 1
        self.plain = one_kind and not any(choices.recomputed.any() for choices in model.choices)
        self.is_ordered = one_kind or model.vpp == 1
        place = positions_table if self.is_ordered else unordered_table
        self.tables = [] if self.plain else [place(model, stage) for stage in range(model.pp)]
        self.best_s = np.inf
        self.picked: list[int] | None = None

    def best(self, limit_s: float) -> Balanced | None:
        """The best split found, with the bound; what takes longer than `limit_s` need not be told apart."""
        longest = float(self.times[-1])
        everything = self.split(longest)
        if everything is None:
            return None
        self._try(everything)
        least = self._least(self.times, self.split)
        dense = self.dense[self._least(self.dense, lambda limit: self.split(longest, dense=limit))]
        expert = self.expert[self._least(self.expert, lambda limit: self.split(longest, expert=limit))]
        self._price(float(self.times[least]), dense=float(dense), expert=float(expert))
        bound_s = min(self._search(least, limit_s / self.model.factor), self.best_s)
        picked = None if self.picked is None else tuple(self.picked)
        return Balanced(picked, self.best_s * self.model.factor, bound_s * self.model.factor)

    def _search(self, least: int, limit_s: float) -> float:
        """Bound over all slowest-stage times: ranges of them are halved, the lowest bound first, then refined."""
        ranges = [(self._bound_s(least, len(self.times) - 1), least, len(self.times) - 1, False)]
        for _ in range(_MOST_RANGES):
            bound_s, first, last, is_final = ranges[0]
            if is_final or bound_s >= min(self.best_s, limit_s) * (1.0 - 1e-12):
                break
            heappop(ranges)
            if first == last:
                heappush(ranges, (max(bound_s, self._refined_s(first, limit_s)), first, last, True))
                continue
            middle = (first + last) // 2
            for part in ((first, middle), (middle + 1, last)):
                heappush(ranges, (max(bound_s, self._bound_s(*part)), *part, False))
        return ranges[0][0]

    def _price(self, least_s: float, *, dense: float, expert: float) -> None:
        """Once-a-step costs of every choice that can be the slowest, beside the least of the fullest stage's parameters."""
        choices = [choice.take(choice.time_s >= least_s) for choice in self.model.choices]
        self.slow_contents = np.concatenate([choice.contents_CJ for choice in choices])
        self.slow_s = np.concatenate([choice.time_s for choice in choices])
        self.least_dense, self.least_expert = dense, expert
        self.slow_once_s = self._once_s(np.ones(len(self.slow_s), np.bool_), dense=dense, expert=expert)

    def _once_s(self, which: Bools, *, dense: float, expert: float) -> Floats:
        return self.model.once_s(
            contents_NJ=self.slow_contents[which],
            slowest_s=self.slow_s[which],
            dense=np.array([dense]),
            expert=np.array([expert]),
        )

    def _bound_s(self, first: int, last: int) -> float:
        """Seconds that no split beats whose slowest stage lies in this range; its most relaxed split is tried."""
        split = self.split(float(self.times[last]))
        assert split is not None
        which = (self.slow_s >= self.times[first]) & (self.slow_s <= self.times[last])
        recomputed = np.full(int(which.sum()), self._recomputed(split))
        bound_s = float((self.model.pipeline_s(self.slow_s[which], recomputed) + self.slow_once_s[which]).min())
        if bound_s < self.best_s:
            self._try(split)
        return bound_s

    def _refined_s(self, position: int, limit_s: float) -> float:
        """The bound of one slowest-stage time over limits on the fullest stage; the split under each is tried.

        Under limits (d, e) let x recompute least. Splits that hold no less than x on the fullest stage take at least as
        long as x's own numbers say; the others obey a limit just below x's dense or just below its expert parameters.
        """
        slowest_s = float(self.times[position])
        which = self.slow_s == slowest_s
        bound_s, boxes = np.inf, [(np.inf, np.inf)]
        for _ in range(_MOST_BOXES):
            if not boxes:
                return bound_s
            limits = boxes.pop(0)
            split = self.split(slowest_s, dense=limits[0], expert=limits[1])
            if split is None:
                continue
            self._try(split)
            recomputed = self._recomputed(split)
            loose_s = self._level_s(which, recomputed, self.least_dense, self.least_expert)
            if loose_s >= min(self.best_s, limit_s):
                bound_s = min(bound_s, loose_s)
                continue
            dense, expert = self._fullest(split, "dense"), self._fullest(split, "expert")
            bound_s = min(bound_s, self._level_s(which, recomputed, dense, expert))
            boxes.append((float(np.nextafter(dense, 0.0)), limits[1]))
            if len(self.expert) > 1:
                boxes.append((limits[0], float(np.nextafter(expert, 0.0))))
        return -np.inf if boxes else bound_s

    def _level_s(self, which: Bools, recomputed: int, dense: float, expert: float) -> float:
        """Least seconds with one of these slowest choices and such a fullest stage."""
        once_s = self._once_s(which, dense=dense, expert=expert)
        return float((self.model.pipeline_s(self.slow_s[which], np.full(len(once_s), recomputed)) + once_s).min())

    def _fullest(self, split: list[int], name: str) -> float:
        return float(
            max(getattr(choices, name)[index] for choices, index in zip(self.model.choices, split, strict=True))
        )

    def _try(self, split: list[int]) -> None:
        """Keeps a split if it is the best yet; where the order of kinds was left open, what it really holds."""
        real = split if self.is_ordered else in_order(self.model, split)
        if real is not None:
            step_s = self.model.step_s(real) / self.model.factor
            if step_s < self.best_s * (1.0 - 1e-12):
                self.best_s, self.picked = step_s, real

    def _least(self, levels: Floats, ask: Callable[[float], object]) -> int:
        """Position of the smallest level for which `ask` finds a split; the largest one is known to have one."""
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            if ask(float(levels[middle])) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def _recomputed(self, split: list[int]) -> int:
        return int(sum(choices.recomputed[index] for choices, index in zip(self.model.choices, split, strict=True)))

    def split(self, slowest_s: float, *, dense: float = np.inf, expert: float = np.inf) -> list[int] | None:
        """The smallest split within these limits that recomputes least, None where there is none."""
        allowed = [(c.time_s <= slowest_s) & (c.dense <= dense) & (c.expert <= expert) for c in self.model.choices]
        if self.plain:
            return self._by_intervals(allowed)
        return self._by_positions(allowed)

    def _by_intervals(self, allowed: list[Bools]) -> list[int] | None:
        """One kind of layer, nothing recomputed: stages take as little as the later ones leave them."""
        least, most, first = [], [], []
        for choices, mask in zip(self.model.choices, allowed, strict=True):
            held = choices.layers[mask]
            if not len(held):
                return None
            assert held[-1] - held[0] == len(held) - 1, "fitting is monotone in layers"
            least.append(int(held[0]))
            most.append(int(held[-1]))
            first.append(int(np.flatnonzero(mask)[0]))
        if not sum(least) <= self.num_layers <= sum(most):
            return None
        rest, later, picked = self.num_layers, sum(most), []
        for low, high, start in zip(least, most, first, strict=True):
            later -= high
            taken = max(low, rest - later)
            rest -= taken
            picked.append(start + taken - low)
        return picked

    def _by_positions(self, allowed: list[Bools]) -> list[int] | None:
        """The dynamic program, from the last stage back; then forward, fewest layers first."""
        after = np.full(len(self.tables[0][0]), _NEVER, np.int64)
        after[-1] = 0
        costs: list[Ints] = []
        for (index, target), choices, mask in zip(
            reversed(self.tables), reversed(self.model.choices), reversed(allowed), strict=True
        ):
            recomputed = np.where(mask, choices.recomputed, _NEVER)
            cost = np.where(index >= 0, recomputed[index] + after[target], _NEVER)
            costs.append(cost)
            after = np.minimum(cost.min(axis=1), _NEVER)
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


def in_order(model: OpenModel, split: list[int]) -> list[int] | None:
    """The choices that these numbers of layers really are in model order, None where a stage then does not fit."""
    totals = [int(choices.layers[index]) for choices, index in zip(model.choices, split, strict=True)]
    layers = layers_in_order(totals, model.vpp)
    stage_of_layer = np.repeat(np.arange(len(layers)) % model.pp, layers)
    real: list[int] = []
    for stage, choices in enumerate(model.choices):
        held = np.bincount(model.kind_of_layer[stage_of_layer == stage], minlength=choices.contents_CJ.shape[1])
        found = np.flatnonzero((choices.contents_CJ == held).all(axis=1))
        if not len(found):
            return None
        real.append(int(found[0]))
    return real


def positions_table(model: OpenModel, stage: int) -> Table:
    """Behind so many layers in model order, runs of so many, shape (positions, widths); widths rise."""
    choices, num_layers = model.choices[stage], len(model.kind_of_layer)
    kinds = choices.contents_CJ.shape[1]
    before = np.zeros((num_layers + 1, kinds), np.int64)
    before[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[model.kind_of_layer], axis=0)
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


def unordered_table(model: OpenModel, stage: int) -> Table:
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
