"""Launch files with spoilt lines: each is read or refused, and what is read accounts for every setting."""

from __future__ import annotations

import random
import re

import pytest

from cost_models.errors import InvalidInputError
from planner.export.import_config import import_config
from planner.export.imported_row import Overrides
from planner.export.settings import InputFile
from tests.launch_imports import CONFIGURATIONS, files_of

VALUES = (
    "0", "-1", "7", "1e9", "true", "null", '"x"', "[]", "{}", '[1, "a"]', "9" * 21, "1.5", "$X", "''", '"auto"', "none", "&a", "!!int",
)  # fmt: skip
CHARACTERS = "\0\t\"'${[\\`\u2028\U0001f600:,#"
_VALUE = re.compile(r'(?<![\w.])(\d+(\.\d+)?|true|false|"[^"\n]*"|[A-Z_]{3,}|\w+)(?=[,\s})\]]|$)')


def spoilt(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(draw.randint(1, 3)):
        place, kind = draw.randrange(len(lines)), draw.random()
        line = lines[place]
        found = list(_VALUE.finditer(line))
        if kind < 0.5 and found:
            match = draw.choice(found)
            lines[place] = line[: match.start()] + draw.choice(VALUES) + line[match.end() :]
        elif kind < 0.7:
            lines.insert(place, draw.choice(lines))
        elif kind < 0.8:
            lines = lines[: place + 1]
        else:
            at = draw.randrange(len(line) + 1)
            lines[place] = line[:at] + draw.choice(CHARACTERS) + line[at:]
    return "\n".join(lines)


def read_spoilt(seed: int, count: int) -> dict[str, int]:
    draw, outcomes = random.Random(seed), {"read": 0, "refused": 0}
    for _ in range(count):
        files = files_of(draw.choice(list(CONFIGURATIONS)))
        place = draw.randrange(len(files))
        files[place] = InputFile(files[place].path, spoilt(files[place].content, draw))
        if draw.random() < 0.3:
            files.pop(draw.randrange(len(files)))
        given = Overrides(
            cluster=draw.choice([None, {"preset": "dgx-h100"}, {"preset": "dgx-h100", "num_nodes": 2}]),
            model=draw.choice([None, None, {"preset": "llama-3.1-8b"}]),
        )
        try:
            found = import_config(files, given=given) if files else None
        except InvalidInputError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        if found is not None:
            assert [each for each in found.unknown if each["line"] < 1 or not each["text"]] == []
    return outcomes


def test_spoilt_files_are_read_or_refused() -> None:
    outcomes = read_spoilt(1, 400)
    assert min(outcomes.values()) > 50


@pytest.mark.proof
def test_thousands_of_spoilt_files_are_read_or_refused() -> None:
    assert min(read_spoilt(2, 20_000).values()) > 2000
