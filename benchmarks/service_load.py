"""What one service on this machine answers under load, with SQLite and its own workers.

    python -m benchmarks.service_load                 the rates and waiting times, two minutes
    python -m benchmarks.service_load --soak 1800     its memory over half an hour of mixed work

Each figure is held against the bar of the project's promise. While a load lasts, `/healthz` is asked twenty times a second on a
connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

from benchmarks.load.client import Answers, request, send
from benchmarks.load.service import Running, running
from benchmarks.record import record

_CONNECTIONS = 16
_HEALTH = request("GET", "/healthz")
_SAMPLE_EVERY_S = 15.0


def main() -> None:
    """Runs the loads that were asked for and writes their figures to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each rate")
    parser.add_argument("--soak", type=float, help="seconds of mixed work, in place of the rates")
    parser.add_argument("--print", action="store_true", dest="only_print", help="write no results")
    arguments = parser.parse_args()
    if arguments.soak:
        _soak(arguments.soak, only_print=arguments.only_print)
        return
    with running("a", "b") as service:
        _rates(service, seconds=arguments.seconds, only_print=arguments.only_print)
    # Several tenants share these workers although the address is loopback, as behind a proxy of the same machine.
    with running("a", "b", max_running_jobs=1) as service:
        _neighbour(service, only_print=arguments.only_print)


def large_plan(number: int) -> bytes:
    """A request for 70B on 1,024 GPUs that differs from those of other numbers in its batch."""
    return _plan_of("llama-3.1-70b", nodes=128, batch=1024 + 128 * number)


def small_plan(number: int) -> bytes:
    """A request for 8B on one node."""
    return _plan_of("llama-3.1-8b", nodes=1, batch=64 + 8 * number)


def long_plan(number: int) -> bytes:
    """A request that keeps a worker busy until its limit of ten minutes: every split of DeepSeek-V3 over 100,000 GPUs."""
    include = ["pareto", "what_if", "open_splits"]
    return _plan_of("deepseek-v3", nodes=12_500, batch=55_440 + number, include=include, wait_s=0)


def _plan_of(model: str, *, nodes: int, batch: int, **rest: Any) -> bytes:
    document = {
        "model": {"preset": model},
        "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {
            "seq_length": 4096, "global_batch_size": batch, "precision": "bf16", "framework": "megatron",
        },
        **rest,
    }  # fmt: skip
    return json.dumps(document).encode()


def _rates(service: Running, *, seconds: float, only_print: bool) -> None:
    key = service.keys["a"]
    asked = request("POST", "/v1/plans", key=key, body=large_plan(0))
    place = f"/v1/plans/{_posted(service, large_plan(0))['id']}"
    for name, sent, goal in (
        ("service_cached_get", request("GET", place, key=key), ">= 1000 with p99 <= 20 ms"),
        ("service_same_post", asked, ">= 600"),
    ):
        answers, health = _under_load(service, itertools.repeat(sent), seconds=seconds)
        _note(name, answers, health, goal=goal, only_print=only_print)
    fresh = [request("POST", "/v1/plans", key=key, body=large_plan(number)) for number in range(1, 121)]
    answers, health = _under_load(service, fresh)
    _note("service_fresh_plans", answers, health, goal=">= 8", only_print=only_print)


def _neighbour(service: Running, *, only_print: bool) -> None:
    """One tenant's small plans while another has a hundred long jobs."""
    for number in range(100):
        _posted(service, long_plan(number))
    small = [request("POST", "/v1/plans", key=service.keys["b"], body=small_plan(number)) for number in range(100)]
    answers, health = _under_load(service, small, connections=1)
    slowest_s = max(answers.seconds)
    details = {"answers": len(answers.seconds), "statuses": dict(answers.statuses), **_of_health(health)}
    _write("service_neighbour", slowest_s, unit="s", goal="<= 2", only_print=only_print, **details)


