"""What would stop or spoil a measurement on this machine, found without measuring and without changing any setting."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cost_models.errors import InvalidInputError, MeshwrightError
from cost_models.units import GIB
from profiler.machine.fingerprint import preset_of
from profiler.machine.nvml import SPOILING, Nvml
from profiler.machine.topology import network_cards
from profiler.ranks import ranks_from
from profiler.rig import INSTALL, DeviceKind, load_torch

Level = Literal["ok", "warning", "stop"]
_MIN_FREE_BYTES = 64 * 2**20
# What Docker gives a container by default; one with less was restricted on purpose.
_MIN_SHM_BYTES = 64 * 2**20
# The first release whose fused Adam runs on processors, which is what host offload is measured with.
_OLDEST_TORCH = (2, 4)
_ALTERING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for the device",
    "NCCL_P2P_DISABLE": "peers reach each other through host memory only",
    "NCCL_SHM_DISABLE": "ranks without peer access use the network",
    "NCCL_IB_DISABLE": "InfiniBand is not used",
    "NCCL_ALGO": "NCCL may not choose its algorithm",
    "NCCL_PROTO": "NCCL may not choose its protocol",
    "NCCL_DEBUG": "NCCL's log slows small messages where it is TRACE",
    "TORCH_DISTRIBUTED_DEBUG": "every collective is checked by another one",
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS may be limited to slower kernels",
}
"""Environment variables that make a machine look slower than it is in training, unless training sets them too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of looking at one thing."""

    level: Level
    subject: str
    message: str
    hint: str = ""


def examine(*, device: DeviceKind, out: Path, environment: Mapping[str, str]) -> list[Finding]:
    """Everything worth knowing before a measurement. It never raises for what it finds."""
    found = [*_launcher(environment), *_environment(environment), *_disk(out)]
    try:
        torch = load_torch()
    except MeshwrightError as error:
        return [Finding("stop", "PyTorch", error.message, error.hint), *found]
    found.append(_torch(torch))
    if device == "cpu":
        return [*found, Finding("ok", "device", "the processor, whose numbers only show that everything works")]
    return [*found, *_devices(torch), *_libraries(torch), *_network()]


def _torch(torch: Any) -> Finding:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST_TORCH:
        return Finding("stop", "PyTorch", f"{torch.__version__} is older than 2.4", INSTALL)
    return Finding("ok", "PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")


def _devices(torch: Any) -> list[Finding]:
    if not torch.cuda.is_available():
        why = "no GPU is visible" if torch.version.cuda else "this PyTorch was built without CUDA"
        return [Finding("stop", "GPU", why, "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu.")]
    nvml = Nvml.open()
    names: list[str] = []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        names.append(properties.name)
        preset = preset_of(properties.name, float(properties.total_memory))
        title = f"GPU {index}"
        if preset is None:
            message = f"{properties.name}, {properties.total_memory / GIB:.1f} GiB, matches no preset"
            found.append(Finding("stop", title, message, "Name the nearest preset with --gpu."))
        else:
            found.append(Finding("ok", title, f"{properties.name}, measured as {preset}"))
        if nvml is not None:
            found += _condition(nvml, nvml.handle_of(torch, torch.device("cuda", index)), title)
    if len(set(names)) > 1:
        mixed = ", ".join(sorted(set(names)))
        hint = "Measure one kind at a time, chosen through CUDA_VISIBLE_DEVICES."
        found.append(Finding("stop", "GPUs", f"are of different kinds: {mixed}", hint))
    if nvml is None:
        message = (
            "nvidia-ml-py or the driver's library is missing, so clocks, throttling and other users cannot be seen"
        )
        found.append(Finding("warning", "NVML", message, "pip install nvidia-ml-py"))
    return found


def _condition(nvml: Nvml, handle: Any, title: str) -> list[Finding]:
    if handle is None:
        return []
    reading = nvml.read(handle, ours=frozenset({os.getpid()}))
    found = []
    if reading.is_mig:
        found.append(Finding("stop", title, "is divided into MIG slices", "Measure a whole GPU."))
    if reading.other_processes:
        who = ", ".join(map(str, reading.other_processes))
        found.append(
            Finding("stop", title, f"is used by other processes: {who}", "Wait for them, or use --allow-busy.")
        )
    if reading.ecc_uncorrected:
        message = f"has {reading.ecc_uncorrected} uncorrected memory errors since the driver started"
        found.append(Finding("warning", title, message, "Ask the administrator to look at it."))
    spoiling = sorted(SPOILING & set(reading.throttle))
    if spoiling:
        found.append(
            Finding("warning", title, f"is slowed by {', '.join(spoiling)}", "Measured rates will be too low.")
        )
    return found


def _libraries(torch: Any) -> list[Finding]:
    if torch.cuda.is_available() and torch.cuda.device_count() > 1 and not torch.distributed.is_nccl_available():
        return [Finding("stop", "NCCL", "this PyTorch has no NCCL", "Install a CUDA build of PyTorch for Linux.")]
    shm = Path("/dev/shm")  # noqa: S108 - NCCL's shared memory, looked at and not written
    if shm.exists() and shutil.disk_usage(shm).total < _MIN_SHM_BYTES:
        size = shutil.disk_usage(shm).total / 2**20
        message = f"{shm} holds {size:.0f} MiB, too little for NCCL between processes"
        return [Finding("stop", "shared memory", message, "Start the container with --shm-size=1g or --ipc=host.")]
    return []


def _network() -> list[Finding]:
    cards = network_cards()
    return [Finding("ok", "network", "; ".join(cards) if cards else "no network card states its speed")]


def _launcher(environment: Mapping[str, str]) -> list[Finding]:
    try:
        place = ranks_from(environment)
    except InvalidInputError as error:
        # The problem and not the error, whose message begins with a place in a document.
        (problem,) = error.problems
        return [Finding("stop", "launcher", problem.message, problem.hint)]
    if place.world == 1:
        return [Finding("ok", "launcher", "none; one process measures one device")]
    message = f"{place.launcher}: rank {place.rank} of {place.world} on {place.num_nodes} nodes"
    return [Finding("ok", "launcher", message)]


def _environment(environment: Mapping[str, str]) -> list[Finding]:
    return [
        Finding("warning", name, f"is set to {environment[name]!r}: {why}", "Unset it, unless training sets it too.")
        for name, why in _ALTERING.items()
        if environment.get(name) not in {None, "", "0"}
    ]


def _disk(out: Path) -> list[Finding]:
    folder = out.absolute().parent
    if not folder.is_dir():
        return [
            Finding(
                "stop", "output", f"the folder {folder} does not exist", "Create it, or choose another file with --out."
            )
        ]
    if not os.access(folder, os.W_OK):
        return [Finding("stop", "output", f"{folder} cannot be written", "Choose a file in another folder with --out.")]
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        return [Finding("stop", "output", f"{folder} has {free / 2**20:.0f} MiB left", "Free some space.")]
    return [Finding("ok", "output", f"{folder} has {free / GIB:.0f} GiB left")]
