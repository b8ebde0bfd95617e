"""Every command of the program with its arguments and options as Markdown, read from the program's own help.

python -m scripts.command_reference
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main

from app.cli.main import app

# What every command has says nothing about this one.
EVERYWHERE = {"--help", "--install-completion", "--show-completion"}
# Typer brings a copy of click along since 0.27 and used the package before, so no type of either is named here.
Command = Any
Parameter = Any


def commands() -> str:
    """One section for each command, the program's own options first."""
    return "\n\n".join(_section(name, command) for name, command in walk("meshwright", typer.main.get_command(app)))


def walk(name: str, command: Command) -> Iterator[tuple[str, Command]]:
    """A command and everything below it, each under the words that call it."""
    yield name, command
    for key, inner in getattr(command, "commands", {}).items():
        yield from walk(f"{name} {key}", inner)


def _section(name: str, command: Command) -> str:
    anchor, subcommands = name.replace(" ", "-"), getattr(command, "commands", {})
    parts = [f"({anchor})=\n## `{name}`", command.help or ""]
    if subcommands:
        entries = [f"| [`{name} {key}`](#{anchor}-{key}) | {_summary(each)} |" for key, each in subcommands.items()]
        parts.append("\n".join(["| command | what it does |", "| --- | --- |", *entries]))
    shown = [each for each in command.params if not EVERYWHERE & set(each.opts) and not getattr(each, "hidden", False)]
    if shown:
        rows = [_row(each) for each in sorted(shown, key=lambda each: each.param_type_name)]
        parts.append(
            "\n".join(["| argument or option | value | default | meaning |", "| --- | --- | --- | --- |", *rows])
        )
    return "\n\n".join(part for part in parts if part)


def _summary(command: Command) -> str:
    return str(command.help or "").partition("\n")[0]


def _row(parameter: Parameter) -> str:
    """One line of a command's table."""
    is_argument = parameter.param_type_name == "argument"
    names = (
        [(parameter.metavar or parameter.name).upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    )
    value = "" if is_argument or getattr(parameter, "is_flag", False) else _value(parameter)
    meaning = " ".join(str(parameter.help or "").split())
    if variable := getattr(parameter, "envvar", None):
        meaning += f" The environment variable `{variable}` says the same."
    cells = [f"`{', '.join(names)}`", value, "required" if parameter.required else _default(parameter), meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _value(parameter: Parameter) -> str:
    """What an option takes, in a word, or its choices."""
    if parameter.metavar:
        return f"`{parameter.metavar}`"
    kind = parameter.type_descriptor.annotation if hasattr(parameter, "type_descriptor") else parameter.type
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if choices := getattr(kind, "choices", None):
        return ", ".join(f"`{choice}`" for choice in choices)
    name = str(kind.__name__ if isinstance(kind, type) else getattr(kind, "name", ""))
    return {"str": "text", "int": "whole number", "integer": "whole number", "float": "number"}.get(name, name.lower())


def _default(parameter: Parameter) -> str:
    """A default that is a plain value; flags are off, and other defaults are told in the option's words."""
    if isinstance(told := getattr(parameter, "show_default", None), str):
        return told
    value = parameter.default
    return f"`{value}`" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


if __name__ == "__main__":
    print(commands())
