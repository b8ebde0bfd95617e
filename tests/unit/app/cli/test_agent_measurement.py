"""A measurement as a process: what is started, how it is ended with everything it has started, and what is said when it fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from app.cli.agent.measurement import Ended, Measurement, command_of, descendants
from cost_models.errors import MeasurementError

STAND_IN = str(Path(__file__).resolve().parents[3] / "stand_in_profiler.py")


def is_gone(pid: int) -> bool:
    """Whether no such process runs, or in a moment no longer does; one that nobody has waited for is gone too."""
    end_at = time.monotonic() + 60
    while time.monotonic() < end_at:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def begun(tmp_path: Path, seconds: float, *, limit_s: float = 60.0) -> tuple[Measurement, list[int]]:
    """A measurement by the stand-in that has started its child, and the ids of both."""
    (tmp_path / "document.json").write_text('{"found": 1}')
    out = tmp_path / "job.json"
    command = [sys.executable, STAND_IN, str(tmp_path / "document.json"), str(seconds), f"--out={out}"]
    environment = {**os.environ, "MESHWRIGHT_TOKEN": "secret"}
    measurement = Measurement(command, out=out, time_limit_s=limit_s, environment=environment)
    end_at = time.monotonic() + 120
    while not (pids := out.with_suffix(".pids")).exists() or not pids.read_text():
        assert time.monotonic() < end_at
        time.sleep(0.02)
    return measurement, json.loads(pids.read_text())[:2]


def ended(measurement: Measurement) -> Ended:
    end_at = time.monotonic() + 120
    while (found := measurement.poll()) is None:
        assert time.monotonic() < end_at
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("gpus", "launcher", "expected"),
    [
        (1, None, ["python", "-m", "meshwright", "profile", "run"]),
        (
            8, None,
            ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8", "-m", "meshwright",
             "profile", "run"],
        ),
        (
            8, "srun --nodes 2 --ntasks-per-node 8",
            ["srun", "--nodes", "2", "--ntasks-per-node", "8", "python", "-m", "meshwright", "profile", "run"],
        ),
    ],
)  # fmt: skip
def test_one_process_per_gpu_is_started(gpus: int, launcher: str | None, expected: list[str]) -> None:
    assert command_of(["profile", "run"], gpus_per_node=gpus, launcher=launcher, python="python") == expected


def test_a_measurement_that_succeeds_says_nothing(tmp_path: Path) -> None:
    measurement, pids = begun(tmp_path, 0.0)
    assert ended(measurement) == Ended("")
    assert json.loads((tmp_path / "job.json").read_text()) == {"found": 1}
    assert all(is_gone(pid) for pid in pids)
    measurement.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"document.json", "job.pids"}


def test_one_that_overstays_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    measurement, (launcher, child) = begun(tmp_path, 60.0, limit_s=1.0)
    assert child in descendants(os.getpid())
    found = ended(measurement)
    assert found.message == "the measurement did not end within 1 s and was ended by force"
    assert is_gone(launcher)
    assert is_gone(child), "a child in a session of its own, as torchrun's are"


def test_one_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    measurement, pids = begun(tmp_path, 60.0)
    measurement.stop()
    assert all(is_gone(pid) for pid in pids)


def test_the_profilers_own_words_are_passed_on(tmp_path: Path) -> None:
    measurement, _ = begun(tmp_path, -1.0)
    assert ended(measurement) == Ended("GPU 3 is used by other processes", "Wait for them to end.")


def test_a_crash_is_told_with_what_was_said_last(tmp_path: Path) -> None:
    measurement, (launcher, child) = begun(tmp_path, 60.0)
    os.kill(launcher, signal.SIGKILL)
    found = ended(measurement)
    os.kill(child, signal.SIGKILL)
    assert (found.message, found.hint) == ("the measurement ended with signal 9", "What it said last: nothing")


def test_a_launcher_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError) as raised:
        Measurement(["no-such-launcher"], out=tmp_path / "job.json", time_limit_s=1.0, environment=os.environ)
    assert raised.value.message == "no-such-launcher could not be started: No such file or directory"


def test_finished_parts_are_counted(tmp_path: Path) -> None:
    measurement, _ = begun(tmp_path, 60.0)
    assert measurement.parts_done is None
    (tmp_path / "job.json.partial").write_text('{"format": 1}\n{"key": "a"}\n{"key": "b"}\n')
    assert measurement.parts_done == 2
    measurement.stop()


def test_a_measurement_knows_neither_the_service_nor_its_key(tmp_path: Path) -> None:
    """It would otherwise send its calibration itself, and show the key to every program of its user."""
    out = tmp_path / "job.json"
    code = "import json, os, sys; json.dump([n for n in os.environ if 'MESHWRIGHT' in n], open(sys.argv[1], 'w'))"
    environment = {"PATH": os.environ["PATH"], "MESHWRIGHT_SERVER": "http://there", "MESHWRIGHT_TOKEN": "secret"}
    measurement = Measurement([sys.executable, "-c", code, str(out)], out=out, time_limit_s=60, environment=environment)
    assert ended(measurement) == Ended("")
    assert json.loads(out.read_text()) == []
