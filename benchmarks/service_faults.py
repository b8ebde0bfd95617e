"""What becomes of 200 jobs of three tenants while everything that can fail fails: the service of `docs/tasks/serve.md` under faults.

python -m benchmarks.service_faults          as root: the database has a disk of its own, which is filled

Two services and three workers run on PostgreSQL as separate programs. Jobs arrive all the time, each posted until a service takes
it, with an Idempotency-Key. Meanwhile each part is killed (`kill -9`), the database is stopped for 30 s and frozen for 30 s, one worker's
clock jumps an hour ahead and an hour back, and the database's disk is full for 20 s. In the end each job must have ended once, with the
answer that the planner gives, or have failed with a reason; how often each was started is counted.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.service.db.engine import build_engine, reading
from app.service.db.jobs import JobStore
from app.service.db.plans import PlanStore
from app.service.db.tables import job_events, jobs, plans
from app.settings import Settings
from benchmarks.faults.house import House, Part, until
from benchmarks.record import record
from planner.plan import plan

TENANTS = ("ada", "bob", "cyd")
NUM_JOBS = 200
EVERY_S = 1.1
"""Seconds between two jobs of all tenants: the faults take some three and a half minutes, and each must meet running jobs."""
FINISHED = ("succeeded", "failed", "cancelled")


def request_of(number: int) -> dict[str, Any]:
    """One of the 200 requests: those of the first tenant take more than a second of computing, the others a fifth of one."""
    is_long = number % len(TENANTS) == 0
    return {
        "model": {"preset": "llama-3.1-70b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 32 if is_long else 64, "gpus_per_node": 8},
        "training": {
            "seq_length": 8192, "global_batch_size": 1024, "precision": "bf16", "framework": "megatron",
            "total_tokens": (number + 1) * 10**9,
        },
        "top_k": 3, "wait_s": 0, "include": ["open_splits"] if is_long else [],
    }  # fmt: skip


@dataclass(slots=True)
class Client:
    """Posts one tenant's jobs, each until a service has taken it."""

    tenant: str
    key: str
    ports: list[int]
    numbers: range
    ids: dict[int, str] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Posts them all."""
        begun_at = time.monotonic()
        for place, number in enumerate(self.numbers):
            time.sleep(max(begun_at + place * EVERY_S * len(TENANTS) - time.monotonic(), 0.0))
            attempt = 0
            while number not in self.ids:
                port = self.ports[(number + attempt) % len(self.ports)]
                if found := self._post(number, port):
                    self.ids[number] = found
                else:
                    attempt += 1
                    time.sleep(0.5)

    def _post(self, number: int, port: int) -> str | None:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.key}",
            "Idempotency-Key": f"{self.tenant}-{number}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", "/v1/plans", json.dumps(request_of(number)), headers)
            answer = connection.getresponse()
            document = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.refusals[type(error).__name__] += 1
            return None
        finally:
            connection.close()
        if "id" in document and answer.status in {201, 202}:
            return str(document["id"])
        self.refusals[f"{answer.status} {document.get('code')}"] += 1
        return None


class Health:
    """Asks every service four times a second whether it is alive and whether it can work."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._over = threading.Event()
        self.phase = "start"
        self.slowest_s: dict[str, float] = {}
        self.ready: dict[str, Counter[str]] = {}
        self._threads = [
            threading.Thread(target=self._ask, args=(port, path), daemon=True)
            for port in ports
            for path in ("/healthz", "/readyz")
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()

    def _ask(self, port: int, path: str) -> None:
        while not self._over.wait(0.25):
            phase, begun_at = self.phase, time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                said = json.loads(answer.read())
                status = str(answer.status) + (f" {said['code']}" if "code" in said else "")
            except (OSError, http.client.HTTPException, ValueError) as error:
                status = type(error).__name__
            finally:
                connection.close()
            if path == "/readyz":
                self.ready.setdefault(phase, Counter())[status] += 1
            elif status == "200":
                self.slowest_s[phase] = max(self.slowest_s.get(phase, 0.0), time.monotonic() - begun_at)


class Faults:
    """The faults, one after the other, with some seconds of peace in between."""

    def __init__(self, house: House, health: Health) -> None:
        self._house = house
        self._health = health
        self.times_s: dict[str, list[float]] = {}
        self._begun_at = time.monotonic()

    def run(self) -> None:
        """Lets everything happen."""
        house = self._house
        service, worker, database = house.services[0], house.workers[0], house.database
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("clock +1 h", lambda: house.set_clock("+1h")),
            ("worker killed", lambda: self._replace(worker)),
            ("worker process killed", lambda: self._kill_child(house.workers[1])),
            ("service killed", lambda: self._replace(service)),
            ("database killed", lambda: _during(5, database.kill, database.start)),
            ("clock -1 h", lambda: house.set_clock("-1h")),
            ("database stopped 30 s", lambda: _during(30, database.stop, database.start)),
            ("database frozen 30 s", lambda: _during(30, database.freeze, database.thaw)),
            ("disk full 20 s", lambda: _during(20, database.fill_disk, database.free_disk)),
            ("all killed", self._kill_all),
        )
        for name, happens in steps:
            self._health.phase = "peace"
            time.sleep(10)
            self._health.phase = name
            begun_s = time.monotonic() - self._begun_at
            print(f"{begun_s:6.1f} s {name}", flush=True)
            happens()
            self.times_s[name] = [round(begun_s, 1), round(time.monotonic() - self._begun_at, 1)]
        self._health.phase = "after"

    def _replace(self, part: Part) -> None:
        part.kill()
        time.sleep(1)
        part.start()

    def _kill_child(self, part: Part) -> None:
        for pid in part.children():
            os.kill(pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        house = self._house
        for part in (*house.services, *house.workers):
            part.kill()
        house.database.kill()
        time.sleep(3)
        house.database.start()
        for part in (*house.services, *house.workers):
            part.start()


def _during(seconds: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    time.sleep(seconds)
    end()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="meshwright-faults-"))
    folder.chmod(0o755)
    house = House(folder)
    begun_at = time.monotonic()
    try:
        house.start()
        engine = build_engine(Settings(database_url=house.database.url).url)
        clients = [
            Client(tenant, house.key(tenant), house.ports, range(place, NUM_JOBS, len(TENANTS)))
            for place, tenant in enumerate(TENANTS)
        ]
        health = Health(house.ports)
        health.start()
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        faults = Faults(house, health)
        faults.run()
        for thread in threads:
            thread.join(timeout=120)
        await_the_end(engine)
        facts = counted(engine)
        facts["answers_compared"] = compared(engine, clients)
        engine.dispose()
        health.stop()
    finally:
        house.close()
    known = {client.tenant: dict(client.refusals) for client in clients}
    tracebacks = {part.name: part.log.read_text().count("Traceback") for part in (*house.services, *house.workers)}
    record(
        "service_faults",
        value=facts["ended_once"],
        unit=f"jobs of {NUM_JOBS} that ended exactly once",
        goal=f"= {NUM_JOBS}",
        jobs=facts,
        faults_s=faults.times_s,
        posts_refused_and_repeated=known,
        ready={phase: dict(found) for phase, found in health.ready.items()},
        slowest_healthz_s={phase: round(seconds, 3) for phase, seconds in health.slowest_s.items()},
        starts_of_parts={part.name: part.starts for part in (*house.services, *house.workers)},
        tracebacks=tracebacks,
        took_s=round(time.monotonic() - begun_at),
    )
    print(json.dumps(facts, indent=2), f"logs: {folder}", sep="\n")


