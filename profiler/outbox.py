"""Calibrations on their way to a service. They are kept on disk until it has them; if it is away, the next run sends them again.

How a document travels is the caller's business (`send`). This module knows what waits for which service, and what became of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.errors import CalibrationError, MeshwrightError
from cost_models.hardware import read_document
from profiler.state_file import write_whole

Send = Callable[[dict[str, Any]], str]
"""Uploads a document and returns its id. Uploading one twice changes nothing."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the documents that waited."""

    sent: tuple[str, ...]
    """Ids of documents that the service now has."""
    waiting: tuple[str, ...]
    damaged: tuple[Path, ...]
    """Files that can no longer be read as calibrations. They are left where they are."""
    problem: MeshwrightError | None
    """The error that stopped the sending; None if nothing did."""


class Outbox:
    """A folder of documents, each of which waits for one service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, document: CalibrationDocument, *, server: str) -> Path:
        """Keeps a document until `server` has it."""
        folder = self._folder / folder_name(server)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{document.id}.json"
        write_whole(path, document.file_text())
        return path

    def waiting(self, server: str) -> Iterator[Path]:
        """Files that wait for this service, oldest first."""
        folder = self._folder / folder_name(server)
        yield from sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))

    def deliver(self, server: str, send: Send) -> Delivery:
        """Sends what waits for this service until something stops it. A file is removed only once its document has arrived."""
        sent: list[str] = []
        damaged: list[Path] = []
        problem: MeshwrightError | None = None
        # Oldest first, so that "the newest calibration" of the service is the newest one measured.
        for path in list(self.waiting(server)):
            try:
                document = read_document(path)
            except CalibrationError:
                damaged.append(path)
                continue
            try:
                sent.append(send(json.loads(document.file_text())))
            except MeshwrightError as error:
                problem = error
                break
            # Two runs may send the same file at once; the service stores a document once, by its digest.
            path.unlink(missing_ok=True)
        left = tuple(path.stem for path in self.waiting(server) if path not in damaged)
        return Delivery(tuple(sent), left, tuple(damaged), problem)


def folder_name(server: str) -> str:
    """Name of the folder for the address of a service."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in server.rstrip("/").lower())
