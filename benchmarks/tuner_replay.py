"""The tuner on tables of plans that were measured once: which plans it would have run, in what order, and what it would have chosen.

python -m benchmarks.tuner_replay            print the table
python -m benchmarks.tuner_replay --write    also write benchmarks/results/tuner_replay.json

A trial is answered from the table. Beside the tuner stand the analytic order and random orders of the same plans, and how far from
the best measured plan the analytic first is before anything is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.accuracy.measured_rows import evaluations
from benchmarks.record import ROOT, record
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome, Standing, Told

PROFILE = "h200x2-nvls-off-2026-11-28"
SOURCES: Mapping[str, str | None] = {
    "data/measured_h200/*trials_*.jsonl": PROFILE,
    "data/measured/own_tt_h200.jsonl": PROFILE,
    "data/measured/own_hf_h200.jsonl": PROFILE,
    "data/measured/own_mcore.jsonl": None,
    "data/measured/own_tt.jsonl": None,
}
"""Files of measured plans, and the calibration that their predictions take: the profile of the machine where there is one."""
WITHIN = 0.02
MOST_TRIALS = 8
_ORDERS, _DRAWS = 500, 40
DISTURBANCE = 0.10
"""Standard deviation of the logarithm by which predictions are disturbed, to see what the tuner makes of worse ones."""
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """The measured plans of one job."""

    name: str
    candidates: Sequence[Candidate]
    """In analytic order."""
    outcomes: Sequence[Outcome]

    @property
    def best_s(self) -> float:
        return min(each.step_time_s for each in self.outcomes if each.step_time_s is not None)

    def regret(self, place: int | None) -> float | None:
        """How much slower than the best measured plan a plan is, as a share; None for one that did not run."""
        step_s = None if place is None else self.outcomes[place].step_time_s
        return None if step_s is None else step_s / self.best_s - 1.0

    def trials_until_close(self, order: Sequence[int]) -> int | None:
        """How many trials in this order it takes until one is within 2 % of the best."""
        for count, place in enumerate(order, start=1):
            regret = self.regret(place)
            if regret is not None and regret <= WITHIN:
                return count
        return None


def tables(sources: Mapping[str, str | None] = SOURCES, *, root: Path = ROOT) -> list[Table]:
    """One table for each job of which at least three plans were measured, the largest first."""
    found = []
    for pattern, calibration in sources.items():
        groups: dict[str, list[Json]] = {}
        for path in sorted(root.glob(pattern)):
            for line in path.read_text(encoding="utf-8").splitlines():
                row = _row(json.loads(line))
                if row is not None:
                    groups.setdefault(_job(row), []).append(row)
        source = pattern.rpartition("/")[2].partition(".")[0].strip("*_")
        found += [_table(f"{source}: {name}", rows, calibration) for name, rows in groups.items()]
    return sorted((each for each in found if len(each.candidates) >= 3), key=lambda each: -len(each.candidates))


def replayed(table: Table, *, limits: Limits | None = None) -> Standing:
    """How the tuner stands after it has asked for trials of this table until it stopped."""
    standing = Standing(table.candidates, limits=limits or Limits(max_trials=MOST_TRIALS))
    while standing.closed is None and (place := standing.choice) is not None:
        told = Told(place, place, float(standing.belief.median_s()[place]), table.outcomes[place])
        standing = Standing(table.candidates, [*standing.told, told], limits=standing.limits)
    return standing


def summary(table: Table) -> dict[str, Any]:
    """The figures of one table."""
    standing = replayed(table)
    order = [each.candidate for each in standing.told]
    generator = np.random.default_rng(0)
    drawn = [table.trials_until_close(list(generator.permutation(len(table.candidates)))) for _ in range(_ORDERS)]
    errors = [
        abs(each.expected_step_time_s / each.outcome.step_time_s - 1.0)
        for each in standing.told[1:]
        if each.outcome.step_time_s
    ]
    before = [
        abs(table.candidates[each.candidate].step_time_s / each.outcome.step_time_s - 1.0)
        for each in standing.told[1:]
        if each.outcome.step_time_s
    ]
    assert standing.stop is not None
    return {
        "job": table.name,
        "plans": len(table.candidates),
        "analytic_first_regret": table.regret(0),
        "trials": len(order),
        "order": [table.candidates[place].rank for place in order],
        "stopped": standing.stop.reason,
        "chosen_regret": table.regret(standing.best),
        "trials_until_within_2_percent": table.trials_until_close(order),
        "analytic_order_until_within_2_percent": table.trials_until_close(range(len(table.candidates))),
        "random_order_until_within_2_percent": mean(each for each in drawn if each is not None),
        "mean_error_predicted": mean(before) if before else None,
        "mean_error_expected_before_the_trial": mean(errors) if errors else None,
    }


def disturbed(table: Table, generator: np.random.Generator) -> Table:
    """The same measurements beside predictions that are each off by a further factor, ranked by these."""
    factors = np.exp(DISTURBANCE * generator.standard_normal(len(table.candidates)))
    order = sorted(range(len(factors)), key=lambda place: table.candidates[place].step_time_s * factors[place])
    candidates = []
    for rank, place in enumerate(order, start=1):
        plan, factor = table.candidates[place], float(factors[place])
        candidates.append(
            replace(
                plan, rank=rank, step_time_s=plan.step_time_s * factor,
                range_s=(plan.range_s[0] * factor, plan.range_s[1] * factor),
                terms_s={name: seconds * factor for name, seconds in plan.terms_s.items()},
            )
        )  # fmt: skip
    return Table(table.name, candidates, [table.outcomes[place] for place in order])


def worse_predictions(found: Sequence[Table]) -> dict[str, float]:
    """What the tuner makes of predictions that are worse than the models', over all jobs and `_DRAWS` draws."""
    generator = np.random.default_rng(1)
    drawn = [disturbed(table, generator) for table in found for _ in range(_DRAWS)]
    ends = [(table, replayed(table)) for table in drawn]
    regrets = [table.regret(standing.best) or 0.0 for table, standing in ends]
    firsts = [table.regret(0) or 0.0 for table in drawn]
    return {
        "disturbance_standard_deviation": DISTURBANCE,
        "draws": len(drawn),
        "analytic_first_within_2_percent": mean(regret <= WITHIN for regret in firsts),
        "chosen_within_2_percent": mean(regret <= WITHIN for regret in regrets),
        "mean_trials": mean(len(standing.told) for _, standing in ends),
        "mean_plans": mean(len(table.candidates) for table in drawn),
        "chosen_mean_regret": mean(regrets),
        "analytic_first_mean_regret": mean(firsts),
    }


