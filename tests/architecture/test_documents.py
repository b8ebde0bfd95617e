"""The documents are held to the program: commands that are shown exist, with their options and files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from app.cli.main import app

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *(ROOT / "docs").glob("*.md"),
]
SHOWN = re.compile(
    r"^    ((?:\./run|\./test|meshwright) ?[^\n]*)$|`((?:\./run|\./test|meshwright) [^`\n]+)`", re.MULTILINE
)


def shown_commands() -> list[str]:
    found = [match for document in DOCUMENTS for match in SHOWN.findall(document.read_text())]
    return sorted({(block or inline).strip() for block, inline in found})


def test_documents_show_commands() -> None:
    shown = " ".join(shown_commands())
    assert all(f"meshwright {name}" in shown for name in ("plan", "evaluate", "serve", "db upgrade", "keys create"))


@pytest.mark.parametrize("line", shown_commands())
def test_shown_command_exists(line: str) -> None:
    """The program, its subcommand, every option and every file that the line names."""
    program, *words = [word for word in shlex.split(line, comments=True) if word != "..."]
    if program.startswith("./"):
        script = ROOT / program
        assert script.is_file()
        assert script.stat().st_mode & 0o111
    if program == "./test" or words[:1] == ["ARGUMENTS"]:
        return
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert not getattr(command, "commands", {}) or not words or words[0].startswith("-") or "/" in words[0]
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options
        elif word.startswith("examples/"):
            assert (ROOT / word).exists()
