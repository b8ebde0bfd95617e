"""The GPUs of a trial on a driver that says what a test wants: none, too few, in use, held by another trial, and not free afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import InvalidInputError, MeasurementError
from cost_models.units import GIB
from profiler.machine.nvml import Reading
from profiler.trial.attempt import Run, attempt
from profiler.trial.gpus import held, visible
from profiler.trial.watch import Heard

IDLE = Reading(
    sm_clock_hz=None, power_w=None, power_limit_w=None, temperature_celsius=None, throttle=(), ecc_uncorrected=None,
    other_processes=(), used_bytes=0.5 * GIB, is_mig=False, pci_bus_id="nowhere",
)  # fmt: skip
H200_BYTES = 150_754_820_096.0  # what an H200's driver reports


class Driver:
    """A machine of H200s; `readings` are what the looks at each of them show, one after the other, the last for ever."""

    def __init__(self, *readings: tuple[Reading, ...]) -> None:
        self.readings = [list(each) for each in readings]

    def handles(self) -> list[Any]:
        return list(range(len(self.readings)))

    def name(self, _handle: Any) -> str:
        return "NVIDIA H200"

    def uuid(self, handle: Any) -> str:
        return f"GPU-{handle}{handle}{handle}{handle}-test"

    def memory_bytes(self, _handle: Any) -> float | None:
        return H200_BYTES

    def driver(self) -> str:
        return "580.159.04"

    def read(self, handle: Any, *, ours: frozenset[int] = frozenset()) -> Reading:
        found = self.readings[handle]
        return found.pop(0) if len(found) > 1 else found[0]


def _two(first: Reading = IDLE, second: Reading = IDLE) -> Driver:
    return Driver((first,), (second,))


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("1,-1,2", [1]), ("GPU-22,0", [2, 0]), ("9", []),
    ],
)  # fmt: skip
def test_a_trial_sees_the_gpus_that_cuda_would_see(listed: str | None, seen: list[int]) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert [gpu.index for gpu in visible(Driver((IDLE,), (IDLE,), (IDLE,)), environment)] == seen


def test_the_first_gpus_are_taken_and_shown_to_the_trial_alone(tmp_path: Path) -> None:
    with held(1, driver=_two(), environment={}, locks=tmp_path) as on:
        # A number, as DeepSpeed 0.19 needs one: int("GPU-0000-test") ended its stages 1 and 2 on two H200.
        assert on.environment() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
        assert [gpu.preset for gpu in on.gpus] == ["H200-SXM-141GB"]
        assert on.driver_version() == "580.159.04"
        # The one that nobody asked for may be taken meanwhile.
        with held(1, indices=[1], driver=_two(), environment={}, locks=tmp_path) as other:
            assert other.environment()["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("world", "how", "error", "said"),
    [
        (1, {"environment": {"CUDA_VISIBLE_DEVICES": ""}}, MeasurementError, "shows no GPU to run trials on"),
        (4, {}, InvalidInputError, "/strategy: the plan has 4 ranks, and this machine shows 2 GPUs"),
        (2, {"indices": [0, 5]}, MeasurementError, "GPUs 0, 5 were asked for"),
        (2, {"indices": [1, 1]}, MeasurementError, "GPUs 1, 1 were asked for"),
        (1, {"indices": [0, 1]}, MeasurementError, "GPUs 0, 1 were asked for, for a plan of 1 ranks"),
    ],
)
def test_gpus_that_are_not_there_are_an_error_before_anything_starts(
    world: int, how: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(error, match=said),
        held(world, **{"driver": _two(), "environment": {}, "locks": tmp_path, **how}),
    ):
        raise AssertionError("it must not begin")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"used_bytes": 2.1 * GIB}, r"GPU 1 \(NVIDIA H200\) is used by processes that the driver does not show, 2.1 GiB"),
        ({"other_processes": (os.getpid(),)}, rf"is used by process {os.getpid()} \(\S+\), 0.5 GiB in use"),
        ({"other_processes": (2**22 + 1, 7**9)}, rf"is used by process {2**22 + 1}, process {7**9}, 0.5 GiB"),
    ],
    # A process number in a test's name is another one in each process of pytest, and then no test is run at all.
    ids=["by nobody that is shown", "by a process of this machine", "by processes of another"],
)  # fmt: skip
def test_a_gpu_that_others_use_is_named_with_its_users(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    busy = replace(IDLE, **changed)
    with pytest.raises(MeasurementError, match=said), held(2, driver=_two(IDLE, busy), environment={}, locks=tmp_path):
        raise AssertionError("it must not begin")
    with held(2, driver=_two(IDLE, busy), environment={}, locks=tmp_path, allow_busy=True) as on:
        assert len(on.notes) == 1
        assert on.notes[0].endswith("before the trial")


def test_a_slice_of_a_gpu_is_refused_even_where_others_may_use_it(tmp_path: Path) -> None:
    sliced = _two(replace(IDLE, is_mig=True))
    with (
        pytest.raises(MeasurementError, match="MIG"),
        held(1, driver=sliced, environment={}, locks=tmp_path, allow_busy=True),
    ):
        raise AssertionError("it must not begin")


def test_two_trials_never_share_a_gpu(tmp_path: Path) -> None:
    with (
        held(2, driver=_two(), environment={}, locks=tmp_path),
        pytest.raises(MeasurementError, match=rf"GPU 1 .* is running another trial \(process {os.getpid()}\)"),
        held(1, indices=[1], driver=_two(), environment={}, locks=tmp_path),
    ):
        raise AssertionError("it must not begin")
    with held(2, driver=_two(), environment={}, locks=tmp_path) as on:
        assert len(on.gpus) == 2


def test_a_gpu_stays_held_while_a_process_of_the_trial_lives(tmp_path: Path) -> None:
    """As after kill -9 of the program that ran the trial, when its processes are still on the GPU."""
    with held(1, driver=_two(), environment={}, locks=tmp_path):
        left = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
        # Only once it runs has it closed what it does not inherit.
        assert left.stdout is not None
        left.stdout.readline()
    try:
        with (
            pytest.raises(MeasurementError, match="running another trial"),
            held(1, driver=_two(), environment={}, locks=tmp_path),
        ):
            raise AssertionError("it must not begin")
    finally:
        left.communicate(b"\n")
    with held(1, driver=_two(), environment={}, locks=tmp_path) as on:
        assert on.gpus


def test_a_lock_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "meshwright-GPU-0000-test.lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(MeasurementError, match="cannot be opened"),
        held(1, driver=_two(), environment={}, locks=tmp_path),
    ):
        raise AssertionError("it must not begin")


def test_the_next_trial_waits_until_memory_is_back(tmp_path: Path) -> None:
    """Looks: before it is taken, when it is held, then twice full and once free again."""
    full = replace(IDLE, used_bytes=60.0 * GIB)
    driver = Driver((IDLE, IDLE, full, full, IDLE, replace(IDLE, used_bytes=99.0 * GIB)))
    with held(1, driver=driver, environment={}, locks=tmp_path) as on:
        on.until_free(within_s=60.0)
        assert on.notes == []
        assert len(driver.readings[0]) == 1


def test_memory_that_does_not_come_back_is_noted_with_its_holder(tmp_path: Path) -> None:
    full = replace(IDLE, used_bytes=60.5 * GIB, other_processes=(os.getpid(),))
    with held(1, driver=Driver((IDLE, IDLE, full)), environment={}, locks=tmp_path) as on:
        on.until_free(within_s=0.0)
        (note,) = on.notes
    assert "GPU 0 (NVIDIA H200) still had 60.0 GiB more in use after the trial than before it" in note
    assert f"held by process {os.getpid()}" in note


ROW: dict[str, Any] = {
    "model": {}, "training": {}, "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2}, "strategy": {"tp": 2},
}  # fmt: skip


def _on(tmp_path: Path, driver: Driver) -> Run:
    return Run(deadline_s=60.0, driver=driver, locks=tmp_path)


@pytest.mark.parametrize("planned", ["H200-SXM-141GB", {"name": "H200-SXM-141GB"}, "a part of our own", None])
def test_a_plan_for_these_gpus_or_for_ones_that_we_do_not_know_may_run(planned: Any, tmp_path: Path) -> None:
    row = {**ROW, "cluster": {"gpu": planned}}
    with attempt(row, "pytorch", _on(tmp_path, _two()), world=2) as trial:
        assert trial.environment()["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_what_is_measured_is_never_kept_as_another_gpus(tmp_path: Path) -> None:
    row = {**ROW, "cluster": {"gpu": "H100-SXM-80GB"}}
    said = r"/cluster/gpu: gpu is H100-SXM-80GB; GPU 0 \(NVIDIA H200\) of this machine is H200-SXM-141GB"
    with pytest.raises(InvalidInputError, match=said), attempt(row, "pytorch", _on(tmp_path, _two()), world=2):
        raise AssertionError("it must not begin")


def test_a_record_names_the_machine_and_what_made_its_figures_doubtful(tmp_path: Path) -> None:
    busy = replace(IDLE, other_processes=(2**22 + 1,))
    run = replace(_on(tmp_path, _two(IDLE, busy)), allow_busy=True, warm_up=0, steps=1)
    with attempt(ROW, "export", run, world=None) as trial:
        output = tmp_path / "output.txt"
        trial.processes.start(["echo", "0.5"], environment=trial.environment(), output=output)
        step_s = trial.watch([output], lambda line: Heard(step_s=float(line)))
        record = trial.record(measured={"step_time_s": step_s[0]}, machine={"torch": "2.11.0"}, step_s=step_s)
    machine = record.to_json()["machine"]
    assert len(machine.pop("host_fingerprint")) == 12
    assert machine == {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0", "nccl": "", "driver": "580.159.04"}
    assert record.notes == (f"GPU 1 (NVIDIA H200) is used by process {2**22 + 1}, 0.5 GiB in use before the trial",)
    assert record.gpu_seconds == pytest.approx(2 * record.took_s)


def test_on_processors_there_is_nothing_to_hold() -> None:
    with held(8, device="cpu") as on:
        assert (on.gpus, on.environment(), on.device_bytes()) == ((), {}, None)
        on.until_free()
        assert on.notes == []