def _soak(seconds: float, *, only_print: bool) -> None:
    # A small memory for answers, so that what fills it is full early and everything after that would be a leak.
    with running("a", kept_bytes=8 << 20) as service:
        samples = asyncio.run(_mixed(service, seconds))
    # The first third fills caches, arenas and pools.
    settled = samples[len(samples) // 3 :]
    half = len(settled) // 2
    for part in ("service", "workers"):
        before, after = (max(sample[part] for sample in some) for some in (settled[:half], settled[half:]))
        details = {"seconds": seconds, "samples": [round(sample[part], 1) for sample in samples]}
        _write(
            f"service_memory_{part}", 100 * (after / before - 1), unit="% from the middle third to the last one",
            goal="<= 3", only_print=only_print, **details,
        )  # fmt: skip


async def _mixed(service: Running, seconds: float) -> list[dict[str, float]]:
    """Memory every quarter of a minute while plans are asked for, read, listed and watched, and rows evaluated."""
    key = service.keys["a"]
    place = f"/v1/plans/{_posted(service, large_plan(0))['id']}"
    row = dict(json.loads(small_plan(0)).items())
    row |= {"id": "row", "strategy": {"tp": 2, "pp": 1, "dp": 4, "micro_batch_size": 1}}
    loads = (
        (_numbered(key), 1.0),
        (itertools.repeat(request("GET", place, key=key)), 0.02),
        (itertools.repeat(request("GET", "/v1/plans?limit=20", key=key)), 0.5),
        (itertools.repeat(request("POST", "/v1/evaluate", key=key, body=json.dumps(row).encode())), 0.2),
        (itertools.repeat(_HEALTH), 0.2),
    )
    samples: list[dict[str, float]] = []
    async with asyncio.TaskGroup() as group:
        for requests, every_s in loads:
            group.create_task(send(requests, port=service.port, connections=1, seconds=seconds, every_s=every_s))
        for _ in range(int(seconds / _SAMPLE_EVERY_S)):
            await asyncio.sleep(_SAMPLE_EVERY_S)
            samples.append(service.resident_mib())
            print(" ".join(f"{part} {mib:.0f} MiB" for part, mib in samples[-1].items()), flush=True)
    return samples


def _numbered(key: str) -> Iterator[bytes]:
    for number in itertools.count():
        yield request("POST", "/v1/plans", key=key, body=small_plan(number))


def _under_load(
    service: Running, requests: Any, *, seconds: float = float("inf"), connections: int = _CONNECTIONS
) -> tuple[Answers, Answers]:
    async def both() -> tuple[Answers, Answers]:
        load = asyncio.create_task(send(requests, port=service.port, connections=connections, seconds=seconds))
        until = itertools.takewhile(lambda _: not load.done(), itertools.repeat(_HEALTH))
        health = await send(until, port=service.port, connections=1, every_s=0.05)
        return await load, health

    return asyncio.run(both())


def _posted(service: Running, body: bytes) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {service.keys['a']}", "Content-Type": "application/json"}
    address = f"http://127.0.0.1:{service.port}/v1/plans"
    asked = urllib.request.Request(address, data=body, headers=headers)
    with urllib.request.urlopen(asked) as answer:  # noqa: S310
        document: dict[str, Any] = json.load(answer)
    return document


def _note(name: str, answers: Answers, health: Answers, *, goal: str, only_print: bool) -> None:
    _write(
        name, answers.per_s, unit="answers/s", goal=goal, only_print=only_print, connections=_CONNECTIONS,
        p50_ms=round(answers.quantile_ms(0.5), 2), p99_ms=round(answers.quantile_ms(0.99), 2),
        statuses=dict(answers.statuses), **_of_health(health),
    )  # fmt: skip


def _of_health(health: Answers) -> dict[str, Any]:
    return {"healthz_p99_ms": round(health.quantile_ms(0.99), 2), "healthz_answers": len(health.seconds)}


def _write(name: str, value: float, *, unit: str, goal: str, only_print: bool, **details: Any) -> None:
    if only_print:
        print(f"{name}: {value:,.4g} {unit} (goal {goal})")
    else:
        record(name, value=value, unit=unit, goal=goal, **details)
    print("   ", {key: found for key, found in details.items() if key != "samples"}, flush=True)


if __name__ == "__main__":
    main()
