"""Changes of one setting in the text of a file that somebody wrote: everything else stays as it is, comments too.

A change is placed where the setting stands, which its reader has noted. Where a text is written in a way that no place can be found
for a change, there is none, and the caller says so instead of guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from planner.export.settings import InputFile, Setting


@dataclass(frozen=True)
class Place:
    """A range of characters and what takes its place."""

    start: int
    end: int
    text: str


def offset_of(content: str, line: int, column: int) -> int:
    """Position of a line and column that count from 1."""
    start = 0
    for _ in range(line - 1):
        found = content.find("\n", start)
        if found < 0:
            return len(content)
        start = found + 1
    return start + column - 1


def replaced(file: InputFile, setting: Setting, text: str) -> Place | None:
    """Another value for a setting; None where its text does not stand at its place."""
    if setting.value is True and setting.own_key.startswith("-") and setting.text == setting.own_key:
        # A switch has no value to replace; transformers' arguments are off where they are not there.
        return removed(file, setting) if text.lower() == "false" else None
    start = offset_of(file.content, setting.line, setting.column)
    said = value_text(setting)
    start += len(setting.text) - len(said)
    # A quoted word of a script starts with its quote, and the value that was noted is without it.
    for at in (start, start + 1):
        if said and file.content.startswith(said, at):
            return Place(at, at + len(said), text)
    return None


def value_text(setting: Setting) -> str:
    """The text of a value alone: an option and its value may be one word, `--option=value`."""
    return setting.text.removeprefix(f"{setting.own_key}=") if setting.own_key.startswith("-") else setting.text


def removed(file: InputFile, setting: Setting) -> Place | None:
    """The file without a setting."""
    return _OF_ENDING[_kind(file)].remove(file, setting)


def added(file: InputFile, beside: Sequence[Setting], further: Sequence[tuple[str, str]]) -> list[Place | None]:
    """The file with further settings: a place for each, or None where there is none.

    Args:
        beside: the settings of the file that are understood; one stands behind the last of these that lies beside it.
        further: key and text of each, as this file's language writes it; the text of a switch is "".
    """
    # Options of a command need no part to stand in; each has a place of its own.
    add = _OF_ENDING[_kind(file)].add
    if _kind(file) == "words":
        return [add(file, beside, {key: text}) for key, text in further]
    # Keys below a part that the file does not have yet stand in it together.
    groups: dict[str, dict[str, str]] = {}
    for key, text in further:
        _, names = _siblings(beside, key)
        missing = key if len(names) == 1 else key.removesuffix(".".join(names)) + names[0]
        groups.setdefault(missing, {})[key] = text
    places = {tuple(group): add(file, beside, group) for group in groups.values()}
    found: list[Place | None] = []
    for key, _ in further:
        group, place = next((group, place) for group, place in places.items() if key in group)
        # One place for all of them, which the first one has.
        found.append(place if place is None or group[0] == key else Place(place.start, place.start, ""))
    return found


Kind = Literal["json", "yaml", "toml", "python", "words"]


def _kind(file: InputFile) -> Kind:
    ending = PurePosixPath(file.path).suffix.lower()
    kinds: Mapping[str, Kind] = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".py": "python"}
    return kinds.get(ending, "words")


def _value_at(file: InputFile, setting: Setting) -> tuple[int, int] | None:
    place = replaced(file, setting, "")
    return None if place is None else (place.start, place.end)


def _indent(content: str, at: int) -> str:
    start = content.rfind("\n", 0, at) + 1
    return content[start : len(content) - len(content[start:].lstrip(" \t"))]


def _whole_lines(file: InputFile, start: int, end: int) -> Place:
    """The lines of a range, removed."""
    first = file.content.rfind("\n", 0, start) + 1
    last = file.content.find("\n", end)
    return Place(first, len(file.content) if last < 0 else last + 1, "")


def _siblings(beside: Sequence[Setting], key: str) -> tuple[list[Setting], list[str]]:
    """Settings under the longest part of a key that the file has, and the names below that part."""
    names = key.split(".")
    for depth in range(len(names) - 1, 0, -1):
        parent = ".".join(names[:depth]) + "."
        # By the keys that the file has: a file of an older release may have them in other parts.
        found = [each for each in beside if each.own_key.startswith(parent) and "." not in each.own_key[len(parent) :]]
        if found:
            return found, names[depth:]
    return [each for each in beside if "." not in each.own_key], names


# JSON


def _remove_json(file: InputFile, setting: Setting) -> Place | None:
    found = _value_at(file, setting)
    if found is None:
        return None
    name = re.search(r'"(?:[^"\\]|\\.)*"\s*:\s*$', file.content[: found[0]])
    if name is None:
        return None
    start, end = name.start(), found[1]
    if after := re.match(r"\s*,", file.content[end:]):
        end += after.end()
        # The space in front of what follows goes, so that the next key takes this one's place.
        end += len(file.content[end:]) - len(file.content[end:].lstrip())
    else:
        start = len(re.sub(r",?\s*$", "", file.content[:start]))
    return Place(start, end, "")


def _add_json(file: InputFile, beside: Sequence[Setting], further: Mapping[str, str]) -> Place | None:
    siblings, names = _siblings(beside, next(iter(further)))
    value = _json_text(_tree(further, names))[1:-1]
    if not siblings:
        start = file.content.find("{") + 1
        rest = file.content[start:].lstrip()
        if not start or not rest:
            return None
        return Place(start, start, f"\n  {value}" + ("" if rest.startswith("}") else ","))
    last = _value_at(file, siblings[-1])
    if last is None:
        return None
    first_of_line = file.content.rfind("\n", 0, last[0]) + 1
    alone = re.match(r'\s*"(?:[^"\\]|\\.)*"\s*:\s*', file.content[first_of_line : last[0]])
    between = f"\n{_indent(file.content, last[0])}" if alone and alone.end() == last[0] - first_of_line else " "
    return Place(last[1], last[1], f",{between}{value}")


Tree = dict[str, Any]


def _tree(further: Mapping[str, str], names: Sequence[str]) -> Tree:
    """The keys below what the file has as objects in objects, whose leaves are texts; `names` are those of the first one."""
    found: Tree = {}
    above = len(next(iter(further)).split(".")) - len(names)
    for key, text in further.items():
        *path, last = key.split(".")[above:]
        part = found
        for name in path:
            part = part.setdefault(name, {})
        part[last] = text
    return found


def _json_text(tree: Tree | str) -> str:
    if isinstance(tree, str):
        return tree
    return "{" + ", ".join(f"{json.dumps(name)}: {_json_text(each)}" for name, each in tree.items()) + "}"


# YAML, in blocks


def _remove_yaml(file: InputFile, setting: Setting) -> Place | None:
    found = _value_at(file, setting)
    if found is None:
        return None
    first_of_line = file.content.rfind("\n", 0, found[0]) + 1
    name = re.escape(setting.own_key.rpartition(".")[2])
    if re.fullmatch(rf"\s*[\"']?{name}[\"']?\s*:\s*", file.content[first_of_line : found[0]]):
        return _whole_lines(file, first_of_line, found[1])
    return None


def _add_yaml(file: InputFile, beside: Sequence[Setting], further: Mapping[str, str]) -> Place | None:
    siblings, names = _siblings(beside, next(iter(further)))
    siblings = [each for each in siblings if _remove_yaml(file, each) is not None]
    whole = file.content if file.content.endswith("\n") else file.content + "\n"
    if siblings:
        found = _value_at(file, siblings[-1])
        assert found is not None  # what can be removed has a place
        indent, at = _indent(file.content, found[0]), file.content.find("\n", found[1])
    else:
        indent, at = "", -1
    block = _yaml_text(_tree(further, names), indent)
    if at < 0:
        return Place(len(file.content), len(file.content), whole[len(file.content) :] + block)
    return Place(at + 1, at + 1, block)


def _yaml_text(tree: Tree, indent: str) -> str:
    return "".join(
        f"{indent}{name}: {each}\n" if isinstance(each, str) else f"{indent}{name}:\n{_yaml_text(each, indent + '  ')}"
        for name, each in tree.items()
    )


# TOML


def _remove_toml(file: InputFile, setting: Setting) -> Place | None:
    found = _value_at(file, setting)
    if found is None:
        return None
    first_of_line = file.content.rfind("\n", 0, found[0]) + 1
    if re.fullmatch(r"\s*[\w.\"'-]+\s*=\s*", file.content[first_of_line : found[0]]):
        return _whole_lines(file, first_of_line, found[1])
    return None


def _add_toml(file: InputFile, beside: Sequence[Setting], further: Mapping[str, str]) -> Place | None:
    table = next(iter(further)).rpartition(".")[0]
    siblings = [each for each in beside if each.own_key.rpartition(".")[0] == table]
    siblings = [each for each in siblings if _remove_toml(file, each) is not None]
    # A table that is missing is missing for all of them; below another one, names may hold dots.
    lines = {key.removeprefix(f"{table}."): text for key, text in further.items()}
    if not siblings:
        gap = "" if file.content.endswith("\n") else "\n"
        block = "".join(f"{name} = {text}\n" for name, text in lines.items())
        return Place(len(file.content), len(file.content), f"{gap}\n[{table}]\n{block}")
    found = _value_at(file, siblings[-1])
    assert found is not None  # what can be removed has a place
    at = file.content.find("\n", found[1])
    block = "".join(f"{_indent(file.content, found[0])}{name} = {text}\n" for name, text in lines.items())
    return Place(at + 1, at + 1, block) if at >= 0 else Place(len(file.content), len(file.content), "\n" + block)


# Keyword arguments of Python calls


def _remove_python(file: InputFile, setting: Setting) -> Place | None:
    found = _value_at(file, setting)
    name = re.escape(setting.own_key.rpartition(".")[2])
    before = re.search(rf"\b{name}\s*=\s*$", file.content[: found[0]]) if found else None
    if found is None or before is None:
        return None
    after = re.match(r"\s*,[ \t]*\n?", file.content[found[1] :])
    start, end = before.start(), found[1] + (after.end() if after else 0)
    if after and after.group().endswith("\n"):
        start = file.content.rfind("\n", 0, start) + 1
    return Place(start, end, "")


def _add_python(file: InputFile, beside: Sequence[Setting], further: Mapping[str, str]) -> Place | None:
    section = next(iter(further)).rpartition(".")[0]
    siblings = [each for each in beside if each.own_key.rpartition(".")[0] == section]
    siblings = [each for each in siblings if _remove_python(file, each) is not None]
    if not siblings:
        return None
    found = _value_at(file, siblings[-1])
    assert found is not None  # what can be removed has a place
    first_of_line = file.content.rfind("\n", 0, found[0]) + 1
    alone = not re.search(r"[(,]", file.content[first_of_line : found[0]])
    between = f"\n{_indent(file.content, found[0])}" if alone else " "
    words = "".join(f",{between}{key.rpartition('.')[2]}={text}" for key, text in further.items())
    return Place(found[1], found[1], words)


# Words of commands

_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"')\\]+)"""


