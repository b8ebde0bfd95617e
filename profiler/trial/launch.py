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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cost_models.inputs.fields import validated
from profiler.trial.record import RankPeaks, TrialMachine, TrialRecord, largest, one_line, written_time

_ERROR = re.compile(r"^(?:\[rank\d+\]: )?[A-Za-z_.]*(?:Error|Exception|Interrupt)\b.*:")
_LOOK_EVERY_S = 0.05
_GRACE_S = 2.0


def run_trial(
    row: Mapping[str, Any], *, world: int, deadline_s: float, device: Literal["cuda", "cpu"] = "cuda",
    warm_up: int = 3, steps: int = 6, learning_rate: float | None = None,
) -> TrialRecord:  # fmt: skip
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
    started_at, begun_s = datetime.now(UTC), time.monotonic()
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
    code = next((code for code in codes if code > 0), codes[0])
    took_s = time.monotonic() - begun_s
    return TrialRecord(
        row=row, backend="pytorch", **_judged(lines, code=code, hung=hung, deadline_s=deadline_s), warm_up=warm_up,
        took_s=took_s, gpu_seconds=took_s * world, machine=_machine(lines, world=world, device=device),
        started_at=written_time(started_at),
    )  # fmt: skip


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


def _judged(lines: list[str], *, code: int, hung: bool, deadline_s: float) -> dict[str, Any]:
    """The fields of the record that say how it ended, and what was measured until then."""
    said = [found for line in lines if (found := _json_of(line)) is not None]
    step_s = tuple(what["seconds"] for what in said if "step" in what)
    for what in said:
        if "out_of_memory" in what:
            return {"status": "oom", "reason": one_line(what["out_of_memory"]), "step_s": step_s}
    for what in said:
        if "result" in what:
            ranks = tuple(validated(RankPeaks, rank, pointer="/ranks") for rank in what["result"]["ranks"])
            return {
                "status": "ok", "step_time_s": what["result"]["step_time_s"], "step_s": step_s, "ranks": ranks,
                "peak_allocated_bytes": largest(rank.peak_allocated_bytes for rank in ranks),
                "peak_reserved_bytes": largest(rank.peak_reserved_bytes for rank in ranks),
                "peak_device_bytes": largest(rank.device_bytes for rank in ranks),
            }  # fmt: skip
    if hung:
        reason = f"nothing came for {deadline_s:g} s after {len(step_s)} steps"
        return {"status": "hang", "reason": reason, "step_s": step_s}
    first = next((line.strip() for line in lines if _ERROR.search(line)), f"it ended with code {code} and said nothing")
    return {"status": "oom" if "out of memory" in first else "crash", "reason": one_line(first), "step_s": step_s}


def _machine(lines: list[str], *, world: int, device: str) -> TrialMachine:
    """Where it ran, as far as its processes came to say it."""
    said = [found["machine"] for line in lines if "machine" in (found := _json_of(line) or {})]
    return TrialMachine(gpus=world, **(said[0] if said else {"gpu": "CPU" if device == "cpu" else "unknown"}))


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
