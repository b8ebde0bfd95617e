"""Which rules each strategy of a batch breaks, as bits of integers: a batch of millions is tested for a few bytes a row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from cost_models.strategies.strategy import Bools, Ints
from planner.rules.rule import Rule

BITS = 63
"""Rules that one 64-bit integer holds; the last bit is its sign."""


@dataclass(frozen=True, eq=False)
class Violations:
    """Which rules each strategy breaks."""

    words: tuple[Ints, ...]
    """Integers whose bits are set where rules are broken, shape (N,) each: rule i is bit i % `BITS` of word i // `BITS`."""
    active: tuple[Rule, ...]
    """The rules that apply to the job."""

    @property
    def legal(self) -> Bools:
        """Strategies that break nothing, shape (N,)."""
        found = np.asarray(self.words[0] == 0)
        for word in self.words[1:]:
            found &= word == 0
        return found

    @property
    def num_broken(self) -> Ints:
        """How many rules each strategy breaks, shape (N,)."""
        count = np.zeros(len(self.words[0]), np.int64)
        for bit in range(len(self.active)):
            if bit // BITS < len(self.words):
                count += self.words[bit // BITS] >> bit % BITS & 1
        return count

    def broken(self, index: int) -> list[Rule]:
        """The rules that strategy `index` breaks, in order."""
        flags = sum(int(word[index]) << BITS * place for place, word in enumerate(self.words))
        return [rule for bit, rule in enumerate(self.active) if flags >> bit & 1]

    def take(self, rows: Ints | Bools) -> Violations:
        """Those of some strategies, by position or by a mask."""
        return Violations(tuple(word[rows] for word in self.words), self.active)

    def where(self, counted: Bools) -> Violations:
        """The same strategies, of which only these are said to break anything; shape (N,)."""
        return Violations(tuple(np.where(counted, word, 0) for word in self.words), self.active)

    def only(self, codes: frozenset[str]) -> Violations:
        """The violations of the rules with these codes; those of other rules are left out."""
        bits = sum(1 << bit for bit, rule in enumerate(self.active) if rule.code in codes)
        kept = ((1 << BITS) - 1 & bits >> BITS * place for place in range(len(self.words)))
        return Violations(tuple(word & mask for word, mask in zip(self.words, kept, strict=True)), self.active)

    def without(self, codes: frozenset[str]) -> Violations:
        """The violations of all rules but those with these codes."""
        return self.only(frozenset(rule.code for rule in self.active) - codes)

    def first_of_each_set(self) -> Ints:
        """The first strategy with each set of broken rules, by position and in no order."""
        # Sorting columns takes longer than sorting numbers, and most jobs have one word.
        if len(self.words) == 1:
            return np.unique(self.words[0], return_index=True)[1]
        return np.unique(np.stack(self.words), axis=1, return_index=True)[1]

    def counts(self, weights: Ints | None = None) -> dict[str, int]:
        """How many strategies break which rule first, by its code; row i counts `weights[i]` times, once by default."""
        totals: Counter[str] = Counter()
        counted = np.zeros(len(self.words[0]), np.bool_)
        for place, word in enumerate(self.words):
            broken = np.flatnonzero((word != 0) & ~counted) if place else np.flatnonzero(word)
            # `word & -word` keeps the lowest bit, which is the first rule.
            lowest, inverse = np.unique(word[broken] & -word[broken], return_inverse=True)
            times = np.bincount(inverse, weights=None if weights is None else weights[broken])
            for flag, count in zip(lowest.tolist(), times.tolist(), strict=True):
                totals[self.active[BITS * place + flag.bit_length() - 1].code] += int(count)
            if len(self.words) > 1:
                counted[broken] = True
        return dict(totals)
