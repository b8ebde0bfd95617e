"""`meshwright agent` against a service that listens: measures when asked, outlives the service, and loses nothing when it is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.settings import Settings
from live_service import listening

STAND_IN = Path(__file__).resolve().parent.parent / "stand_in_profiler.py"
FINISHED = {"succeeded", "failed", "cancelled"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose agents count as silent after a second."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), pool_size=1, log_level="error", seed_examples=False, agent_lease_s=1.0
    )
    with listening(settings) as found:
        yield found


def call(address: str, method: str, path: str, body: object = None) -> Any:
    answer = httpx2.request(method, address + path, json=body, timeout=20)
    assert answer.status_code < 300, answer.text
    return answer.json()


def wait_for(condition: Any, *, seconds: float = 120.0) -> Any:
    end_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end_at
        time.sleep(0.05)
    return found


@contextmanager
def agent(
    address: str, folder: Path, name: str, *, seconds: float, options: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A running agent whose measurements take so long and find a calibration of the name of its node."""
    folder.mkdir(exist_ok=True)
    document = folder / "document.json"
    document.write_text(json.dumps({**EXAMPLE_CALIBRATION, "name": f"of {name}"}))
    launcher = shlex.join([sys.executable, str(STAND_IN), str(document), str(seconds)])
    command = [
        sys.executable, "-m", "meshwright", "agent", "--server", address, "--name", name, "--gpu", "H100-SXM-80GB",
        "--gpus-per-node", "8", "--launcher", launcher, "--folder", str(folder / "state"), *options,
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=kept) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(address: str, name: str) -> str:
    """The id of a profiling job for the agent of this name, which must have registered."""
    found = wait_for(
        lambda: [each["id"] for each in call(address, "GET", "/v1/agents")["items"] if each["name"] == name]
    )
    return str(call(address, "POST", "/v1/profiling-jobs", {"agent": found[0], "budget_s": 20, "name": "asked"})["id"])


def job(address: str, job_id: str) -> Any:
    return call(address, "GET", f"/v1/profiling-jobs/{job_id}")


def ended(address: str, job_id: str) -> Any:
    return wait_for(lambda: found if (found := job(address, job_id))["status"] in FINISHED else None)


def begun(folder: Path) -> tuple[list[int], list[str]]:
    """The processes of the stand-in that has begun, and the arguments that it was given."""
    (path,) = wait_for(lambda: [each for each in folder.rglob("*.pids") if each.read_text()])
    *pids, arguments = json.loads(path.read_text())
    return pids, arguments


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_agent_measures_what_is_asked(address: str, tmp_path: Path) -> None:
    with agent(address, tmp_path, "one", seconds=0.0, options=("--once",)) as process:
        job_id = ask(address, "one")
        found = ended(address, job_id)
        assert process.wait(timeout=60) == 0
    assert (found["status"], found["attempts"]) == ("succeeded", 1)
    assert call(address, "GET", f"/v1/calibrations/{found['calibration']}")["name"] == "of one"
    _, arguments = begun(tmp_path)
    given = dict(each.removeprefix("--").split("=", 1) for each in arguments if "=" in each)
    assert given.pop("out").endswith(f"{job_id}.json")
    assert given == {"budget": "20s", "name": "asked", "gpu": "H100-SXM-80GB", "device": "cuda"}


@pytest.mark.proof
def test_a_failure_is_the_jobs_and_the_agent_goes_on(address: str, tmp_path: Path) -> None:
    with agent(address, tmp_path, "two", seconds=-1.0):
        for _ in range(2):
            found = ended(address, ask(address, "two"))
            assert (found["status"], found["error"]["detail"]) == ("failed", "GPU 3 is used by other processes")


