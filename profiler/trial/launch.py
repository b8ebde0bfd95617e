"""Runs one trial in processes of its own, and says how it ended: measured, out of memory, hung or crashed.

The processes form a group that is ended as a whole, so that a trial which hangs leaves nothing on the GPUs for the next one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "oom", "hang", "crash"]
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?[A-Za-z_.]*(?:Error|Exception|Interrupt)\b.*:")
_LOOK_EVERY_S = 0.05
_GRACE_S = 2.0


@dataclass(slots=True)
class Trial:
    """How one trial ended."""

    status: Status
    result: dict[str, Any] | None = None
    step_s: list[float] = field(default_factory=list)
    """Seconds of each step that was run, warm-up included, however the trial ended."""
    reason: str | None = None
    """The first line of an error; None where the trial was measured."""


def run_trial(
    row: Mapping[str, Any], *, world: int, deadline_s: float, device: Literal["cuda", "cpu"] = "cuda",
    warm_up: int = 3, steps: int = 6, learning_rate: float | None = None,
) -> Trial:  # fmt: skip
    """The trial of an evaluate row on `world` devices of this machine.

    Args:
        row: an evaluate row whose strategy states every degree.
        world: number of processes.
        deadline_s: seconds after which all of them are ended.
        device: what they run on.
        warm_up: steps before the ones that count.
        steps: steps that count.
        learning_rate: of the optimizer; by default that of `profiler.trial.steps`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        path.write_text(json.dumps(row))
        command = [
            sys.executable, "-W", "ignore", "-m", "profiler.trial.child", str(path), "--device", device,
            "--warm-up", str(warm_up), "--steps", str(steps),
        ]  # fmt: skip
        if learning_rate is not None:
            command += ["--learning-rate", str(learning_rate)]
        outputs = [Path(folder) / f"rank{rank}.txt" for rank in range(world)]
        group = _started(command, outputs)
        try:
            hung = not _ended(group, deadline_s=deadline_s)
        finally:
            _end(group)
        lines = [line for output in outputs for line in output.read_text(errors="replace").splitlines()]
    codes = [process.returncode for process in group]
    return _judged(lines, code=next((code for code in codes if code > 0), codes[0]), hung=hung, deadline_s=deadline_s)


def _started(command: list[str], outputs: list[Path]) -> list[subprocess.Popen[bytes]]:
    """One process for each output, all of one process group."""
    # Not torchrun, which puts its workers into sessions of their own: they would outlive it when it is killed.
    port = _free_port()
    group: list[subprocess.Popen[bytes]] = []
    for rank, output in enumerate(outputs):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(outputs), "LOCAL_WORLD_SIZE": len(outputs)}
        environment = {
            **os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        with output.open("wb") as file:
            group.append(
                subprocess.Popen(  # noqa: S603 - our own program
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment,
                    process_group=group[0].pid if group else 0,
                )
            )  # fmt: skip
    return group


def _ended(group: list[subprocess.Popen[bytes]], *, deadline_s: float) -> bool:
    """Whether all processes ended in time. Once one has failed, the others are waited for only briefly."""
    end_at = time.monotonic() + deadline_s
    while time.monotonic() < end_at:
        codes = [process.poll() for process in group]
        if None not in codes:
            return True
        if any(codes):
            # They hang in a collective that the failed rank will never join; their own words may still come.
            time.sleep(_GRACE_S)
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _judged(lines: list[str], *, code: int, hung: bool, deadline_s: float) -> Trial:
    said = [found for line in lines if (found := _json_of(line)) is not None]
    step_s = [what["seconds"] for what in said if "step" in what]
    for what in said:
        if "out_of_memory" in what:
            return Trial("oom", step_s=step_s, reason=what["out_of_memory"])
    for what in said:
        if "result" in what:
            return Trial("ok", what["result"], step_s)
    if hung:
        return Trial("hang", step_s=step_s, reason=f"nothing came for {deadline_s:g} s after {len(step_s)} steps")
    first = next((line.strip() for line in lines if _ERROR.search(line)), f"it ended with code {code} and said nothing")
    return Trial("oom" if "out of memory" in first else "crash", step_s=step_s, reason=first[:300])


def _json_of(line: str) -> dict[str, Any] | None:
    start = line.find("{")
    if start < 0:
        return None
    try:
        found = json.loads(line[start:])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _end(group: list[subprocess.Popen[bytes]]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group[0].pid, signal.SIGKILL)
    for process in group:
        process.wait()


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port
