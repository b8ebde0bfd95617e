"""The condition of the devices: whether they are idle before a measurement, and their clocks, power and heat while it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cost_models.errors import MeasurementError
from cost_models.units import GIB
from profiler.machine.nvml import SPOILING, Nvml
from profiler.machine.topology import host_name, numa_node
from profiler.ranks import Ranks
from profiler.timing import now_s

# While the driver answers, the host issues no work; twice a second is enough to see the clock settle.
_LOOK_EVERY_S = 0.5
_FREE_BYTES = 2.0 * GIB
"""Memory that an idle device may show as used, by the driver's reservations or a display."""


def require_idle(torch: Any, nvml: Nvml | None, place: Ranks, *, allow_busy: bool) -> None:
    """Checks that this rank's device is idle, before anything of ours is on it.

    Raises:
        MeasurementError: the device is a MIG slice, or somebody else is using it.
    """
    if nvml is None or not torch.cuda.is_available() or place.local_rank >= torch.cuda.device_count():
        return
    handle = nvml.handle_of(torch, torch.device("cuda", place.local_rank))
    if handle is None:
        return
    reading = nvml.read(handle, ours=frozenset({os.getpid()}))
    name = f"GPU {place.local_rank} ({nvml.name(handle)})"
    if reading.is_mig:
        raise MeasurementError(
            f"{name} is divided into MIG slices, whose speed says nothing about training",
            hint="Measure a whole GPU: choose one without MIG through CUDA_VISIBLE_DEVICES.",
        )
    # Memory too, because the driver hides the processes of other containers.
    is_full = reading.used_bytes is not None and reading.used_bytes > _FREE_BYTES
    if (reading.other_processes or is_full) and not allow_busy:
        used = "" if reading.used_bytes is None else f", {reading.used_bytes / GIB:.1f} GiB in use"
        who = ", ".join(map(str, reading.other_processes)) or "not shown by the driver"
        raise MeasurementError(
            f"{name} is busy: other processes {who}{used}",
            hint="Wait for them or choose another GPU; --allow-busy measures all the same.",
        )


class DeviceLog:
    """Records the condition of one device by looking at it now and then."""

    def __init__(self, torch: Any, device: Any, nvml: Nvml | None, place: Ranks) -> None:
        self._nvml, self._place = nvml, place
        self._handle = None if nvml is None else nvml.handle_of(torch, device)
        self._last_s = 0.0
        self._clocks: list[float] = []
        self._power: list[float] = []
        self._warmth: list[float] = []
        self._throttle: set[str] = set()

    def look(self) -> None:
        """Reads the device unless the last look is less than half a second ago. Called while the device works."""
        if self._nvml is None or self._handle is None or now_s() - self._last_s < _LOOK_EVERY_S:
            return
        self._last_s = now_s()
        reading = self._nvml.read(self._handle)
        for values, value in (
            (self._clocks, reading.sm_clock_hz),
            (self._power, reading.power_w),
            (self._warmth, reading.temperature_celsius),
        ):
            if value is not None:
                values.append(value)
        self._throttle |= set(reading.throttle)

    def summary(self) -> dict[str, Any]:
        """The fields of a `DeviceState` that could be read; empty without the driver's library."""
        if self._nvml is None or self._handle is None:
            return {}
        reading = self._nvml.read(self._handle)
        seen = (
            ("sm_clock_hz", self._clocks), ("power_w", self._power), ("temperature_celsius", self._warmth),
        )  # fmt: skip
        state: dict[str, Any] = {name: (min(values), max(values)) for name, values in seen if values}
        single = {
            "power_limit_w": reading.power_limit_w, "ecc_uncorrected": reading.ecc_uncorrected,
            "numa_node": numa_node(reading.pci_bus_id),
        }  # fmt: skip
        state |= {name: value for name, value in single.items() if value is not None}
        return {**state, "rank": self._place.rank, "throttle": sorted(self._throttle), "host": host_name()}

    @staticmethod
    def warnings(states: Sequence[dict[str, Any]]) -> list[str]:
        """What in these summaries makes a measurement doubtful."""
        sentences = []
        for state in states:
            reasons = sorted(SPOILING & set(state.get("throttle", ())))
            if reasons:
                sentences.append(f"throttled: rank {state['rank']} was slowed by {', '.join(reasons)}")
            if state.get("ecc_uncorrected"):
                sentences.append(f"memory errors: rank {state['rank']} has {state['ecc_uncorrected']} uncorrected ones")
        return sentences
