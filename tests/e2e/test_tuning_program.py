"""A tuning with programs as users start them, while its agent and its service are killed: no trial is lost, and none is run to its end twice."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from builders import request_of

STAND_IN = Path(__file__).resolve().parent.parent / "stand_in_trial.py"
GPU = "H200-SXM-141GB"
ASKED: dict[str, Any] = {
    "request": {
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {"gpu": GPU, "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
        "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan"},
        "top_k": 6,
    },
    "backend": "export",
    "max_trials": 3,
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(condition: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    end_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end_at
        time.sleep(0.05)
    return found


@contextmanager
def started(*arguments: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running `meshwright` with these arguments, killed at the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT")}
    environment = kept | {f"MESHWRIGHT_{name}": value for name, value in settings.items()}
    with subprocess.Popen([sys.executable, "-m", "meshwright", *arguments], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def events(runs: Path, kind: str) -> list[str]:
    """The strategies of trials that have begun, or whose record was written, in order."""
    lines = runs.read_text().splitlines() if runs.exists() else []
    told = [json.loads(line) for line in lines]
    return [json.dumps(each["strategy"], sort_keys=True) for each in told if each["event"] == kind]


@pytest.mark.proof
def test_a_killed_agent_and_a_killed_service_lose_and_double_no_trial(tmp_path: Path) -> None:
    port, runs = free_port(), tmp_path / "runs.jsonl"
    address = f"http://127.0.0.1:{port}"
    launcher = shlex.join([sys.executable, str(STAND_IN), str(runs), "0.6"])
    serve = ("serve", "--port", str(port), "--workers", "1")
    settings = {
        "DATA_DIR": str(tmp_path / "data"),
        "SEED_EXAMPLES": "false",
        "AGENT_LEASE_S": "1",
        "LOG_LEVEL": "error",
    }
    agent = (
        "agent", "--server", address, "--name", "node", "--gpu", GPU, "--gpus-per-node", "2", "--trial-launcher",
        launcher, "--folder", str(tmp_path / "state"),
    )  # fmt: skip

    def call(method: str, path: str, body: object = None) -> Any:
        try:
            answer = httpx2.request(method, address + path, json=body, timeout=20)
        except httpx2.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    with started(*serve, **settings) as service:
        wait_for(lambda: call("GET", "/readyz"))
        with started(*agent) as running:
            tuning_id = wait_for(lambda: call("POST", "/v1/tunings", ASKED))["id"]
            wait_for(lambda: events(runs, "begun"))
            # The first trial is cut off: it is given to the next run of the agent.
            running.send_signal(signal.SIGKILL)
            running.wait()
        with started(*agent) as running:
            wait_for(lambda: len(events(runs, "written")) >= 1)
            wait_for(lambda: len(events(runs, "begun")) > len(events(runs, "written")) + 1)
            # The service is gone while a trial runs; its record waits on the node's disk.
            service.send_signal(signal.SIGKILL)
            service.wait()
            written = len(events(runs, "written"))
            wait_for(lambda: len(events(runs, "written")) > written)
            with started(*serve, **settings):
                ended = wait_for(
                    lambda: (
                        found if (found := call("GET", f"/v1/tunings/{tuning_id}")) and found["finished_at"] else None
                    )
                )
    assert ended["status"] == "succeeded", ended
    told = [json.dumps(trial["strategy"], sort_keys=True) for trial in ended["trials"]]
    finished = events(runs, "written")
    assert sorted(told) == sorted(set(told)), "the tuning has each plan once"
    assert sorted(finished) == sorted(told), "each was run to its end once, and each record has arrived"
    assert len(events(runs, "begun")) == len(finished) + 1, "only the one that was cut off was begun again"
    assert [trial["attempts"] for trial in ended["trials"]] == [2] + [1] * (len(told) - 1)


@pytest.mark.proof
def test_an_agent_trains_a_tiny_model_on_processors_for_a_tuning(tmp_path: Path) -> None:
    """Nothing stands in for anything: the plan, PyTorch's own parallelism in processes of the agent's machine, and the study."""
    pytest.importorskip("torch", reason="trials train with PyTorch")
    model = {
        "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 256,
    }  # fmt: skip
    asked = request_of(
        model, "torchtitan", cluster={"gpus_per_node": 1}, seq_length=32, global_batch_size=8, cross_entropy="unfused",
        compile=False,
    )  # fmt: skip
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    settings = {"DATA_DIR": str(tmp_path / "data"), "SEED_EXAMPLES": "false", "LOG_LEVEL": "error"}
    agent = ("agent", "--server", address, "--gpu", asked["cluster"]["gpu"], "--gpus-per-node", "1", "--device", "cpu")

    def call(method: str, path: str, body: object = None) -> Any:
        try:
            answer = httpx2.request(method, address + path, json=body, timeout=20)
        except httpx2.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    with started("serve", "--port", str(port), "--workers", "1", **settings):
        wait_for(lambda: call("GET", "/readyz"))
        with started(*agent, "--folder", str(tmp_path / "state")):
            tuning_id = wait_for(lambda: call("POST", "/v1/tunings", {"request": asked, "max_trials": 2}))["id"]

            def ended() -> Any:
                found = call("GET", f"/v1/tunings/{tuning_id}")
                return found if found and found["finished_at"] else None

            found = wait_for(ended, seconds=240)
    assert found["backend"] == "pytorch"
    assert [trial["status"] for trial in found["trials"]] == ["ok", "ok"], found["trials"]
    assert found["best"]["step_time_s"] == min(trial["step_time_s"] for trial in found["trials"])
    # A model that has learnt nothing is as good as a guess among 256 tokens: ln 256 = 5.545.
    losses = [trial["record"]["ranks"][0]["losses"][0] for trial in found["trials"]]
    assert losses == [pytest.approx(5.545, abs=0.1)] * 2
