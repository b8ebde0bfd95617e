"""What becomes of the trials of tunings while agents and services are killed (`kill -9`), on SQLite and on PostgreSQL.

python -m benchmarks.tuning_faults          as root: PostgreSQL gets a disk of its own

Agents run a stand-in for trials (`tests/stand_in_trial.py`) that notes when it begins and when its record is written, so that what was
run can be held against what was kept. In the end every tuning must have ended by its own rule, with each plan once; every record that an
agent had on disk must have arrived; and nothing may be left in the studies that the tables do not know.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.faults.house import ROOT, Database, Part, free_port, until
from benchmarks.record import record

GPU = "H200-SXM-141GB"
TRIAL_S = 1.5
"""Seconds that the stand-in takes for a trial: several leases pass while one runs."""
LEASE_S = 2.0
NUM_TUNINGS, NUM_FAULTS, MAX_TRIALS = 5, 16, 6
SEED = 18


def request_of(number: int) -> dict[str, Any]:
    """One of the requests; they differ, so that each has a plan of its own."""
    return {
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {"gpu": GPU, "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
        "training": {
            "seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan",
            "total_tokens": (number + 1) * 10**9,
        },
        "top_k": 10,
    }  # fmt: skip


@dataclass(slots=True)
class Installation:
    """Services and agents on one database."""

    folder: Path
    services: list[Part]
    agents: list[Part]
    addresses: list[str]

    @classmethod
    def on(cls, folder: Path, *, url: str | None, num_services: int) -> Installation:
        """Two agents, each of one of the services."""
        ports = [free_port() for _ in range(num_services)]
        addresses = [f"http://127.0.0.1:{port}" for port in ports]
        environment = {
            "MESHWRIGHT_SEED_EXAMPLES": "false", "MESHWRIGHT_AGENT_LEASE_S": str(LEASE_S), "MESHWRIGHT_LOG_LEVEL": "error",
            "MESHWRIGHT_DATA_DIR": str(folder / "data"), "MESHWRIGHT_ANSWERING_PROCESSES": "1",
        }  # fmt: skip
        database = [] if url is None else ["--db", url]
        services = [
            Part(f"service-{port}", ["serve", "--port", str(port), "--workers", "1", *database],
                 folder=folder, environment=environment)
            for port in ports
        ]  # fmt: skip
        agents = []
        for number in range(2):
            stand_in = [
                sys.executable,
                str(ROOT / "tests" / "stand_in_trial.py"),
                str(folder / f"runs-{number}.jsonl"),
                str(TRIAL_S),
            ]
            options = {
                "server": addresses[number % num_services], "name": f"node-{number}", "gpu": GPU, "gpus-per-node": "2",
                "trial-launcher": shlex.join(stand_in), "folder": str(folder / "agents"),
            }  # fmt: skip
            arguments = ["agent", *(f"--{name}={value}" for name, value in options.items())]
            agents.append(Part(f"agent-{number}", arguments, folder=folder, environment={}))
        return cls(folder, services, agents, addresses)

    def call(self, method: str, path: str, body: object = None, *, key: str | None = None) -> Any:
        """The answer of the first service that gives one; None where none does. `key` lets several be asked to make one thing."""
        headers = {} if key is None else {"Idempotency-Key": key}
        for address in self.addresses:
            try:
                answer = httpx2.request(method, address + path, json=body, headers=headers, timeout=10)
            except httpx2.HTTPError:
                continue
            if answer.is_success:
                return answer.json()
        return None

    def runs(self, event: str) -> list[str]:
        """What trials have begun, or had their record written, by their strategy and job."""
        found = []
        for path in self.folder.glob("runs-*.jsonl"):
            told = [json.loads(line) for line in path.read_text().splitlines()]
            found += [each["trial"] for each in told if each["event"] == event]
        return found

    def stop(self) -> None:
        for part in (*self.agents, *self.services):
            part.kill()


def with_faults(house: Installation) -> dict[str, Any]:
    """Runs the tunings while parts are killed; returns what was counted."""
    for part in (*house.services, *house.agents):
        part.start()
    until(lambda: house.call("GET", "/readyz") is not None, seconds=120, what="the service did not start")
    until(lambda: len(house.call("GET", "/v1/agents")["items"]) == 2, seconds=120, what="no agents")
    body = {"backend": "export", "max_trials": MAX_TRIALS}
    ids = []
    for number in range(NUM_TUNINGS):
        tuning = house.call("POST", "/v1/tunings", body | {"request": request_of(number)}, key=f"tuning-{number}")
        ids.append(tuning["id"])
    begun_at = time.monotonic()
    killed = Counter(_kill_some(house))
    until(lambda: all(_ended(house, each) for each in ids), seconds=400, what="a tuning did not end")
    took_s = time.monotonic() - begun_at
    documents = [house.call("GET", f"/v1/tunings/{each}") for each in ids]
    return _counted(house, documents) | {"kills": dict(killed), "took_s": round(took_s, 1)}


def _kill_some(house: Installation) -> Sequence[str]:
    """Kills parts at drawn moments, and starts each again a second later, as systemd or Kubernetes would."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    choices: list[tuple[str, list[Part]]] = [
        *(("agent", [part]) for part in house.agents),
        *(("service", [part]) for part in house.services),
        ("agents", house.agents),
        ("agent and service", [house.agents[0], house.services[0]]),
    ]
    names = []
    for number in range(NUM_FAULTS):
        time.sleep(draw.uniform(1.0, 5.0))
        # Each at least once, then drawn.
        name, parts = choices[number] if number < len(choices) else draw.choice(choices)
        print(f"{number + 1:3d} {name}", flush=True)
        for part in parts:
            part.kill()
        time.sleep(1.0)
        for part in parts:
            part.start()
        names.append(name)
    return names


