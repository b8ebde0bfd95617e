"""What this node is, as far as it can be told without loading torch or opening a context on a GPU, which would spoil a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models import presets
from cost_models.errors import MeasurementError
from cost_models.units import GIB
from profiler.machine.fingerprint import CPU_NAME, preset_of
from profiler.machine.nvml import Nvml
from profiler.rig import DeviceKind


@dataclass(frozen=True, slots=True)
class Node:
    """The devices that a measurement of this node uses."""

    gpu: str
    """Name of the preset."""
    gpus_per_node: int


def this_node(
    environment: Mapping[str, str], *, device: DeviceKind, gpu: str | None, gpus_per_node: int | None
) -> Node:
    """The node that this program runs on; what is given is taken as it is.

    Raises:
        MeasurementError: no driver answers, no GPU is visible, or no preset matches it.
    """
    if device == "cpu":
        return Node(gpu or CPU_NAME, gpus_per_node or 1)
    if gpu is not None and gpus_per_node is not None:
        return Node(gpu, gpus_per_node)
    nvml = Nvml.open()
    handles = [] if nvml is None else nvml.handles()
    if nvml is None or not handles:
        raise MeasurementError(
            "the NVIDIA driver names no GPU of this node",
            hint="Install nvidia-ml-py, or say what the node has with --gpu and --gpus-per-node; --device cpu tries the agent out.",
        )
    count = gpus_per_node or min(_visible(environment), len(handles))
    if count < 1:
        raise MeasurementError("CUDA_VISIBLE_DEVICES hides every GPU", hint="Unset it, or name the GPUs to measure.")
    name = nvml.name(handles[0])
    memory_bytes = nvml.memory_bytes(handles[0])
    known = gpu or (None if memory_bytes is None else preset_of(name, memory_bytes))
    if known is None:
        size = "" if memory_bytes is None else f" with {memory_bytes / GIB:.1f} GiB"
        raise MeasurementError(
            f"{name}{size} matches no GPU preset",
            hint=f"Name the nearest one with --gpu: {', '.join(presets.names('gpus'))}.",
        )
    return Node(known, count)


def _visible(environment: Mapping[str, str]) -> int:
    """Number of GPUs that a program started here may use, or a number above any node's."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return 1 << 16
    return len([entry for entry in listed.split(",") if entry.strip() and entry.strip() != "-1"])
