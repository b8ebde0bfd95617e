"""How well corrections predict runs that they have not seen: python -m benchmarks.correction_holdout [FILE.jsonl ...] [--write NAME]

Measured runs of one framework are split at random, two thirds to learn from and one third to predict, many times over; then one plan is
left out at a time, and then one model. Errors before and after correction, of time and of allocated memory, and how many runs lie in
their ranges. Files hold trial records or measured rows; without any, the trials of data/measured_h200.

With --ablate, one plan at a time is left out of fits that lack one ingredient each.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.record import ROOT, record
from cost_models.corrections import Correction, InForce, Measured, fit_corrections
from cost_models.corrections.applied import corrected_range_s
from cost_models.corrections.fit import USUAL, Recipe
from cost_models.terms import TIME_NAMES
from planner.learning.measured import measured_runs

TRIALS = ROOT / "data" / "measured_h200"
SPLITS, LEARNT_SHARE, SEED = 50, 2 / 3, 18


def trial_records(files: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Measured runs as trial records or observations: of these files, or of the trials of two H200 that are kept with the sources."""
    chosen = list(files) or sorted(TRIALS.glob("*trials*.jsonl"))
    lines = [json.loads(line) for path in chosen for line in path.read_text().splitlines() if line.strip()]
    return [_as_record(line) for line in lines if "model" in line or "row" in line]


def _as_record(line: dict[str, Any]) -> dict[str, Any]:
    """A line of any of the files as a record: the first trials hold their row's fields beside what was measured."""
    if "row" in line:
        return line | ({"peak_allocated_bytes": None} if "memory_left_out" in line else {})
    row = {name: line[name] for name in ("id", "model", "cluster", "training", "strategy")}
    if "measured" in line:
        measured = line["measured"]
        kept = {"step_time_s": measured.get("step_time_s"), "peak_memory_gib": measured.get("peak_memory_gib")}
        return {"row": row, "measured": kept | {"memory_counter": measured.get("memory_kind", "allocated")}}
    result = line.get("result") or {}
    peaks = [rank["peak_allocated_bytes"] for rank in result.get("ranks", ())]
    return {
        "row": row,
        "status": line["status"],
        "step_time_s": result.get("step_time_s"),
        "peak_allocated_bytes": None if "memory_left_out" in line else max(peaks, default=None),
    }


