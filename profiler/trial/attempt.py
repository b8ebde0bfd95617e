"""One attempt to run a plan, whichever back end runs it: its devices, its folder, its processes, and in the end its record."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cost_models import presets
from cost_models.errors import InvalidInputError, Problem
from profiler.machine.fingerprint import CPU_NAME
from profiler.trial.gpus import DeviceKind, Driver, Held, held
from profiler.trial.processes import Processes
from profiler.trial.reasons import of_codes
from profiler.trial.record import Backend, Status, TrialMachine, TrialRecord, one_line, written_time
from profiler.trial.watch import Ending, Heard, Limits, Watch

GoesOn = Callable[[int, float], bool]
"""Asked after each step, with its number from 0 and its seconds, whether the trial should go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a trial is run."""

    deadline_s: float
    """Seconds after which all of its processes are ended."""
    device: DeviceKind = "cuda"
    gpus: Sequence[int] | None = None
    """Which of the visible GPUs; by default the first ones."""
    allow_busy: bool = False
    warm_up: int = 3
    steps: int = 6
    limits: Limits | None = None
    """Limits of its phases and memory; by default those of `Limits`."""
    goes_on: GoesOn | None = None
    locks: Path | None = None
    """Folder of the GPUs' locks; by default the one for temporary files."""
    driver: Driver | None = None
    """Whom the GPUs are asked of; by default NVML, where it is there."""


class Attempt:
    """A trial that is being run."""

    def __init__(
        self, row: Mapping[str, Any], backend: Backend, run: Run, *, ranks: int, on: Held, folder: Path
    ) -> None:
        self.run, self.ranks, self.folder = run, ranks, folder
        self.processes = Processes()
        # The caller's limits may come from another trial; the deadline is always this one's.
        self.limits = replace(run.limits or Limits(deadline_s=run.deadline_s), deadline_s=run.deadline_s)
        self.codes: list[int | None] = []
        self._row, self._backend, self._held = row, backend, on
        self._started_at, self._began_s = datetime.now(UTC), time.monotonic()
        self._watch: Watch | None = None
        self._ended: tuple[Ending, str | None] = ("ended", None)

    @property
    def ended_early(self) -> bool:
        """Whether the caller had it ended after a step."""
        return self._watch is not None and self._watch.ended_early

    def device_bytes(self) -> int | None:
        """Memory in use on the fullest GPU, in bytes; None where the driver does not say."""
        return self._held.device_bytes()

    def environment(self) -> dict[str, str]:
        """This program's variables, with the trial's own GPUs as the visible ones."""
        return {**os.environ, **self._held.environment(), "PYTHONUNBUFFERED": "1"}

    def watch(
        self, outputs: Sequence[Path], hear: Callable[[str], Heard | None], *, stop: Callable[[], None] | None = None
    ) -> tuple[float, ...]:
        """Watches the processes until all have ended, by themselves or from here. Returns the seconds of every step.

        For the arguments see `Watch`.
        """
        self._watch = Watch(
            self.processes, outputs, limits=self.limits, warm_up=self.run.warm_up, steps=self.run.steps, hear=hear,
            goes_on=self.run.goes_on, stop=stop,
        )  # fmt: skip
        self._ended = self._watch.until_it_ends()
        self.codes = self.processes.codes()
        self.finish()
        return tuple(self._watch.step_s)

    def finish(self) -> None:
        """Ends what is left of the trial, and waits until its GPUs are free again."""
        left = self.processes.end()
        if left:
            self._held.notes.append(f"processes {', '.join(map(str, left))} of the trial could not be ended")
        self._held.until_free()

    def note(self, text: str) -> None:
        """Keeps a sentence for the record."""
        self._held.notes.append(text)

    @property
    def first_error(self) -> str | None:
        """The first error that its processes wrote."""
        return None if self._watch is None else self._watch.errors.first

    def record(
        self, *, measured: Mapping[str, Any] | None, out_of_memory: str | None = None,
        machine: Mapping[str, Any] | None = None, step_s: Sequence[float], warm_up: int | None = None,
    ) -> TrialRecord:  # fmt: skip
        """The record of the trial, which has been watched to its end.

        Args:
            measured: fields of the record where the trial was measured.
            out_of_memory: what a process said of memory that did not suffice.
            machine: what the processes said of the machine.
            step_s: seconds of every step.
            warm_up: how many of them do not count; by default those of the run.
        """
        assert self._watch is not None
        notes = [*self._held.notes]
        if measured is not None and self._watch.ended_early:
            notes.append(f"ended early, after {len(step_s)} of {self.run.warm_up + self.run.steps} steps")
        took_s = time.monotonic() - self._began_s
        outcome: dict[str, Any] = {"status": "ok"} if measured is not None else self._failure(out_of_memory)
        return TrialRecord(
            row=self._row, backend=self._backend, **outcome, **(measured or {}), step_s=tuple(step_s),
            warm_up=min(self.run.warm_up if warm_up is None else warm_up, len(step_s)), took_s=took_s, gpu_seconds=took_s * self.ranks,
            machine=self._machine(machine or {}), started_at=written_time(self._started_at),
            notes=tuple(map(one_line, notes)),
        )  # fmt: skip

    def _failure(self, out_of_memory: str | None) -> dict[str, Status | str]:
        assert self._watch is not None
        ending, reason = self._ended
        # Memory first: other ranks may have hung, or lost their connections, because one of them had none left.
        errors = self._watch.errors
        if (said := out_of_memory or errors.out_of_memory) is not None:
            return {"status": "oom", "reason": one_line(said)}
        if reason is not None:
            said = f"{reason}; it had said: {errors.first}" if errors.first else reason
            return {"status": "hang" if ending == "hang" else "crash", "reason": one_line(said)}
        if self._watch.ended_early:
            return {"status": "crash", "reason": "it was ended early, before a step that counts"}
        return {"status": "crash", "reason": errors.first or of_codes(self.codes) or "it ended and told no steps"}

    def _machine(self, said: Mapping[str, Any]) -> TrialMachine:
        gpus = self._held.gpus
        gpu = CPU_NAME if self.run.device == "cpu" else (gpus[0].preset or gpus[0].reported) if gpus else "unknown"
        # A digest, since records leave the machine and its name is nobody else's business.
        host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
        known = {"gpu": gpu, "driver": self._held.driver_version(), "host_fingerprint": host, **said}
        return TrialMachine(gpus=self.ranks, **known)


