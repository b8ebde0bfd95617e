"""Public training runs of up to 16,384 GPUs: what we say of the layout that was used, and the best plan beside it.

data/public_runs/public_runs.jsonl holds the runs with their sources. Their step times were not used to set any constant, except
those that data/measured/ holds as well. Run: python -m benchmarks.public_runs [PART OF A NAME...] [--plans].
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, record
from meshwright import evaluate, plan

RUNS = ROOT / "data" / "public_runs" / "public_runs.jsonl"
PAGE = ROOT / "docs" / "PUBLIC_RUNS.md"
WITHIN = 0.15
"""Relative error up to which a run counts as predicted."""
Document = dict[str, Any]


def runs(path: Path = RUNS) -> list[Document]:
    """The runs, each an evaluate row with what was measured and where it was published."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def question(run: Document) -> Document:
    """The evaluate row of a run."""
    return {name: run[name] for name in ("model", "cluster", "training", "strategy")}


def measured_s(run: Document, answer: Document) -> float:
    """Seconds of the published step.

    Where only TFLOP/s were published, the seconds follow from our count of floating-point operations, which is in the answer.
    """
    measured = run["measured"]
    if measured["step_time_s"] is not None:
        return float(measured["step_time_s"])
    [(name, published)] = measured["how"].items()
    return float(answer["step_time_s"] * answer[name] / published)


def best_plan(run: Document) -> Document | None:
    """Plan 1 for the same job, or None if nothing fits."""
    asked = {name: run[name] for name in ("model", "cluster", "training")}
    plans = plan({**asked, "top_k": 1})["plans"]
    return plans[0] if plans else None


def told(strategy: Document) -> str:
    """The parts of a strategy that differ from 1 and from none, in a few words."""
    names = ("tp", "pp", "cp", "dp", "ep", "vpp", "zero", "micro_batch_size")
    short = [f"{name} {strategy[name]}" for name in names if strategy.get(name, 1) not in (0, 1)]
    return " ".join([*short, strategy["schedule"], strategy["recompute"]])


def page(chosen: list[Document], table: list[Document]) -> str:
    """The page that shows runs, prices and best plans, with a sentence on each family of runs."""
    lines = [
        "# Public training runs and what we say of them",
        "",
        "Written by `python -m benchmarks.public_runs --plans --write`; the runs and their sources are in `data/public_runs`.",
        "*Priced* is our step time for the published layout, *best* that of the first plan for the same job and framework.",
        "Where our framework is not the one that ran, the remarks say so.",
        "",
        "| run | published s | priced s | error | in range | memory | best s | best plan |",
        "| --- | ---: | ---: | ---: | --- | --- | ---: | --- |",
    ]
    for line in table:
        inside = "yes" if line["inside_range"] else "no"
        lines.append(
            f"| {line['run']} | {line['published_s']} | {line['priced_s']} | {line['error']:+.0%} | {inside} "
            f"| {line['verdict']}, {line['memory_gib']} GiB | {line['best_s'] or '-'} | {line['best'] or 'none fits'} |"
        )
    lines += ["", "## Why to believe it, or not", ""]
    remarks = {run["why"]: run["id"] for run in reversed(chosen)}
    lines += [f"- **{name}**: {why}" for why, name in reversed(remarks.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true", help="rewrite docs/PUBLIC_RUNS.md; needs --plans")
    parser.add_argument("--plans", action="store_true", help="search the best plan for each job as well")
    asked = parser.parse_args()
    chosen = [run for run in runs() if not asked.names or any(name in run["id"] for name in asked.names)]
    table = []
    for run, answer in zip(chosen, evaluate([question(run) for run in chosen]), strict=True):
        published, priced = measured_s(run, answer), answer["step_time_s"]
        memory = answer["memory"]
        low, high = answer["step_time_range_s"]
        line: Document = {
            "run": run["id"],
            "published_s": round(published, 2),
            "priced_s": round(priced, 2),
            "error": round(priced / published - 1, 3),
            "inside_range": low <= published <= high,
            "verdict": answer["verdict"],
            "memory_gib": round(memory["peak_device_bytes"] / 2**30, 1),
        }
        if asked.plans:
            best = best_plan(run)
            line["best_s"] = best and round(best["evaluation"]["step_time_s"], 2)
            line["best"] = best and told(best["strategy"])
        print(json.dumps(line))
        table.append(line)
    if asked.write:
        PAGE.write_text(page(chosen, table))
    right = sum(abs(line["error"]) <= WITHIN for line in table) / len(table)
    record("public_runs", value=right, unit=f"share within {WITHIN:.0%}", goal=">= 0.7", runs=table)


if __name__ == "__main__":
    main()
