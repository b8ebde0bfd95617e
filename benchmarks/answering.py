"""What a service does for others while lists of rows are posted whose clients leave, and what a single row costs, also one that is
priced with what its tenant's own runs have taught.

Run: python -m benchmarks.answering [--other CHECKOUT] [--posts 45] [--rows 1500]

With `--other`, single rows are posted to both checkouts in turn, so that whatever else the machine does hits both alike, and the
difference is the median over these pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.correction_holdout import trial_records
from benchmarks.load.client import Answers, request, send
from benchmarks.load.service import ROOT, Running, running
from benchmarks.record import record

_STAY_S = 1.0
_PAIRS = 300
_PATIENCE_S = 150.0
HEALTH = request("GET", "/healthz")


def row(number: int) -> dict[str, Any]:
    """A row of a job of its own."""
    return {
        "id": number,
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8},
        "training": {
            "seq_length": 1024 + 16 * number, "global_batch_size": 256, "precision": "bf16", "framework": "megatron",
        },
        "strategy": {"tp": 2 ** (number % 4), "pp": 1, "micro_batch_size": 1},
    }  # fmt: skip


def posted(document: object) -> bytes:
    """The bytes of a request to evaluate this."""
    return request("POST", "/v1/evaluate", body=json.dumps(document, separators=(",", ":")).encode())


async def leave(port: int, sent: bytes) -> None:
    """Posts a list and hangs up without its answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    await asyncio.sleep(_STAY_S)
    writer.transport.abort()


async def left_lists(port: int, *, posts: int, rows: int) -> tuple[Answers, float]:
    """How `/healthz` is answered while so many lists are posted and left, and seconds until a single row is answered then."""
    sent, single = posted([row(number) for number in range(rows)]), posted(row(0))
    await send([single], port=port, connections=1)
    health = asyncio.create_task(send(repeat(HEALTH), port=port, connections=1, seconds=_STAY_S + 5.0, every_s=0.02))
    await asyncio.gather(*(leave(port, sent) for _ in range(posts)))
    begun_at = time.perf_counter()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await send([single], port=port, connections=1)
    except TimeoutError:
        print(f"a single row was not answered within {_PATIENCE_S:g} s")
    free_s = time.perf_counter() - begun_at
    return await health, free_s


async def single_rows(services: list[Running]) -> list[list[tuple[float, float]]]:
    """Milliseconds of single rows at each service, asked in turn: until the answer, and of CPU time in all its processes."""
    single = posted(row(0))
    took: list[list[tuple[float, float]]] = [[] for _ in services]
    for turn in range(20 + _PAIRS):
        order = list(zip(services, took, strict=True))
        for service, times in order if turn % 2 else reversed(order):
            before_s = service.cpu_s()
            answers = await send([single], port=service.port, connections=1)
            assert answers.statuses == {200: 1}
            if turn >= 20:
                times.append((1e3 * answers.seconds[0], 1e3 * (service.cpu_s() - before_s)))
    return took


async def taught_rows(service: Running) -> list[list[tuple[float, float]]]:
    """The same milliseconds of a row that is priced with its tenant's own corrections, and of the row without them."""
    runs = [each for each in trial_records() if each["status"] == "ok"]
    path = "/v1/observations"
    for run in runs:
        body = json.dumps({"row": run["row"], "measured": {"step_time_s": run["step_time_s"]}}).encode()
        answers = await send([request("POST", path, body=body)], port=service.port, connections=1)
        assert answers.statuses == {201: 1}
    own = {name: runs[0]["row"][name] for name in ("model", "cluster", "training", "strategy")}
    rows = [posted(own), posted(own | {"corrections": "none"})]
    took: list[list[tuple[float, float]]] = [[], []]
    for turn in range(20 + _PAIRS):
        for which in (0, 1) if turn % 2 else (1, 0):
            before_s = service.cpu_s()
            answers = await send([rows[which]], port=service.port, connections=1)
            assert answers.statuses == {200: 1}
            # The first rows wait until the service has learnt.
            if turn >= 20:
                took[which].append((1e3 * answers.seconds[0], 1e3 * (service.cpu_s() - before_s)))
    return took


def _more(took: list[list[tuple[float, float]]], figure: int) -> float:
    """Median milliseconds by which the first of each pair takes longer, by the clock (0) or of CPU time (1)."""
    return float(round(statistics.median(ours[figure] - theirs[figure] for ours, theirs in zip(*took, strict=True)), 3))


def _medians(name: str, took: list[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = zip(*took, strict=True)
    return {f"{name}p50_ms": round(statistics.median(wall), 2), f"{name}cpu_ms": round(statistics.median(cpu), 2)}


def own_corrections() -> None:
    """Measures and writes what the tenant's own corrections cost."""
    with running(seed_examples=False) as service:
        took = asyncio.run(taught_rows(service))
    record(
        "answer_own_corrections_ms",
        value=_more(took, 1),
        unit="ms",
        goal="<= 0.3",
        measures="CPU time by which a row takes longer that is priced with its tenant's own corrections than the same row without",
        pairs=_PAIRS,
        median_difference_ms=_more(took, 0),
        **_medians("", took[0]),
        **_medians("plain_", took[1]),
    )


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--posts", type=int, default=45)
    parser.add_argument("--rows", type=int, default=1500)
    asked = parser.parse_args()
    checkouts = [ROOT, *([asked.other.resolve()] if asked.other else [])]
    with ExitStack() as stack:
        services = [stack.enter_context(running(checkout=checkout, seed_examples=False)) for checkout in checkouts]
        took = asyncio.run(single_rows(services))
    details: dict[str, Any] = {"pairs": _PAIRS, **_medians("", took[0])}
    details["p99_ms"] = round(sorted(wall for wall, _ in took[0])[int(0.99 * _PAIRS)], 2)
    if asked.other:
        # CPU time besides, because on a busy machine each of the three processes that take part waits for its turn.
        details |= {**_medians("other_", took[1]), "median_difference_ms": _more(took, 0)}
    goal = "<= 3 ms more than within the service"
    record("answer_single_row_ms", value=details["p50_ms"], unit="ms", goal=goal, **details)
    own_corrections()
    with running(seed_examples=False) as service:
        health, free_s = asyncio.run(left_lists(service.port, posts=asked.posts, rows=asked.rows))
        record(
            "answer_left_lists", value=health.quantile_ms(0.99), unit="ms", goal="<= 50",
            measures="p99 of /healthz while lists are posted whose clients leave after 1 s, and 5 s longer",
            posts=asked.posts, rows=asked.rows, p50_ms=round(health.quantile_ms(0.5), 2), single_row_after_s=round(free_s, 3),
        )  # fmt: skip


if __name__ == "__main__":
    main()
