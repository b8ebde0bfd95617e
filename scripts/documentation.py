"""Fills pages of docs/ with what the program knows of itself, and turns pictures into text that needs no script.

A page marks the place with `<!-- filled: NAME -->`. On a Git host, where nothing fills it, the page says how to print the
same. Mermaid pictures become tables of their arrows: a browser draws them only with a script of three megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from scripts import code_reference, command_reference, field_reference, http_reference

FILLINGS: Mapping[str, Callable[[], str]] = {
    "fields of a request": field_reference.request,
    "fields of a strategy": field_reference.strategy,
    "fields of an answer": field_reference.answer,
    "fields of a tuning": field_reference.tuning,
    "fields of a trial record": field_reference.trial,
    "commands": command_reference.commands,
    "calls": http_reference.calls,
    "settings": http_reference.settings,
    "exit codes": code_reference.exit_codes,
    "reasons": code_reference.reasons,
    "errors": code_reference.errors,
    "warnings": code_reference.warnings,
    "terms of time": code_reference.time_terms,
    "terms of memory": code_reference.memory_terms,
}
_MARK = re.compile(r"<!-- filled: ([\w ]+) -->")
_PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NODE = re.compile(r'^\s*(\w+)\["([^"]+)"\]$', re.MULTILINE)
_ARROW = re.compile(r'^\s*(\w+) --(?: "([^"]+)" --)?> (\w+)$', re.MULTILINE)


def filled(text: str) -> str:
    """The Markdown of a page with every mark and picture replaced.

    Raises:
        KeyError: a mark names nothing that can be filled in.
    """
    text = _MARK.sub(lambda mark: FILLINGS[mark[1]](), text)
    return _PICTURE.sub(lambda picture: arrows(picture[1]), text)


def arrows(picture: str) -> str:
    """The arrows of a Mermaid flowchart as a Markdown table: from, what is handed on, to."""
    names = {key: "<br>".join(f"`{part}`" for part in label.split("<br/>")) for key, label in _NODE.findall(picture)}
    lines = [f"| {names[start]} | {what} | {names[end]} |" for start, what, end in _ARROW.findall(picture)]
    return "\n".join(["| from | hands on | to |", "| --- | --- | --- |", *lines])
