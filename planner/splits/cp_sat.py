"""The open split of one strategy as an integer program for CP-SAT: what thresholds cannot prove, this does.

Each stage takes one choice; positions in model order follow from the chunks, and the layers of each kind between two
positions from a prefix table, so layers enter as runs of equal kind. The objective is the schedule's step time: the
slowest stage, the bubble, and the once-a-step costs by slowest stage and fullest parameters. Times are whole multiples of
the average stage time over TIME_STEPS: gap 0 means no better than that. One worker and a deterministic limit, so the
answer does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import numpy as np

from cost_models.errors import MeshwrightError
from cost_models.strategies.fields import Recompute
from planner.splits.chunk_memory import most_in_flight
from planner.splits.model import SplitModel
from planner.splits.virtual_stages import Path, VirtualStages, is_played

# CP-SAT takes whole numbers. Ten million steps keep rounding below 1e-6 of a step, the step in which plans are compared, and
# sums of thousands of micro-batches still fit into its 64 bits.
TIME_STEPS = 10_000_000
"""Time steps in the average stage's time of one micro-batch."""
DETERMINISTIC_LIMIT = 4.0
"""CP-SAT's own units of work for one strategy, about seconds."""
CANONICAL_LIMIT = 1.0
"""The same for each stage of the smallest among equal optima."""
# Step times in the program's time steps stay far below it.
_LONGEST = 1 << 60
# How long a caller waits at most for a stop to be noticed.
_POLL_S = 0.05


