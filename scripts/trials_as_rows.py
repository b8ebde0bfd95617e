"""Measured rows of the trials that were run on H200: python -m scripts.trials_as_rows

Reads the records of data/measured_h200/trials_*.jsonl and of its folders' trials.jsonl, and writes two files of data/measured:
own_trials_pytorch.jsonl (PyTorch's own parallelism) and own_trials_exports.jsonl (launches as `meshwright export` writes them). One
plan is one row: the median over its rounds, and the range over all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record import ROOT

SOURCE = ROOT / "data" / "measured_h200"
TARGET = ROOT / "data" / "measured"
_ROW = ("model", "cluster", "training", "strategy")
_EARLIER = {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0+cu130", "nccl": "2.28.9", "driver": "580.159.04"}
"""The machine of trials_1 and trials_2, whose records did not say it."""
_COUNTERS = (
    ("peak_memory_gib", "peak_allocated_bytes", "peak_allocated_bytes"),
    ("reserved_gib", "peak_reserved_bytes", "peak_reserved_bytes"),
    ("device_gib", "device_bytes", "peak_device_bytes"),
)
"""Counters of memory: in measured rows, in what a rank tells, and in what the record tells."""
_RAN = {"pytorch": "PyTorch's own parallelism (profiler/trial/)", "exports": "a launch as meshwright export writes it"}


def main() -> None:
    """Writes both files and says how many plans each holds."""
    plans: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted([*SOURCE.glob("trials_*.jsonl"), *SOURCE.glob("*/trials.jsonl")]):
        for record in _records(path):
            plans[record["kind"], json.dumps(record["row"], sort_keys=True)].append(record)
    for kind in _RAN:
        rows = [_measured(kind, rounds) for (each, _), rounds in plans.items() if each == kind]
        path = TARGET / f"own_trials_{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}  {len(rows)} plans")


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Records of trials that ran, of either form: the first ones held their row's fields beside what was measured."""
    for line in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found.get("status") != "ok":
            continue
        row = found.get("row", found)
        result = found if "row" in found else found["result"]
        left_out = found.get("memory_left_out")
        yield {
            "row": {key: row[key] for key in _ROW},
            "kind": "pytorch" if found.get("backend", "pytorch") == "pytorch" else "exports",
            "step_time_s": result["step_time_s"],
            "peaks": {} if left_out else _peaks(result),
            "machine": found.get("machine", _EARLIER),
            "date": found.get("date") or found["started_at"][:10],
            "file": str(path.relative_to(SOURCE)),
            "notes": [*found.get("notes", ()), *([f"peaks left out: {left_out}"] if left_out else ())],
        }


def _peaks(result: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of the rank that holds most, by the name of the counter in measured rows; launches tell theirs for the whole trial."""
    found = {}
    for name, of_rank, of_trial in _COUNTERS:
        each = [rank.get(of_rank) for rank in result.get("ranks", ())] + [result.get(of_trial)]
        if known := [value for value in each if value]:
            found[name] = max(known)
    return found


def _measured(kind: str, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = [each["step_time_s"] for each in rounds]
    measured: dict[str, Any] = {"step_time_s": median(times), "step_time_range_s": [min(times), max(times)]}
    measured["verdict"] = "fits"
    for name, _, _ in _COUNTERS:
        if peaks := [each["peaks"][name] for each in rounds if name in each["peaks"]]:
            measured[name] = median(peaks) / 2**30
    if "peak_memory_gib" in measured:
        measured["memory_kind"] = "allocated"
    row = rounds[0]["row"]
    machine = rounds[-1]["machine"]
    notes = sorted({note for each in rounds for note in each["notes"]})
    counted = (
        f"{len(rounds)} round{'s' if len(rounds) > 1 else ''} of {', '.join(sorted({each['file'] for each in rounds}))}"
    )
    host = f", host {machine['host_fingerprint']}" if "host_fingerprint" in machine else ""
    # A launch does not tell its release of NCCL.
    nccl = f", NCCL {machine['nccl']}" if machine["nccl"] else ""
    return {
        "id": f"own_trials_{kind}-{hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:10]}",
        "source": f"own_trials_{kind}",
        "group": None,
        **row,
        "measured": measured,
        "complete": True,
        "unknown": [],
        "notes": "; ".join([f"{_RAN[kind]}; {counted}; step time = median after the warm-up, each step between two barriers", *notes]),
        "citation": (
            f"own trial, torch {machine['torch']}{nccl}, driver {machine['driver']}{host}, "
            f"{machine['gpus']}x H200-SXM-141GB, {max(each['date'] for each in rounds)}"
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main()
