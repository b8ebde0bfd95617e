"""How well the planner ranks plans that were measured: Spearman, top-1 and top-5 regret of every group in data/measured.

Each row is planned with its whole strategy fixed, so that it passes the search, its rules and its memory verdict. The rows of a
group are then put in the planner's order: plans that fit before those at risk, by rounded times, ties by degrees, and rows without
a plan last. For comparison there are the same order without regard to memory, that of `evaluate`, and all of them at an older
commit.
Run: python -m benchmarks.measured_groups [--against COMMIT].
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.accuracy.figures import rank_quality, ranking_groups
from benchmarks.accuracy.measured_rows import Scored
from benchmarks.accuracy.state import OWN_PROFILE, OWN_SOURCES, evaluate_state
from benchmarks.accuracy.tables import number, percent, table
from benchmarks.record import ROOT, record
from cost_models.errors import MeshwrightError
from cost_models.strategies.fields import NAMES as NAMES_OF
from planner.plan import plan
from planner.schemas.strategy import StrategyInput
from planner.search.objective import TIE_BREAK_FIELDS, rounded

Figures = dict[str, float]
NAMES = ("spearman", "top1_regret", "top5_regret", "order_accuracy")
TIES = tuple(name for name in TIE_BREAK_FIELDS if name != "layout")
WAYS = ("ranked", "ranked_by_time", "evaluate")
"""The planner's order, the same with plans at risk among the others, and the order of `evaluate`'s times."""


def groups() -> dict[str, Scored]:
    """Rows of every ranking group, priced as their machine is best known."""
    sources = evaluate_state().sources.values()
    return {name: rows for source in sources for name, rows in ranking_groups(source.priced).items()}


def planned_key(row: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that sorts rows in the planner's order. Its last entry says why the row has no plan, or is empty."""
    # The own machine is priced with its own profile: its reference data are those of another node.
    cluster = dict(row["cluster"])
    if row["source"] in OWN_SOURCES:
        cluster["calibration"] = OWN_PROFILE
    request = {
        "model": row["model"],
        "cluster": cluster,
        "training": row["training"],
        "constraints": {"fixed": filled_in(row, answer), "allow_at_risk": True},
        "top_k": 1,
    }
    try:
        found = plan(request)
    except MeshwrightError as error:
        return (2, math.inf, (), f"{error.code}: {error.message}")
    if not found["plans"]:
        return (2, math.inf, (), ", ".join(found["rejected"]) or "no plan")
    best = found["plans"][0]
    step_s = best["evaluation"]["step_time_s"]
    degrees = tuple(_code(name, best["strategy"][name]) for name in TIES)
    at_risk = best["evaluation"]["verdict"] != "fits"
    return (int(at_risk), float(rounded(np.array([step_s]))[0]), degrees, "")


def _code(name: str, value: Any) -> float:
    """A field of a strategy as the number by which ties are broken."""
    if value is None:
        return 0.0
    return float(NAMES_OF[name].index(value) if name in NAMES_OF else value)


def filled_in(row: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The row's strategy with every default that `evaluate` applied, so that nothing is left to search."""
    fixed = dict(row["strategy"])
    for name, value in answer["assumed"].items():
        group, _, part = name.partition(".")
        if part and group in StrategyInput.model_fields:
            fixed[group] = {part: value, **fixed.get(group, {})}
        elif name in StrategyInput.model_fields:
            fixed.setdefault(name, value)
    return fixed


def quality(predicted: Sequence[float], rows: Scored) -> Figures:
    """The four figures of a group under these predicted times or places."""
    found = rank_quality(np.array(predicted, np.float64), rows.measured_s)
    return dict(zip(NAMES, found, strict=True))


def figures() -> dict[str, Any]:
    """Figures by way and group, rows by group, and why rows have no plan."""
    found: dict[str, dict[str, Figures]] = {way: {} for way in WAYS}
    sizes, unplanned = {}, Counter[str]()
    for name, rows in groups().items():
        keys = [planned_key(row, answer) for row, answer in zip(rows.rows, rows.answers, strict=True)]
        unplanned.update(key[-1] for key in keys if key[-1])
        found["ranked"][name] = quality(places(keys), rows)
        found["ranked_by_time"][name] = quality(places([key[1:] for key in keys]), rows)
        found["evaluate"][name] = quality(rows.predicted_s.tolist(), rows)
        sizes[name] = len(rows)
    return {"ways": found, "rows": sizes, "without_plan": dict(unplanned)}


def places(keys: Sequence[tuple[Any, ...]]) -> list[float]:
    """Position of each key in rising order, equal keys together."""
    order = {key: float(place) for place, key in enumerate(sorted(set(keys)))}
    return [order[key] for key in keys]


def at_commit(commit: str) -> dict[str, Any]:
    """The same figures with the planner, the cost models, the calibrations and the rows of a commit of this repository."""
    with tempfile.TemporaryDirectory() as folder:
        tree = f"{folder}/tree"
        # A worktree and a process of its own, since both versions cannot be imported into one. This file measures both, so that only
        # what it measures differs.
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            command = [sys.executable, __file__, "--figures"]
            environment = {"PYTHONPATH": tree}
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    return dict(json.loads(done.stdout))


def summary(by_group: Mapping[str, Figures]) -> dict[str, float]:
    """Means over groups, and the worst ones."""
    columns = {name: np.array([each[name] for each in by_group.values()], np.float64) for name in NAMES}
    found = {f"mean_{name}": float(np.nanmean(values)) for name, values in columns.items()}
    found["min_spearman"] = float(np.nanmin(columns["spearman"]))
    return found | {f"max_{name}": float(np.nanmax(columns[name])) for name in ("top1_regret", "top5_regret")}


def measure(against: str | None) -> None:
    """Measures, prints and records all groups."""
    now = figures()
    columns = dict(now["ways"])
    if against is not None:
        columns |= {f"{way} at {against}": by_group for way, by_group in at_commit(against)["ways"].items()}
    lines = [
        [name, str(size), *(cell for by_group in columns.values() for cell in _cells(by_group.get(name)))]
        for name, size in now["rows"].items()
    ]
    print(table(["group", "rows", *(f"{way}: Spearman, top-1, top-5 regret, %" for way in columns)], lines))
    for way, by_group in columns.items():
        print(way, json.dumps(_plain(summary(by_group))))
    record(
        "measured_groups",
        value=float(np.nanmean([each["spearman"] for each in now["ways"]["ranked"].values()])),
        unit="mean Spearman of the planner's order",
        goal="no worse than before",
        groups=len(now["rows"]),
        rows=now["rows"],
        against=against,
        without_plan=now["without_plan"],
        summary={way: _plain(summary(by_group)) for way, by_group in columns.items()},
        by_group={way: {name: _plain(each) for name, each in by_group.items()} for way, by_group in columns.items()},
    )


def _cells(found: Figures | None) -> list[str]:
    if found is None:
        return ["-"]
    return [f"{number(found['spearman'])}, {percent(found['top1_regret'])}, {percent(found['top5_regret'])}"]


def _plain(found: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(f"{value:.4g}") for name, value in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also the figures at this commit")
    parser.add_argument("--figures", action="store_true", help="print the figures as JSON and store nothing")
    asked = parser.parse_args()
    if asked.figures:
        print(json.dumps(figures()))
    else:
        measure(asked.against)
