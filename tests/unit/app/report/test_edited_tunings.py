"""Tunings that were changed by hand: a page is drawn or the field is named, whatever stands in whichever place."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

import tuned
from app.report.tuning.page import tuning_file
from cost_models.errors import InvalidInputError, Problem

GONE = object()
VALUES = (GONE, None, -1, 0, 1e308, 10**400, "x", "", True, [], [1.0], [1.0, 2.0, 3.0], {}, {"tp": "x"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document below its root."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in parts:
        yield (*path, name)
        yield from places(each, (*path, name))


def whole() -> dict[str, Any]:
    """A tuning with something in every field."""
    knobs = {
        "best": {"values": {"bucket": 5}, "step_time_s": 0.98, "arguments": ["--bucket", "5"]},
        "default_step_time_s": 1.0,
        "gain_fraction": 0.02,
    }
    return tuned.studied() | {"knobs": knobs, "warnings": ["Two plans are left out."]}


def edited(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(document)
    target: Any = found
    for step in path[:-1]:
        target = target[step]
    if value is GONE:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return found


def every_case() -> list[tuple[tuple[Any, ...], Any]]:
    return [(path, value) for path in places(whole()) for value in VALUES]


def refused(document: dict[str, Any]) -> list[Problem]:
    """What a page is refused for; nothing where it is drawn."""
    try:
        page = tuning_file(document)
    except InvalidInputError as error:
        return list(error.problems)
    assert page.rstrip().endswith("</html>")
    return []


def test_a_trial_that_tells_a_peak_of_nothing_is_drawn() -> None:
    document = whole()
    document["trials"][0]["peak_allocated_bytes"] = 0
    assert refused(document) == []


def check(cases: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Some are drawn and some are refused, and every refusal names a place and says what to do."""
    document = whole()
    found = [refused(edited(document, *case)) for case in cases]
    assert 0 < sum(map(bool, found)) < len(found)
    problems = [each for some in found for each in some]
    assert [each for each in problems if not (each.pointer.startswith("/") and each.message and each.hint)] == []


def test_edited_tunings_are_drawn_or_refused() -> None:
    check(random.Random(18).sample(every_case(), 120))


@pytest.mark.proof
@pytest.mark.slow
def test_every_edit_of_a_tuning_is_drawn_or_refused() -> None:
    check(every_case())


def test_what_a_page_cannot_be_drawn_from_is_named() -> None:
    with pytest.raises(InvalidInputError) as raised:
        tuning_file(edited(whole(), ("trials", 1, "strategy", "recompute"), {"full": 1}))
    assert raised.value.problems[0].pointer == "/trials/1/strategy"
