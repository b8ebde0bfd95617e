"""Sizes of the groups that may share one copy of the sharded state, or a second copy of the parameters, for many numbers of replicas.

They are the divisors of dp * cp without 1 and dp * cp itself: a group of one rank shards nothing, which is ZeRO 0 (and to DeepSpeed
means that there is no second copy), and a group of all ranks is the default. Second copies are tried beside state that all replicas
share: where fewer share the state, the parameters already lie close together. Array suffixes: M numbers of replicas, S the sizes of
all of them one after the other; arrays of shape (N,) over rows have none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.strategy import Floats, Ints
from planner.rules.rule import divisors
from planner.strategies.parts import Parts
from planner.strategies.shard_groups import searched_stages


@dataclass(frozen=True, eq=False)
class GroupSizes:
    """The sizes by number of replicas and of context-parallel ranks."""

    stages: frozenset[int]
    """ZeRO stages that have groups."""
    keys_M: Ints
    """Pairs of the two numbers as one integer each (`_key`), in rising order."""
    first_M: Ints
    """Where the sizes of each pair start in the arrays below, and where those of the last one end."""
    shards_S: Floats
    """Ranks that share one copy of the state; 0 stands for all replicas."""
    copies_S: Floats
    """Ranks that share a second copy of the parameters; 0 where there is none."""
    largest_cp: int

    @property
    def shards(self) -> list[int]:
        """All sizes of groups that share the state, in rising order."""
        return [int(size) for size in np.unique(self.shards_S) if size]

    @property
    def copies(self) -> list[int]:
        """All sizes of groups that share a second copy of the parameters, in rising order."""
        return [int(size) for size in np.unique(self.copies_S) if size]

    def _at(self, replicas: NDArray[np.float64], cp: NDArray[np.float64]) -> Ints:
        return np.searchsorted(self.keys_M, _key(replicas, cp, self.largest_cp))

    def counts(self, replicas: NDArray[np.float64], cp: NDArray[np.float64]) -> Ints:
        """How many sizes each row has, shape (N,)."""
        if not len(self.shards_S):
            return np.zeros(len(replicas), np.int64)
        at = self._at(replicas, cp)
        return np.asarray(self.first_M[at + 1] - self.first_M[at])

    def each(self, replicas: NDArray[np.float64], cp: NDArray[np.float64]) -> tuple[Ints, Floats, Floats]:
        """Every size of every row: the positions of the rows, and for each the sizes of `shards_S` and of `copies_S`."""
        counts = self.counts(replicas, cp)
        row = np.repeat(np.arange(len(counts)), counts)
        if not len(row):
            return row, np.zeros(0), np.zeros(0)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = self.first_M[self._at(replicas, cp)][row] + within
        return row, self.shards_S[at], self.copies_S[at]


def build_group_sizes(
    job: Job, *, dp: Ints, cp: Ints, zeros: Collection[int], given: Collection[str] = (), without: Parts = frozenset()
) -> GroupSizes:
    """The sizes of these meshes, at those of these ZeRO stages that have groups; for the other arguments see `searched_stages`.

    FSDP takes those that hold whole context-parallel groups.
    """
    shards, copies = searched_stages(job, zeros=zeros, given=given, without=without)
    if not (shards or copies):
        dp, cp = dp[:0], cp[:0]
    largest_cp = int(cp.max()) if len(cp) else 1
    keys = np.unique(_key(dp * cp, cp, largest_cp))
    sizes: list[list[tuple[int, int]]] = []
    for key in keys.tolist():
        replicas, ranks = divmod(key, largest_cp + 1)
        # Context-parallel ranks compute with the same parameters, and FSDP always shards over all of them.
        unit = ranks if job.framework.groups_hold_context else 1
        smaller = [size for size in divisors(replicas) if 1 < size < replicas and size % unit == 0]
        sizes.append([(size, 0) for size in smaller if shards] + [(0, size) for size in smaller if copies])
    every = np.array([both for each in sizes for both in each], np.float64).reshape(-1, 2)
    return GroupSizes(
        stages=shards | copies,
        keys_M=keys,
        first_M=np.cumsum([0, *map(len, sizes)]),
        shards_S=every[:, 0],
        copies_S=every[:, 1],
        largest_cp=largest_cp,
    )


def _key(replicas: NDArray[np.generic], cp: NDArray[np.generic], largest_cp: int) -> Ints:
    return replicas.astype(np.int64) * (largest_cp + 1) + cp.astype(np.int64)
