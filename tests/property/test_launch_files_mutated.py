"""Broken and hostile launch files: an answer or an error that names the file, and nothing in them is run.

Files like public ones (`public_configs.py`) are cut, misspelled, doubled, nested, and given what a shell, YAML or Python might run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from time import process_time

import pytest
from public_configs import PublicConfig, public_configs, rendered

from cost_models.errors import InvalidInputError
from planner.export.import_config import import_config
from planner.export.settings import InputFile

CONFIGS = public_configs()
SLOWEST_S = 5.0
"""A file of this size takes milliseconds; what is slower than this would hold up a service."""
MARKER = "run-by-a-reader"


def _line(random: Random, text: str, change: Callable[[str], str]) -> str:
    """The text with one of its lines changed."""
    lines = text.split("\n")
    chosen = random.randrange(len(lines))
    lines[chosen] = change(lines[chosen])
    return "\n".join(lines)


def _value(random: Random, text: str, new: str) -> str:
    """The text with a number or word of it replaced."""
    found = list(re.finditer(r"(?<=[ =:])\w+", text))
    if not found:
        return text + new
    place = random.choice(found)
    return text[: place.start()] + new + text[place.end() :]


def _cut(random: Random, text: str) -> str:
    return text[: random.randrange(len(text))]


def _without_a_part(random: Random, text: str) -> str:
    start = random.randrange(len(text))
    return text[:start] + text[start + random.randrange(1, 40) :]


def _misspelled(random: Random, text: str) -> str:
    place = random.randrange(len(text))
    return text[:place] + random.choice("abz019-_=:{}[]()'\"`$\\#&|;,.\t\n ") + text[place + random.randrange(2) :]


def _twice(random: Random, text: str) -> str:
    return _line(random, text, lambda line: f"{line}\n{line}")


def _swapped(random: Random, text: str) -> str:
    lines = text.split("\n")
    random.shuffle(lines)
    return "\n".join(lines)


def _huge(random: Random, text: str) -> str:
    return _value(
        random,
        text,
        random.choice(("9" * 5000, "1e999", "-1", "-" + "9" * 40, "0", "nan", ".inf", "0x" + "f" * 300, "1_0", "0o17")),
    )


def _wrong(random: Random, text: str) -> str:
    return _value(
        random,
        text,
        random.choice(("true", "null", "[]", "{}", '""', "[1, [2]]", "~", "auto", "2.5", "{a: {b: 1}}", "'", "None")),
    )


def _nul(random: Random, text: str) -> str:
    place = random.randrange(len(text))
    return (
        text[:place]
        + random.choice(("\0", "\x1b[2J", "\ufeff", "\x85", "\u2028", "\udc80", "\u202e", "\U0001f600", "\x0c"))
        + text[place:]
    )


def _windows(_random: Random, text: str) -> str:
    return text.replace("\n", "\r\n")


def _old_mac(_random: Random, text: str) -> str:
    return text.replace("\n", "\r")


def _deep(random: Random, text: str) -> str:
    opened = random.choice(("[", "{", "(", '{"a":', "$(", "${A:-", "a: {", '"', "- ", "if true; then\n", "x = ["))
    return _line(random, text, lambda line: line + opened * random.choice((30, 3000)))


def _anchors(random: Random, text: str) -> str:
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
    )
    return random.choice(
        (
            bomb + text,
            text + "\n" + bomb,
            text + "\nself: &self\n  again: *self\n",
            text + "\n<<: *nowhere\n",
            "&x " + text,
        )
    )


def _grown(random: Random, text: str) -> str:
    grown = (
        "A=aaaaaaaaaaaaaaaa\n"
        + "A=$A$A$A$A\n" * random.choice((4, 30))
        + "B=($A $A)\n"
        + 'B+=("${B[@]}" "${B[@]}")\n' * 30
    )
    return grown + text + " $A ${B[@]}\n"


def _run(random: Random, text: str) -> str:
    program = random.choice((
        "$(touch {0})", "`touch {0}`", "$(<{0})", "\ntouch {0}\n", "; touch {0} ;", "${{X:=$(touch {0})}}", "$((a[$(touch {0})]))",
        '!!python/object/apply:os.system ["touch {0}"]', '\nx: !!python/object/apply:subprocess.check_output [[touch, "{0}"]]\n',
        "\n__import__('os').system('touch {0}')\n", "\neval 'touch {0}'\n", "\nsource {0}\n", "\ncat <<EOF > {0}\n$(touch {0})\nEOF\n", "${{@P}}",
        "\nprintf x > {0}\n",
    )).format(MARKER)  # fmt: skip
    return random.choice(
        (_value(random, text, program), text + program, _line(random, text, lambda line: line + " " + program))
    )


MUTATIONS: Mapping[str, Callable[[Random, str], str]] = {
    "cut": _cut, "without a part": _without_a_part, "misspelled": _misspelled, "a line twice": _twice, "shuffled": _swapped,
    "huge numbers": _huge, "wrong types": _wrong, "other characters": _nul, "CRLF": _windows, "CR": _old_mac, "deeply nested": _deep,
    "tags and anchors": _anchors, "growing variables": _grown, "something to run": _run,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    """Fails a test that starts a process or leaves a file."""

    def refuse(*given, **_named):
        raise AssertionError(f"a reader ran {given}")

    for place, name in ((os, "system"), (os, "popen"), (subprocess, "Popen"), (os, "execv"), (os, "fork")):
        monkeypatch.setattr(place, name, refuse)
    monkeypatch.chdir(tmp_path)
    yield
    assert list(Path().iterdir()) == []


def outcome(config: PublicConfig, text: str, *, framework: str | None) -> str:
    """What became of a file; an error must say of which file it speaks."""
    started, message, found = process_time(), "", None
    try:
        found = import_config([InputFile(config.name, text)], framework=framework)
    except InvalidInputError as error:
        message = str(error)
    assert process_time() - started < SLOWEST_S
    if found is None:
        assert framework is None or config.name in message, message
        return "refused"
    last = text.count("\n") + text.count("\r") + 1
    for each in found.unknown:
        assert each["file"] == config.name
        assert 1 <= each["line"] <= last
    return "read"


def check(kind: str, *, files: int, seed: int) -> Counter[str]:
    """Outcomes of files of a kind, each changed once or a few times."""
    random, outcomes = Random(seed), Counter[str]()
    for _ in range(files):
        config = random.choice(CONFIGS)
        text = rendered(config)
        for name in (kind, *random.sample(sorted(MUTATIONS), random.choice((0, 0, 1, 2)))):
            text = MUTATIONS[name](random, text) if text else text
        outcomes[outcome(config, text, framework=random.choice((config.kind, config.kind, None)))] += 1
    return outcomes


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_changed_file_is_read_or_refused_by_name(kind):
    assert check(kind, files=30, seed=1).total() == 30


@pytest.mark.proof
@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_changed_files_are_read_or_refused_by_name(kind, seed):
    assert check(kind, files=250, seed=seed).total() == 250
