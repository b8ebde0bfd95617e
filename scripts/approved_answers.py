"""The book of approved answers: what the models and the planner answer to many varied rows and requests, kept in `tests/approved`,
and a few tables beside them: what the agent measures, what is known of frameworks.

    python -m scripts.approved_answers compare     # what this checkout answers otherwise; exit code 1 if it does
    python -m scripts.approved_answers write       # rewrites the book, and shows what moved and by how much
    python -m scripts.approved_answers show NAME   # the row or request of that name

The book says that answers changed. It does not say that they are right: for that there are the tests with numbers worked out by
hand, the oracles and the scores. A commit that means to change answers rewrites the book and puts the shown summary into its
message, so that a reviewer sees what moved and what did not.

For a restructuring that must change nothing, a larger set can be frozen to the last bit outside of the repository:

    python -m scripts.approved_answers write --exactly FOLDER      # before; answers of this checkout
    python -m scripts.approved_answers compare --exactly FOLDER    # after
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.errors import MeshwrightError
from planner.plan import plan
from planner.rows import evaluate_rows
from scripts.approved import drawn, edges, jobs, refused, rows, tables
from scripts.approved.requests import requests
from scripts.approved.rows import Document

BOOK = Path(__file__).resolve().parent.parent / "tests" / "approved"
LEFT_OUT = frozenset({"id", "request_digest", "product_version", "model_revision", "created_at", "elapsed_s"})
"""Identities and times, which differ without any change of an answer."""
UNSAID: Mapping[str, Any] = {"mathematics": "exact", "changed_plans": []}
"""What nearly every answer says; it stands where an answer says otherwise."""
DIGITS = 9
TOLERANCE = 2e-8
"""Largest relative difference of two numbers that count as equal: what rounding both to nine digits makes of equal ones, doubled."""
WHOLE_PLANS = 4
"""How many of a request's plans are kept with their whole evaluation; of the others the step time is."""
PLANS = "plans"
"""Group of the plan requests; every other group holds rows, or is one of `tables`."""


@cache
def _rows() -> Mapping[str, list[Document]]:
    return {**rows.groups(), **jobs.groups(), **edges.groups(), **refused.groups()}


def cases() -> list[tuple[str, str]]:
    """Group and name of everything that is asked at once: all rows of a group together, each request alone."""
    return [(group, "") for group in (*_rows(), *tables.tables())] + [(PLANS, name) for name in requests()]


def answers(group: str, name: str = "") -> dict[str, Any]:
    """The answers of a case as the book keeps them, by name of the row or request."""
    if group == PLANS:
        return {name: _kept(_planned(requests()[name]))}
    if group in tables.tables():
        return {name: _kept(each) for name, each in tables.tables()[group]().items()}
    # Documents of one's own are part of what identifies a job, which costs time, so only their own rows are given them.
    own = jobs.calibrations() if group.startswith("measured") else {}
    found: dict[str, Any] = {}
    assumed: Document = {}
    asked = _rows()[group]
    for row, answer in zip(asked, evaluate_rows(asked, extra=own), strict=True):
        # Most rows of a group share their defaults, so what a row assumes is kept where the row before does not say the same.
        its = answer["assumed"]
        told = {field: value for field, value in its.items() if field not in assumed or assumed[field] != value}
        gone = sorted(assumed.keys() - its.keys())
        found[_name(row)] = _kept({**answer, "assumed": told, "assumed_no_more": gone})
        assumed = its
    return found


