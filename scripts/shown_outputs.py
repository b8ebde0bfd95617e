"""What pages show of the program's output, compared with today's and brought up to date.

python -m scripts.shown_outputs          says which outputs are out of date
python -m scripts.shown_outputs write    replaces them

A page announces an output with `<!-- output of: COMMAND -->` or `<!-- first N lines of: COMMAND -->` in front of a block marked
`text`. Lines of it may end in a mark such as ①, which the text below explains; marks stay with their lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 112
"""Characters of a line: what fits into the column of text on a Git host, with room for a mark."""
_BLOCK = re.compile(
    r"<!-- (?:output|first (?P<most>\d+) lines) of: (?P<command>.+) -->\n```text\n(?P<body>.*?)```", re.DOTALL
)
_MARK = re.compile(r" +([①-⑳])$")
# How long a search took differs from run to run, and says nothing about the answer.
_ELAPSED = re.compile(r"\d+\.\d\d s;")


@dataclass(frozen=True, slots=True)
class Shown:
    """One output on a page."""

    page: Path
    command: str
    lines: tuple[str, ...]
    most: int | None

    def today(self) -> tuple[str, ...]:
        """The lines that the command prints today."""
        words = shlex.split(self.command)
        assert words[0] == "meshwright", self.command
        result = subprocess.run(  # noqa: S603 - a command of our own pages
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.rstrip() for line in result.stdout.splitlines()]
        return tuple(lines[: self.most])

    def is_current(self, today: Sequence[str]) -> bool:
        """Whether the page shows these lines, marks and the seconds of a search aside."""
        return _plain(self.lines) == _plain(today)


def pages() -> list[Path]:
    """The documents that users read."""
    built = ROOT / "docs" / "_build"
    found = [page for page in (ROOT / "docs").rglob("*.md") if built not in page.parents]
    return [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(found)]


def outputs() -> Iterator[Shown]:
    """Every output on every page."""
    for page in pages():
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
            most = int(found["most"]) if found["most"] else None
            yield Shown(page, found["command"], tuple(found["body"].splitlines()), most)


def marked(lines: Sequence[str], before: Sequence[str]) -> list[str]:
    """The lines with the marks that the most similar lines had before."""
    result = list(lines)
    for old in before:
        if (mark := _MARK.search(old)) is None or not lines:
            continue
        text = _MARK.sub("", old)
        index = max(range(len(lines)), key=lambda each: SequenceMatcher(None, lines[each], text).ratio())
        result[index] = f"{lines[index]:{WIDTH}} {mark[1]}"
    return result


def _plain(lines: Sequence[str]) -> list[str]:
    return [_ELAPSED.sub("", _MARK.sub("", line)).rstrip() for line in lines]


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns how many outputs are out of date."""
    stale = 0
    for shown in outputs():
        today = shown.today()
        if shown.is_current(today):
            continue
        stale += 1
        print(f"{shown.page.relative_to(ROOT)}: {shown.command}")
        if "write" in arguments:
            text = shown.page.read_text(encoding="utf-8")
            head = f"of: {shown.command} -->\n```text\n"
            before, after = "".join(f"{line}\n" for line in shown.lines), "\n".join(marked(today, shown.lines))
            shown.page.write_text(text.replace(f"{head}{before}```", f"{head}{after}\n```"), encoding="utf-8")
    return 0 if "write" in arguments else stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
