"""Calls in Python as text, and a Python program's configuration read from its syntax tree: nothing is imported or run.

Keyword arguments of calls get keys such as "MegatronStrategy.context_parallel_size", by the last part of what is called; attributes
that are assigned, "recipe.trainer.strategy.context_parallel_size"; constants of the module, "VOCAB_SIZE". Values are literals, names of
such constants, and names with dots, such as `torch.bfloat16`, as texts; everything else stays open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from planner.export.settings import InputFile, Setting

_OPEN = object()
_MOST_DEPTH = 60


class Code(str):
    """A text that is Python code, not a text of it."""

    __slots__ = ()


def call(name: str, arguments: Mapping[str, Any], indent: str = "    ") -> str:
    """A call in Python, one argument a line; texts that are code are given as `Code`."""
    lines = "".join(
        f"{indent}    {key}={value if isinstance(value, Code) else repr(value)},\n" for key, value in arguments.items()
    )
    return f"{name}(\n{lines}{indent})"


def read_module(file: InputFile) -> list[Setting]:
    """The settings of a module, in the order of its lines.

    Raises:
        SyntaxError: it is not Python, with its line.
    """
    tree = ast.parse(file.content)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = [each for node in ast.walk(tree) for each in _settings(node, constants, file)]
    return sorted(found, key=lambda setting: (setting.line, setting.column))


def _settings(node: ast.AST, constants: Mapping[str, ast.expr], file: InputFile) -> Iterator[Setting]:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        # NeMo-Run configures a class by `run.Config(Class, keyword=…)`.
        if name in ("Config", "Partial") and node.args:
            name = ast.unparse(node.args[0]).rpartition(".")[2]
        for keyword in node.keywords:
            if keyword.arg is not None and not _is_structure(keyword.value):
                yield _setting(f"{name}.{keyword.arg}", keyword.value, constants, file)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and not _is_structure(node.value):
        target = node.targets[0]
        is_constant = isinstance(target, ast.Name) and target.id.isupper()
        if is_constant or isinstance(target, ast.Attribute):
            yield _setting(ast.unparse(target), node.value, constants, file)


def segment(content: str, node: ast.expr | ast.stmt) -> str:
    """The text of a node, as `ast.get_source_segment` finds it, which splits the whole program anew for every one."""
    lines = _lines(content)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    found = list(lines[first : last + 1])
    # Columns count bytes; the end is cut first, since both may lie in one line.
    found[-1] = found[-1][: node.end_col_offset]
    found[0] = found[0][node.col_offset :]
    return b"\n".join(found).decode()


@lru_cache(maxsize=8)
def _lines(content: str) -> tuple[bytes, ...]:
    return tuple(content.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n"))


def _is_structure(node: ast.expr) -> bool:
    """Whether a value is an object of a class, whose own arguments are settings; other calls only running could tell."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2][:1].isupper()


def _setting(key: str, node: ast.expr, constants: Mapping[str, ast.expr], file: InputFile) -> Setting:
    value = _value(node, constants)
    text = segment(file.content, node)
    is_open = value is _OPEN
    return Setting(
        key,
        None if is_open else value,
        file.path,
        node.lineno,
        node.col_offset + 1,
        node.end_lineno or 0,
        text,
        is_open,
    )


def _value(node: ast.expr, constants: Mapping[str, ast.expr], depth: int = 0) -> Any:
    """The value of a literal; lists become tuples."""
    # Constants of a module may name each other, in a circle at worst.
    if isinstance(node, ast.Name) and node.id in constants and depth < _MOST_DEPTH:
        return _value(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        return text if text.replace(".", "").replace("_", "").isalnum() else _OPEN
    try:
        return _frozen(ast.literal_eval(node))
    except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError):
        return _OPEN


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value
