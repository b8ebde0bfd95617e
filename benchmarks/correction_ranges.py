"""For how many runs an uncorrected range counts beside measured ones, chosen without the runs that it is tried on.

Every plan of data/measured_h200's trials, and of the rows in FILE.jsonl..., is left out of the fit that predicts it. Of the numbers in
NUMBERS the one is taken that gives the errors of all other plans the largest likelihood; then the plan's own error is counted as inside
of its range or outside. Run: python -m benchmarks.correction_ranges [FILE.jsonl ...]
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.correction_holdout import by_plan, trial_records
from benchmarks.record import record
from cost_models.corrections import InForce, Measured, fit_corrections
from cost_models.corrections.estimate import HALF_WIDTH_SIGMAS
from cost_models.terms import TIME_NAMES
from planner.learning.measured import measured_runs

NUMBERS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_FEWEST_PLANS, _MOST_SIGMAS = 4, 3.0
Errors = NDArray[np.float64]


def errors_of(runs: list[Measured]) -> Errors:
    """Errors of plans that were left out, in standard deviations of their uncorrected ranges; repeats of a plan count as one."""
    found: dict[tuple[float, ...], list[float]] = defaultdict(list)
    for learnt, rest in by_plan(runs):
        corrections = fit_corrections(learnt)
        for run in rest:
            if run.step_time_s is None or run.range_s is None:
                continue
            in_force = InForce(tuple(each for each in corrections if each.scope == run.scope))
            _, after = in_force.of_time({name: np.array([run.terms_s.get(name, 0.0)]) for name in TIME_NAMES})
            error, total = math.log(run.step_time_s / after[0]), sum(run.terms_s.values())
            width = math.log(run.range_s[1] / total if error > 0 else total / run.range_s[0])
            found[run.plan].append(HALF_WIDTH_SIGMAS * error / width)
    return np.array([math.sqrt(float(np.mean(np.square(each)))) for each in found.values()])


def square(errors: Errors, number: float) -> float:
    """The square of the factor that ranges are multiplied by. [T-6]"""
    return float((number + np.minimum(errors**2, _MOST_SIGMAS**2).sum()) / (number + len(errors)))


def likelihood(errors: Errors, number: float) -> float:
    """Logarithm of the density of each error, given all others of its group."""
    squares = [square(np.delete(errors, at), number) for at in range(len(errors))]
    return sum(-0.5 * (math.log(each) + float(e) ** 2 / each) for e, each in zip(errors, squares, strict=True))


def main() -> None:
    """Prints and records what was chosen for every group, and the coverage that it gives."""
    groups: dict[str, Errors] = {}
    for file in (None, *map(Path, sys.argv[1:])):
        by_framework: dict[str, list[Measured]] = defaultdict(list)
        for run in measured_runs(trial_records([file] if file else [])).runs:
            by_framework[run.scope.framework].append(run)
        for framework, runs in by_framework.items():
            if len({run.plan for run in runs}) >= _FEWEST_PLANS:
                groups[f"{file.stem if file else 'trials'}, {framework}"] = errors_of(runs)
    found = {}
    for name, errors in groups.items():
        chosen, inside = [], []
        for at, error in enumerate(errors):
            rest = np.delete(errors, at)
            others = [rest, *(each for key, each in groups.items() if key != name)]
            number = max(NUMBERS, key=lambda each: sum(likelihood(group, each) for group in others))
            chosen.append(number)
            inside.append(abs(error) <= HALF_WIDTH_SIGMAS * math.sqrt(square(rest, number)))
        found[name] = {
            "plans": len(errors),
            "chosen": {str(number): times for number, times in Counter(chosen).items()},
            "coverage": round(float(np.mean(inside)), 3),
        }
        print(name, found[name])
    value = max(NUMBERS, key=lambda each: sum(likelihood(group, each) for group in groups.values()))
    record("correction_ranges", value=value, unit="runs", goal="report", numbers=NUMBERS, groups=found)


if __name__ == "__main__":
    main()