class SolverError(MeshwrightError):
    """The solver gave no usable answer."""

    code = "solver-failed"


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver found."""

    picked: tuple[int, ...] | None
    """A choice for each stage, None where nothing beats the limit."""
    bound_s: float
    """Seconds that no split of the model beats; infinite where none fits."""
    proven: bool
    layers: tuple[int, ...] | None = None
    """Layers of its virtual stages, where its choices do not say them."""


def solve(
    model: SplitModel,
    *,
    hint: tuple[int, ...] | None,
    limit_s: float = np.inf,
    deterministic_limit: float = DETERMINISTIC_LIMIT,
    should_stop: Callable[[], bool] | None = None,
    canonical: bool = True,
) -> Solved:
    """The best split of a model.

    Args:
        model: the open split.
        hint: a split to start from.
        limit_s: step time to beat; splits that don't are left out.
        deterministic_limit: work after which the best so far is returned, unproven.
        should_stop: asked every 50 ms; true ends the solver.
        canonical: among equal optima the one with the lexicographically smallest layers per stage.

    Raises:
        SolverError: the model is invalid, or the solver is not there.
    """
    written = Program(model)
    if hint is not None:
        written.start_from(hint)
    if np.isfinite(limit_s):
        written.beat(limit_s)
    found = written.run(deterministic_limit, should_stop)
    if found.picked is not None and found.proven and canonical:
        picked = written.smallest(found.picked, should_stop)
        found = Solved(picked, found.bound_s, proven=True, layers=written.placed)
    return found


class Program:
    """Variables and constraints of one model."""

    share: int
    """Virtual stages that the bubble is divided by; the objective is multiplied with it, to be whole."""
    objective: Any
    """Time steps of a step times `share`, jitter left out."""

    def __init__(self, model: SplitModel) -> None:
        try:
            from ortools.sat.python import cp_model
        except ImportError as error:
            raise SolverError(f"OR-Tools cannot be loaded: {error}", hint="Install ortools.") from error
        self.cp, self.model = cp_model, model
        self.sat: Any = cp_model.CpModel()
        self.step_s = model.unit_s / TIME_STEPS
        self.pick = [
            [self.sat.new_bool_var(f"stage{stage}_choice{choice}") for choice in range(len(choices))]
            for stage, choices in enumerate(model.choices)
        ]
        for stage in self.pick:
            self.sat.add_exactly_one(stage)
        self.virtual = VirtualStages(model) if is_played(model) else None
        self.chunks: list[Any] = []
        self.held_VJ: list[list[Any]] = []
        """Layers of each kind of every virtual stage, in model order."""
        self.repeated: dict[int, Any] = {}
        """Layers that a virtual stage recomputes, where the strategy counts them by chunk."""
        self.placed: tuple[int, ...] | None = None
        self.work = 0.0
        """CP-SAT's own units of work for the last answer."""
        self.layers = [self.sum_of(stage, model.choices[stage].layers) for stage in range(model.pp)]
        self._place()
        self._price()

    def sum_of(self, stage: int, values: Any) -> Any:
        """The value of a stage's choice as a linear expression."""
        whole = [int(value) for value in values]
        return self.cp.LinearExpr.weighted_sum(self.pick[stage], whole)

    def steps(self, seconds: Any) -> Any:
        """Seconds in whole time steps."""
        return np.rint(np.asarray(seconds) / self.step_s).astype(np.int64)

    def _place(self) -> None:
        """Chunks cover all layers in order, and what a stage's chunks hold is what its choice says."""
        model, num_layers = self.model, len(self.model.kind_of_layer)
        kinds = model.choices[0].contents_CJ.shape[1]
        self.sat.add(sum(self.layers) == num_layers)
        if kinds > 1:
            self._place_kinds(num_layers, kinds)
        elif self.has_chunks:
            self.held_VJ = [[self._chunk(stage)] for _ in range(model.vpp) for stage in range(model.pp)]
        if self.has_chunks:
            for stage in range(model.pp):
                self._bind_chunks(stage)

    def _place_kinds(self, num_layers: int, kinds: int) -> None:
        """What lies between two positions in model order is what the virtual stage there holds."""
        model = self.model
        before = np.zeros((num_layers + 1, kinds), np.int64)
        before[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[model.kind_of_layer], axis=0)
        held: list[list[Any]] = [[0] * model.pp for _ in range(kinds)]
        position: Any = 0
        last_J: list[Any] = [0] * kinds
        for chunk in range(model.vpp):
            for stage in range(model.pp):
                size = self._chunk(stage)
                position = position + size
                here = self.sat.new_int_var(0, num_layers, f"position{chunk}_{stage}")
                self.sat.add(here == position)
                position, whole = here, size
                self.held_VJ.append([])
                for kind in range(kinds - 1):  # the last kind follows from the sum
                    count = self.sat.new_int_var(0, int(before[-1, kind]), f"placed{chunk}_{stage}_{kind}")
                    self.sat.add_element(here, before[:, kind].tolist(), count)
                    self.held_VJ[-1].append(count - last_J[kind])
                    held[kind][stage] = held[kind][stage] + count - last_J[kind]
                    whole = whole - (count - last_J[kind])
                    last_J[kind] = count
                self.held_VJ[-1].append(whole)
        for kind in range(kinds - 1):
            for stage, choices in enumerate(model.choices):
                self.sat.add(held[kind][stage] == self.sum_of(stage, choices.contents_CJ[:, kind]))

    @property
    def has_chunks(self) -> bool:
        """Whether it matters how a stage's layers lie on its virtual stages."""
        return self.virtual is not None or not self.model.is_ordered

    def _chunk(self, stage: int) -> Any:
        """Layers of the next virtual stage: its own variable where the stage's choice leaves that open."""
        if not self.has_chunks:
            return self.layers[stage]
        size = self.sat.new_int_var(0, int(self.model.choices[stage].layers.max()), f"chunk{len(self.chunks)}")
        self.chunks.append(size)
        return size

    def _bind_chunks(self, stage: int) -> None:
        """The chunks of a stage hold its layers, recompute what its choice says, and fit."""
        model = self.model
        sizes = self.chunks[stage :: model.pp]
        self.sat.add(sum(sizes) == self.layers[stage])
        if model.block:
            repeated = {
                chunk * model.pp + stage: self.sat.new_int_var(0, model.block, "") for chunk in range(model.vpp)
            }
            for size, again in zip(sizes, repeated.values(), strict=True):
                self.sat.add_min_equality(again, [size, model.block])
            self.sat.add(sum(repeated.values()) == self.sum_of(stage, model.choices[stage].recomputed))
            self.repeated |= repeated
        in_flight, most = most_in_flight(model, stage)
        weighed = sum(count * size for count, size in zip(in_flight, sizes, strict=True))
        self.sat.add(weighed <= self.sum_of(stage, most))

    def _price(self) -> None:
        """The objective: m times the slowest stage, the bubble of the others, and what happens once a step. [T-1]"""
        model = self.model
        # The bubble is divided by the virtual stages. Multiplying the whole objective with them keeps it whole.
        self.share = round(1.0 / model.share)
        slowest, is_slowest, times = self._slowest()
        constant, by_choice = model.sum_steps(self.steps)
        together = sum(self.sum_of(stage, steps) for stage, steps in enumerate(by_choice))
        once = model.write_once(self, is_slowest, times)
        closed = (round(self.share * model.rounds) - 1) * slowest + constant + together
        if self.virtual is None:
            self.pipeline = closed
        else:
            # Of the events only paths are known, more of them with every answer.
            self.pipeline = self.sat.new_int_var(0, _LONGEST, "pipeline")
            self.sat.add(self.pipeline >= closed)
        self.objective = self.pipeline + self.share * once
        self.sat.minimize(self.objective)

    def add_path(self, path: Path) -> None:
        """Lets the micro-batches take no less than this path through their events. [P-2]"""
        virtual = self.virtual
        assert virtual is not None
        model, again_JV = self.model, virtual.again_JV
        each_JV = path.forward * virtual.forward_JV + path.backward * (virtual.layer_JV - virtual.forward_JV)
        ends_s = path.forward @ virtual.forward_ends_V + path.backward @ (virtual.ends_V - virtual.forward_ends_V)
        if model.row.recompute[0] == Recompute.FULL and not (model.block or model.per_stage_recompute):
            each_JV = each_JV + path.backward * again_JV
        # Rounded down, so that the program stays a bound.
        whole = np.floor(each_JV / self.step_s * self.share).astype(np.int64)
        seconds = int(ends_s / self.step_s * self.share)
        for stage, held_J in enumerate(self.held_VJ):
            seconds = seconds + sum(int(steps) * held for steps, held in zip(whole[:, stage], held_J, strict=True))
        for stage, repeated in self.repeated.items():  # which kinds are recomputed is left open, so the shortest counts
            again_s = path.backward[stage] * again_JV[:, stage].min()
            seconds = seconds + int(again_s / self.step_s * self.share) * repeated
        self.sat.add(self.pipeline >= seconds)

    def exclude(self, layers: Sequence[int]) -> None:
        """Leaves out these layers of every virtual stage, whose price is known."""
        others = []
        for size, held in zip(self.chunks, layers, strict=True):
            differs = self.sat.new_bool_var("")
            self.sat.add(size != held).only_enforce_if(differs)
            others.append(differs)
        self.sat.add_bool_or(others)

    def _slowest(self) -> tuple[Any, list[Any], list[Any]]:
        """The slowest stage's time, flags that say which stage it is, and the time steps of every choice."""
        model = self.model
        times = [self.steps(choices.time_s) for choices in model.choices]
        longest = int(max(time.max() for time in times))
        slowest = self.sat.new_int_var(int(max(time.min() for time in times)), longest, "slowest")
        stage_time = [self.sum_of(stage, time) for stage, time in enumerate(times)]
        self.sat.add_max_equality(slowest, stage_time)
        is_slowest = [self.sat.new_bool_var(f"slowest_is{stage}") for stage in range(model.pp)]
        # What happens once a step depends on what the slowest stage holds, so the program must know which one it is.
        self.sat.add_exactly_one(is_slowest)
        for stage, flag in enumerate(is_slowest):  # the first of equally slow stages, as in the cost model
            self.sat.add(stage_time[stage] == slowest).only_enforce_if(flag)
            for earlier in stage_time[:stage]:
                self.sat.add(earlier <= slowest - 1).only_enforce_if(flag)
        return slowest, is_slowest, times

    def start_from(self, picked: tuple[int, ...]) -> None:
        """Gives the solver a split to begin with."""
        self.sat.clear_hints()
        for stage, index in zip(self.pick, picked, strict=True):
            for choice, variable in enumerate(stage):
                self.sat.add_hint(variable, choice == index)

    def beat(self, limit_s: float) -> None:
        """Leaves out what does not take less than this."""
        steps = limit_s / self.model.factor / self.step_s * self.share
        self.sat.add(self.objective <= int(np.ceil(steps)))

    def run(self, deterministic_limit: float, should_stop: Callable[[], bool] | None) -> Solved:
        """Solves for the objective."""
        solver = self._solver(deterministic_limit)
        status = self._solve(solver, should_stop)
        self.work = float(solver.deterministic_time)
        cp = self.cp
        if status == cp.MODEL_INVALID:
            raise SolverError(f"CP-SAT refused the model: {self.sat.validate()}", hint="Report it with the request.")
        if status == cp.INFEASIBLE:
            return Solved(None, np.inf, proven=True)
        to_s = self.step_s / self.share * self.model.factor
        bound_s = float(solver.best_objective_bound) * to_s
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return Solved(None, bound_s, proven=False)
        picked = self._picked(solver)
        return Solved(picked, bound_s, proven=status == cp.OPTIMAL, layers=self.placed)

    def smallest(self, picked: tuple[int, ...], should_stop: Callable[[], bool] | None) -> tuple[int, ...]:
        """The lexicographically smallest split that is as good as this one: stage by stage, fewest layers first."""
        # CP-SAT returns any of several equal optima. Fixing the optimum and minimising stage after stage makes the answer unique,
        # so that equal requests get equal plans.
        self.start_from(picked)
        self.sat.clear_objective()
        layers = [int(c.layers[i]) for c, i in zip(self.model.choices, picked, strict=True)]
        objective = self._objective_of(picked)
        self.sat.add(self.objective <= objective)
        for stage, choices in enumerate(self.model.choices[:-1]):
            if layers[stage] > int(choices.layers.min()):
                self.sat.minimize(self.layers[stage])
                solver = self._solver(CANONICAL_LIMIT)
                if self._solve(solver, should_stop) not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
                    return picked
                picked = self._picked(solver)
                layers = [int(c.layers[i]) for c, i in zip(self.model.choices, picked, strict=True)]
                self.start_from(picked)
                self.sat.clear_objective()
            self.sat.add(self.layers[stage] == layers[stage])
        return self._most_even(picked, should_stop) if self.chunks else picked

    def _most_even(self, picked: tuple[int, ...], should_stop: Callable[[], bool] | None) -> tuple[int, ...]:
        """The same with the smallest largest chunk: the price of an interleaved pipeline is that of equal chunks."""
        largest = self.sat.new_int_var(0, len(self.model.kind_of_layer), "largest")
        self.sat.add_max_equality(largest, self.chunks)
        self.sat.minimize(largest)
        solver = self._solver(CANONICAL_LIMIT)
        if self._solve(solver, should_stop) not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return picked
        return self._picked(solver)

    def _objective_of(self, picked: tuple[int, ...]) -> int:
        """The objective's value of a split, in time steps."""
        solver = self._solver(CANONICAL_LIMIT)
        fixed = self.sat.clone()
        for stage, index in enumerate(picked):
            fixed.add(fixed.get_bool_var_from_proto_index(self.pick[stage][index].index) == 1)
        fixed.minimize(self.objective)
        assert solver.solve(fixed) == self.cp.OPTIMAL
        return int(solver.objective_value)

    def _solver(self, deterministic_limit: float) -> Any:
        solver = self.cp.CpSolver()
        # Several workers race, and which of several equal optima they return depends on the machine. One worker under a limit
        # that counts its own work returns the same split everywhere.
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = deterministic_limit
        return solver

    def _solve(self, solver: Any, should_stop: Callable[[], bool] | None) -> Any:
        """Solves, asking every now and then whether to stop."""
        if should_stop is None:
            return solver.solve(self.sat)
        done = Event()

        def watch() -> None:
            while not done.wait(_POLL_S):
                if should_stop():
                    solver.stop_search()
                    return

        # The solver runs in C++ and does not return to Python, so a thread asks in its place.
        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return solver.solve(self.sat)
        finally:
            done.set()
            watcher.join()

    def _picked(self, solver: Any) -> tuple[int, ...]:
        self.placed = tuple(int(solver.value(size)) for size in self.chunks) or None
        return tuple(next(i for i, variable in enumerate(stage) if solver.value(variable)) for stage in self.pick)
