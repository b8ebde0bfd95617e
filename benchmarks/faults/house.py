"""Two services, three workers and a PostgreSQL server on a disk of its own, each a process that can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIBFAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
# The short form of 127.0.0.1 is not among the addresses that the service takes for loopback, so that it wants keys.
HOST = "127.1"
DISK_MIB = 400


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Waits for a condition.

    Raises:
        TimeoutError: it did not hold in time.
    """
    end_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_at:
            raise TimeoutError(what)
        time.sleep(0.1)


class Part:
    """One program of the installation. Whatever ends it, `start` starts it again, as systemd or Kubernetes would."""

    def __init__(self, name: str, arguments: list[str], *, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "meshwright", *arguments]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts the program."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stderr=log)
        self.starts += 1

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[int]:
        """Process ids of its worker processes: those of its children that run jobs."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/children")
        found = [pid for path in threads for pid in path.read_text().split()]
        return sorted({int(pid) for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()})

    def kill(self) -> None:
        """Ends the program as the kernel does when memory is short: nothing in it hears of it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends the program in good order."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()


class Database:
    """A PostgreSQL server whose data lie on a disk of `DISK_MIB`, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._data = self._disk / "data"
        self._log = folder / "postgresql.log"
        self._filling = self._disk / "filling"
        self.port = free_port()
        programs = [Path(found).resolve().parent for name in ("initdb", "postgres") if (found := shutil.which(name))]
        self._programs = programs[-1] if programs else max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Mounts the disk and makes the server's files."""
        self._disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(self._disk)], check=True)
        shutil.chown(self._disk, "postgres")
        self._log.touch()
        shutil.chown(self._log, "postgres")
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-N")

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories='' -c max_wal_size=96MB"
        )
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._log), "-o", options, "start")

    def stop(self) -> None:
        """Stops the server; connections are broken off."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    @property
    def is_running(self) -> bool:
        """Whether the server's first process lives."""
        return Path(f"/proc/{self._first_pid()}").exists() if (self._data / "postmaster.pid").exists() else False

    def kill(self) -> None:
        """Ends all its processes at once, as a machine that fails does."""
        self._signal(signal.SIGKILL)
        until(lambda: not self._pids(), seconds=10, what="the database did not end")
        (self._data / "postmaster.pid").unlink()

    def freeze(self) -> None:
        """Suspends all its processes: connections stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets its processes go on."""
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leaves no free byte on its disk."""
        with self._filling.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                return

    def free_disk(self) -> None:
        """Takes the filling away, and starts the server where it has given up meanwhile."""
        self._filling.unlink()
        if not self.is_running:
            (self._data / "postmaster.pid").unlink(missing_ok=True)
            self.start()

    def remove(self) -> None:
        """Ends the server and unmounts its disk."""
        self._signal(signal.SIGKILL)
        until(lambda: not self._pids(), seconds=10, what="the database did not end")
        subprocess.run(["umount", str(self._disk)], check=True)

    def _first_pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def _pids(self) -> list[int]:
        """The server's processes: all whose working folder is its data folder."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cwd").readlink() == self._data and (folder / "stat").read_text().split()[2] != "Z":
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):  # it ended by itself in the meantime
                os.kill(pid, number)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user="postgres", cwd="/"
        )


class House:
    """The whole installation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(folder)
        self.clock = folder / "clock"
        url = self.database.url
        quiet = {"MESHWRIGHT_SEED_EXAMPLES": "false"}
        self.ports = [free_port(), free_port()]
        self.services = [
            Part(f"service-{number}", ["serve", "--host", HOST, "--port", str(port), "--db", url, "--workers", "0"],
                 folder=folder, environment=quiet)
            for number, port in enumerate(self.ports, start=1)
        ]  # fmt: skip
        self.workers = [
            Part(f"worker-{number}", ["worker", "--db", url, "--workers", "1"], folder=folder, environment=shifted)
            for number, shifted in enumerate(({}, {}, self._shifted_clock()), start=1)
        ]

    def _shifted_clock(self) -> dict[str, str]:
        """The environment of a process whose clock is what the file `clock` says."""
        assert LIBFAKETIME is not None, "libfaketime is not installed"
        return {
            "LD_PRELOAD": str(LIBFAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.clock), "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip

    def set_clock(self, offset: str) -> None:
        """Shifts the clock of the last worker, such as `+1h`."""
        self.clock.write_text(f"{offset}\n")

    def start(self) -> None:
        """Starts everything, and waits until both services are ready."""
        self.set_clock("+0")
        self.database.make()
        self.database.start()
        subprocess.run(
            [sys.executable, "-m", "meshwright", "db", "upgrade", "--db", self.database.url],
            check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for part in (*self.services, *self.workers):
            part.start()

    def key(self, tenant: str) -> str:
        """A new key of a tenant."""
        command = [sys.executable, "-m", "meshwright", "keys", "create", "faults", "--tenant", tenant]
        done = subprocess.run(
            [*command, "--db", self.database.url], check=True, capture_output=True, text=True, cwd=ROOT
        )
        return done.stdout.strip()

    def close(self) -> None:
        """Ends everything."""
        for part in (*self.services, *self.workers):
            part.stop()
        self.database.remove()
