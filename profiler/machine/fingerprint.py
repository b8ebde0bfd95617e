"""Which machine and software a measurement belongs to: the GPU's preset, driver, libraries, and variables that change speed.

Two documents with different fingerprints are never merged, and a state file of another machine is never continued.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cost_models import presets
from cost_models.calibration import Device
from cost_models.errors import MeasurementError
from cost_models.units import GB, GIB, TERA
from profiler.machine.nvml import Nvml
from profiler.rig import Rig

CPU_NAME = "CPU"
# Longer names come before those that they contain: "GB200" would match B200, and "H100 PCIe" the SXM part.
_PRESETS: tuple[tuple[str, str], ...] = (
    (r"GB200|GB300", "GB200-186GB"), (r"B200", "B200-SXM-180GB"), (r"GH200", "GH200-96GB"), (r"H200", "H200-SXM-141GB"),
    (r"H20\b", "H20-SXM-96GB"), (r"H800", "H800-SXM-80GB"), (r"H100.*PCIe", "H100-PCIe-80GB"), (r"H100", "H100-SXM-80GB"),
    (r"A800", "A800-SXM-80GB"), (r"A100.*PCIe", "A100-PCIe-80GB"), (r"A100.*40GB", "A100-SXM-40GB"),
    (r"A100", "A100-SXM-80GB"), (r"L40S", "L40S-48GB"), (r"RTX 4090", "RTX4090-24GB"), (r"V100.*32GB", "V100-SXM-32GB"),
    (r"V100", "V100-SXM-16GB"), (r"MI300X", "MI300X-192GB"), (r"MI250X", "MI250X-128GB"), (r"MI355X", "MI355X-288GB"),
)  # fmt: skip
"""Patterns of drivers' names for GPUs, and our presets; the first that matches applies."""
# Drivers report up to a tenth less than the data sheet, more so where ECC lives in the same memory; parts of one family differ by a
# quarter or more.
_MEMORY_TOLERANCE = 0.12
"""A GPU whose memory differs from its preset's by more than this fraction is another part of the same family."""
_SPEED_VARIABLES = re.compile(
    r"^(NCCL_(?!DEBUG|SOCKET_IFNAME|HOSTID|COMM_ID|LAUNCH_MODE|VERSION).*|TORCH_NCCL_(?!ASYNC_ERROR_HANDLING).*|CUDA_DEVICE_MAX_CONNECTIONS|"
    r"CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|"
    r"TORCH_BLAS_PREFER_CUBLASLT|TORCH_SYMM_MEM_DISABLE_MULTICAST|NVSHMEM_DISABLE_NVLS|HSA_.*|RCCL_.*)$"
)
"""Environment variables that change what is measured, unlike addresses and settings of logs."""


def preset_of(reported: str, memory_bytes: float) -> str | None:
    """Our preset of the GPU with this name and memory; None if we have none."""
    for pattern, name in _PRESETS:
        if re.search(pattern, reported):
            expected = float(presets.load("gpus", name).spec["memory_gib"]) * GIB
            return name if abs(memory_bytes / expected - 1.0) <= _MEMORY_TOLERANCE else None
    return None


def device_of(name: str, *, on_fast_link: bool = True) -> Device:
    """Data-sheet facts of a GPU preset."""
    spec = presets.load("gpus", name).spec
    link = spec["nvlink_gb_per_s"] if on_fast_link and spec["nvlink_gb_per_s"] else spec["pcie_gb_per_s"]
    return Device(
        generation=spec["generation"],
        peak_flops_per_s={precision: peak * TERA for precision, peak in spec["peak_tflops"].items()},
        memory_bytes_per_s=spec["memory_bandwidth_gb_per_s"] * GB,
        link_bytes_per_s=link * GB,
        num_sms=spec["num_sms"],
        power_limit_w=float(spec["power_limit_w"]),
    )


def fingerprint_of(rig: Rig, nvml: Nvml | None, environment: Mapping[str, str], *, gpu: str | None) -> dict[str, Any]:
    """Fields of the document's fingerprint, the same on every rank. The kind of link is added once it has been measured.

    Raises:
        MeasurementError: the ranks differ in GPU, software or settings, or no preset matches the GPU.
    """
    own = _own(rig, nvml, environment, gpu)
    everyone = rig.gather(own)
    for field in own:
        values = {str(one[field]): rank for rank, one in reversed(list(enumerate(everyone)))}
        if len(values) > 1:
            shown = "; ".join(f"rank {rank}: {value}" for value, rank in sorted(values.items(), key=lambda v: v[1]))
            raise MeasurementError(
                f"the ranks differ in {field}: {shown}",
                hint="Measure machines of one kind together, and the others on their own.",
            )
    return {**own, "gpus_per_node": rig.place.local_world, "num_nodes": rig.place.num_nodes}


def _own(rig: Rig, nvml: Nvml | None, environment: Mapping[str, str], gpu: str | None) -> dict[str, Any]:
    torch = rig.torch
    reported = platform.processor() or platform.machine()
    name = gpu or CPU_NAME
    if rig.on_gpu:
        reported = torch.cuda.get_device_name(rig.device)
        memory = float(torch.cuda.get_device_properties(rig.device).total_memory)
        known = gpu or preset_of(reported, memory)
        if known is None:
            raise MeasurementError(
                f"{reported} with {memory / GIB:.1f} GiB matches no GPU preset",
                hint=f"Name the nearest one with --gpu: {', '.join(presets.names('gpus'))}.",
            )
        name = known
    return {
        "gpu": name,
        "gpu_reported": reported,
        "driver": "" if nvml is None else nvml.driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip or ""),
        "nccl": _nccl(rig),
        "cpu": _cpu(),
        "nvls": nvls_of(environment) if rig.on_gpu else "off",
        "environment": speed_variables(environment),
    }


def speed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables among these that change how fast communication and kernels run, in the order of their names."""
    return {name: value for name, value in sorted(environment.items()) if _SPEED_VARIABLES.match(name)}


def nvls_of(environment: Mapping[str, str]) -> Literal["on", "off", "unknown"]:
    """Whether NCCL may use NVLink SHARP; unknown if NCCL's own default decides."""
    setting = environment.get("NCCL_NVLS_ENABLE")
    if setting is None:
        return "unknown"
    return "off" if setting.strip() == "0" else "on" if setting.strip() == "1" else "unknown"


def _nccl(rig: Rig) -> str:
    if not rig.on_gpu or not rig.torch.distributed.is_nccl_available():
        return ""
    version = rig.torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _cpu() -> str:
    """The processor's name as the kernel gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()