def await_the_end(engine: Any) -> None:
    """Waits until all jobs have ended.

    Raises:
        TimeoutError: none ended for two minutes.
    """
    while not set(before := statuses(engine)) <= set(FINISHED):
        print(f"       {before}", flush=True)
        ended = sum(before.get(status, 0) for status in FINISHED)
        until(
            lambda ended=ended: sum(statuses(engine).get(status, 0) for status in FINISHED) > ended,  # type: ignore[misc]
            seconds=120,
            what="no job ended for two minutes",
        )
        time.sleep(5)


def statuses(engine: Any) -> dict[str, int]:
    """Number of jobs by status."""
    return JobStore(engine, lease_s=10.0).counts()


def counted(engine: Any) -> dict[str, Any]:
    """How the jobs ended, how often each was started, and whether every success has its answer."""
    with reading(engine) as connection:
        rows = connection.execute(select(jobs)).all()
        events: dict[str, Counter[str]] = {}
        for row in connection.execute(select(job_events)):
            events.setdefault(row.job_id, Counter())[row.type] += 1
        answers = dict(connection.execute(select(plans.c.id, plans.c.response)).all())
    ends = {row.id: sum(events[row.id][kind] for kind in FINISHED) for row in rows}
    failed = [json.loads(row.error) for row in rows if row.status == "failed"]
    stored = PlanStore(engine, max_queued_jobs=1)
    done = [(row.tenant, row.id) for row in rows if row.status == "succeeded"]
    return {
        "stored": len(rows),
        "ended_once": sum(count == 1 for count in ends.values()),
        "status": dict(Counter(row.status for row in rows)),
        "failed_with": dict(Counter(f"{error['code']}: {error['detail']}" for error in failed)),
        "successes_with_their_answer": sum(bool(answers[key[1]]) and len(stored.all_ranked(*key)) == 3 for key in done),
        "answers_of_others": sum(bool(answers[row.id]) for row in rows if row.status != "succeeded"),
        "times_started": {
            str(count): number for count, number in sorted(Counter(events[row.id]["started"] for row in rows).items())
        },
        "attempts_counted": {
            str(count): number for count, number in sorted(Counter(row.attempts for row in rows).items())
        },
    }


def compared(engine: Any, clients: list[Client]) -> dict[str, int]:
    """Answers that are those of a planner to which nothing happened, of a dozen requests."""
    same = other = 0
    for client in clients:
        for number in list(client.numbers)[::17]:
            with reading(engine) as connection:
                found = connection.execute(
                    select(plans.c.response).where(plans.c.tenant == client.tenant, plans.c.id == client.ids[number])
                ).scalar_one()
            if found is not None:
                is_same = _essence(json.loads(found)) == _essence(plan(request_of(number)))
                same, other = same + is_same, other + (not is_same)
    return {"same": same, "other": other}


def _essence(response: dict[str, Any]) -> list[Any]:
    return [(each["rank"], each["strategy"], each["evaluation"]["step_time_s"]) for each in response["plans"]]


if __name__ == "__main__":
    main()
