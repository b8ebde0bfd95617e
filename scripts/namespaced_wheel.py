"""Puts everything that a wheel installs under the one name `meshwright`, so that a user's own `app.py` or `profiler/` meets none of ours.

In the checkout the packages are `app`, `planner`, `cost_models`, `profiler` and `meshwright`, side by side. A wheel holds the first four as
`meshwright/app` and so on, with every import and every dotted name in a string rewritten; hatchling calls the hook below. An editable
installation, as `./test` makes it, is the checkout itself. What a rewriting could miss is refused while building: a plain
`import app.x`, which binds a name that is no longer there, and a dotted name inside of a longer string.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FRONT = "meshwright"
MOVED = ("app", "cost_models", "planner", "profiler")
REVISION = "revision.txt"
"""Beside `planner/revision.py`: the revision of the sources before they were rewritten, which a wheel shares with its checkout."""
_NAMES = "|".join(MOVED)
_DOTTED = re.compile(rf"(?:{_NAMES})(?:\.\w+)+\.?(?::\w+)?")
_INSIDE = re.compile(rf"\b(?:from|import) (?:{_NAMES})\b|(?<![\w./-])(?:{_NAMES})\.\w+\.\w+")
# Data under share-alike terms never goes into what is distributed as Apache-2.0.
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "share_alike")


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling looks for a hook of this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Gives the rewritten packages to the wheel; nothing for an editable installation."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="meshwright-wheel-"))
        build_data["force_include"][str(namespaced(Path(self.root), self._folder))] = FRONT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the rewritten packages again."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self._folder)


def namespaced(root: Path, folder: Path) -> Path:
    """The package `meshwright` with the other packages of a checkout inside, made in this folder."""
    whole = folder / FRONT
    shutil.copytree(root / FRONT, whole, ignore=_LEFT_OUT)
    for name in MOVED:
        shutil.copytree(root / name, whole / name, ignore=_LEFT_OUT)
    for file in sorted(whole.rglob("*.py")):
        file.write_text(rewritten(file.read_text(encoding="utf-8"), origin=str(file)), encoding="utf-8")
    (whole / "planner" / REVISION).write_text(_revision(root), encoding="utf-8")
    return whole


def rewritten(source: str, *, origin: str = "<source>") -> str:
    """The source with the moved packages named under the front.

    Raises:
        ValueError: the source names one of them in a way that cannot be rewritten.
    """
    tree = ast.parse(source, origin)
    lines = source.splitlines(keepends=True)
    # From the last place to the first, so that no change moves a place that is still to come.
    for line, column, name in sorted(set(_places(tree, origin)), reverse=True):
        text = lines[line - 1].encode()
        before, after = text[:column].decode(), text[column:].decode()
        at = after.index(name)
        lines[line - 1] = f"{before}{after[:at]}{FRONT}.{after[at:]}"
    return "".join(lines)


def _places(tree: ast.Module, origin: str) -> Iterator[tuple[int, int, str]]:
    """Line, column in bytes from which to look, and the dotted name that is to be found there."""
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_moved(node.module or ""):
            yield node.lineno, node.col_offset, str(node.module)
        elif isinstance(node, ast.Import):
            yield from _imported(node, origin)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            if _DOTTED.fullmatch(node.value):
                yield node.lineno, node.col_offset, node.value
            elif _INSIDE.search(node.value):
                raise ValueError(
                    f"{origin}:{node.lineno}: {node.value!r} names a package that a wheel holds under {FRONT}"
                )


def _imported(node: ast.Import, origin: str) -> Iterator[tuple[int, int, str]]:
    for alias in node.names:
        if _is_moved(alias.name):
            # It binds the name of the package, which the code below it uses and which would not be there.
            if alias.asname is None:
                raise ValueError(f"{origin}:{node.lineno}: write `from … import …` in place of `import {alias.name}`")
            yield alias.lineno, alias.col_offset, alias.name


def _is_moved(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in MOVED


def _revision(root: Path) -> str:
    """The revision of the checkout's sources, by the checkout's own rule."""
    # By its path, because the checkout need not be importable where a wheel is built.
    spec = importlib.util.spec_from_file_location("meshwright_revision", root / "planner" / "revision.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.content_revision(root))
