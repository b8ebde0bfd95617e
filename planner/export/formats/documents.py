"""JSON, YAML and TOML as settings with their lines, and documents as text.

Nothing that a file says is executed or constructed: YAML is composed into nodes, whose tags are those of JSON alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.strict_json import strict_loads
from planner.export.settings import InputFile, Setting

MOST_BYTES = 1 << 18
"""Largest file that is read: configurations of real runs have a few thousand bytes."""
MOST_SETTINGS = 20_000
_DEEPEST = 40
_LONGEST_STATEMENT = 1_000


def read_document(file: InputFile) -> list[Setting]:
    """The settings of a JSON, YAML or TOML file, told apart by the name's ending.

    Objects are flattened to keys joined by dots. A list without objects is one tuple; the entries of other lists count from 0.

    Raises:
        InvalidInputError: the file cannot be read, with its line.
    """
    if len(file.content.encode(errors="replace")) > MOST_BYTES:
        raise unreadable(
            file, None, f"is larger than {MOST_BYTES >> 10} KiB", "Give the configuration of the run alone."
        )
    found = list(READERS[PurePosixPath(file.path).suffix.lower()](file))
    if len(found) > MOST_SETTINGS:
        raise unreadable(file, None, f"holds {len(found)} settings", f"At most {MOST_SETTINGS} are read.")
    return found


def loaded_json(file: InputFile) -> Any:
    """The value of a JSON file.

    Raises:
        InvalidInputError: it is not strict JSON, or nested too deeply; with its line.
    """
    try:
        value = strict_loads(file.content)
    except json.JSONDecodeError as error:
        raise unreadable(file, error.lineno, f"is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise unreadable(file, None, "is nested too deeply") from error
    except ValueError as error:
        raise unreadable(file, None, f"is not strict JSON: {error}") from error
    return value


def unreadable(file: InputFile, line: int | None, what: str, remedy: str = "") -> InvalidInputError:
    """The error that a file cannot be read, with its line where that is known."""
    where = file.path if line is None else f"{file.path}, line {line}"
    return InvalidInputError([Problem("", f"{where} {what}", remedy, "unreadable-file")])


def render_json(value: Any) -> str:
    """A document as JSON."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def render_yaml(value: Any) -> str:
    """A document as YAML, in the order in which it was written down."""
    return render_yaml_documents([value])


def render_yaml_documents(values: Sequence[Any]) -> str:
    """Several documents as one YAML file; texts of several lines are written as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes scripts so that one can read them."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(values, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True))


def render_toml(value: Mapping[str, Any]) -> str:
    """A document as TOML."""
    import tomli_w

    return tomli_w.dumps(value)


def _json(file: InputFile) -> Iterator[Setting]:
    value = loaded_json(file)
    if not isinstance(value, dict):
        raise unreadable(file, 1, "holds no object", "A configuration is an object: {...}.")
    yield from _JsonPositions(file).settings(value)


class _JsonPositions:
    """Walks over a JSON text that is known to be valid, to learn where each value stands."""

    # Without the blanks before a token: a run of blanks behind the last one would be tried from each of them to the end.
    _TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,:\[\]{}]+|[\[\]{},:]')

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._tokens = [(match.group(), match.start()) for match in self._TOKEN.finditer(file.content)]
        self._next = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", file.content))]

    def settings(self, value: Any, key: str = "", depth: int = 0) -> Iterator[Setting]:
        start = self._tokens[self._next][1]
        if depth > _DEEPEST:
            raise unreadable(self._file, self._line(start), "is nested too deeply")
        if isinstance(value, dict) and value:
            self._next += 1  # {
            for name, each in value.items():
                self._next += 2  # the name and its colon
                yield from self.settings(each, _joined(key, name), depth + 1)
                self._next += 1  # , or }
            return
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            self._next += 1
            for index, each in enumerate(value):
                yield from self.settings(each, _joined(key, str(index)), depth + 1)
                self._next += 1
            return
        self._skip()
        end = self._tokens[self._next - 1]
        first, last = self._line(start), self._line(end[1])
        text = self._file.content[start : end[1] + len(end[0])]
        if value != {}:
            column = start - self._line_starts[first - 1] + 1
            yield Setting(key, _frozen(value), self._file.path, first, column, last, text)

    def _skip(self) -> None:
        """Steps over one value."""
        depth = 0
        while True:
            part = self._tokens[self._next][0]
            self._next += 1
            depth += (part in "[{") - (part in "]}")
            if depth == 0:
                return

    def _line(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset)


def _yaml(file: InputFile) -> Iterator[Setting]:
    import yaml

    try:
        depth = 0
        for event in yaml.parse(file.content, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            line = event.start_mark.line + 1 if event.start_mark else None
            if depth > _DEEPEST:
                raise unreadable(file, line, "is nested too deeply")
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise unreadable(file, line, "uses an anchor or alias", "Write the values out.")
            if (tag := getattr(event, "tag", None)) and tag not in _PLAIN_TAGS:
                raise unreadable(file, line, f"uses the tag {tag!r}", "Tags construct objects, which is not done here.")
        nodes = list(yaml.compose_all(file.content, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise unreadable(file, None if mark is None else mark.line + 1, f"is not YAML: {problem}") from error
    except RecursionError as error:
        raise unreadable(file, None, "is nested too deeply") from error
    if len(nodes) != 1 or not isinstance(nodes[0], yaml.MappingNode):
        raise unreadable(file, 1, "does not hold one mapping", "Give a file with one document of keys and values.")
    yield from _yaml_settings(file, nodes[0], "", 0)


_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


def _yaml_settings(file: InputFile, node: Any, key: str, depth: int) -> Iterator[Setting]:
    import yaml

    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise unreadable(file, line, "is nested too deeply")
    if isinstance(node, yaml.MappingNode) and node.value:
        seen: set[str] = set()
        for name, each in node.value:
            word = str(getattr(name, "value", ""))
            if not isinstance(name, yaml.ScalarNode) or name.tag.endswith(":merge"):
                raise unreadable(file, name.start_mark.line + 1, "has a key that is not a plain word")
            if word in seen:
                raise unreadable(file, name.start_mark.line + 1, f"sets {word!r} twice", "Keep one of them.")
            seen.add(word)
            yield from _yaml_settings(file, each, _joined(key, word), depth + 1)
        return
    if isinstance(node, yaml.SequenceNode) and any(isinstance(each, yaml.MappingNode) for each in node.value):
        for index, each in enumerate(node.value):
            yield from _yaml_settings(file, each, _joined(key, str(index)), depth + 1)
        return
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
    except (ValueError, IndexError, OverflowError, yaml.YAMLError) as error:
        # `0x_` and the 45th of May look like a number and a date.
        raise unreadable(file, line, f"has a value that cannot be read: {str(node.value)[:60]!r}") from error
    if value != {}:
        text = file.content[node.start_mark.index : node.end_mark.index].rstrip()
        last = line + text.count("\n")
        yield Setting(key, _frozen(value), file.path, line, node.start_mark.column + 1, last, text)


_TOML_TABLE = re.compile(r"^\s*\[(\[?)\s*([^\[\]]+?)\s*\]?\]\s*(?:#.*)?$")
_TOML_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=\s*"""
)