def _ended(house: Installation, tuning_id: str) -> bool:
    found = house.call("GET", f"/v1/tunings/{tuning_id}")
    return found is not None and found["finished_at"] is not None


def _counted(house: Installation, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    trials = [trial for document in documents for trial in document["trials"]]
    kept = [
        f"{document['id']} {json.dumps(trial['strategy'], sort_keys=True)}"
        for document in documents
        for trial in document["trials"]
        if trial["status"] in ("ok", "oom")
    ]
    begun, written = Counter(house.runs("begun")), Counter(house.runs("written"))
    refused = [path.name for path in house.folder.rglob("*.refused.json")]
    waiting = [path.name for path in house.folder.rglob("*.result.json")]
    return {
        "tunings": {
            "asked": len(documents),
            "by status": dict(Counter(document["status"] for document in documents)),
            "by reason": dict(Counter(document["stopped"]["reason"] for document in documents)),
        },
        "trials": {
            "kept": len(kept),
            "kept twice": len(kept) - len(set(kept)),
            "lost (chosen and without a record)": sum(trial["record"] is None for trial in trials),
            "by outcome": dict(Counter(trial["status"] for trial in trials)),
            "attempts": dict(Counter(trial["attempts"] for trial in trials)),
        },
        "runs": {
            "begun": begun.total(),
            "run to the end": written.total(),
            "run to the end twice": sum(count - 1 for count in written.values()),
            "records that wait or were refused": len(waiting) + len(refused),
        },
    }


def on_sqlite(folder: Path) -> dict[str, Any]:
    """One service on a file."""
    house = Installation.on(folder, url=None, num_services=1)
    try:
        return with_faults(house)
    finally:
        house.stop()


def on_postgresql(folder: Path) -> dict[str, Any]:
    """Two services on one server."""
    database = Database(folder)
    database.make()
    database.start()
    upgrade = [sys.executable, "-m", "meshwright", "db", "upgrade", "--db", database.url]
    subprocess.run(upgrade, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    house = Installation.on(folder, url=database.url, num_services=2)
    try:
        return with_faults(house)
    finally:
        house.stop()
        database.remove()


def main() -> None:
    """Runs both, and writes down what was counted."""
    found = {}
    kinds: dict[str, Callable[[Path], dict[str, Any]]] = {"sqlite": on_sqlite, "postgresql": on_postgresql}
    for name, run in kinds.items():
        with tempfile.TemporaryDirectory(prefix="meshwright-tunings-") as given:
            folder = Path(given)
            # PostgreSQL's own user has to reach its disk.
            os.chmod(folder, 0o755)  # noqa: PTH101, S103
            found[name] = run(folder)
        print(name, json.dumps(found[name], indent=1), flush=True)
    wrong = sum(
        each["trials"]["kept twice"] + each["trials"]["lost (chosen and without a record)"] for each in found.values()
    )
    record("tuning_faults", value=wrong, unit="trials lost or doubled", goal="0", **found)


if __name__ == "__main__":
    main()
