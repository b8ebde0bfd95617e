"""One measurement from start to end: devices are checked, tasks run in the order of their value within a budget, and every
result is kept at once.

All ranks run the same tasks. Rank 0 decides which comes next, keeps the state file and writes the calibration. A rerun with the
same output continues where the last run stopped.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.errors import MeasurementError
from profiler.bench import attention, collectives, drives, elementwise, gemm, host, host_layers, memory, overlap
from profiler.fit import build_document, merge
from profiler.machine import topology
from profiler.machine.device_state import DeviceLog, require_idle
from profiler.machine.fingerprint import fingerprint_of
from profiler.machine.nvml import Nvml
from profiler.ranks import Ranks
from profiler.rig import TIMEOUT, DeviceKind, Rig, load_torch, require_device
from profiler.scale import cpu_scale, gpu_scale
from profiler.schedule import Schedule
from profiler.state_file import State, save, state_path
from profiler.tasks import Findings, NotSupportedError, Task, note
from profiler.timing import Stopwatch, now_s
from profiler.watch import Watch, leave

_STOP = -1
_CLOSING_S = 5.0
"""Seconds of the budget kept back for fitting, writing and leaving the process group."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user asks of a measurement."""

    out: Path
    budget_s: float
    device: DeviceKind
    started_s: float
    """`now_s()` when the program began, because the budget covers loading too."""
    name: str
    gpu: str | None = None
    merge_with: tuple[CalibrationDocument, ...] = ()
    fresh: bool = False
    allow_busy: bool = False
    framework: str | None = None
    """Framework whose layers the host is timed at first; None measures all of them last."""
    drives: Path | None = None
    """Folder on the node's drives; None measures no drives."""


