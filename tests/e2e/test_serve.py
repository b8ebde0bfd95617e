"""The service as a process: started by the command line, asked over HTTP and by `plan --server`, stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_search_on_a_terminal import running

ROOT = Path(__file__).resolve().parent.parent.parent
REQUEST = ROOT / "examples" / "requests" / "qwen3-8b-fsdp.json"
START_S, STOP_S = 120.0, 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running service with a database of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MESHWRIGHT_DATA_DIR": str(tmp_path_factory.mktemp("data"))}
    command = [sys.executable, "-m", "meshwright", "serve", "--port", str(port)]
    log = tmp_path_factory.mktemp("log") / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stderr)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_S
    while not answers(address):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    yield address
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=STOP_S) in {0, 130}, log.read_text()
    assert "Traceback" not in log.read_text()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def test_a_posted_request_is_planned(server: str) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/v1/plans", data=REQUEST.read_bytes(), headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        location, document = response.headers["Location"], json.load(response)
    assert response.status == 201
    assert document["status"] == "succeeded"
    assert document["plans"]
    with urllib.request.urlopen(server + location, timeout=60) as response:
        assert json.load(response)["id"] == document["id"]


def test_the_figures_count_the_connections(server: str) -> None:
    with urllib.request.urlopen(f"{server}/metrics", timeout=60) as response:
        (line,) = [each for each in response.read().decode().splitlines() if each.startswith("meshwright_connections ")]
    assert float(line.split()[1]) >= 1, "this one"


def test_the_command_line_asks_the_service_and_gets_the_same_plans(server: str) -> None:
    command = [sys.executable, "-m", "meshwright", "plan", str(REQUEST), "--json"]
    here = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    there = subprocess.run([*command, "--server", server], cwd=ROOT, capture_output=True, text=True, check=True)
    local, remote = (
        [(plan["rank"], plan["strategy"]) for plan in json.loads(done.stdout)["plans"]] for done in (here, there)
    )
    assert local == remote
    assert local


def test_a_plan_of_the_service_shows_its_progress_and_is_cancelled_by_ctrl_c(server: str) -> None:
    """The service keeps nothing of a cancelled plan, so there is no answer, and the exit code is that of an interrupt."""
    with running("--server", server) as run:
        run.wait_for("best ")
        run.process.send_signal(signal.SIGINT)
        answer, _ = run.process.communicate()
        run.wait_for("error: the plan was cancelled\r\n")
        assert (run.process.returncode, answer) == (130, "")
        assert "\rCancelling the plan. Press Ctrl-C again to leave at once.\r\n" in run.seen


def test_the_documentation_needs_no_other_host(server: str) -> None:
    with urllib.request.urlopen(f"{server}/docs", timeout=60) as response:
        page = response.read().decode()
    assert "swagger" in page
    assert "//cdn" not in page
    assert "fastapi.tiangolo.com" not in page


def test_a_taken_port_is_bad_input(server: str, tmp_path: Path) -> None:
    """Exit code 2, not the web server's own 3, which means that no plan fits."""
    command = [sys.executable, "-m", "meshwright", "serve", "--port", server.rpartition(":")[2]]
    environment = {**os.environ, "MESHWRIGHT_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=START_S
    )
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