def _toml(file: InputFile) -> Iterator[Setting]:
    try:
        tomllib.loads(file.content)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise unreadable(file, int(at.group(1)) if at else None, f"is not TOML: {error}") from error
    except RecursionError as error:
        raise unreadable(file, None, "is nested too deeply") from error
    except ValueError as error:
        # Python turns no number of more than 4300 digits into an integer.
        long = re.search(r"[\d_]{4300}", file.content)
        line = file.content.count("\n", 0, long.start()) + 1 if long else None
        raise unreadable(file, line, "has a number that cannot be read") from error
    lines, table, position = file.content.splitlines(), "", 0
    tables: dict[str, int] = {}
    # The standard library's parser tells no lines. It has accepted the whole file, so a statement starts wherever a key stands and
    # ends with the first line up to which it parses alone.
    while position < len(lines):
        if header := _TOML_TABLE.match(lines[position]):
            table = ".".join(_bare(part) for part in header.group(2).split("."))
            if header.group(1):
                tables[table] = tables.get(table, -1) + 1
                table = f"{table}.{tables[table]}"
        elif started := _TOML_KEY.match(lines[position]):
            last, document = _toml_statement(file, lines, position)
            text = _without_comment("\n".join(lines[position : last + 1])[started.end() :].rstrip())
            if started.group(1).count(".") > _DEEPEST:
                raise unreadable(file, position + 1, "is nested too deeply")
            for key, value in _leaves(document):
                yield Setting(_joined(table, key), value, file.path, position + 1, started.end() + 1, last + 1, text)
            position = last
        position += 1


def _toml_statement(file: InputFile, lines: list[str], first: int) -> tuple[int, dict[str, Any]]:
    """Last line of the statement that starts in a line, and what it says: a value may go on over several lines."""
    for last in range(first, min(len(lines), first + _LONGEST_STATEMENT)):
        try:
            return last, tomllib.loads("\n".join(lines[first : last + 1]))
        except tomllib.TOMLDecodeError:
            continue
    raise unreadable(file, first + 1, f"has a value of more than {_LONGEST_STATEMENT} lines")


def _without_comment(text: str) -> str:
    """A TOML value without the comment that follows it."""
    for match in re.finditer(r"\s*#", text.rpartition("\n")[2]):
        shorter = text[: len(text) - len(text.rpartition("\n")[2]) + match.start()]
        try:
            tomllib.loads(f"x = {shorter}")
        except tomllib.TOMLDecodeError:
            continue
        return shorter
    return text


def _leaves(document: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, _joined(key, name))
        else:
            yield _joined(key, name), _frozen(value)


def _bare(part: str) -> str:
    return part.strip().strip("\"'")


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(each) for each in value)
    return value


READERS: Mapping[str, Callable[[InputFile], Iterator[Setting]]] = {
    ".json": _json, ".yaml": _yaml, ".yml": _yaml, ".toml": _toml,
}  # fmt: skip
"""By ending of the file's name."""
