"""What commands print on stdout: JSON, one document per line, for readers who may leave before the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer


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
