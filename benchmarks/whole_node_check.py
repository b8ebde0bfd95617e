"""A whole node's trials beside what was predicted before them: python -m benchmarks.whole_node_check FOLDER [--priced-now NAME]

FOLDER is what `benchmarks.whole_node_on_gpu` wrote. A row a line: errors of the step's time and of the three kinds of memory, and the
terms that miss most, in milliseconds against the traced step. Then means, the share of rows inside their range, and by group what it
costs to have believed the prediction's first plan. `--priced-now` prices the rows anew, with that calibration (a file or a name) or,
with `none`, without one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.trial_rows import ASKED
from benchmarks.whole_node.rows import GROUPS
from planner.rows import evaluate_rows

MEMORY = ("allocated", "reserved", "device")
_SHOWN_TERMS = 3
Json = Mapping[str, Any]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--priced-now", metavar="NAME", help="calibration to price the rows with instead")
    arguments = parser.parse_args()
    records = [each for each in read(arguments.folder / "trials.jsonl") if each.get("status") == "ok"]
    if arguments.priced_now is None:
        before = {each["answer"]["id"]: each["answer"] for each in read(arguments.folder / "predictions.jsonl")}
    else:
        named = None if arguments.priced_now == "none" else arguments.priced_now
        before = {each["id"]: each for each in priced([record["row"] for record in records], named)}
    found = [line(record, before[record["row"]["id"]]) for record in records]
    for each in found:
        print(told(each))
    print(summary(found))
    for group in GROUPS:
        if text := regret(group, [each for each in found if each["group"] == group]):
            print(text)


def read(path: Path) -> list[Json]:
    """The records of a file of JSON lines."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]


def priced(rows: Sequence[Json], calibration: str | None) -> list[Json]:
    """The rows as they are priced now."""
    asked = [{name: row[name] for name in ASKED} for row in rows]
    return list(evaluate_rows(asked, calibration=calibration, allow_files=True))


def line(record: Json, answer: Json) -> dict[str, Any]:
    """Errors of a row (predicted / measured - 1), and its terms in seconds off."""
    measured_s, (low, high) = record["step_time_s"], answer["step_time_range_s"]
    terms, predicted = record.get("terms_s") or {}, answer["time_breakdown_s"]
    off = {name: predicted.get(name, 0.0) - terms.get(name, 0.0) for name in {*predicted, *terms}}
    return {
        "id": record["row"]["id"],
        "group": next(group for group in GROUPS if record["row"]["id"].startswith(group.replace(" ", "-"))),
        "measured_s": measured_s,
        "predicted_s": answer["step_time_s"],
        "time": answer["step_time_s"] / measured_s - 1.0,
        "inside": low <= measured_s <= high,
        "memory": {name: answer["memory"][f"peak_{name}_bytes"] / peak(record, name) - 1.0 for name in MEMORY},
        "off_s": dict(sorted(off.items(), key=lambda each: -abs(each[1]))[:_SHOWN_TERMS]),
    }


def peak(record: Json, kind: str) -> float:
    """Bytes of the rank that holds most; launches tell theirs for the whole trial."""
    of_rank = "device_bytes" if kind == "device" else f"peak_{kind}_bytes"
    known = [rank.get(of_rank) for rank in record.get("ranks", ())] + [record.get(f"peak_{kind}_bytes")]
    return float(max((value for value in known if value), default=float("nan")))


def told(each: Json) -> str:
    """A row of the table."""
    memory = " ".join(f"{100 * value:+6.1f}" for value in each["memory"].values())
    terms = ", ".join(f"{name} {1e3 * value:+.0f}" for name, value in each["off_s"].items())
    inside = "in " if each["inside"] else "out"
    return f"{each['id']:34} {each['measured_s']:6.3f} s {100 * each['time']:+6.1f} % {inside} {memory} %  {terms} ms"


def summary(found: Sequence[Json]) -> str:
    """Means over the rows."""
    memory = ", ".join(f"{name} {100 * fmean(abs(each['memory'][name]) for each in found):.1f} %" for name in MEMORY)
    inside = sum(each["inside"] for each in found)
    time, bias = fmean(abs(each["time"]) for each in found), fmean(each["time"] for each in found)
    return (
        f"{len(found)} rows: time {100 * time:.1f} % off, bias {100 * bias:+.1f} %, {inside} inside their range; "
        f"memory {memory}"
    )


def regret(group: str, found: Sequence[Json]) -> str:
    """How much slower than the fastest plan of a group the one is that was predicted to be; empty for a single plan."""
    if len(found) < 2:
        return ""
    chosen, best = min(found, key=lambda each: each["predicted_s"]), min(found, key=lambda each: each["measured_s"])
    lost = chosen["measured_s"] / best["measured_s"] - 1.0
    return f"{group}: {chosen['id']} would have been taken of {len(found)}, {100 * lost:.1f} % slower than {best['id']}"


if __name__ == "__main__":
    main()
