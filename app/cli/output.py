"""What commands print on stdout: JSON, one document per line, for readers who may leave before the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

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


def require_other_file(path: Path, *, option: str, read: Iterable[str]) -> None:
    """Refuses to write over a file that the command reads, whatever else is allowed: it may hold hours of measuring.

    Raises:
        InvalidInputError: the path is one of those files.
    """
    if path.exists() and any(source != "-" and Path(source).exists() and path.samefile(source) for source in read):
        message = f"{option} {path} is one of the files that are read"
        raise InvalidInputError([Problem("", message, f"Give another {option}.", "file-exists")])


def require_free(path: Path, read: str, *, force: bool) -> None:
    """Refuses a page's file that is there, the file that is read, and a place that no file can have.

    Args:
        path: what `--html` named.
        read: the file that the command reads; `-` for none.
        force: whether a file that is there may be replaced.

    Raises:
        InvalidInputError: the page cannot be written there.
    """
    # Elsewhere `-` is a stream; a file of that name would be found by nobody.
    if path.is_dir() or str(path) == "-":
        told = "a folder" if path.is_dir() else "no file's name"
        _refuse(f"--html {path} is {told}", "Give the path of the page, such as plan.html.", "not-a-file")
    require_name(path, option="--html", example="plan.html")
    if not path.parent.is_dir():
        _refuse(f"{path.parent} is not a folder", "Make it first, or give another --html.", "not-a-folder")
    # A link counts as a file even where what it leads to is gone.
    if not (path.exists() or path.is_symlink()):
        return
    # Before --force is looked at: the answer may have taken hours, and a page cannot be turned back into it.
    if read != "-" and path.exists() and path.samefile(read):
        _refuse(f"--html {path} is the response itself", "Give another --html, such as plan.html.", "file-exists")
    if not force:
        _refuse(f"{path} is there already", "Give another --html, or --force to replace it.", "file-exists")


def _refuse(message: str, hint: str, code: str) -> NoReturn:
    raise InvalidInputError([Problem("", message, hint, code)])


def write_file(path: Path, text: str) -> None:
    """Writes the text beside its place and then moves it there, so that a full disk costs no file that is there already.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():  # a device or a pipe, such as /dev/stdout
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    # A link is replaced by that, not followed: it would lead to a file that was not named.
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


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
