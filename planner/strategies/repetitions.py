"""What the choices of recomputation repeat at least, and which of them need the least memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.fields import MOE_MODULE, RECOMPUTE_MODULES, Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layouts

INSIDE_MOE = sum(1 << RECOMPUTE_MODULES.index(name) for name in ("moe_act", "shared_experts"))
"""The modules that a mixture layer as a whole holds."""


@dataclass(frozen=True, slots=True)
class LeanMode:
    """Recomputation as `Space.leanest` takes it."""

    recompute: Recompute
    modules: int


class Repeating(Protocol):
    """What is asked of a space here."""

    @property
    def recompute_modes(self) -> tuple[int, ...]:
        """Codes of `Recompute`."""

    @property
    def module_sets(self) -> tuple[int, ...]:
        """What selective recomputation repeats."""


class Counting(Protocol):
    """The same of full recomputation."""

    @property
    def job(self) -> Job:
        """Its framework says whether counts are searched."""

    @property
    def chosen(self) -> Mapping[str, tuple[Any, ...]]:
        """Values by field where the request fixes or lists them."""


def full_recomputes(space: Counting, largest: int) -> list[tuple[int, int]]:
    """The (method, layers) choices of full recomputation for a split whose largest chunk holds this many layers."""
    counts, methods = space.chosen.get("recompute_num_layers"), space.chosen.get("recompute_method")
    found: list[tuple[int, int]] = []
    if methods is None:
        searched = counts is not None or space.job.framework.strategy.recompute_counts
        blocks = sorted(counts) if counts is not None else range(1, largest)
        found += [(RecomputeMethod.BLOCK, count) for count in blocks if searched]
        return found if counts is not None else [*found, (RecomputeMethod.EVERY, 0)]
    for method in sorted(methods):
        every = range(1, largest + 1) if method == RecomputeMethod.BLOCK else (1,)
        found += [(method, count) for count in (every if counts is None else sorted(counts))]
    return found


def lean_modes(space: Repeating) -> list[LeanMode]:
    """The modes of a space with what each may repeat, the one that mostly needs the least memory first."""
    found: list[LeanMode] = []
    for mode in sorted({Recompute(mode) for mode in space.recompute_modes}, reverse=True):
        sets = space.module_sets if mode == Recompute.SELECTIVE else (0,)
        found += [LeanMode(mode, modules) for modules in sets]
    return found


def leanest_modes(space: Repeating) -> list[LeanMode]:
    """Those of `lean_modes` of which one needs no more memory than any other of its mode: of sets of modules, those that lie in no other."""
    modes = lean_modes(space)
    sets = [each.modules for each in modes if each.recompute == Recompute.SELECTIVE]
    return [
        each
        for each in modes
        if each.recompute != Recompute.SELECTIVE
        or not any(
            each.modules != other and lies_in(each.modules, other) for other in sets if _alike(other, each.modules)
        )
    ]


def lies_in(modules: int, others: int) -> bool:
    """Whether a set repeats nothing that the other one does not repeat too; whole mixture layers hold their own modules."""
    inside = others | (INSIDE_MOE if others & MOE_MODULE else 0)
    return modules & ~inside == 0


def _alike(one: int, other: int) -> bool:
    # Rules may refuse to repeat whole mixture layers, so a set without them stands for those that have none.
    return (one & MOE_MODULE) == (other & MOE_MODULE)


def repeated_at_least(
    layouts: Layouts, layout: int, repetitions: NDArray[np.int64], *, sets_are_given: bool
) -> NDArray[Any]:
    """The least number of layers in which any stage of this split repeats something, for each of `Space.repetitions`.

    Sets of modules that the request lists are combined with every mode, so that nothing is known of what an option repeats.
    """
    split, held = layouts.table[layout], layouts.held_LS[layout]
    if split.recompute_per_stage is not None:
        least: NDArray[Any] = np.minimum(held, layouts.recompute_limit_LS[layout])[: split.pp].min()
    else:
        chunks = layouts.chunks(layout)
        limit = np.where(repetitions[:, 1] == RecomputeMethod.BLOCK, repetitions[:, 2], max(split.layers))
        least = np.minimum(chunks, limit[:, None, None]).sum(axis=1).min(axis=1)
    selective = 0.0 if sets_are_given else held[: split.pp].min()
    modes = repetitions[:, 0]
    return np.where(modes == Recompute.FULL, least, np.where(modes == Recompute.SELECTIVE, selective, 0.0))