def _option_at(file: InputFile, setting: Setting) -> tuple[int, int] | None:
    """Where an option stands with its values: they follow it, or are the variable in its place."""
    count = 0 if setting.value is True else len(setting.value) if isinstance(setting.value, tuple) else 1
    between = r"(?:\s|\\\n)+"
    pattern = (
        rf"(?<![\w-]){re.escape(setting.own_key)}(?:=|{between}){_VALUE}(?:{between}{_VALUE}){{{max(count - 1, 0)}}}"
    )
    if count == 0:
        pattern = rf"(?<![\w-]){re.escape(setting.own_key)}(?![\w=-])"
    found = [match for match in re.finditer(pattern, file.content) if not _in_comment(file.content, match.start())]
    return found[-1].span() if found else None


def _in_comment(content: str, at: int) -> bool:
    line = content[content.rfind("\n", 0, at) + 1 : at]
    return bool(re.search(r"(?:^|\s)#", line))


def _remove_words(file: InputFile, setting: Setting) -> Place | None:
    found = _option_at(file, setting) if setting.own_key.startswith("-") else None
    if found is None:
        return None
    start, end = found
    first_of_line = file.content.rfind("\n", 0, start) + 1
    alone = not file.content[first_of_line:start].strip()
    rest = re.match(r"[ \t]*\\?\n", file.content[end:])
    if alone and rest and ("\\" in rest.group() or not _goes_on(file.content, first_of_line)):
        return Place(first_of_line, end + rest.end(), "")
    if alone and rest:
        # The last line of a command goes with the backslash before it, which would lead on to nothing.
        before = file.content[:first_of_line].rstrip().removesuffix("\\").rstrip()
        return Place(len(before), end + rest.end() - 1, "")
    if alone and rest is None:
        after = file.content[end:]
        return Place(start, end + len(after) - len(after.lstrip(" \t")), "")
    # One of several words of a line goes with the space in front of it.
    return Place(len(file.content[:start].rstrip(" \t")), end, "")