def test_a_cancelled_measurement_ends_and_a_stopped_agent_gives_its_job_back(address: str, tmp_path: Path) -> None:
    with agent(address, tmp_path, "three", seconds=60.0) as process:
        job_id = ask(address, "three")
        pids, _ = begun(tmp_path)
        assert call(address, "DELETE", f"/v1/profiling-jobs/{job_id}")["status"] == "cancelled"
        wait_for(lambda: all(is_over(pid) for pid in pids))
        for path in tmp_path.rglob("*.pids"):
            path.unlink()
        job_id = ask(address, "three")
        pids, _ = begun(tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    wait_for(lambda: all(is_over(pid) for pid in pids))
    assert (job(address, job_id)["status"], job(address, job_id)["attempts"]) == ("queued", 0)
    call(address, "DELETE", f"/v1/profiling-jobs/{job_id}")


def test_a_killed_agents_job_is_given_again(address: str, tmp_path: Path) -> None:
    """The measurement ends with the agent, its lease runs out, and the next run of the agent takes the job once more."""
    with agent(address, tmp_path / "a", "five", seconds=60.0) as process:
        job_id = ask(address, "five")
        (launcher, child), _ = begun(tmp_path / "a")
        process.kill()
        wait_for(lambda: is_over(launcher) and is_over(child))
    with agent(address, tmp_path / "b", "five", seconds=0.0):
        found = ended(address, job_id)
    assert (found["status"], found["attempts"]) == ("succeeded", 2)


def test_a_measurement_outlives_the_service(tmp_path: Path) -> None:
    """The service is away when the measurement ends; the agent keeps what it found and sends it once the service is back."""
    port = free_port()
    settings = Settings(
        data_dir=tmp_path / "data", pool_size=1, log_level="error", seed_examples=False, agent_lease_s=1.0
    )
    address = f"http://127.0.0.1:{port}"
    with agent(address, tmp_path, "six", seconds=1.0) as process:
        with listening(settings, port=port):
            job_id = ask(address, "six")
            begun(tmp_path)
        wait_for(lambda: list(tmp_path.rglob("*.result.json")))
        assert process.poll() is None
        with listening(settings, port=port):
            found = ended(address, job_id)
    assert (found["status"], found["attempts"]) == ("succeeded", 1)


@pytest.mark.proof
def test_a_wrong_key_ends_the_agent_with_a_reason(address: str, tmp_path: Path) -> None:
    with agent(address, tmp_path, "seven", seconds=0.0, options=("--token", "mw_wrong")) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "this key is not valid" in said


@pytest.mark.proof
def test_two_processes_that_measure_over_gloo_price_plans_with_auto(address: str, tmp_path: Path) -> None:
    """Nothing stands in for anything: torchrun, PyTorch, the profiler, and a plan that uses what was measured."""
    pytest.importorskip("torch", reason="the profiler measures with PyTorch")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT")}
    command = [
        sys.executable, "-m", "meshwright", "agent", "--server", address, "--name", "gloo", "--device", "cpu",
        "--gpus-per-node", "2", "--folder", str(tmp_path / "state"), "--once",
    ]  # fmt: skip
    with subprocess.Popen(command, env={**kept, "OMP_NUM_THREADS": "1"}) as process:
        try:
            found = wait_for(
                lambda: [each["id"] for each in call(address, "GET", "/v1/agents")["items"] if each["name"] == "gloo"]
            )
            body = {"agent": found[0], "budget_s": 45}
            job_id = call(address, "POST", "/v1/profiling-jobs", body)["id"]
            wait_for(lambda: job(address, job_id)["parts_done"], seconds=120)
            measured = wait_for(lambda: it if (it := job(address, job_id))["status"] in FINISHED else None, seconds=240)
            assert measured["status"] == "succeeded", measured
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(call(address, "GET", f"/v1/calibrations/{measured['calibration']}")))
    shown = subprocess.run(
        [sys.executable, "-m", "meshwright", "profile", "show", str(path), "--cluster"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    plan = call(
        address,
        "POST",
        "/v1/plans",
        {
            "model": {"preset": "gpt3-1.3b", "num_layers": 2},
            "cluster": {**json.loads(shown.stdout), "calibration": "auto"},
            "training": {"seq_length": 256, "global_batch_size": 8, "framework": "megatron", "precision": "bf16"},
            "constraints": {"fixed": {"tp": 2, "micro_batch_size": 1}, "allow_at_risk": True},
            "wait_s": 60,
        },
    )
    assert plan["request"]["cluster"]["calibration"] == [measured["calibration"]]
    assert plan["plans"][0]["evaluation"]["provenance"]["terms"]["tp_comm"] == "measured"
