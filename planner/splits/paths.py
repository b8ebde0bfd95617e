"""The gap of a split over unequal virtual stages, closed by CP-SAT with more and more paths through its events.

The program knows the closed form and some paths, so its answer is a bound. The answer is priced, a longest path through its
events makes the program sharper, and so on until the bound reaches the best split that is known (Benders' decomposition).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.splits.cp_sat import Program, SolverError
from planner.splits.enumeration import MOST_WAYS, best_way
from planner.splits.gaps import Closed
from planner.splits.model import SplitModel
from planner.splits.virtual_stages import Path, VirtualStages

# CP-SAT's limit does not count its presolving, which took a minute with 400 choices of which each recomputes so many layers.
MOST_CHOICES = 120
"""Choices over all stages above which a gap is left open unless its ways are few."""
# A unit is CP-SAT's own, some seconds. What becomes of the first plan is worth more than what may stand behind it.
WORK_FOR_THE_FIRST, WORK_FOR_ONE = 2.0, 1.0
"""Work for all gaps that may hide a better first plan, and for one of them."""
WORK_FOR_OTHERS, WORK_FOR_ANOTHER = 0.5, 0.25
"""The same for those that may only hide a plan behind the first."""
_ANSWER, _WAY = 0.02, 1e-6
"""Work of a path beside CP-SAT's, and of one way to lay the layers."""
# Plans are compared in steps of 1e-6 of their time (contract).
_REACHED = 1.0 - 3e-7
_MOST_KNOWN = 400
_FIRST = 24
"""Paths with which a program starts, besides those of every stage that never waits."""


@dataclass(eq=False)
class Paths:
    """Paths that are known, by stages, virtual stages and micro-batches, and the work that is left for gaps."""

    known: dict[tuple[int, int, float], list[Path]] = field(default_factory=dict)
    first_left: float = WORK_FOR_THE_FIRST
    others_left: float = WORK_FOR_OTHERS
    most_for_one: float = WORK_FOR_ONE
    """Work for one gap that may hide a better first plan."""

    def work_for(self, *, may_be_first: bool) -> float:
        """Work that the next gap may take."""
        if may_be_first:
            return min(self.first_left, self.most_for_one)
        return min(self.others_left, WORK_FOR_ANOTHER)

    def spend(self, work: float, *, may_be_first: bool) -> None:
        """Counts work that a gap took."""
        if may_be_first:
            self.first_left -= work
        else:
            self.others_left -= work

    def of(self, virtual: VirtualStages) -> list[Path]:
        """The paths of this pipeline."""
        key = (virtual.pp, virtual.vpp, virtual.m)
        if key not in self.known:
            self.known[key] = [*_busy(virtual), *_even(virtual)]
        return self.known[key]

    def add(self, virtual: VirtualStages, paths: list[Path]) -> None:
        """Remembers more paths of this pipeline."""
        known = self.of(virtual)
        known += paths
        del known[virtual.pp : max(len(known) - _MOST_KNOWN, virtual.pp)]


def _busy(virtual: VirtualStages) -> list[Path]:
    """For every stage, the path that waits for nothing but the first micro-batch and ends with the last."""
    found = []
    for stage in range(virtual.pp):
        times = np.zeros(virtual.pp * virtual.vpp, np.int64)
        times[stage :: virtual.pp] = int(virtual.m)
        times[:stage] = 1
        found.append(Path(times, times))
    return found


def _even(virtual: VirtualStages) -> list[Path]:
    """Longest paths where all layers lie evenly: many are equally long there, and each of them binds some split."""
    forward_V, backward_V = virtual.even_passes_s()
    found = [virtual.longest_path(forward_V, backward_V, seed=seed) for seed in range(_FIRST)]
    return [path for path in found if path is not None]


def close_by_paths(
    model: SplitModel,
    *,
    bound_s: float,
    target_s: float,
    may_be_first: bool = True,
    paths: Paths,
    should_stop: Callable[[], bool],
    program: Callable[[SplitModel], Program] = Program,
    most_ways: int = MOST_WAYS,
) -> Closed:
    """Asks for a split of the model that beats `target_s`, with every virtual stage's layers; up to `most_ways` to lay them are
    enumerated.

    Where `program` fails or would be too large, or no work is left, `bound_s` stands unproven. `may_be_first` says whether a better first plan may lie in
    the gap, which is worth more work.
    """
    left = paths.work_for(may_be_first=may_be_first)
    if left <= 0.0:
        return Closed(unproven_s=bound_s)
    found = best_way(model, target_s=target_s, most=most_ways)
    if found is not None:
        paths.spend(found.ways * _WAY, may_be_first=may_be_first)
        return Closed(layout=found.layout, step_s=found.step_s)
    if sum(map(len, model.choices)) > MOST_CHOICES:
        return Closed(unproven_s=bound_s)
    try:
        written = program(model)
    except SolverError as error:
        return Closed(unproven_s=bound_s, failure=error.message)
    closed, work = _closed(model, written, bound_s, target_s, paths, left, should_stop)
    paths.spend(work, may_be_first=may_be_first)
    return closed


def _closed(
    model: SplitModel,
    written: Program,
    bound_s: float,
    target_s: float,
    paths: Paths,
    left: float,
    should_stop: Callable[[], bool],
) -> tuple[Closed, float]:
    """What so much work makes of a gap, and the work that it took."""
    virtual = VirtualStages(model)
    for path in paths.of(virtual):
        written.add_path(path)
    written.beat(target_s)
    best, best_s, work = None, target_s, 0.0
    while work < left and not should_stop():
        answer = written.run(left - work, should_stop)
        work += written.work + _ANSWER
        bound_s = max(bound_s, answer.bound_s)
        if (answer.proven and answer.picked is None) or bound_s >= best_s * _REACHED:
            return Closed(layout=best, step_s=best_s, solved=True), work
        if answer.picked is None or answer.layers is None:
            break
        layout = model.layout(answer.picked, answer.layers)
        step_s, fits = model.priced([layout])
        if fits[0] and step_s[0] < best_s:
            best, best_s = layout, float(step_s[0])
            written.beat(best_s)
        written.exclude(answer.layers)
        _sharpen(written, virtual, answer.layers, model.counts(answer.picked), paths)
    return Closed(layout=best, step_s=best_s, unproven_s=bound_s, solved=True), work


def _sharpen(
    program: Program, virtual: VirtualStages, layers: tuple[int, ...], counts: tuple[int, ...] | None, paths: Paths
) -> None:
    """Adds longest paths through the events of this split."""
    layers_NV = np.array([layers])
    forward_VN, backward_VN = virtual.passes_s(layers_NV, virtual.recomputed(layers_NV, counts))
    found = [virtual.longest_path(forward_VN[:, 0], backward_VN[:, 0], seed=seed) for seed in range(3)]
    new = [path for path in found if path is not None]
    for path in new:
        program.add_path(path)
    paths.add(virtual, new)
