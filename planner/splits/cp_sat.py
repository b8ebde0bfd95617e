"""The open split of one strategy as an integer program for CP-SAT: what thresholds cannot prove, this does.

Each stage takes one choice; positions in model order follow from the chunks, and the layers of each kind between two
positions from a prefix table, so layers enter as runs of equal kind. The objective is the schedule's step time: the
slowest stage, the bubble, and the once-a-step costs by slowest stage and fullest parameters. Times are whole multiples of
the average stage time over TIME_STEPS: gap 0 means no better than that. One worker and a deterministic limit, so the
answer does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import numpy as np

from cost_models.errors import MeshwrightError
from planner.splits.lone_stages import chunk_layers
from planner.splits.model import SplitModel

# CP-SAT takes whole numbers. Ten million steps keep rounding below 1e-6 of a step, the step in which plans are compared, and
# sums of thousands of micro-batches still fit into its 64 bits.
TIME_STEPS = 10_000_000
"""Time steps in the average stage's time of one micro-batch."""
DETERMINISTIC_LIMIT = 4.0
"""CP-SAT's own units of work for one strategy, about seconds."""
CANONICAL_LIMIT = 1.0
"""The same for each stage of the smallest among equal optima."""
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
        found = Solved(written.smallest(found.picked, should_stop), found.bound_s, proven=True)
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
        if kinds == 1:
            return
        before = np.zeros((num_layers + 1, kinds), np.int64)
        before[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[model.kind_of_layer], axis=0)
        held: list[list[Any]] = [[0] * model.pp for _ in range(kinds)]
        position: Any = 0
        last_J: list[Any] = [0] * kinds
        for chunk in range(model.vpp):
            for stage, choices in enumerate(model.choices):
                sizes = [
                    chunk_layers(total, model.vpp, is_last=stage == model.pp - 1)[chunk]
                    for total in choices.layers.tolist()
                ]
                position = position + self.sum_of(stage, sizes)
                here = self.sat.new_int_var(0, num_layers, f"position{chunk}_{stage}")
                self.sat.add(here == position)
                position = here
                for kind in range(kinds - 1):  # the last kind follows from the sum
                    count = self.sat.new_int_var(0, int(before[-1, kind]), f"placed{chunk}_{stage}_{kind}")
                    self.sat.add_element(here, before[:, kind].tolist(), count)
                    held[kind][stage] = held[kind][stage] + count - last_J[kind]
                    last_J[kind] = count
        for kind in range(kinds - 1):
            for stage, choices in enumerate(model.choices):
                self.sat.add(held[kind][stage] == self.sum_of(stage, choices.contents_CJ[:, kind]))

    def _price(self) -> None:
        """The objective: m times the slowest stage, the bubble of the others, and what happens once a step. [T-1]"""
        model = self.model
        m = int(model.row.num_micro_batches[0])
        # The bubble is divided by the virtual stages. Multiplying the whole objective with them keeps it whole.
        self.share = round(1.0 / model.share)
        slowest, is_slowest, times = self._slowest()
        constant, by_choice = model.sum_steps(self.steps)
        together = sum(self.sum_of(stage, steps) for stage, steps in enumerate(by_choice))
        once = model.write_once(self, is_slowest, times)
        self.objective = (self.share * m - 1) * slowest + constant + together + self.share * once
        self.sat.minimize(self.objective)

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
        cp = self.cp
        if status == cp.MODEL_INVALID:
            raise SolverError(f"CP-SAT refused the model: {self.sat.validate()}", hint="Report it with the request.")
        if status == cp.INFEASIBLE:
            return Solved(None, np.inf, proven=True)
        to_s = self.step_s / self.share * self.model.factor
        bound_s = float(solver.best_objective_bound) * to_s
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return Solved(None, bound_s, proven=False)
        return Solved(self._picked(solver), bound_s, proven=status == cp.OPTIMAL)

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
        return picked

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
        return tuple(next(i for i, variable in enumerate(stage) if solver.value(variable)) for stage in self.pick)
