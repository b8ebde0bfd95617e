"""What commands print on stdout: JSON, one document per line, for readers who may leave before the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from cost_models.errors import InvalidInputError, Problem


def require_name(path: Path, *, option: str, example: str) -> None:
    """Refuses an output whose name begins with a dash: an option was meant, and a file called `--force` is hard to get rid of.

    Raises:
        InvalidInputError: the path begins with a dash.
    """
    if str(path).startswith("-"):
        hint = f"Give {option} a name such as {example}; further options go behind it."
        raise InvalidInputError([Problem("", f"{option} {path} begins with a dash, as options do", hint, "not-a-name")])


def write_document(document: Mapping[str, Any]) -> None:
    """Writes one line of JSON; raises for NaN or Infinity, which are not JSON."""
    sys.stdout.write(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Ends the program quietly when the reader of stdout closes it, as in `meshwright plan | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would print an error about the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
