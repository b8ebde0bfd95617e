"""The service under more idle sockets than it may have files: it answers, and its log stays small."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
START_S, STOP_S = 40.0, 20.0


def is_up(port: int) -> bool:
    """Whether `/healthz` says within two seconds that the service is well."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.proof
@pytest.mark.parametrize(("files", "sockets"), [(1024, 1100), (96, 400)])
def test_idle_sockets_neither_silence_the_service_nor_fill_its_log(tmp_path: Path, files: int, sockets: int) -> None:
    """1,100 sockets at 1,024 files silenced it for as long as they stayed and wrote 101 MB. With 96 files, connections that are
    accepted together use up all of them before others have closed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = f"ulimit -n {files}; exec {sys.executable} -m meshwright serve --port {port}"
    environment = {**os.environ, "MESHWRIGHT_DATA_DIR": str(tmp_path), "MESHWRIGHT_POOL_SIZE": "1"}
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=environment, stderr=stderr)
    idle: list[socket.socket] = []
    try:
        end_at = time.monotonic() + START_S
        while not is_up(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_at, log.read_text()
            time.sleep(0.1)
        before = log.stat().st_size
        idle.extend(socket.create_connection(("127.0.0.1", port), timeout=5.0) for _ in range(sockets))
        end_at = time.monotonic() + 5.0
        while time.monotonic() < end_at:
            assert is_up(port)
            time.sleep(0.02)
        lines = log.read_bytes()[before:].decode().splitlines()
        others = [line for line in lines if '"event": "request"' not in line]
        assert len(others) <= 5, others
    finally:
        for each in idle:
            each.close()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=STOP_S)
    assert "Traceback" not in log.read_text()
