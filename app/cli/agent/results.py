"""Results of measurements on their way to the service, on disk until it has answered: an agent that is restarted sends them again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profiler.state_file import write_whole

_SUFFIX = ".result.json"
_KEPT_S = 7 * 86_400.0


class Results:
    """A folder of results, each under the name of its job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sweep(self) -> None:
        """Makes the folder, and removes from it what nobody has continued or looked at for a week."""
        self._folder.mkdir(parents=True, exist_ok=True)
        oldest = time.time() - _KEPT_S
        for path in self._folder.iterdir():
            # Results wait for as long as it takes.
            if not path.name.endswith(_SUFFIX) and path.is_file() and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def put(self, job_id: str, result: dict[str, Any]) -> None:
        """Keeps a result until `drop`."""
        write_whole(self._path(job_id), json.dumps(result, allow_nan=False))

    def waiting(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Jobs whose results wait, oldest first. A file that a crash has spoilt is left out."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda each: (each.stat().st_mtime, each.name)):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(result, dict):
                yield path.name.removesuffix(_SUFFIX), result

    def drop(self, job_id: str) -> None:
        """Forgets a result that the service has taken or will never take."""
        self._path(job_id).unlink(missing_ok=True)

    def set_aside(self, job_id: str) -> None:
        """Keeps a result that the service will never take, for people to look at."""
        path = self._path(job_id)
        path.rename(path.with_name(f"{job_id}.refused.json"))

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}{_SUFFIX}"
