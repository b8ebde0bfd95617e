"""This checkout answers as the book of approved answers says.

That shows *that* an answer changed, and nothing about which of the two is right: an answer got into the book because the models gave it
on the day it was written. Whoever means to change answers rewrites the book and looks at what moved:

    python -m scripts.approved_answers write
"""

from __future__ import annotations

import pytest

from scripts.approved_answers import BOOK, PLANS, answers, cases, differences, read, summary

REWRITE = "if that is meant, run python -m scripts.approved_answers write, and say in the commit what moved"


@pytest.mark.parametrize(("group", "name"), cases())
def test_answers_are_those_of_the_book(group: str, name: str) -> None:
    found = answers(group, name)
    kept = read(group)
    if group == PLANS:
        kept = {name: kept[name]}
    changed = {each: list(differences(kept.get(each), found.get(each))) for each in {**kept, **found}}
    differing = {each: its[:3] for each, its in changed.items() if its}
    assert not differing, f"{len(differing)} answers differ; {REWRITE}"


def test_the_book_has_no_answer_to_what_is_not_asked() -> None:
    assert {file.stem for file in BOOK.glob("*.jsonl")} == {group for group, _ in cases()}
    assert read(PLANS).keys() == {name for group, name in cases() if group == PLANS}


def test_a_small_difference_is_found_in_its_place_and_rounding_is_none() -> None:
    was = {"time_breakdown_s": {"gemm": 0.5, "launch": 2}, "stages": [{"layers": 3}, {"layers": 4}], "flag": False}
    near = {
        "time_breakdown_s": {"gemm": 0.5 * (1 + 1e-9), "launch": 2.0},
        "stages": [{"layers": 3}, {"layers": 4}],
        "flag": False,
    }
    assert list(differences(was, near)) == []
    now = {"time_breakdown_s": {"gemm": 0.5 * (1 + 1e-7)}, "stages": [{"layers": 3}, {"layers": 5}], "flag": 0}
    found = [at for at, _, _ in differences(was, now)]
    assert found == ["time_breakdown_s.gemm", "time_breakdown_s.launch", "stages[1].layers", "flag"]
    assert list(differences([1, 2], [1])) == [("", [1, 2], [1])]


def test_what_moved_is_told_by_kind() -> None:
    """Of 10 to 11 and 20 to 21 the changes are a tenth and a twentieth; a value that was not there has none."""
    found = [("stages[0].bytes", 10, 11), ("stages[12].bytes", 20, 21), ("verdict", "fits", "oom")]
    assert summary(found) == ["  stages.bytes: 2, median +7.500%, largest +10.000%", "  verdict: 1"]
