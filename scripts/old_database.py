"""Keeps a small database of one release, with what its service answers, for `tests/contract/test_upgrade_contract.py`.

    python -m scripts.old_database CHECKOUT FOLDER SQLITE_FILE_OR_POSTGRESQL_URL

starts the service of CHECKOUT (a worktree of the release) on an empty database, lets two tenants plan, cancel, measure and repeat, notes
what the service answers, and kills it with jobs left in the queue. FOLDER then holds `sqlite.sql` or `postgresql.sql`, which make
the database again, and `sqlite.json` or `postgresql.json`: the keys, and the answers to be had with them.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

PORT = 18017
HOST = "0.0.0.0"  # noqa: S104 - beyond loopback, so that keys and tenants count
ADDRESS = f"http://127.0.0.1:{PORT}"
REQUEST = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {
        "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8, "intra_node": "nvswitch", "nics_per_node": 8,
        "nic_gbit_per_s": 400, "network": {"fabric": "infiniband"},
    },
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"},
    "top_k": 1,
}  # fmt: skip
CALIBRATION = {
    "schema_version": 1,
    "name": "a measurement of the release before",
    "kind": "measured",
    "fingerprint": {"gpu": "H100-SXM-80GB", "interconnect": "nvswitch", "gpus_per_node": 8, "num_nodes": 1},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
    "created_at": "2026-01-01T00:00:00Z",
    "source": "made for a test, measured nowhere",
    "gemm": [{"m": 8192, "n": 8192, "k": 8192, "time_s": 0.0016}],
}  # fmt: skip


class Release:
    """The programs of one checkout on one database."""

    def __init__(self, checkout: Path, url: str) -> None:
        self._checkout = checkout
        self._environment = {
            **os.environ, "MESHWRIGHT_DATABASE_URL": url, "PYTHONPATH": str(checkout), "MESHWRIGHT_POOL_SIZE": "1",
            "MESHWRIGHT_SEED_EXAMPLES": "false",
        }  # fmt: skip

    def command(self, *words: str) -> str:
        """What the command prints."""
        made = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "meshwright", *words],
            cwd=self._checkout, env=self._environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return made.stdout.strip()

    def serve(self) -> subprocess.Popen[bytes]:
        """The service, which leads a process group of its own and is ready."""
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "meshwright", "serve", "--host", HOST, "--port", str(PORT)],
            cwd=self._checkout, env=self._environment, start_new_session=True,
        )  # fmt: skip
        for _ in range(300):
            try:
                if httpx2.get(f"{ADDRESS}/readyz").status_code == 200:
                    return process
            except httpx2.ConnectError:
                pass
            time.sleep(0.1)
        raise TimeoutError


def fill(release: Release) -> dict[str, Any]:
    """Keys by tenant, and answers by tenant and path."""
    keys = {tenant: release.command("keys", "create", "laptop", "--tenant", tenant) for tenant in ("red", "blue")}
    revoked = release.command("keys", "create", "lost", "--tenant", "red")
    release.command("keys", "revoke", release.command("keys", "list").splitlines()[-1].split("\t")[0])
    process = release.serve()
    clients = {
        name: httpx2.Client(base_url=ADDRESS, timeout=60, headers={"Authorization": f"Bearer {key}"})
        for name, key in keys.items()
    }
    red, blue = clients["red"], clients["blue"]
    calibration = _made(red.post("/v1/calibrations", json=CALIBRATION))
    paths = {"red": [f"/v1/calibrations/{calibration['id']}", "/v1/calibrations"], "blue": []}
    for name, client in clients.items():
        plan = _made(client.post("/v1/plans", json=REQUEST, headers={"Idempotency-Key": "again"}))
        paths[name] += [f"/v1/plans/{plan['id']}", f"/v1/plans/{plan['id']}/ranked/1"]
    paths["red"].append("/v1/plans")
    # One worker: the first of these keeps it busy, the second is cancelled while it waits, and two are left when the service dies.
    late = [_made(blue.post("/v1/plans", json={**_asked(size), "wait_s": 0}))["id"] for size in (128, 256, 512, 1024)]
    _made(blue.delete(f"/v1/plans/{late.pop(1)}"))
    answers = {name: {path: _made(clients[name].get(path)) for path in paths[name]} for name in clients}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return {"request": REQUEST, "keys": keys, "revoked_key": revoked, "answers": answers, "unfinished": late}


def dump(url: str) -> tuple[str, str]:
    """Name of the database's kind, and SQL that makes this database again."""
    if not url.startswith("sqlite"):
        command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - a fixed program
        # Orders to the program psql, which the tests do without.
        return "postgresql", "".join(line for line in text.splitlines(keepends=True) if not line.startswith("\\"))
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return "sqlite", "\n".join(connection.iterdump()) + "\n"


def main() -> None:
    """Fills a database with the programs of CHECKOUT and writes its files to FOLDER."""
    checkout, folder, url = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
    release = Release(checkout, url)
    release.command("db", "upgrade")
    told = fill(release)
    kind, statements = dump(url)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind}.sql").write_text(statements, encoding="utf-8")
    (folder / f"{kind}.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def _asked(batch: int) -> dict[str, Any]:
    return {**REQUEST, "training": {**REQUEST["training"], "global_batch_size": batch}}  # type: ignore[dict-item]


def _made(response: httpx2.Response) -> Any:
    assert response.is_success, response.text
    return response.json()


if __name__ == "__main__":
    main()
