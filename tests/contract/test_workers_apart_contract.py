"""`meshwright serve --workers 0` and `meshwright worker` as two programs that share nothing but a PostgreSQL database."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from app.cli.main import run
from app.service.db.engine import reading
from app.service.db.tables import job_events

ROOT = Path(__file__).resolve().parent.parent.parent
REQUEST = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
}
# Minutes of search, so that it certainly runs when it is interrupted.
LONG = {
    "model": {"preset": "llama-3.1-70b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 128, "gpus_per_node": 8},
    "training": {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"},
    "include": ["open_splits", "pareto"],
    "wait_s": 0,
}


def until(condition: Callable[[], Any], *, seconds: float = 240.0) -> None:
    end_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_at, "waited too long"
        time.sleep(0.05)


@contextmanager
def program(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running program, which must end when it is told to."""
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "meshwright", *arguments], cwd=ROOT, stderr=stderr)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20.0) in {0, -signal.SIGTERM}, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def asked(address: str, *, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and document of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_service_without_workers_has_its_plans_made_elsewhere(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    url = database_url.replace("+psycopg", "")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"

    def events(plan_id: str) -> list[str]:
        query = select(job_events.c.type).where(job_events.c.job_id == plan_id).order_by(job_events.c.seq)
        with reading(engine) as connection:
            return [kind for kind in connection.execute(query).scalars() if kind != "progress"]

    serve = ("serve", "--port", str(port), "--db", url, "--workers", "0")
    with program(*serve, log=tmp_path / "service") as _:
        until(lambda: asked(f"{address}/healthz")[0] == 200)
        status, problem = asked(f"{address}/readyz")
        assert (status, problem["detail"]) == (503, "no worker is ready")
        with program("worker", "--db", url, "--workers", "1", log=tmp_path / "worker"):
            until(lambda: asked(f"{address}/readyz")[0] == 200)
            status, plan = asked(f"{address}/v1/plans", method="POST", body=REQUEST)
            assert (status, plan["status"]) == (201, "succeeded")
            assert plan["plans"]
            # Progress reaches the service, and a cancellation reaches the worker.
            long_id = asked(f"{address}/v1/plans", method="POST", body=LONG)[1]["id"]
            until(lambda: events(long_id) == ["queued", "started"])
            assert asked(f"{address}/v1/plans/{long_id}", method="DELETE")[0] == 202
            until(lambda: events(long_id)[-1] == "cancelled")
            # A worker that is told to stop gives its job back.
            again_id = asked(f"{address}/v1/plans", method="POST", body={**LONG, "seed": 1})[1]["id"]
            until(lambda: events(again_id) == ["queued", "started"])
        assert asked(f"{address}/v1/plans/{again_id}")[1]["status"] == "queued"
        assert asked(f"{address}/readyz")[0] == 503


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker"], "workers apart from the service need PostgreSQL"),
        (["worker", "--db", "postgresql://nobody@nowhere/none", "--workers", "0"], "would do nothing"),
        (["serve", "--workers", "0"], "needs workers of its own"),
    ],
)
def test_workers_apart_refuse_a_sqlite_file_and_a_pool_of_none(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATA_DIR", str(tmp_path))
    assert run(arguments) == 2
    assert said in capsys.readouterr().err
