"""CPU seconds of one POST /v1/plans, service and worker together: a 70B model on 1,024 and on 16,384 GPUs, and the smallest job.

The service runs as a process of its own and is asked over a socket, one request at a time, each with a digest of its own. CPU time
is what the kernel counts for all threads of the service and its worker, so this runs on Linux only.
Run: python benchmarks/plan_latency.py.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.cli.client import Client
from app.errors import ServiceUnreachableError
from benchmarks.record import record

REPEATS = 7
START_S = 60.0
NODES = {"1024_gpus": 128, "16384_gpus": 2048}
GOALS = {"1024_gpus": "<= 0.1", "16384_gpus": "<= 1", "smallest": "report"}


def request(num_nodes: int) -> dict[str, Any]:
    """Llama-3.1-70B on nodes of 8 H100, sequence 8192, Megatron."""
    return {
        "model": {"preset": "llama-3.1-70b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": num_nodes},
        "training": {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"},
        "wait_s": 60.0,
    }


def smallest_request() -> dict[str, Any]:
    """A request whose search has a single strategy, so that what remains is the service's own work."""
    fixed = {"tp": 8, "pp": 4, "dp": 32, "cp": 1, "micro_batch_size": 1, "recompute": "none", "zero": 1, "vpp": 1}
    return {**request(128), "constraints": {"fixed": fixed}}


@contextmanager
def service() -> Iterator[tuple[str, int]]:
    """Address and process id of a running service with one worker."""
    # The kernel picks a free port; with --port 0 the service would not say which one it got.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MESHWRIGHT_DATA_DIR": folder, "MESHWRIGHT_POOL_SIZE": "1"}
        command = [sys.executable, "-m", "meshwright", "serve", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}"
            _await_ready(address)
            yield address, process.pid
        finally:
            process.terminate()
            process.wait()


def _await_ready(address: str) -> None:
    end_at = time.monotonic() + START_S
    with Client(address) as client:
        while True:
            try:
                client.evaluate([])
            except ServiceUnreachableError:
                assert time.monotonic() < end_at, "the service did not start"
                time.sleep(0.1)
            else:
                return


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its children have used, from the scheduler's nanosecond counters."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0]) * 1e-9
        total += sum(cpu_s(int(child)) for child in (task / "children").read_text().split())
    return total


def post_cpu_s(client: Client, pid: int, asked: dict[str, Any]) -> float:
    """CPU seconds between sending a request and having its answer."""
    before = cpu_s(pid)
    document = client.submit_plan(asked)
    used = cpu_s(pid) - before
    assert document["status"] == "succeeded", document
    return used


def latencies_s(client: Client, pid: int, asked: dict[str, Any]) -> list[float]:
    """One figure per request. Each has another `seed`, since a request that was asked before gets the stored answer.

    The first one is left out, because it fills the caches of the worker.
    """
    return [post_cpu_s(client, pid, {**asked, "seed": seed}) for seed in range(REPEATS + 1)][1:]


def measure() -> None:
    """Measures and records all three."""
    asked = {"smallest": smallest_request(), **{name: request(nodes) for name, nodes in NODES.items()}}
    with service() as (address, pid), Client(address) as client:
        for name, document in asked.items():
            times_s = latencies_s(client, pid, document)
            record(
                f"plan_latency_{name}", value=statistics.median(times_s), unit="CPU s", goal=GOALS[name],
                slowest_s=round(max(times_s), 4), requests=REPEATS,
            )  # fmt: skip


if __name__ == "__main__":
    measure()
