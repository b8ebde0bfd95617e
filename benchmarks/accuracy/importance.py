"""Which terms and which constants matter: errors by source if a term is taken away or scaled, or a constant moved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.accuracy.figures import mape
from benchmarks.accuracy.measured_rows import Floats, Scored, evaluations, positive
from benchmarks.accuracy.named_constants import moved, named_constants
from benchmarks.accuracy.state import OWN_PROFILE, OWN_SOURCES, State
from cost_models.terms import TIME_NAMES

# A quarter to four times in 33 geometric steps, so that 1 is among them and steps are 9 % apart.
FACTORS = np.geomspace(0.25, 4.0, 33)
EVERY_NTH_SINGLE_NODE_ROW = 6
"""The 720 single-node rows repeat 48 shapes, and a sixth of them says the same about a constant."""


def terms_of(scored: Scored) -> Floats:
    """Predicted seconds by term, shape (terms, N); NaN without an evaluation."""
    blank = dict.fromkeys(TIME_NAMES, np.nan)
    breakdowns = [answer.get("time_breakdown_s") or blank for answer in scored.answers]
    return np.array([[breakdown[name] for breakdown in breakdowns] for name in TIME_NAMES], np.float64)


def without_terms(state: State) -> dict[str, dict[str, float]]:
    """By source, the mean error with all terms ("all") and without each; jitter shrinks with what it is a share of."""
    found = {}
    for source, scored in state.timed().items():
        terms_s, jitter = terms_of(scored), TIME_NAMES.index("jitter")
        # Jitter is a share of all other terms, so each of them takes its part of the jitter along when it goes.
        grown = scored.predicted_s / (scored.predicted_s - terms_s[jitter])
        errors = {"all": mape(scored.error)}
        for name, seconds in zip(TIME_NAMES, terms_s, strict=True):
            lost = seconds if name == "jitter" else seconds * grown
            errors[name] = mape((scored.predicted_s - lost) / scored.measured_s - 1.0)
        found[source] = errors
    return found


def best_single_factors(state: State) -> dict[str, tuple[str, float, float]]:
    """By source, the one term whose scaling helps most: (term, factor, mean error then). A hint at what is wrong, no fit."""
    found = {}
    for source, scored in state.timed().items():
        best = ("-", 1.0, mape(scored.error))
        for name, seconds in zip(TIME_NAMES, terms_of(scored), strict=True):
            scaled = scored.predicted_s + (FACTORS[:, None] - 1.0) * seconds
            errors = np.nanmean(np.abs(scaled[:, scored.timed] / scored.measured_s[scored.timed] - 1.0), axis=1)
            place = int(errors.argmin())
            if errors[place] < best[2]:
                best = (name, float(FACTORS[place]), float(errors[place]))
        found[source] = best
    return found


def thinned(state: State) -> dict[str, Scored]:
    """Timed rows by source, single-node sweeps thinned: what a trial of other constants is judged by."""
    found = {source: scored.take(scored.timed) for source, scored in state.timed().items()}
    single = found.get("vtrain_single")
    if single is not None:
        found["vtrain_single"] = single.take(np.arange(0, len(single), EVERY_NTH_SINGLE_NODE_ROW))
    return found


def predicted_times(tables: Mapping[str, Scored]) -> dict[str, Floats]:
    """Seconds that the constants of this moment predict, by source; rows of the own machine with its profile."""
    found: dict[str, Floats] = {}
    for calibration in (None, OWN_PROFILE):
        some = {name: scored for name, scored in tables.items() if (name in OWN_SOURCES) == (calibration is not None)}
        answers = evaluations([row for scored in some.values() for row in scored.rows], calibration=calibration)
        seconds = np.array([positive(answer.get("step_time_s")) for answer in answers])
        ends = np.cumsum([len(scored) for scored in some.values()])
        found |= dict(zip(some, np.split(seconds, ends[:-1]), strict=True))
    return found


def moved_constants(state: State) -> dict[str, dict[str, dict[str, float]]]:
    """By constant and end of its plausible range ("low", "high"): change of each source's mean error, as a fraction."""
    tables = thinned(state)

    def errors() -> dict[str, float]:
        predicted = predicted_times(tables)
        return {source: mape(predicted[source] / scored.measured_s - 1.0) for source, scored in tables.items()}

    now, found = errors(), {}
    for name, constant in named_constants().items():
        ends: dict[str, dict[str, float]] = {}
        for end in ("low", "high"):
            value = getattr(constant, end)
            if value != constant.value:
                with moved({name: value}):
                    there = errors()
                ends[end] = {source: there[source] - now[source] for source in tables}
        found[name] = ends
    return found
