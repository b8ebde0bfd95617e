"""Whose answer is computed next."""

from __future__ import annotations

import pytest

from app.errors import TooManyAnswersError, UnavailableError
from app.service.answering.line import WaitingLine


def line_of(*waiters: str, most_running: int = 9, most_waiting: int = 9) -> WaitingLine[str]:
    """A line of these waiters, whose first letters are their tenants."""
    line: WaitingLine[str] = WaitingLine(most_running=most_running, most_waiting=most_waiting)
    for waiter in waiters:
        line.join(waiter[0], waiter)
    return line


def served(line: WaitingLine[str], number: int) -> list[str]:
    """The next waiters, none of whose answers ends."""
    return [following[1] for _ in range(number) if (following := line.next()) is not None]


def test_tenants_take_turns_and_each_is_served_in_order() -> None:
    assert served(line_of("a1", "a2", "a3", "b1", "b2", "c1"), 9) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_comes_anew_waits_for_one_answer_of_each_of_the_others() -> None:
    line = line_of("a1", "a2", "a3", "b1", "b2")
    assert served(line, 1) == ["a1"]
    line.join("c", "c1")
    assert served(line, 9) == ["b1", "a2", "c1", "b2", "a3"]


def test_a_tenant_has_so_many_answers_computed_at_a_time() -> None:
    line = line_of("a1", "a2", "a3", "b1", most_running=2)
    assert served(line, 9) == ["a1", "b1", "a2"]
    line.done("b")
    assert line.next() is None
    line.done("a")
    assert line.next() == ("a", "a3")


def test_a_full_line_refuses_its_tenant_and_nobody_else() -> None:
    line = line_of("a1", "a2", most_waiting=2)
    with pytest.raises(TooManyAnswersError) as refused:
        line.join("a", "a3")
    assert refused.value.context == {"quota": "waiting_answers", "limit": 2, "used": 2}
    line.join("b", "b1")
    assert len(line) == 3
    assert line.next() == ("a", "a1")
    line.join("a", "a3")


def test_the_lines_of_all_tenants_together_have_an_end() -> None:
    """Eight full lines of two: the seventeenth request waits nowhere, whosever it is."""
    line = line_of(*(f"{tenant}{number}" for tenant in "abcdefgh" for number in (1, 2)), most_waiting=2)
    with pytest.raises(UnavailableError):
        line.join("i", "i1")


def test_who_leaves_is_not_served() -> None:
    line = line_of("a1", "a2", "b1")
    line.leave("a", "a1")
    line.leave("b", "b1")
    line.leave("b", "b1")
    assert (len(line), served(line, 9)) == (1, ["a2"])
