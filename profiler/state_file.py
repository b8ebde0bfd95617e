"""The state file of a measurement: one line per finished task, written at once, so that nothing measured is ever lost.

A rerun with the same output continues it. A line that a crash cut off is dropped; a file of another machine is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.errors import MeasurementError
from profiler.tasks import Findings

FORMAT = 1
_SUFFIX = ".partial"


def state_path(out: Path) -> Path:
    """Path of the state file of a measurement whose calibration will be written to `out`."""
    return out.with_name(out.name + _SUFFIX)


def digest_of(fingerprint: Mapping[str, Any]) -> str:
    """Digest of a fingerprint."""
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()


class State:
    """Finished tasks by key, on disk and in memory."""

    def __init__(self, path: Path, fingerprint: Mapping[str, Any], *, started_at: str) -> None:
        """Opens the file to continue it, or begins it.

        Raises:
            MeasurementError: the file belongs to another machine or another release, or cannot be written.
        """
        self.path = path
        self.findings: dict[str, Findings] = {}
        self.started_at = started_at
        self.problem: str | None = None
        """Why finished tasks are no longer written; None while they are."""
        header = {"format": FORMAT, "fingerprint": digest_of(fingerprint), "started_at": started_at}
        if path.exists():
            self._continue(header)
        else:
            self._append(header)
            if self.problem is not None:
                raise MeasurementError(
                    f"{path} cannot be written: {self.problem}", hint="Choose a folder with free space for --out."
                )

    @property
    def was_continued(self) -> bool:
        return bool(self.findings)

    def add(self, key: str, findings: Findings) -> None:
        """Keeps what a task found. A full disk is remembered but not raised: the measurement goes on in memory."""
        self.findings[key] = findings
        self._append({"key": key, "findings": findings})

    def close(self) -> None:
        """Removes the file, because everything is in the document now."""
        self.path.unlink(missing_ok=True)

    def _continue(self, header: Mapping[str, Any]) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise MeasurementError(f"{self.path} cannot be read: {error.strerror}", hint="Remove it.") from error
        records = [record for line in lines if (record := _parsed(line)) is not None]
        if not records or "format" not in records[0]:
            raise MeasurementError(f"{self.path} is not the state file of a measurement", hint="Remove or rename it.")
        if records[0]["format"] != FORMAT:
            raise MeasurementError(f"{self.path} was written by another release", hint="Remove it to start over.")
        if records[0]["fingerprint"] != header["fingerprint"]:
            raise MeasurementError(
                f"{self.path} was begun on another machine, with other software or with other settings",
                hint="Choose another file with --out, or start over with --fresh.",
            )
        self.started_at = str(records[0]["started_at"])
        self.findings = {record["key"]: record["findings"] for record in records[1:] if "key" in record}
        # Rewritten without the line that a crash cut off, to which the next line would otherwise be appended.
        write_whole(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def _append(self, record: Mapping[str, Any]) -> None:
        if self.problem is not None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
                file.flush()
                # A task takes seconds, so forcing it to the disk costs nothing, and not even a machine that dies loses it.
                os.fsync(file.fileno())
        except OSError as error:
            self.problem = error.strerror or str(error)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that whoever reads it sees either the old text or the new one, never a part."""
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def save(path: Path, text: str) -> tuple[Path, str | None]:
    """Where the text was stored, and the reason if that is not `path`. The folder for temporary files is the second choice.

    Raises:
        MeasurementError: the text could not be stored anywhere.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        spare = Path(tempfile.gettempdir()) / path.name
        reason = error.strerror or str(error)
        try:
            write_whole(spare, text)
        except OSError as second:
            raise MeasurementError(
                f"{path} cannot be written ({reason}), nor {spare} ({second.strerror})",
                hint="Free space and run the same command again: finished measurements are in its .partial file.",
            ) from second
        return spare, reason
    return path, None