@dataclass(eq=False)
class Held:
    """Errors of runs that were not learnt from, as logarithms of predicted over measured."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    memory_before: list[float] = field(default_factory=list)
    memory_after: list[float] = field(default_factory=list)
    inside_before: list[bool] = field(default_factory=list)
    inside_after: list[bool] = field(default_factory=list)
    half_width_before: list[float] = field(default_factory=list)
    half_width_after: list[float] = field(default_factory=list)

    def add(self, run: Measured, corrections: Iterable[Correction]) -> None:
        """Predicts one run with what was learnt from others."""
        in_force = InForce(tuple(each for each in corrections if each.scope == run.scope))
        terms = {name: np.array([run.terms_s.get(name, 0.0)]) for name in TIME_NAMES}
        total = np.array([sum(run.terms_s.values())])
        if run.step_time_s is not None and run.range_s is not None:
            _, after = in_force.of_time(terms)
            ends = np.array([run.range_s[0]]), np.array([run.range_s[1]])
            low, high = corrected_range_s(ends, total, after, in_force.range_factor(terms, total)) if in_force else ends
            self.before.append(math.log(total[0] / run.step_time_s))
            self.after.append(math.log(after[0] / run.step_time_s))
            self.inside_before.append(run.range_s[0] <= run.step_time_s <= run.range_s[1])
            self.inside_after.append(bool(low[0] <= run.step_time_s <= high[0]))
            self.half_width_before.append(math.log(run.range_s[1] / run.range_s[0]) / 2)
            self.half_width_after.append(float(np.log(high[0] / low[0]) / 2))
        if run.allocated_bytes:
            held = sum(run.memory_bytes.values())
            again = sum(value * in_force.factors.get(name, 1.0) for name, value in run.memory_bytes.items())
            self.memory_before.append(math.log(held / run.allocated_bytes))
            self.memory_after.append(math.log(again / run.allocated_bytes))

    def summary(self) -> dict[str, float]:
        """Medians of the absolute errors, shares inside the ranges, and mean half-widths, as fractions."""

        def middle(errors: list[float]) -> float:
            return round(median(map(abs, errors)), 4) if errors else math.nan

        def share(flags: list[bool]) -> float:
            return round(mean(flags), 3) if flags else math.nan

        return {
            "predictions": len(self.before),
            "time_error_before": middle(self.before),
            "time_error_after": middle(self.after),
            "memory_error_before": middle(self.memory_before),
            "memory_error_after": middle(self.memory_after),
            "coverage_before": share(self.inside_before),
            "coverage_after": share(self.inside_after),
            "half_width_before": round(mean(self.half_width_before), 3),
            "half_width_after": round(mean(self.half_width_after), 3),
        }


def random_splits(runs: Sequence[Measured], *, splits: int = SPLITS) -> Iterator[tuple[list[Measured], list[Measured]]]:
    """Runs to learn from and runs to predict; all repeats of a plan are on one side."""
    chance = random.Random(SEED)  # noqa: S311 - repeatable draws, no secret
    plans = sorted({run.plan for run in runs})
    for _ in range(splits):
        learnt = set(chance.sample(plans, round(LEARNT_SHARE * len(plans))))
        yield [run for run in runs if run.plan in learnt], [run for run in runs if run.plan not in learnt]


def by_model(runs: Sequence[Measured], models: Sequence[str]) -> Iterator[tuple[list[Measured], list[Measured]]]:
    """Runs of all other models to learn from, and those of one model to predict."""
    for name in sorted(set(models)):
        yield (
            [run for run, model in zip(runs, models, strict=True) if model != name],
            [run for run, model in zip(runs, models, strict=True) if model == name],
        )


def by_plan(runs: Sequence[Measured]) -> Iterator[tuple[list[Measured], list[Measured]]]:
    """Runs of all other plans to learn from, and those of one plan to predict."""
    return by_model(runs, [str(run.plan) for run in runs])


def held_out(splits: Iterable[tuple[list[Measured], list[Measured]]], *, recipe: Recipe = USUAL) -> Held:
    """Errors of all runs that were predicted in all splits."""
    found = Held()
    for learnt, rest in splits:
        corrections = fit_corrections(learnt, recipe=recipe)
        for run in rest:
            found.add(run, corrections)
    return found


WITHOUT: dict[str, Recipe] = {
    "nothing": USUAL,
    "shrinkage": Recipe(shrinks=False),
    "resistance to wild runs": Recipe(resists=False),
    "runs left out": Recipe(gated=False),
    "traced terms": Recipe(traced=False),
}
"""What a fit is, less one ingredient."""


def ablated(runs: Sequence[Measured]) -> dict[str, Any]:
    """What is left of the accuracy without each ingredient; one plan is left out at a time."""
    found: dict[str, Any] = {name: held_out(by_plan(runs), recipe=recipe).summary() for name, recipe in WITHOUT.items()}
    return {f"without {name}": summary for name, summary in found.items()}


def main() -> None:
    """Prints the errors of every framework, and writes them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--ablate", action="store_true", help="also leave one ingredient of the fit out at a time")
    parser.add_argument("--write", metavar="NAME", help="write benchmarks/results/correction_holdout_NAME.json")
    arguments = parser.parse_args()
    documents = trial_records(arguments.files)
    found = measured_runs(documents)
    left = {each.position for each in found.left}
    rows = [document["row"] for position, document in enumerate(documents) if position not in left]
    groups: dict[str, list[tuple[Measured, str]]] = defaultdict(list)
    for run, row in zip(found.runs, rows, strict=True):
        groups[run.scope.framework].append((run, str(row["model"].get("name") or row["model"].get("preset"))))
    results: dict[str, Any] = {}
    for framework, members in sorted(groups.items()):
        runs, models = [run for run, _ in members], [model for _, model in members]
        if len({run.plan for run in runs}) < 4:
            continue
        learnt = fit_corrections(runs)
        results[framework] = {
            "runs": len(runs),
            "plans": len({run.plan for run in runs}),
            "random_splits": held_out(random_splits(runs)).summary(),
            "plan_left_out": held_out(by_plan(runs)).summary(),
            **({"model_left_out": held_out(by_model(runs, models)).summary()} if len(set(models)) > 1 else {}),
            **({"ablation": ablated(runs)} if arguments.ablate else {}),
            "factors_of_all": {
                f"{each.scope.model_impl} {each.term}": round(each.factor, 3) for each in learnt if each.kept
            },
        }
        print(framework, json.dumps(results[framework], indent=1))
    if arguments.write:
        errors = [each["plan_left_out"]["time_error_after"] for each in results.values()]
        record(
            f"correction_holdout_{arguments.write}",
            value=max(errors),
            unit="fraction of a step, median error of plans left out, worst framework",
            goal="<= 0.05",
            frameworks=results,
            left_out=[f"{each.id}: {each.reason}" for each in found.left],
        )


if __name__ == "__main__":
    main()
