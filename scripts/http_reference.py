"""The calls of the HTTP interface and the service's settings as Markdown tables.

python -m scripts.http_reference
"""

from __future__ import annotations

import ast
import inspect
import tempfile
from itertools import pairwise
from pathlib import Path

from app.service.main import create_app
from app.settings import Settings


def calls() -> str:
    """Every call with what it does, in the order of the OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder), log_level="error")).openapi()
    lines = ["| call | what it does |", "| --- | --- |"]
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            words = str(call.get("description") or call.get("summary", "")).split("\n\n")[0]
            lines.append(f"| `{method.upper()} {path}` | {' '.join(words.split())} |")
    return "\n".join(lines)


def settings() -> str:
    """Every setting of the service with its environment variable and default."""
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    meanings = _attribute_docstrings()
    prefix = str(Settings.model_config["env_prefix"])
    for name, field in Settings.model_fields.items():
        default = f"`{field.default}`" if field.default is not None and field.default_factory is None else ""
        lines.append(f"| `{prefix}{name.upper()}` | {default} | {meanings.get(name, '')} |")
    return "\n".join(lines)


def _attribute_docstrings() -> dict[str, str]:
    """What stands under each setting in the source."""
    (definition,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


if __name__ == "__main__":
    print(f"{calls()}\n\n{settings()}")
