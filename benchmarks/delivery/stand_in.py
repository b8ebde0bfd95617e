"""A stand-in for a container engine: a container's command as it is written, unprivileged, on a root that is read-only.

It has no images: programs come from folders that the build's own commands filled, and other images' entrypoints are done by hand. What it
keeps of an engine is what a program notices: its user and capabilities, a read-only root with an empty /tmp, a volume at /data, the names
of other containers, the environment, the signal to stop, and the time until it is killed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USER = "10001"
"""Of our images."""
_UNPRIVILEGED = (
    f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
)
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::([?-])([^}]*))?\})")


@dataclass(slots=True)
class Container:
    """A command that runs, the leader of a session of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stop_s: float
    stop_signal: int = signal.SIGTERM
    peak_bytes: int = field(default=0)

    def look(self) -> int:
        """Bytes of memory of all its processes now, shared pages divided among those that share them."""
        total, left = 0, [self.process.pid]
        while left:
            folder = Path("/proc") / str(left.pop())
            try:
                left += map(int, "".join(path.read_text() for path in folder.glob("task/*/children")).split())
                shared = re.search(r"^Pss: +(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
            except OSError:  # a process that has ended meanwhile
                continue
            total += int(shared[1]) * 1024 if shared else 0
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def stop(self) -> dict[str, Any]:
        """How it stopped: its exit code and the seconds that it took, of those that it has."""
        began = time.monotonic()
        self.process.send_signal(self.stop_signal)
        try:
            code: int | str = self.process.wait(timeout=self.stop_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = "killed"
            self.process.wait()
        return {"exit_code": code, "took_s": round(time.monotonic() - began, 2), "may_take_s": self.stop_s}


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """The document with Compose's `${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `$$` replaced."""
    if isinstance(value, dict):
        return {key: interpolated(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, environment) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        name, kind, other = found.groups()
        if name is None:
            return "$"
        given = environment.get(name)
        if not given and kind == "?":
            raise KeyError(f"{name}: {other}")
        return given or (other if kind == "-" else "")

    return _VARIABLE.sub(replaced, value)


def run(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    volume: Path,
    stop_s: float = 20.0,
) -> Container:
    """Starts a command of our image.

    Args:
        folder: takes the log.
        volume: what lies at /data.
        stop_s: seconds between the signal to stop and being killed.
    """
    # /data is no folder of this machine's, so the volume's own path stands for it, in the command and in the environment.
    words = [word.replace("/data", str(volume)) for word in command]
    inside = (
        f"mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp && cd {shlex.quote(str(volume))}"
        f" && exec {_UNPRIVILEGED} {shlex.join(words)}"
    )
    log = folder / f"{name}.log"
    # A volume of its own mount stays writable on the read-only root.
    prepared = f"mount --bind {shlex.quote(str(volume))} {shlex.quote(str(volume))} && {inside}"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", prepared],
            env={"HOME": str(volume), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    return Container(name, process, log, stop_s)


def finished(container: Container, *, within_s: float) -> str:
    """What a command that ends by itself has printed.

    Raises:
        RuntimeError: it failed, or did not end in time.
    """
    code = container.process.wait(timeout=within_s)
    printed = container.log.read_text()
    if code:
        raise RuntimeError(f"{container.name} ended with {code}: {printed[-2000:]}")
    return printed
