"""What the NVIDIA driver says about a device: clocks, power, temperature, throttling, errors, other users, links.

It only reads, and never changes a setting. Without the library or the driver there is nothing to say, which is not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

THROTTLES: dict[str, str] = {
    "nvmlClocksThrottleReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "thermal (driver)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonApplicationsClocksSetting": "application clocks",
}
"""NVML's names for the reasons that slow a busy device, and our words for them."""
SPOILING = frozenset(THROTTLES.values()) - {"power cap"}
"""Reasons that make a measurement doubtful. The power cap is not one: large GPUs normally run at it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a device showed. Values that the driver does not give are None."""

    sm_clock_hz: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_celsius: float | None
    throttle: tuple[str, ...]
    ecc_uncorrected: int | None
    other_processes: tuple[int, ...]
    used_bytes: float | None
    is_mig: bool
    pci_bus_id: str


class Nvml:
    """The driver's library, opened once."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    @classmethod
    def open(cls) -> Nvml | None:
        """The library, or None if it is not installed or no driver answers."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def driver(self) -> str:
        """Version of the driver."""
        return str(self._ask(self._nvml.nvmlSystemGetDriverVersion) or "")

    def handles(self) -> list[Any]:
        """All devices of this machine, in the driver's order."""
        count = self._ask(self._nvml.nvmlDeviceGetCount) or 0
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def handle_of(self, torch: Any, device: Any) -> Any:
        """The handle of a torch device; None if it cannot be found."""
        # By UUID, because torch counts only the visible devices and may order them differently from the driver.
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        text = str(uuid)
        full = text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
        found = None if uuid is None else self._ask(self._nvml.nvmlDeviceGetHandleByUUID, full)
        if found is None:
            found = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, device.index or 0)
        return found

    def name(self, handle: Any) -> str:
        """Name of the device as the driver spells it."""
        return str(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")

    def uuid(self, handle: Any) -> str:
        """What tells the device from every other one, such as GPU-1d3e…; empty if the driver does not say."""
        return str(self._ask(self._nvml.nvmlDeviceGetUUID, handle) or "")

    def memory_bytes(self, handle: Any) -> float | None:
        """Bytes of the device's memory; None if the driver does not say."""
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if memory is None else float(memory.total)

    def read(self, handle: Any, *, ours: frozenset[int] = frozenset()) -> Reading:
        """Everything that can be read of a device; what cannot is None."""
        nvml = self._nvml
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        clock = self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        warmth = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        running = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle)
        return Reading(
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=None if power is None else power / 1e3,
            power_limit_w=None if limit is None else limit / 1e3,
            temperature_celsius=None if warmth is None else float(warmth),
            throttle=self._throttle(handle),
            ecc_uncorrected=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            other_processes=tuple(p.pid for p in running if p.pid not in ours),
            used_bytes=None if memory is None else float(memory.used),
            is_mig=bool(mode and mode[0]),
            pci_bus_id="" if pci is None else _text(pci.busId).lower()[-12:],
        )

    def has_nvlink(self, first: Any, second: Any) -> bool:
        """Whether two devices reach each other over NVLink."""
        index = self._nvml.NVML_P2P_CAPS_INDEX_NVLINK
        return bool(self._ask(self._nvml.nvmlDeviceGetP2PStatus, first, second, index) == self._nvml.NVML_P2P_STATUS_OK)

    def _throttle(self, handle: Any) -> tuple[str, ...]:
        bits = self._ask(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return tuple(word for name, word in THROTTLES.items() if bits & int(getattr(self._nvml, name, 0)))

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The driver's answer, or None if it has none, as with old drivers, in virtual machines and for consumer parts."""
        try:
            answer = question(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None
        return _text(answer) if isinstance(answer, bytes) else answer


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
