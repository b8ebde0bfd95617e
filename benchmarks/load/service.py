"""A service in a process of its own, with a fresh SQLite file and keys, as the loads of benchmarks find it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Running:
    """A service that listens on this machine."""

    port: int
    pid: int
    keys: dict[str, str]
    """By tenant."""

    def resident_mib(self) -> dict[str, float]:
        """Memory of the service's own process and of all its children, in MiB."""
        children = _children(self.pid)
        return {"service": _resident_mib(self.pid), "workers": sum(map(_resident_mib, children))}

    def cpu_s(self) -> float:
        """CPU seconds that the service and all its children have used, from the scheduler's nanosecond counters."""
        return sum(map(_cpu_s, [self.pid, *_children(self.pid)]))


@contextmanager
def running(*tenants: str, checkout: Path = ROOT, **settings: object) -> Iterator[Running]:
    """A service with a key for each of these tenants and a ready worker; its whole process group ends with the block.

    Args:
        tenants: names.
        checkout: whose service it is.
        settings: of the service, such as `kept_bytes=0`.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
        chosen.close()
        given = {f"MESHWRIGHT_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {
            **os.environ, "PYTHONPATH": str(checkout), "MESHWRIGHT_LOG_LEVEL": "warning", "MESHWRIGHT_DATA_DIR": folder,
            **given,
        }  # fmt: skip
        meshwright = [sys.executable, "-m", "meshwright"]
        serve = [*meshwright, "--quiet", "--log-level", "warning", "serve", "--port", str(port)]
        service = subprocess.Popen(serve, env=environment, cwd=checkout, start_new_session=True)
        try:
            _await_ready(port)
            keys = {tenant: _key_of(tenant, meshwright, environment, checkout) for tenant in tenants}
            yield Running(port, service.pid, keys)
        finally:
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()


def _key_of(tenant: str, meshwright: list[str], environment: dict[str, str], checkout: Path) -> str:
    create = [*meshwright, "keys", "create", "load", "--tenant", tenant]
    created = subprocess.run(create, env=environment, cwd=checkout, check=True, capture_output=True, text=True)
    return created.stdout.strip()


def _await_ready(port: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError("the service did not become ready within a minute")


def _children(pid: int) -> list[int]:
    """All that this process has started, and those have: answering processes are children of the one that forks them."""
    tasks = Path(f"/proc/{pid}/task")
    own = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return own + [below for child in own for below in _children(child)]


def _cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB
