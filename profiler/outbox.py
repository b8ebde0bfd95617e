"""Calibrations on their way to a service: kept on disk until it has them, sent again by the next run when it was away.

How a document travels is the caller's business (`send`); here is only what waits, for whom, and what became of it.
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
"""Uploads a document and returns its id; uploading one twice changes nothing."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of what waited."""

    sent: tuple[str, ...]
    """Ids that the service has now."""
    waiting: tuple[str, ...]
    damaged: tuple[Path, ...]
    """Files that are no calibrations any more; left where they are."""
    problem: MeshwrightError | None
    """What stopped the sending."""


class Outbox:
    """A folder of documents that wait for one service each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, document: CalibrationDocument, *, server: str) -> Path:
        """Keeps a document until `server` has it."""
        folder = self._folder / _folder_name(server)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{document.id}.json"
        write_whole(path, document.file_text())
        return path

    def waiting(self, server: str) -> Iterator[Path]:
        """Files that wait for this service, oldest first."""
        folder = self._folder / _folder_name(server)
        yield from sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))

    def deliver(self, server: str, send: Send) -> Delivery:
        """Sends what waits for this service until something stops it; nothing leaves the folder before it has arrived."""
        sent: list[str] = []
        damaged: list[Path] = []
        problem: MeshwrightError | None = None
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
            path.unlink(missing_ok=True)
        left = tuple(path.stem for path in self.waiting(server) if path not in damaged)
        return Delivery(tuple(sent), left, tuple(damaged), problem)


def _folder_name(server: str) -> str:
    """A folder's name for an address."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in server.rstrip("/").lower())
