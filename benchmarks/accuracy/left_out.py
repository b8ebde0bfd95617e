"""Free constants refitted without one source, and the figures of that source with them.

A constant is free if its source text says that nothing measured it, or if it was chosen with some of these rows in view
(free_constants.json). One that was chosen with the left-out source in view starts from the geometric middle of its plausible range,
the others from their present value. Then one constant at a time moves over a grid inside its range, if that lowers the mean over
sources of the mean time error and helps at least two sources: what only one table asks for may be a missing term of that table.
Sources that leave facts unstated have no say. The seconds of a trial are the product of the effects of single moves, each of which
is evaluated once. The left-out source is then evaluated for real with the chosen values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.accuracy.importance import predicted_times, thinned
from benchmarks.accuracy.measured_rows import Floats
from benchmarks.accuracy.named_constants import moved, named_constants
from benchmarks.accuracy.state import SourceState, State, evaluate_source, layer_errors
from benchmarks.record import RESULTS

FREE_CONSTANTS = Path(__file__).with_name("free_constants.json")
RESULT = "accuracy_left_out"
GRID_POINTS = 5
MAX_SWEEPS = 6
SMALLEST_GAIN = 2e-4
"""Least gain of the mean error for which a constant is moved."""
MIN_SOURCES_HELPED, HELPED = 2, 1e-3
"""Number of sources whose error must fall, and by how much at least."""
SMALLEST_LOW = 1e-9
LAYER_SOURCE = "korthikanti2022"
"""Source from whose paper the layer times are, so that they are left out with it."""


def free_constants() -> dict[str, list[str]]:
    """Free constants, and the sources that were in view when each was chosen."""
    entries = json.loads(FREE_CONSTANTS.read_text(encoding="utf-8"))["constants"]
    return {name: entry["fitted_on"] for name, entry in entries.items()}


@dataclass(frozen=True, eq=False)
class Effects:
    """Relative errors of the timed rows and what single moves of constants do to the predicted seconds."""

    ratio: Mapping[str, Floats]
    """Predicted over measured seconds by source, with the constants as they are."""
    grid: Mapping[str, tuple[float, ...]]
    """Values tried for each free constant. The first is the present one, the second the middle of its range."""
    log_effect: Mapping[tuple[str, float], Mapping[str, Floats]]
    """log(seconds with the move / seconds without), by source."""

    def errors(self, values: Mapping[str, float], sources: Sequence[str]) -> Floats:
        """Mean time error of each of the sources."""
        found = []
        for source in sources:
            moves = [self.log_effect[name, value][source] for name, value in values.items()]
            # Effects multiply only approximately, but evaluating every combination would take years, and the chosen one is evaluated
            # for real in the end.
            ratio = self.ratio[source] * np.exp(np.sum(moves, axis=0))
            found.append(float(np.nanmean(np.abs(ratio - 1.0))))
        return np.array(found)


def single_moves(state: State) -> Effects:
    """Evaluates every grid value of every free constant."""
    tables, named = thinned(state), named_constants()
    now = predicted_times(tables)
    still = {source: np.zeros(len(seconds)) for source, seconds in now.items()}
    grid: dict[str, tuple[float, ...]] = {}
    log_effect: dict[tuple[str, float], dict[str, Floats]] = {}
    for name in free_constants():
        constant = named[name]
        middle = math.sqrt(max(constant.low, SMALLEST_LOW) * constant.high)
        even = np.linspace(constant.low, constant.high, GRID_POINTS).tolist()
        grid[name] = tuple(dict.fromkeys((constant.value, middle, *even)))
        log_effect[name, constant.value] = still
        for value in grid[name][1:]:
            with moved({name: value}):
                there = predicted_times(tables)
            log_effect[name, value] = {source: np.log(there[source] / now[source]) for source in tables}
    ratio = {source: now[source] / scored.measured_s for source, scored in tables.items()}
    return Effects(ratio, grid, log_effect)


def refit(effects: Effects, sources: Sequence[str], *, start: Mapping[str, float]) -> dict[str, float]:
    """Values of the free constants on which these sources agree. Those that they cannot determine stay at their start."""
    values = dict(start)
    best = effects.errors(values, sources)
    for _ in range(MAX_SWEEPS):
        before = best.mean()
        # Coordinate by coordinate, because the grid of all combinations is out of reach; sweeps end when none of them gains.
        for name, grid in effects.grid.items():
            trials = {value: effects.errors({**values, name: value}, sources) for value in grid}
            value = min(trials, key=lambda trial: float(trials[trial].mean()))
            helped = int((best - trials[value] > HELPED).sum())
            if best.mean() - trials[value].mean() > SMALLEST_GAIN and helped >= MIN_SOURCES_HELPED:
                values[name], best = value, trials[value]
        if before - best.mean() < SMALLEST_GAIN:
            break
    return values


def blind_start(effects: Effects, source: str, *, seen: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Values before any row of this source was seen; `seen` are the sources that were in view when each was chosen."""
    return {name: effects.grid[name][1 if source in seen[name] else 0] for name in effects.grid}


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The state in which every source is predicted with constants that it had no part in choosing."""

    state: State
    chosen: Mapping[str, Mapping[str, float]]
    """By source, the constants that take another value to predict it."""


def leave_each_out(state: State) -> LeftOut:
    """Refits without each source in turn, and evaluates that source."""
    effects = single_moves(state)
    now = {name: grid[0] for name, grid in effects.grid.items()}
    chosen: dict[str, dict[str, float]] = {}
    sources: dict[str, SourceState] = {}
    layers = state.layer_errors
    for name, source in state.sources.items():
        if name not in effects.ratio:
            sources[name] = source
            continue
        others = [other for other in effects.ratio if other != name and state.sources[other].is_complete]
        values = refit(effects, others, start=blind_start(effects, name, seen=free_constants()))
        chosen[name] = {constant: value for constant, value in values.items() if value != now[constant]}
        with moved(chosen[name]):
            sources[name] = evaluate_source(name, list(source.rows.rows))
            if name == LAYER_SOURCE:
                layers = layer_errors()
    return LeftOut(State(sources, layers), chosen)


@dataclass(frozen=True, slots=True)
class StoredLeftOut:
    """The result of the last leave-one-source-out run."""

    commit: str
    """The commit on which it was run; `no run` before the first."""
    values: Mapping[tuple[str, str], float]
    """Value of each bar, by rows and figure."""
    chosen: Mapping[str, Mapping[str, float]]
    """By source, the constants that take another value to predict it."""


def stored_left_out() -> StoredLeftOut:
    """The newest stored run."""
    path = RESULTS / f"{RESULT}.json"
    if not path.exists():
        return StoredLeftOut("no run", {}, {})
    newest = max(json.loads(path.read_text(encoding="utf-8")), key=lambda entry: entry["date"])
    stored = newest["details"]["bars"]
    values = {(bar["rows"], bar["figure"]): bar["value"] for bar in stored if bar["value"] is not None}
    return StoredLeftOut(newest["commit"], values, newest["details"]["chosen"])