@contextmanager
def attempt(row: Mapping[str, Any], backend: Backend, run: Run, *, world: int | None) -> Iterator[Attempt]:
    """An attempt whose devices are held and whose processes are ended when the block is left, however it is left.

    Args:
        row: an evaluate row whose strategy states every degree.
        backend: what runs it.
        run: how it is run.
        world: number of processes, which must be the plan's; by default that.

    Raises:
        InvalidInputError: the plan is for another number of ranks, nodes or another GPU.
        MeasurementError: a GPU is not there, or in use.
    """
    ranks = ranks_of(row, world)
    with (
        held(
            ranks, device=run.device, indices=run.gpus, allow_busy=run.allow_busy, locks=run.locks, driver=run.driver
        ) as on,
        tempfile.TemporaryDirectory(prefix="meshwright-trial-") as folder,
    ):
        _require_kind(row, on)
        trial = Attempt(row, backend, run, ranks=ranks, on=on, folder=Path(folder))
        try:
            yield trial
        finally:
            trial.finish()


def ranks_of(row: Mapping[str, Any], world: int | None = None) -> int:
    """Ranks of the row's plan.

    Raises:
        InvalidInputError: it has another number of ranks than `world`, or is for several nodes.
    """
    strategy, cluster = row["strategy"], row.get("cluster")
    # Experts are spread over ranks of data parallelism, so that ep adds none.
    degrees = {name: int(strategy.get(name) or 1) for name in ("tp", "pp", "cp", "dp")}
    ranks = 1
    for degree in degrees.values():
        ranks *= degree
    if world is not None and ranks != world:
        shown = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
        message = f"the plan is for {ranks} ranks ({shown}), and {world} processes were asked for"
        raise InvalidInputError([Problem("/strategy", message, f"Ask for {ranks}, or change the degrees.")])
    nodes = cluster.get("num_nodes", 1) if isinstance(cluster, Mapping) else 1
    if nodes != 1:
        message = f"num_nodes is {nodes}; trials run on one machine"
        hint = "Plan for a cluster of one node, and measure that."
        raise InvalidInputError([Problem("/cluster/num_nodes", message, hint)])
    return ranks


def _require_kind(row: Mapping[str, Any], on: Held) -> None:
    """Refuses a plan for another GPU: what is measured here would be kept as that GPU's."""
    cluster = row.get("cluster")
    planned = cluster.get("gpu") if isinstance(cluster, Mapping) else None
    for gpu in on.gpus:
        if presets.are_other_gpus(planned, gpu.preset):
            message = f"gpu is {planned}; {gpu} of this machine is {gpu.preset}"
            raise InvalidInputError([Problem("/cluster/gpu", message, f"Plan for {gpu.preset}, or measure elsewhere.")])
