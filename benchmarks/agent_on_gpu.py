"""A service and an agent on one machine with GPUs: a measurement is asked for over HTTP, and a plan is priced with it through `auto`.

    python -m benchmarks.agent_on_gpu                     # all GPUs that are visible, 60 s of measuring
    python -m benchmarks.agent_on_gpu --budget 120 --gpus-per-node 2
    python -m benchmarks.agent_on_gpu --device cpu --gpus-per-node 2 --no-record     # to try it out without a GPU

It needs torch and what the service needs, and no network. Nothing but the service and the agent is started, and both are ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import Request, urlopen

from app.cli.rendering.profile_tables import cluster_of
from benchmarks.record import record
from cost_models.hardware import parse_document

T = TypeVar("T")
NAME = "this node"
PROGRAM = [sys.executable, "-m", "meshwright"]


def call(address: str, method: str, path: str, body: object = None) -> Any:
    """The service's answer as JSON. An answer of 400 or more raises with its text."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(address + path, data=data, method=method, headers={"Content-Type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=90) as answer:  # noqa: S310 - our own address
        return json.load(answer)


def wait_for(condition: Callable[[], T | None], *, seconds: float, what: str) -> T:
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        try:
            if (found := condition()) is not None:
                return found
        except (URLError, ConnectionError):
            pass
        time.sleep(0.5)
    raise TimeoutError(f"{what} took longer than {seconds:.0f} s")


@contextmanager
def running(arguments: Sequence[str], *, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A meshwright program with data of its own, ended with everything that it has started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT")}
    environment = {
        **kept,
        "XDG_DATA_HOME": str(home),
        "MESHWRIGHT_SEED_EXAMPLES": "false",
        "MESHWRIGHT_LOG_LEVEL": "error",
    }
    with subprocess.Popen([*PROGRAM, *arguments], env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def measured(address: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The profiling job, once it has succeeded."""
    agent = wait_for(
        lambda: next((each for each in call(address, "GET", "/v1/agents")["items"] if each["name"] == NAME), None),
        seconds=60, what="the registration",
    )  # fmt: skip
    print(f"registered: {agent['gpus_per_node']} x {agent['gpu']}", flush=True)
    body = {"gpu": agent["gpu"], "budget_s": asked.budget, "name": "measured by the agent"}
    job_id = call(address, "POST", "/v1/profiling-jobs", body)["id"]
    began, told = time.monotonic(), 0

    def ended() -> dict[str, Any] | None:
        nonlocal told
        job: dict[str, Any] = call(address, "GET", f"/v1/profiling-jobs/{job_id}")
        if (job["parts_done"] or 0) >= told + 50:
            told = job["parts_done"]
            print(f"{time.monotonic() - began:5.0f} s: {told} parts", flush=True)
        return None if job["status"] in {"queued", "running"} else job

    job = wait_for(ended, seconds=1.5 * asked.budget + 200, what="the measurement")
    if job["status"] != "succeeded":
        raise SystemExit(f"{job['status']}: {job['error']['detail']}\n  {job['error']['hint']}")
    return {**job, "took_s": time.monotonic() - began, "on": agent}


def planned(address: str, job: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """A plan for the measured node with `"calibration": "auto"`, and the seconds that it took."""
    text = json.dumps(call(address, "GET", f"/v1/calibrations/{job['calibration']}"))
    document = parse_document(text)
    found = (
        f"{len(document.gemm)} products, {len(document.collectives)} collectives, {len(document.attention)} attention"
    )
    print(f"calibration {job['calibration'][:12]}: {found}, {len(text) / 1024:.0f} KiB")
    request = {
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {**cluster_of(document, num_nodes=1, reference="auto"), "calibration": "auto"},
        "training": {"seq_length": 2048, "global_batch_size": 32, "framework": "fsdp", "precision": "bf16"},
        "constraints": {"allow_at_risk": True},
        "top_k": 3,
        "wait_s": 60,
    }
    began = time.monotonic()
    plan = call(address, "POST", "/v1/plans", request)
    assert plan["request"]["cluster"]["calibration"] == [job["calibration"]], "auto is another calibration"
    return plan, time.monotonic() - began


def show(plan: dict[str, Any]) -> dict[str, str]:
    """Prints the ranked plans, and returns where each term of the best one comes from."""
    for each in plan["plans"]:
        evaluation, strategy = each["evaluation"], each["strategy"]
        degrees = " ".join(f"{name} {strategy[name]}" for name in ("tp", "pp", "dp", "zero", "micro_batch_size"))
        low, high = evaluation["step_time_range_s"]
        print(
            f"{each['rank']}. {degrees}: {evaluation['step_time_s']:.3f} s ({low:.3f} to {high:.3f}), {evaluation['verdict']}"
        )
    if not plan["plans"]:
        raise SystemExit(f"no plan fits: {plan['rejected']}")
    provenance = plan["plans"][0]["evaluation"]["provenance"]
    print(f"priced with {provenance['calibration']}: {provenance['terms']}")
    return dict(provenance["terms"])


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of measuring")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus-per-node", type=int, help="by default all that are visible")
    parser.add_argument("--gpu", help="GPU preset, by default what the driver says")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = [f"--device={asked.device}", f"--name={NAME}"]
    options += [f"--gpus-per-node={asked.gpus_per_node}"] if asked.gpus_per_node else []
    options += [f"--gpu={asked.gpu}"] if asked.gpu else []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with running(["serve", "--port", str(port)], home=home):
            wait_for(lambda: call(address, "GET", "/readyz"), seconds=120, what="the start of the service")
            with running(["agent", "--server", address, *options], home=home) as agent:
                job = measured(address, asked)
                plan, plan_s = planned(address, job)
                assert agent.poll() is None, "the agent goes on after a measurement"
        terms = show(plan)
    print(f"asked to calibration: {job['took_s']:.1f} s with a budget of {asked.budget:.0f} s; plan: {plan_s:.2f} s")
    if not asked.no_record:
        record(
            "agent_on_gpu", value=job["took_s"], unit="s", goal=f"<= {asked.budget + 20:.0f}",
            budget_s=asked.budget, gpu=job["on"]["gpu"], gpus_per_node=job["on"]["gpus_per_node"],
            parts=job["parts_done"], plan_s=round(plan_s, 2), best_step_s=plan["plans"][0]["evaluation"]["step_time_s"],
            terms=terms,
        )  # fmt: skip


if __name__ == "__main__":
    main()