def _name(row: Document) -> str:
    """The name of a row, which stays the same wherever it stands in its group."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:8]


def question(name: str) -> Document:
    """The row or request of that name."""
    named = {_name(row): row for group in _rows().values() for row in group}
    return (requests() | named)[name]


def _planned(request: Document) -> Document:
    try:
        answer = plan(request)
    except MeshwrightError as error:
        problems = [[each.pointer, each.code, each.message] for each in getattr(error, "problems", ())]
        return {"refused": error.code, "problems": problems}
    # What a plan of the list assumes differs little from what its strategy says; rows tell it in full.
    for number, each in enumerate(answer["plans"]):
        each["evaluation"].pop("assumed")
        if number >= WHOLE_PLANS:
            each["evaluation"] = each["evaluation"]["step_time_s"]
    return answer


def _kept(answer: Any) -> Any:
    """An answer without identities, times, zeros and what is empty; numbers to nine digits."""
    if isinstance(answer, Mapping):
        inner = {
            name: _kept(value) for name, value in answer.items() if name not in LEFT_OUT and value != UNSAID.get(name)
        }
        if inner.get("provenance"):
            # A term that takes no time rests on nothing, which is called measured.
            tiers, terms_s = inner["provenance"]["terms"], inner["time_breakdown_s"]
            told = {name: tier for name, tier in tiers.items() if name in terms_s or tier != "measured"}
            inner["provenance"] |= {"terms": told}
        return {name: value for name, value in inner.items() if value or value is False}
    if isinstance(answer, list | tuple):
        return [_kept(each) for each in answer]
    return _short(answer) if isinstance(answer, float) else answer


def _short(number: float) -> float | int:
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def differences(was: Any, now: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Place, earlier and present value of everything in which two answers differ."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in {**was, **now}:
            yield from differences(was.get(name), now.get(name), f"{at}.{name}" if at else name)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (before, after) in enumerate(zip(was, now, strict=True)):
            yield from differences(before, after, f"{at}[{number}]")
    elif not _equal(was, now):
        yield at, was, now


def _equal(was: Any, now: Any) -> bool:
    if isinstance(was, float) or isinstance(now, float):
        numbers = isinstance(was, int | float) and isinstance(now, int | float)
        return numbers and math.isclose(was, now, rel_tol=TOLERANCE)
    return bool(was == now) and isinstance(was, bool) == isinstance(now, bool)


def read(group: str, folder: Path = BOOK) -> dict[str, Any]:
    """The book's answers of a group, by name; empty where there are none."""
    file = folder / f"{group}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return dict(json.loads(line) for line in lines)


def summary(found: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """One line for each kind of value that differs: how many do, and for numbers the median and the largest relative change."""
    changes: dict[str, list[float]] = defaultdict(list)
    for at, was, now in found:
        # Stages, plans and the like have numbers in brackets; one line stands for all of them.
        kind = "".join(part.partition("]")[2] if number else part for number, part in enumerate(at.split("[")))
        if isinstance(was, int | float) and isinstance(now, int | float) and was:
            changes[kind].append(now / was - 1.0)
        else:
            changes[kind].append(math.nan)
    lines = []
    for kind, its in sorted(changes.items()):
        known = [change for change in its if not math.isnan(change)]
        moved = f", median {median(known):+.3%}, largest {max(known, key=abs):+.3%}" if known else ""
        lines.append(f"  {kind}: {len(its)}{moved}")
    return lines


def _compare(*, write: bool) -> int:
    """Compares every case with the book, shows what moved, and if asked rewrites the book; the number of differing answers."""
    answered: dict[str, dict[str, Any]] = defaultdict(dict)
    for group, name in cases():
        answered[group] |= answers(group, name)
    found, count, total = [], 0, 0
    for group, its in answered.items():
        kept = read(group)
        for name in {**kept, **its}:
            changed = list(differences(kept.get(name), its.get(name)))
            found += changed
            count += bool(changed)
            total += 1
        if write:
            lines = (json.dumps([name, its[name]], separators=(",", ":"), ensure_ascii=False) + "\n" for name in its)
            BOOK.mkdir(exist_ok=True)
            (BOOK / f"{group}.jsonl").write_text("".join(lines), encoding="utf-8")
    gone = {file.stem for file in BOOK.glob("*.jsonl")} - answered.keys()
    for group in gone:
        if write:
            (BOOK / f"{group}.jsonl").unlink()
    print(f"{total} answers, {count} differ from the book, {len(gone)} of its groups are asked no more")
    print("\n".join(summary(found)))
    return count + len(gone)


def main(arguments: list[str] | None = None) -> int:
    """Compares or rewrites the book; the exit code is 1 if `compare` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("write", "compare", "show"))
    parser.add_argument("name", nargs="?", default="", help="show: a name in the book")
    parser.add_argument(
        "--exactly", type=Path, metavar="FOLDER", help="the larger set, to the last bit, in this folder"
    )
    asked = parser.parse_args(arguments)
    if asked.act == "show":
        print(json.dumps(question(asked.name), indent=2))
        return 0
    if asked.exactly is not None:
        return drawn.write(asked.exactly) if asked.act == "write" else drawn.compare(asked.exactly)
    differing = _compare(write=asked.act == "write")
    return int(asked.act == "compare" and differing > 0)


if __name__ == "__main__":
    sys.exit(main())