def _add_words(file: InputFile, beside: Sequence[Setting], further: Mapping[str, str]) -> Place | None:
    ((key, text),) = further.items()
    if key.startswith("$"):
        return None
    for anchor in reversed(beside):
        found = _option_at(file, anchor) if anchor.own_key.startswith("--") else None
        if found is None:
            continue
        words = f"{key} {text}".rstrip()
        indent = _indent(file.content, found[0])
        end = file.content.find("\n", found[1])
        line = file.content[found[1] : len(file.content) if end < 0 else end]
        # A line that goes on is followed by one of its own.
        if line.rstrip().endswith("\\"):
            at = found[1] + len(line.rstrip().removesuffix("\\").rstrip())
            return Place(at, at, f" \\\n{indent or '  '}{words}")
        first_of_line = file.content.rfind("\n", 0, found[0]) + 1
        # An option that starts a line which no other one goes on to stands in an array or a text of several lines.
        in_list = not file.content[first_of_line : found[0]].strip() and not _goes_on(file.content, first_of_line)
        return Place(found[1], found[1], f"\n{indent}{words}" if in_list else f" {words}")
    return None


def _goes_on(content: str, first_of_line: int) -> bool:
    """Whether the line before goes on in the one that starts here."""
    return first_of_line == 0 or content[: first_of_line - 1].rstrip(" \t").endswith("\\")


@dataclass(frozen=True)
class _Language:
    remove: Callable[[InputFile, Setting], Place | None]
    add: Callable[[InputFile, Sequence[Setting], Mapping[str, str]], Place | None]


_OF_ENDING: Mapping[Kind, _Language] = {
    "json": _Language(_remove_json, _add_json), "yaml": _Language(_remove_yaml, _add_yaml), "toml": _Language(_remove_toml, _add_toml),
    "python": _Language(_remove_python, _add_python), "words": _Language(_remove_words, _add_words),
}  # fmt: skip


def applied(content: str, places: Sequence[Place]) -> str:
    """The text with all of its changes. Several additions at one place follow each other in their order."""
    result, before = [], 0
    for place in sorted(places, key=lambda each: (each.start, each.end)):
        if place.start < before:  # inside of what another change has taken out
            continue
        result += [content[before : place.start], place.text]
        before = place.end
    return "".join([*result, content[before:]])
