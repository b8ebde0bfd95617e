"""Answers in processes of their own: bounded, in turn, and given up when nobody waits for them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import slow_answers
from sqlalchemy import Engine

from app.errors import TimeLimitError, TooManyAnswersError, UnavailableError, WorkerLostError
from app.service.answering.forker import Forker
from app.service.answering.messages import RelayedError
from app.service.answering.pool import AnsweringPool, PoolLimits
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine
from app.service.db.migrate import upgrade

T = TypeVar("T")
LIMITS = PoolLimits(processes=1, most_running=1, most_waiting=2, time_limit_s=60.0, memory_bytes=512 << 20)


@pytest.fixture(scope="module")
def forker() -> Forker:
    return Forker(["slow_answers"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = build_engine(f"sqlite:///{tmp_path_factory.mktemp('data') / 'test.db'}")
    upgrade(engine)
    yield engine
    engine.dispose()


Run = Callable[..., Any]


@pytest.fixture
def with_pool(forker: Forker, engine: Engine) -> Run:
    """Runs a test's coroutine beside a pool with these limits."""

    def run(act: Callable[[AnsweringPool], Awaitable[T]], **limits: Any) -> T:
        async def acted() -> T:
            pool = AnsweringPool(forker, CalibrationStore(engine), replace(LIMITS, **limits))
            pool.start()
            try:
                return await act(pool)
            finally:
                await pool.stop()

        return asyncio.run(acted())

    return run


def test_a_pool_that_stops_while_it_starts_leaves_no_connection_open(with_pool: Run) -> None:
    """Its threads are forking in the moment in which it stops; a connection without an owner is a warning, which fails the test."""

    # Forking takes a few milliseconds.
    for delay_s in (0.001, 0.002, 0.003, 0.004) * 8:
        with_pool(lambda _pool, delay_s=delay_s: asyncio.sleep(delay_s), processes=8)
    gc.collect()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not reached():  # noqa: ASYNC110 - another process reaches it
            await asyncio.sleep(0.01)


