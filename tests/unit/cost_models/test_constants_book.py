"""Constants that were fitted, or that nobody measured, are named in EQUATIONS.md's account of them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cost_models
from cost_models.constants import Constant

BOOK = (Path(cost_models.__file__).parent / "EQUATIONS.md").read_text(encoding="utf-8")
ACCOUNT = BOOK.split("## Constants chosen with measured runs in view")[1].split("\n## ")[0]
CHOSEN, UNMEASURED = ACCOUNT.split("Not measured, each with")
SAYS_CHOSEN = re.compile(r"\bfitted\b|\bchosen\b")
SAYS_UNMEASURED = re.compile(
    r"no measurement|not measured|\bestimated\b|\bguess|taken to be|\bassumed\b|no constant of any table"
)
MEASURED_AFTER_ALL = {"GROUPED_GEMM_EFFICIENCY"}
"""Whose source speaks of an assumption that a measurement replaced."""


def inside(value: Any, depth: int = 0) -> Iterator[Constant]:
    if isinstance(value, Constant):
        yield value
    elif depth < 4 and isinstance(value, (dict, MappingProxyType)):
        for part in value.values():
            yield from inside(part, depth + 1)
    elif depth < 4 and isinstance(value, tuple):
        for part in value:
            yield from inside(part, depth + 1)


def constants() -> set[tuple[str, str]]:
    """Name in the module, and source, of every constant of the cost models."""
    found = set()
    for module in pkgutil.walk_packages(cost_models.__path__, "cost_models."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if not name.startswith("__"):
                found |= {(name, constant.source) for constant in inside(value)}
    return found


ALL = constants()


def named_in(text: str) -> set[str]:
    return set(re.findall(r"`(_?[A-Z][A-Z0-9_]+)`", text))


def unnamed(says: re.Pattern[str], text: str) -> set[str]:
    """Names of constants whose source says so and that stand in the text under none of their names: tables repeat each other."""
    by_source: dict[str, set[str]] = {}
    for name, source in ALL:
        if says.search(source):
            by_source.setdefault(source, set()).add(name)
    assert len(by_source) > 2
    return {min(names) for names in by_source.values() if not names & named_in(text)}


def test_what_a_source_calls_chosen_or_fitted_is_in_the_table() -> None:
    assert unnamed(SAYS_CHOSEN, CHOSEN) == set()


def test_what_a_source_calls_unmeasured_is_in_the_list() -> None:
    assert unnamed(SAYS_UNMEASURED, UNMEASURED) - MEASURED_AFTER_ALL == set()


def test_the_account_names_constants_that_exist() -> None:
    assert named_in(ACCOUNT) - {name for name, _ in ALL} == set()
