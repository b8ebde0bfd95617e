"""Everything from which the accuracy report is computed: the rows of each source evaluated with reference data, and those of our own
machine also with each calibration that was measured on such a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.figures import Figures, figures
from benchmarks.accuracy.layer_times import layer_time_cases
from benchmarks.accuracy.measured_rows import (
    MEASURED_ROWS,
    Floats,
    Json,
    Scored,
    evaluations,
    joined,
    read_rows,
    score_rows,
    scored_part,
)
from cost_models.hardware import shipped_names

OWN_SOURCES = ("own_tt", "own_mcore")
OWN_PROFILE = "h100x4-nvls-off-2026"
"""Calibration of the machine of these rows, compiled from data/reference/h100x4_profile.json."""
PROFILED = {
    "own_tt": OWN_PROFILE, "own_mcore": OWN_PROFILE,
    "own_tt_h200": "h200x2-nvls-off-2026-11-28", "own_hf_h200": "h200x2-nvls-off-2026-11-28",
}  # fmt: skip
"""By source, the calibration of the machine that its rows ran on, for those that have one."""
_MACHINE_LETTERS = len("h100x4-")
"""The first letters of a calibration's name say which kind of machine it was measured on."""


@dataclass(frozen=True, eq=False)
class SourceState:
    """One source's rows."""

    rows: Scored
    """All of its rows, priced with reference data."""
    scored: Scored
    """The complete rows, or all if none is complete. Baselines are computed among these."""
    own: Mapping[str, Scored]
    """The scored rows by named calibration, for rows of the own machine."""

    @property
    def is_complete(self) -> bool:
        """Whether the scored rows state everything that matters."""
        return all(row.get("complete") is True for row in self.scored.rows)

    @property
    def priced(self) -> Scored:
        """The scored rows priced by what is best known about their machine: its profile, or else reference data."""
        return self.own.get(self.profile, self.scored)

    @property
    def profile(self) -> str:
        """Name of the calibration of the rows' machine; empty where it was not profiled."""
        source = self.scored.source
        return PROFILED.get(str(source[0]), "") if len(source) else ""


@dataclass(frozen=True, eq=False)
class State:
    """All sources."""

    sources: Mapping[str, SourceState]
    layer_errors: Floats
    """Predicted / measured - 1 of the layer times."""

    def figures(self) -> dict[str, Figures]:
        """Scores of the scored rows by source, reference data."""
        return {name: figures(source.scored) for name, source in self.sources.items()}

    def all_scored(self) -> Scored:
        """The scored rows of every source in one table, reference data."""
        return joined([source.scored for source in self.sources.values()])

    def timed(self) -> dict[str, Scored]:
        """Priced rows by source, of the sources that have times."""
        priced = {name: source.priced for name, source in self.sources.items()}
        return {name: scored for name, scored in priced.items() if scored.timed.any()}


def mask(scored: Scored, keep: Callable[[Json], bool]) -> NDArray[np.bool_]:
    """Where rows satisfy a condition."""
    return np.array([keep(row) for row in scored.rows], np.bool_)


def evaluate_source(source: str, measured: Sequence[Json]) -> SourceState:
    """Evaluates the rows of one source."""
    kept = scored_part(measured)
    answers = evaluations(measured)
    # By identity: the kept rows are some of the same objects, and documents cannot be the keys of a table.
    by_row = {id(row): answer for row, answer in zip(measured, answers, strict=True)}
    own = {}
    if source in PROFILED:
        machine = PROFILED[source][:_MACHINE_LETTERS]
        names = [name for name in shipped_names() if name.startswith(machine)]
        tables = {name: score_rows(kept, evaluations(kept, calibration=name)) for name in names}
        own = {name: table for name, table in tables.items() if table.answered.any()}
    return SourceState(
        rows=score_rows(measured, answers), scored=score_rows(kept, [by_row[id(row)] for row in kept]), own=own
    )


def layer_errors() -> Floats:
    """Errors of the layer times with the constants of this moment."""
    return np.array([predicted / measured - 1.0 for _, measured, predicted in layer_time_cases()])


def evaluate_state(folder: Path = MEASURED_ROWS) -> State:
    """Evaluates every row of a folder."""
    sources = {name: evaluate_source(name, rows) for name, rows in read_rows(folder).items()}
    return State(sources, layer_errors())
