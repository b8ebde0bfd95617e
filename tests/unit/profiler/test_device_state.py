"""Whether a device is free to be measured, and what is noted of it meanwhile, on a driver library that says what a test wants."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cost_models.errors import MeasurementError
from cost_models.units import GIB
from profiler.machine.device_state import DeviceLog, require_idle
from profiler.machine.nvml import Reading
from profiler.ranks import Ranks

IDLE = Reading(
    sm_clock_hz=1.98e9, power_w=120.0, power_limit_w=700.0, temperature_celsius=40.0, throttle=(), ecc_uncorrected=0,
    other_processes=(), used_bytes=0.5 * GIB, is_mig=False, pci_bus_id="nowhere",
)  # fmt: skip
TORCH = SimpleNamespace(
    cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: 8), device=lambda _kind, index: index
)
PLACE = Ranks(3, 8, 3, 8, "torchrun")


class Driver:
    """Answers one reading after the other, the last for ever; `ours` are the processes that it was told to leave out."""

    def __init__(self, *readings: Reading) -> None:
        self.readings, self.ours = list(readings), frozenset[int]()

    def handle_of(self, _torch: Any, device: Any) -> Any:
        return device

    def name(self, _handle: Any) -> str:
        return "H100"

    def read(self, _handle: Any, *, ours: frozenset[int] = frozenset()) -> Reading:
        self.ours |= ours
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, None),
        ({"used_bytes": 2.0 * GIB}, None),  # what a driver reserves and a display takes
        ({"used_bytes": 2.1 * GIB}, r"GPU 3 \(H100\) is busy: other processes not shown by the driver, 2.1 GiB in use"),
        ({"used_bytes": None}, None),
        ({"other_processes": (17, 4)}, "other processes 17, 4, 0.5 GiB in use"),
        ({"other_processes": (17,), "used_bytes": None}, "other processes 17$"),
    ],
)
def test_only_an_idle_device_is_measured_unless_told_otherwise(changed: dict[str, Any], refused: str | None) -> None:
    driver: Any = Driver(replace(IDLE, **changed))
    require_idle(TORCH, driver, PLACE, allow_busy=True)
    if refused is None:
        require_idle(TORCH, driver, PLACE, allow_busy=False)
    else:
        with pytest.raises(MeasurementError, match=refused):
            require_idle(TORCH, driver, PLACE, allow_busy=False)
    assert driver.ours == {os.getpid()}


def test_a_slice_of_a_device_is_never_measured() -> None:
    driver: Any = Driver(replace(IDLE, is_mig=True))
    for allow_busy in (False, True):
        with pytest.raises(MeasurementError, match="MIG"):
            require_idle(TORCH, driver, PLACE, allow_busy=allow_busy)


def test_without_a_driver_or_a_device_of_its_own_a_rank_is_not_asked() -> None:
    busy: Any = Driver(replace(IDLE, other_processes=(1,)))
    require_idle(TORCH, None, PLACE, allow_busy=False)
    require_idle(TORCH, busy, Ranks(8, 9, 8, 9, "torchrun"), allow_busy=False)  # the ninth of eight devices


def test_what_was_seen_is_kept_from_lowest_to_highest() -> None:
    """One look, and one at the end for what does not change; a reading that a driver cannot give is left out."""
    driver: Any = Driver(
        replace(IDLE, throttle=("thermal (hardware)",), power_w=None),
        replace(IDLE, sm_clock_hz=1.2e9, ecc_uncorrected=2),
    )
    log = DeviceLog(TORCH, 3, driver, PLACE)
    log.look()
    found = log.summary()
    assert found["sm_clock_hz"] == (1.98e9, 1.98e9)
    assert found["temperature_celsius"] == (40.0, 40.0)
    assert "power_w" not in found
    assert (found["rank"], found["throttle"], found["ecc_uncorrected"]) == (3, ["thermal (hardware)"], 2)
    assert found["power_limit_w"] == 700.0
    assert DeviceLog(TORCH, 3, None, PLACE).summary() == {}


def test_a_device_is_looked_at_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest and the highest of what was read at 0.5, 1.0 and 1.6 s; what comes sooner after a look is not asked."""
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    driver: Any = Driver(*(replace(IDLE, power_w=watts) for watts in (300.0, 200.0, 400.0, 999.0)))
    log = DeviceLog(TORCH, 3, driver, PLACE)
    for moment_s in (0.5, 0.9, 1.0, 1.49, 1.6):
        now_s[0] = moment_s
        log.look()
    assert log.summary()["power_w"] == (200.0, 400.0)
    assert len(driver.readings) == 1


def test_a_device_that_the_driver_does_not_know_is_neither_refused_nor_read() -> None:
    class Blind(Driver):
        def handle_of(self, _torch: Any, _device: Any) -> Any:
            return None

    driver: Any = Blind(replace(IDLE, is_mig=True), IDLE)
    require_idle(TORCH, driver, PLACE, allow_busy=False)
    log = DeviceLog(TORCH, 3, driver, PLACE)
    log.look()
    assert log.summary() == {}
    assert len(driver.readings) == 2


def test_the_last_device_is_asked_and_without_any_none_is() -> None:
    driver: Any = Driver(replace(IDLE, is_mig=True))
    with pytest.raises(MeasurementError, match="GPU 7"):
        require_idle(TORCH, driver, Ranks(7, 8, 7, 8, "torchrun"), allow_busy=False)
    none: Any = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False, device_count=lambda: 8))
    require_idle(none, driver, PLACE, allow_busy=False)
