"""Whether this checkout answers as another one does, to the last bit, but for fields that are new.

    python -m benchmarks.same_answers OTHER_CHECKOUT [--frozen FOLDER] [--here FOLDER]

Asked are the plan requests and rows of `scripts.approved.drawn`: every framework, pools, open splits, extras, errors, all measured runs
and drawn strategies. Both checkouts answer in processes of their own. `--frozen` and `--here` name folders in which the other one's and
this one's answers lie already, as `python -m scripts.approved_answers write --exactly FOLDER` left them there. `--keep` writes the count to benchmarks/results.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, commit, record
from scripts.approved.drawn import FILE

NEW_FIELDS = frozenset({
    "mathematics", "changes", "overlap_conditions", "run", "exchange", "changed_plans", "asynchrony", "sync", "compression",
    "collectives", "node_traffic", "zero_quantized_weights", "zero_quantized_gradients", "cp_a2a_size", "mtp_stage",
})  # fmt: skip
"""Fields that an evaluation, a response or the request in it has here and had not there."""
NEW_ASSUMED = frozenset({"power_w_per_gpu", "pue"})
"""Of `assumed`, what stands beside a run."""


def frozen(checkout: Path, folder: Path) -> dict[str, Any]:
    """The answers of a checkout by name; they are computed where the folder does not hold them."""
    if not (folder / FILE).exists():
        command = [sys.executable, "-m", "scripts.approved_answers", "write", "--exactly", str(folder)]
        subprocess.run(command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, check=True)
    with gzip.open(folder / FILE, "rt") as lines:
        return dict(json.loads(line) for line in lines)


def without_new(answer: Any) -> Any:
    """The answer without the fields that are new."""
    if isinstance(answer, Mapping):
        kept = {name: without_new(value) for name, value in answer.items() if name not in NEW_FIELDS}
        if isinstance(kept.get("assumed"), dict):
            kept["assumed"] = {name: value for name, value in kept["assumed"].items() if not _is_of_run(name)}
        return kept
    return [without_new(each) for each in answer] if isinstance(answer, list) else answer


def _is_of_run(name: str) -> bool:
    return name.rpartition(".")[2] in NEW_ASSUMED


def places(was: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two answers differ, with numbers of lists left out."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in {**was, **now}:
            yield from places(was.get(name), now.get(name), f"{at}.{name}" if at else name)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for before, after in zip(was, now, strict=True):
            yield from places(before, after, f"{at}[]")
    elif was != now:
        yield at


def main() -> int:
    """Compares the two; the exit code is 1 if any answer differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="checkout of the commit to compare with")
    parser.add_argument("--frozen", type=Path, help="folder with that checkout's answers")
    parser.add_argument("--here", type=Path, help="folder with this checkout's answers")
    parser.add_argument("--name", default="", help="name of that commit, where the checkout is none of git's")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = frozen(asked.other, asked.frozen or Path(folder) / "before")
        after = frozen(ROOT, asked.here or Path(folder) / "after")
    assert before.keys() == after.keys()
    found: Counter[str] = Counter()
    differing = 0
    for name, was in before.items():
        # The other commit may have some of these fields already.
        where = set(places(without_new(was), without_new(after[name])))
        differing += bool(where)
        found.update(where)
    for place, count in found.most_common(20):
        print(f"  {place}: {count}")
    print(f"{len(before)} answers compared, {differing} differ")
    if asked.keep:
        other = asked.name or commit(asked.other)
        record(
            "same_answers_but_for_new_fields", value=differing, unit="answers that differ", goal="0",
            compared=len(before), other=other, left_out=sorted(NEW_FIELDS | NEW_ASSUMED),
        )  # fmt: skip
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
