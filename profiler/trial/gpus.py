"""The GPUs of one trial: chosen, found idle, held against other trials, and waited for until their memory is back.

What the driver does not say cannot be checked; a record then notes that it was not.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cost_models.errors import InvalidInputError, MeasurementError, Problem
from cost_models.units import GIB
from profiler.machine.fingerprint import preset_of
from profiler.machine.nvml import Nvml, Reading

DeviceKind = Literal["cuda", "cpu"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA numbers GPUs by speed unless told to number them as the driver does, by their place on the bus."""
_FREE_BYTES = 2.0 * GIB
"""Memory that an idle GPU may show as used, by the driver's reservations or a display."""
_BACK_BYTES = 0.25 * GIB
"""What may be missing of the memory that was free before a trial, once it has ended."""
_BACK_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1


class Driver(Protocol):
    """What is asked of the driver; `Nvml` is one."""

    def handles(self) -> list[Any]: ...
    def name(self, handle: Any) -> str: ...
    def uuid(self, handle: Any) -> str: ...
    def memory_bytes(self, handle: Any) -> float | None: ...
    def read(self, handle: Any, *, ours: frozenset[int] = frozenset()) -> Reading: ...
    def driver(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver knows it."""

    index: int
    uuid: str
    reported: str
    memory_bytes: float | None
    handle: Any

    @property
    def preset(self) -> str | None:
        """Our preset of it; None if there is none."""
        return None if self.memory_bytes is None else preset_of(self.reported, self.memory_bytes)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.reported})"


class Held:
    """The GPUs of one trial, for as long as it runs."""

    def __init__(self, gpus: Sequence[Gpu], driver: Driver | None, notes: Sequence[str]) -> None:
        self.gpus, self.notes = tuple(gpus), list(notes)
        self._driver = driver
        self._used_before = {gpu.uuid: self._read(gpu).used_bytes for gpu in gpus}

    def environment(self) -> dict[str, str]:
        """The variables that show these GPUs, and no others, to the trial."""
        # By number: DeepSpeed and others read a number from each entry, and end at a UUID.
        return {**_ORDER, VISIBLE: ",".join(str(gpu.index) for gpu in self.gpus)} if self.gpus else {}

    def driver_version(self) -> str:
        return "" if self._driver is None else self._driver.driver()

    def device_bytes(self) -> int | None:
        """Memory in use on the fullest of them, in bytes; None where the driver does not say."""
        used = [self._read(gpu).used_bytes for gpu in self.gpus]
        return max((int(each) for each in used if each is not None), default=None)

    def until_free(self, *, within_s: float = _BACK_WITHIN_S) -> None:
        """Waits until the memory of every GPU is back; notes what is not, and who still holds it."""
        end_at = time.monotonic() + within_s
        for gpu in self.gpus:
            before = self._used_before[gpu.uuid]
            # The driver frees memory some time after a process has gone, seconds for a large one.
            while before is not None:
                reading = self._read(gpu)
                missing = (reading.used_bytes or 0.0) - before
                if missing <= _BACK_BYTES:
                    break
                if time.monotonic() > end_at:
                    self.notes.append(
                        f"{gpu} still had {missing / GIB:.1f} GiB more in use after the trial than before it, held by {_named(reading)}"
                    )
                    break
                time.sleep(_LOOK_EVERY_S)

    def _read(self, gpu: Gpu) -> Reading:
        assert self._driver is not None
        return self._driver.read(gpu.handle)


@contextmanager
def held(
    world: int,
    *,
    device: DeviceKind = "cuda",
    indices: Sequence[int] | None = None,
    allow_busy: bool = False,
    driver: Driver | None = None,
    environment: Mapping[str, str] = os.environ,
    locks: Path | None = None,
) -> Iterator[Held]:
    """As many GPUs as a trial has processes, idle and held against other trials on this machine until the block ends.

    Args:
        world: number of processes.
        device: on processors there is nothing to hold.
        indices: which of the visible GPUs, from 0; by default the first ones.
        allow_busy: whether GPUs that others use are taken all the same, and the record says so.
        driver: whom to ask; by default NVML, where it is there.
        environment: whose `CUDA_VISIBLE_DEVICES` counts.
        locks: folder of the lock files; by default the one for temporary files, which the users of a machine share.

    Raises:
        MeasurementError: there is no GPU, or one of them is in use, divided into slices, or held by another trial.
        InvalidInputError: the plan needs more GPUs than are visible.
    """
    if device == "cpu":
        yield Held((), None, ())
        return
    asked = driver if driver is not None else Nvml.open()
    if asked is None:
        _require_some_device()
        yield Held((), None, ("NVML is not installed (nvidia-ml-py), so whether the GPUs were idle was not checked",))
        return
    chosen = _chosen(visible(asked, environment), world, indices)
    # Locked before it is looked at: of two trials that both find a GPU idle, one must lose.
    with _locked(chosen, locks or Path(tempfile.gettempdir())):
        notes = [note for gpu in chosen if (note := _in_use(gpu, asked, allow_busy=allow_busy))]
        yield Held(chosen, asked, notes)


def visible(driver: Driver, environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that programs see, in the order in which they see them."""
    everything = [
        Gpu(index, driver.uuid(handle), driver.name(handle), driver.memory_bytes(handle), handle)
        for index, handle in enumerate(driver.handles())
    ]
    listed = environment.get(VISIBLE)
    if listed is None:
        return everything
    found = []
    for word in map(str.strip, listed.split(",")):
        gpu = next((gpu for gpu in everything if word == str(gpu.index) or (word and gpu.uuid.startswith(word))), None)
        # CUDA sees none of what comes after an entry that it does not know, such as -1.
        if gpu is None:
            break
        found.append(gpu)
    return found


def _chosen(gpus: Sequence[Gpu], world: int, indices: Sequence[int] | None) -> list[Gpu]:
    if not gpus:
        raise MeasurementError(
            "this machine shows no GPU to run trials on",
            hint=f"Run them on a GPU node, and look at {VISIBLE} there. On processors (device cpu) a trial shows that a plan runs, not how fast.",
        )
    if world > len(gpus):
        problem = Problem(
            "/strategy",
            f"the plan has {world} ranks, and this machine shows {len(gpus)} GPU{'s' * (len(gpus) > 1)}; trials run on one machine",
            f"Measure it on a machine with {world} GPUs, or plan for a cluster of one node with {len(gpus)}.",
        )
        raise InvalidInputError([problem])
    if indices is None:
        return list(gpus[:world])
    outside = [index for index in indices if not 0 <= index < len(gpus)]
    if outside or len(set(indices)) != world:
        listed = ", ".join(map(str, indices))
        raise MeasurementError(
            f"GPUs {listed} were asked for, for a plan of {world} ranks on a machine that shows GPUs 0 to {len(gpus) - 1}",
            hint=f"Name {world} different ones of them, or none, which takes the first.",
        )
    return [gpus[index] for index in indices]


def _in_use(gpu: Gpu, driver: Driver, *, allow_busy: bool) -> str | None:
    """A note where the GPU is in use and that was allowed.

    Raises:
        MeasurementError: it is in use, or divided.
    """
    reading = driver.read(gpu.handle)
    if reading.is_mig:
        raise MeasurementError(
            f"{gpu} is divided into MIG slices, whose speed says nothing about training",
            hint=f"Choose a whole GPU through {VISIBLE}.",
        )
    # Memory too, because the driver hides the processes of other containers.
    is_full = reading.used_bytes is not None and reading.used_bytes > _FREE_BYTES
    if not reading.other_processes and not is_full:
        return None
    used = "" if reading.used_bytes is None else f", {reading.used_bytes / GIB:.1f} GiB in use"
    found = f"{gpu} is used by {_named(reading)}{used}"
    if not allow_busy:
        raise MeasurementError(found, hint=f"Wait for them, or choose another GPU through {VISIBLE}.")
    return f"{found} before the trial"


@contextmanager
def _locked(gpus: Sequence[Gpu], folder: Path) -> Iterator[None]:
    """Holds a lock for each GPU, in an order that is the same for everybody."""
    files: list[int] = []
    try:
        for gpu in sorted(gpus, key=lambda gpu: gpu.uuid):
            file = _opened(folder / f"meshwright-{gpu.uuid}.lock")
            files.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(file, 100, 0).decode(errors="replace").strip() or "unknown"
                raise MeasurementError(
                    f"{gpu} is running another trial (process {owner})",
                    hint=f"Wait until it has ended, or choose another GPU through {VISIBLE}: two trials on one GPU measure each other.",
                ) from None
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            # The trial's processes inherit it: the lock lasts while any of them does, even when this process is killed.
            os.set_inheritable(file, True)
        yield
    finally:
        for file in files:
            os.close(file)


def _opened(path: Path) -> int:
    """A descriptor of a lock file that every user of this machine may take.

    Raises:
        MeasurementError: it can be neither opened nor made.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        # In two steps: in a shared folder Linux lets nobody open another user's file with O_CREAT (fs.protected_regular).
        with suppress(FileExistsError):
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(file, 0o666)  # whatever this process's mask is
            return file
        return os.open(path, flags)
    except OSError as error:
        raise MeasurementError(
            f"the lock {path} of a GPU cannot be opened: {error.strerror}", hint="Remove it, or set TMPDIR."
        ) from error


def _require_some_device() -> None:
    # Without NVML these files tell whether there is an NVIDIA or an AMD GPU at all.
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        _chosen((), 1, None)


def _named(reading: Reading) -> str:
    """The processes on a GPU, with their programs where the system shows them."""
    names = []
    for pid in reading.other_processes:
        program = ""
        with suppress(OSError):
            program = f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
        names.append(f"process {pid}{program}")
    return ", ".join(names) or "processes that the driver does not show"