@dataclass(frozen=True, slots=True)
class MeasurementProgress:
    """Where a measurement stands."""

    done: int
    total: int
    doing: str
    elapsed_s: float
    budget_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a measurement: on rank 0 with the document and its file."""

    document: CalibrationDocument | None
    path: Path | None
    is_complete: bool
    """False if a signal stopped it."""
    exit_code: int
    warnings: tuple[str, ...] = ()


def measure(settings: Settings, place: Ranks, *, on_progress: Callable[[MeasurementProgress], None]) -> Outcome:
    """Measures and writes the calibration.

    Raises:
        MeasurementError: something makes a measurement impossible or worthless: no device, a busy one, ranks that differ, a
            wrong result.
    """
    # Some warnings are torch's own doing: FSDP2 calls functions that torch deprecates. They tell the user nothing.
    for category in (FutureWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category, module="torch")
    torch = load_torch()
    nvml = Nvml.open() if settings.device == "cuda" else None
    # Before our own context is on the device: afterwards its memory could not be told from somebody else's.
    if settings.device == "cuda":
        require_idle(torch, nvml, place, allow_busy=settings.allow_busy)
    device = require_device(torch, settings.device, place.local_rank)
    log = DeviceLog(torch, device, nvml, place)
    scale = gpu_scale(budget_s=settings.budget_s) if settings.device == "cuda" else cpu_scale()
    rig = Rig(torch, device, place, scale, Stopwatch(torch, device, probe=log.look))
    session = _Session(settings, rig, log)
    with session.watch if place.world > 1 or place.rank == 0 else nullcontext():
        session.connect()
        try:
            session.prepare(nvml, on_progress)
            session.run()
            return session.finish()
        # torch.distributed raises plain RuntimeErrors when a peer is gone. Alone there is no peer, so the error is a real one.
        except RuntimeError as error:
            if place.world == 1:
                raise
            raise session.lost(error) from error
        finally:
            session.disconnect()


class _Session:
    """One process's part of a measurement."""

    def __init__(self, settings: Settings, rig: Rig, log: DeviceLog) -> None:
        self._settings, self._rig, self._log = settings, rig, log
        self._state: State | None = None
        self._fingerprint: dict[str, Any] = {}
        self._schedule = Schedule(())
        self._on_progress: Callable[[MeasurementProgress], None] = lambda _progress: None
        self._notes: list[str] = []
        self.watch = Watch(rig.place, rig.torch, on_end=self._end)

    # --- starting ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Joins the process group of the other ranks, if there are any."""
        rig, place = self._rig, self._rig.place
        if place.world == 1:
            return
        dist = rig.torch.distributed
        if rig.on_gpu and not dist.is_nccl_available():
            raise MeasurementError(
                "this PyTorch has no NCCL, so several GPUs cannot be measured together",
                hint="Install a CUDA build of PyTorch for Linux, or measure one GPU without a launcher.",
            )
        try:
            dist.init_process_group(
                "nccl" if rig.on_gpu else "gloo",
                init_method=f"tcp://{place.master_address}:{place.master_port}"
                if place.launcher == "slurm"
                else "env://",
                rank=place.rank,
                world_size=place.world,
                timeout=TIMEOUT,
            )
            # Agreements between ranks go over the hosts, so that they neither disturb what is measured nor wait behind it.
            rig.control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise MeasurementError(
                f"rank {place.rank} could not join the others at {place.master_address}:{place.master_port}: "
                f"{str(error).splitlines()[0]}",
                hint="Check that all processes are running and that this port is open between the nodes.",
            ) from error

    def prepare(self, nvml: Nvml | None, on_progress: Callable[[MeasurementProgress], None]) -> None:
        """Reads the fingerprint and the state of an earlier run, and puts the tasks in order."""
        rig = self._rig
        self._fingerprint = fingerprint_of(rig, nvml, os.environ, gpu=self._settings.gpu)
        failure: MeasurementError | None = None
        if rig.place.rank == 0:
            try:
                self._state = self._open_state()
                self._on_progress = on_progress
            except MeasurementError as error:
                failure = error
        # Only rank 0 sees the state file. The others have to hear of a failure, or they would wait for it for ever.
        if rig.decide(int(failure is not None)):
            raise failure or MeasurementError("rank 0 has stopped; its message says why")
        links = topology.discover(rig, nvml)
        modules = (memory, gemm, collectives, host, elementwise, attention, overlap)
        # Sorted by value and not grouped by module, so that a budget that ends early has still seen the most telling part of each.
        tasks = [task for module in modules for task in module.tasks(rig)]
        tasks += host_layers.tasks(rig, self._settings.framework) + topology.tasks(rig, links)
        tasks += drives.tasks(rig, self._settings.drives)
        self._schedule = Schedule(tasks, done=self._state.findings if self._state is not None else ())

    def _open_state(self) -> State:
        path = state_path(self._settings.out)
        if self._settings.fresh:
            path.unlink(missing_ok=True)
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        state = State(path, self._fingerprint, started_at=started_at)
        if state.was_continued:
            print(f"continuing {path}, in which {len(state.findings)} parts are finished", file=sys.stderr)  # noqa: T201 - progress
        return state

    # --- measuring --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs tasks until the budget or the list is exhausted, or somebody asks for the end."""
        if self._rig.on_gpu:
            gemm.heat(self._rig)
        while True:
            is_stopping = self._rig.largest(float(self.watch.is_stopping)) > 0
            left_s = self._settings.budget_s - _CLOSING_S - (now_s() - self._settings.started_s)
            index = self._schedule.next(left_s)
            index = self._rig.decide(_STOP if is_stopping or index is None else index)
            if index == _STOP:
                return
            task = self._schedule.take(index)
            began = now_s()
            found = self._attempt(task, self._schedule.taken)
            self._schedule.took(task, now_s() - began)
            if self._state is not None:
                self._state.add(task.key, found)
            self._rig.release()

    def _attempt(self, task: Task, number: int) -> Findings:
        """What the task found. If this machine cannot do it, a note says so instead."""
        self.watch.progress = task.title or task.key
        elapsed_s = now_s() - self._settings.started_s
        self._on_progress(
            MeasurementProgress(
                number, len(self._schedule.tasks), self.watch.progress, elapsed_s, self._settings.budget_s
            )
        )
        reason = ""
        found: Findings = {}
        try:
            found = task.run(self._rig)
        except NotSupportedError as error:
            reason = str(error)
        # torch raises RuntimeErrors for memory, kernels and links alike. A kernel that is missing costs one sample; a collective
        # that failed leaves its communicator unusable for all that follow.
        except RuntimeError as error:
            if not isinstance(error, self._rig.torch.OutOfMemoryError) and task.key.startswith("collectives"):
                raise MeasurementError(
                    f"{task.title or task.key} failed: {str(error).splitlines()[0][:300]}",
                    hint="Run the same command again to continue; `meshwright profile doctor` checks the machine.",
                ) from error
            reason = str(error).splitlines()[0][:160]
        # All ranks leave a task out if one must: their samples would otherwise be of different work.
        reasons = [text for text in self._rig.gather(reason) if text]
        return {"notes": [note(f"{task.key} was left out: {reasons[0]}")]} if reasons else found

    # --- ending -----------------------------------------------------------------------------------------------------

    def finish(self) -> Outcome:
        """Writes the calibration on rank 0 and says how the measurement ended."""
        states = self._rig.gather(self._log.summary())
        is_complete = self._rig.largest(float(self.watch.is_stopping)) == 0
        code = 0 if is_complete else self.watch.exit_code
        if self._state is None:
            return Outcome(None, None, is_complete, code)
        self._state.findings["devices"] = {"devices": [state for state in states if state]}
        self._notes += self._log.warnings(states) + topology.slow_ranks(self._rig.slow)
        return self._write(is_complete=is_complete, code=code)

    def _write(self, *, is_complete: bool, code: int) -> Outcome:
        assert self._state is not None
        if not any(key != "devices" for key in self._state.findings):
            raise MeasurementError(
                "nothing was measured, because the budget was over before the first part",
                hint="Allow more time, such as --budget 60s.",
            )
        document = self._document()
        path, problem = save(self._settings.out, document.file_text())
        told = list(document.notes) if is_complete else []
        if problem is not None:
            told.append(f"{self._settings.out} could not be written ({problem}); the calibration is in {path}")
        if self._state.problem is not None:
            told.append(f"finished parts could not be written to the disk: {self._state.problem}")
        if is_complete and problem is None:
            self._state.close()
        return Outcome(document, path, is_complete, code, tuple(told))

    def _document(self) -> CalibrationDocument:
        assert self._state is not None
        notes = list(self._notes)
        if self._schedule.left_out:
            notes.append(f"left out for lack of time: {_listed(self._schedule.left_out)}")
        document = build_document(
            self._state.findings.values(),
            name=self._settings.name,
            fingerprint=self._fingerprint,
            created_at=self._state.started_at,
            notes=notes,
        )
        for older in self._settings.merge_with:
            document = merge(document, older)
        return document

    def _end(self, why: str, code: int) -> None:
        """Called by the watching thread: says what is kept and ends the process, whatever the main thread hangs in."""
        if self._state is not None and self._state.findings:
            path = self._state.path
            kept = f"; {len(self._state.findings)} finished parts are in {path}, run the same command to continue"
            print(f"error: {why}{kept}", file=sys.stderr, flush=True)  # noqa: T201 - the process ends here
        elif self._rig.place.rank == 0:
            print(f"error: {why}", file=sys.stderr, flush=True)  # noqa: T201 - the process ends here
        leave(code)

    def lost(self, error: RuntimeError) -> MeasurementError:
        """The error to report on this rank when another one is gone."""
        kept = ""
        if self._state is not None and self._state.findings:
            kept = f"{len(self._state.findings)} finished parts are in {self._state.path}: "
        return MeasurementError(
            f"rank {self._rig.place.rank} lost the others during {self.watch.progress or 'the start'}: "
            f"{str(error).splitlines()[0][:200]}",
            hint=f"{kept}run the same command again to continue.",
        )

    def disconnect(self) -> None:
        """Leaves the process group, if there is one."""
        if self._rig.control is not None:
            dist = self._rig.torch.distributed
            # After an error the other ranks may never reach this point, and destroying the group would wait for them.
            if sys.exc_info()[0] is None:
                self._rig.align()
                dist.destroy_process_group()


def _listed(keys: Sequence[str]) -> str:
    """The tasks as text: the first two parts of each key, every pair once."""
    return ", ".join(dict.fromkeys("/".join(key.split("/")[:2]) for key in keys))
