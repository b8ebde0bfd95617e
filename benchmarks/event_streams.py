"""What many event streams cost the service that sends them: the share of a core, and how late an event arrives.

The jobs run elsewhere: this program holds their leases and reports their progress five times a second, as a worker does.

Run: python -m benchmarks.event_streams [--streams 200] [--jobs 20] [--db postgresql://user@host/name]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from app.service.db.engine import build_engine
from app.service.db.jobs import JobKey, JobStore
from app.service.db.migrate import upgrade
from app.service.db.plans import PlanStore, Submission
from app.settings import Settings
from benchmarks.record import record
from benchmarks.service_fuzz import serving
from planner.search.progress import Progress

GOAL = "<= 0.1"
_OWNER, _TENANT = "elsewhere", "local"


def running_jobs(url: str, count: int) -> tuple[JobStore, list[JobKey]]:
    """Jobs that this program runs, for an hour at most."""
    engine = build_engine(url)
    upgrade(engine)
    store, plans = JobStore(engine, lease_s=3600.0), PlanStore(engine, max_queued_jobs=10 * count)
    for number in range(count):
        plans.submit(_TENANT, Submission(f"streamed-{time.time()}-{number}", '{"request": {}}', 3600.0))
    claimed = [store.claim(_OWNER) for _ in range(count)]
    return store, [job.key for job in claimed if job is not None]


async def watch(address: str, job: JobKey, arrivals: dict[tuple[str, int], list[float]]) -> None:
    """Notes when each event of the job arrives, until the stream is closed."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET /v1/plans/{job.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"id:"):
            arrivals.setdefault((job.id, int(line[3:])), []).append(time.time())


def cpu_s(process_id: int) -> float:
    """Seconds of processor time that the process has used."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: str, process_id: int, store: JobStore, keys: list[JobKey], streams: int) -> dict[str, float]:
    """Cores that the service uses while nothing happens and while every job reports, and seconds until an event arrives."""
    arrivals: dict[tuple[str, int], list[float]] = {}
    tasks = [asyncio.create_task(watch(address, keys[n % len(keys)], arrivals)) for n in range(streams)]
    await asyncio.sleep(5.0)
    idle_from, begin = cpu_s(process_id), time.monotonic()
    await asyncio.sleep(10.0)
    idle = (cpu_s(process_id) - idle_from) / (time.monotonic() - begin)
    busy_from, begin = cpu_s(process_id), time.monotonic()
    reported: dict[tuple[str, int], float] = {}
    for turn in range(50):
        for key in keys:
            store.add_progress(key, Progress(turn, best_s=2.0, bound_s=1.0), owner=_OWNER)
            reported[key.id, turn + 3] = time.time()  # after the events "queued" and "started"
        await asyncio.sleep(max(0.0, begin + (turn + 1) * 0.2 - time.monotonic()))
    busy = (cpu_s(process_id) - busy_from) / (time.monotonic() - begin)
    await asyncio.sleep(5.0)
    late = sorted(at - reported[event] for event, ats in arrivals.items() if event in reported for at in ats)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "missing": streams * 50 - len(late), "idle_cores": round(idle, 3), "busy_cores": round(busy, 3),
        "late_s_p50": round(statistics.median(late), 3), "late_s_p99": round(late[int(len(late) * 0.99)], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--db")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), database_url=asked.db)
        # Before the service starts, whose own workers would claim some of them.
        store, keys = running_jobs(settings.url, asked.jobs)
        with serving(asked.db, Path(folder)) as service:
            measured = asyncio.run(measure(service.address, service.process_id, store, keys, asked.streams))
    name = "event_streams" if asked.db is None else "event_streams_postgresql"
    value = measured.pop("idle_cores")
    record(name, value=value, unit="cores", goal=GOAL, streams=asked.streams, jobs=asked.jobs, **measured)
    print(measured)


if __name__ == "__main__":
    main()