def _row(line: Json) -> Json | None:
    """A line of a table as an evaluate row with its outcome; None where it was left out, or its time had run out."""
    if "row" in line:  # a trial record
        return {**line["row"], "outcome": Outcome.of_record(line)} if line["status"] != "hang" else None
    kept = {key: line.get(key) for key in ("id", "model", "cluster", "training", "strategy")}
    if "measured" in line:  # a measured row, which does not say how long the run took
        step_s = line["measured"].get("step_time_s")
        return None if step_s is None else {**kept, "outcome": Outcome("ok", step_s)}
    if "status" not in line or line["status"] == "hang":
        return None
    step_s = line["result"]["step_time_s"] if line["status"] == "ok" else None
    return {**kept, "outcome": Outcome(line["status"], step_s, line["took_s"], 2.0 * line["took_s"])}


def _job(row: Json) -> str:
    training, cluster = row["training"], row["cluster"]
    words = [
        str(row["model"].get("name") or row["model"].get("preset")),
        f"{cluster.get('num_nodes', 1) * cluster.get('gpus_per_node', 1)} GPUs",
        f"{training['global_batch_size']} x {training['seq_length']} tokens",
        training["framework"],
    ]
    usual = {"framework", "seq_length", "global_batch_size", "software_date", "precision", "optimizer", "dropout"}
    others = {key: value for key, value in training.items() if key not in usual}
    # Whatever else the training says tells jobs apart, too; a digit of it is enough to see that two differ.
    words.append(f"training {hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:4]}")
    return ", ".join(words)


def _table(name: str, rows: Sequence[Json], calibration: str | None) -> Table:
    answers = evaluations(rows, calibration=calibration)
    legal = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer["step_time_s"] is not None]
    ranked = sorted(legal, key=lambda pair: pair[1]["step_time_s"])
    # Plans that ran more than once count once, with the first of their times.
    unique = {json.dumps(row["strategy"], sort_keys=True): (row, answer) for row, answer in reversed(ranked)}
    ranked = sorted(unique.values(), key=lambda pair: pair[1]["step_time_s"])
    candidates = [
        Candidate.of_plan({"rank": rank, "strategy": row["strategy"], "evaluation": answer})
        for rank, (row, answer) in enumerate(ranked, start=1)
    ]
    return Table(name, candidates, [row["outcome"] for row, _ in ranked])


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    measured = tables()
    found = [summary(table) for table in measured]
    for each in found:
        print(json.dumps(each))
    worse = worse_predictions(measured)
    print(json.dumps(worse))
    close = [each for each in found if each["chosen_regret"] is not None and each["chosen_regret"] <= WITHIN]
    print(
        f"{len(close)} of {len(found)} choices are within {WITHIN:.0%} of the best measured plan in at most {MOST_TRIALS} trials"
    )
    if options.write:
        worst = max(each["chosen_regret"] for each in found)
        record(
            "tuner_replay", value=100.0 * worst, unit="% slower than the best measured plan, worst job",
            goal="<= 2", tables=found, with_worse_predictions=worse,
        )  # fmt: skip


if __name__ == "__main__":
    main()