def test_parts_arrive_in_order_and_the_process_is_kept(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> list[Any]:
        return [
            await pool.all_parts("a", slow_answers.counted, 3),
            await pool.all_parts("a", slow_answers.counted, 0),
            await pool.all_parts("a", slow_answers.ended_by_its_last),
            await pool.all_parts("a", slow_answers.process_id) == pool.pids() != [os.getpid()],
        ]

    assert with_pool(act) == [[0, 1, 2], [], [1, 2], True]


def test_tenants_take_turns_at_the_processes(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> list[str]:
        ended: list[str] = []

        async def ask(tenant: str) -> None:
            await pool.all_parts(tenant, slow_answers.counted, 1, 0.01)
            ended.append(tenant)

        await asyncio.gather(*(ask(tenant) for tenant in "aaab"))
        return ended

    assert with_pool(act, most_waiting=9) == ["a", "b", "a", "a"]


def test_whoever_leaves_frees_the_process_at_once(with_pool: Run) -> None:
    """The first answer would take a minute; the second is there as soon as the first is given up, from another process."""

    async def act(pool: AnsweringPool) -> tuple[bool, bool, dict[str, int]]:
        task = asyncio.create_task(pool.all_parts("a", slow_answers.counted, 1, 60.0))
        await until(lambda: pool.counts()["running"] == 1)
        (before,) = pool.pids()
        waiting = asyncio.create_task(pool.all_parts("a", slow_answers.process_id))
        await until(lambda: pool.counts()["waiting"] == 1)
        task.cancel()
        async with asyncio.timeout(30.0):
            (after,) = await waiting
        await until(lambda: not Path(f"/proc/{before}").exists() or "Z" in Path(f"/proc/{before}/stat").read_text())
        return after != before, task.cancelled(), pool.counts()

    assert with_pool(act) == (True, True, {"running": 0, "waiting": 0})


def test_whoever_leaves_the_line_is_not_computed_for(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> dict[str, int]:
        first = asyncio.create_task(pool.all_parts("a", slow_answers.counted, 1, 0.2))
        await until(lambda: pool.counts()["running"] == 1)
        others = [asyncio.create_task(pool.all_parts("a", slow_answers.counted, 1, 60.0)) for _ in range(2)]
        await until(lambda: pool.counts()["waiting"] == 2)
        for each in others:
            each.cancel()
        assert await first == [0]
        assert await pool.all_parts("a", slow_answers.counted, 1) == [0]
        return pool.counts()

    assert with_pool(act) == {"running": 0, "waiting": 0}


def test_a_full_line_refuses(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> None:
        await pool.all_parts("a", slow_answers.counted, 1)  # the process is there from now on
        tasks = [asyncio.create_task(pool.all_parts("a", slow_answers.counted, 1, 60.0)) for _ in range(3)]
        await until(lambda: pool.counts() == {"running": 1, "waiting": 2})
        with pytest.raises(TooManyAnswersError):
            await pool.all_parts("a", slow_answers.counted, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with_pool(act)


def test_a_turn_that_does_not_come_is_told(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> None:
        task = asyncio.create_task(pool.all_parts("a", slow_answers.counted, 1, 60.0))
        await until(lambda: pool.counts()["running"] == 1)
        with pytest.raises(UnavailableError):
            await pool.all_parts("b", slow_answers.counted, 1)
        assert pool.counts() == {"running": 1, "waiting": 0}
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with_pool(act, patience_s=0.1)


def test_an_answer_that_takes_too_long_is_ended(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> tuple[str, list[int]]:
        with pytest.raises(TimeLimitError) as late:
            await pool.all_parts("a", slow_answers.counted, 1, 60.0)
        return str(late.value), await pool.all_parts("a", slow_answers.counted, 2)

    assert with_pool(act, time_limit_s=2.0) == ("the answer was not complete after 2 s", [0, 1])


def test_nothing_is_computed_that_is_not_read(with_pool: Run, tmp_path: Path) -> None:
    """Parts of 1 MiB: one was read, one lies half in the sockets, and the next may have been begun."""

    async def act(pool: AnsweringPool) -> int:
        told = tmp_path / "told"
        with await pool.answer("a", slow_answers.whatever_is_read, told) as answer:
            assert len(await anext(answer)) == 1 << 20
            await asyncio.sleep(0.3)
            return told.stat().st_size

    assert with_pool(act) <= 4


def test_a_reader_that_takes_nothing_keeps_no_process(with_pool: Run, tmp_path: Path) -> None:
    async def act(pool: AnsweringPool) -> list[int]:
        await pool.answer("a", slow_answers.whatever_is_read, tmp_path / "told")
        return await pool.all_parts("b", slow_answers.counted, 1)

    assert with_pool(act, time_limit_s=2.0) == [0]


def test_memory_is_bounded(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> tuple[list[int], str, list[int]]:
        allowed = await pool.all_parts("a", slow_answers.greedy, 100)
        with pytest.raises(RelayedError) as refused:
            await pool.all_parts("a", slow_answers.greedy, 600)
        return allowed, refused.value.document["code"], await pool.all_parts("a", slow_answers.counted, 1)

    assert with_pool(act) == ([100 << 20], "memory-limit", [0])


def test_a_process_that_is_killed_takes_only_its_answer_along(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> list[int]:
        with pytest.raises(WorkerLostError):
            await pool.all_parts("a", slow_answers.deadly)
        (pid,) = await pool.all_parts("a", slow_answers.process_id)
        os.kill(pid, signal.SIGKILL)  # now while it is idle
        await asyncio.sleep(0.1)
        return await pool.all_parts("a", slow_answers.counted, 1)

    assert with_pool(act) == [0]


def test_the_process_that_forks_is_replaced_when_it_is_killed(with_pool: Run, forker: Forker) -> None:
    async def act(pool: AnsweringPool) -> list[int]:
        assert await pool.all_parts("a", slow_answers.counted, 1) == [0]
        os.kill(forker.pid, signal.SIGKILL)
        with suppress(WorkerLostError):
            await pool.all_parts("a", slow_answers.deadly)
        return await pool.all_parts("a", slow_answers.counted, 2)

    assert with_pool(act) == [0, 1]


def test_errors_are_told_as_they_were_met(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> list[tuple[str, int, str]]:
        told = []
        for function in (slow_answers.refused, slow_answers.faulty):
            with pytest.raises(RelayedError) as error:
                await pool.all_parts("a", function)
            document = error.value.document
            told.append((document["code"], document["status"], document["detail"]))
        return told

    assert with_pool(act) == [
        ("wrong-state", 409, "it is closed"),
        ("internal-error", 500, "the service has failed because of a bug"),
    ]


def test_calibrations_are_those_of_the_tenant_who_asks(with_pool: Run, engine: Engine) -> None:
    """The process asks in the name of somebody else, and is not asked for the name."""
    store = CalibrationStore(engine)
    for tenant in "ab":
        store.add(tenant, f"of-{tenant}", document=f'"{tenant}"', gpu="H100", gpus_per_node=8)

    async def act(pool: AnsweringPool) -> list[Any]:
        return await pool.all_parts("a", slow_answers.documents, ["of-a", "of-b"])

    assert with_pool(act) == [{"of-a": '"a"'}]


def test_processes_end_with_the_pool(with_pool: Run) -> None:
    async def act(pool: AnsweringPool) -> list[int]:
        await pool.all_parts("a", slow_answers.counted, 1)
        return pool.pids()

    (pid,) = with_pool(act)
    ended = threading.Event()
    for _ in range(6000):
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            ended.set()
            break
        threading.Event().wait(0.01)
    assert ended.is_set()
