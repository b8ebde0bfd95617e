"""What a route asks for an answer: a few processes, a line of those who wait for one, and the end of whatever nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from fastapi.concurrency import run_in_threadpool

from app.errors import TimeLimitError, UnavailableError, WorkerLostError
from app.service.answering.answering_process import AnsweringProcess
from app.service.answering.forker import Forker
from app.service.answering.line import WaitingLine
from app.service.answering.messages import Asked, Ended, Last, Part, Question, Refused, RelayedError
from app.service.intake.own_calibrations import CalibrationSource

log = structlog.get_logger("meshwright.answering")
_RETRY_AFTER_S = 1.0
Function = Callable[..., Iterator[Any]]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What bounds the work of answers."""

    processes: int
    most_running: int
    """Answers of one tenant that are computed at a time."""
    most_waiting: int
    """Answers of one tenant that wait for their turn."""
    time_limit_s: float
    """Seconds that one answer may take, the client's reading of it included."""
    memory_bytes: int
    """Memory that one process may take."""
    # As long as clients and proxies commonly wait. A process that is lost is replaced within milliseconds, so that nothing but
    # others' answers keeps somebody in the line.
    patience_s: float = 30.0
    """Seconds that a request may wait for its turn."""


class AnsweringPool:
    """Answers questions in processes of its own. All of it runs on one event loop."""

    def __init__(self, forker: Forker, calibrations: CalibrationSource, limits: PoolLimits) -> None:
        self._forker = forker
        self._calibrations = calibrations
        self._limits = limits
        self._line: WaitingLine[asyncio.Future[AnsweringProcess]] = WaitingLine(
            most_running=limits.most_running, most_waiting=limits.most_waiting
        )
        self._idle: list[AnsweringProcess] = []
        self._busy: set[AnsweringProcess] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def start(self) -> None:
        """Begins to start the processes."""
        for _ in range(self._limits.processes):
            self._replace()

    async def stop(self) -> None:
        """Ends all processes, and with them the answers that are being computed; none is being started when it returns."""
        self._is_stopped = True
        for task in self._starting:
            task.cancel()
        for process in (*self._idle, *self._busy):
            process.end()
        self._idle.clear()
        await asyncio.gather(*self._starting, return_exceptions=True)

    def counts(self) -> dict[str, int]:
        """Answers that are being computed, and those that wait for their turn, by state."""
        return {"running": len(self._busy), "waiting": len(self._line)}

    def pids(self) -> list[int]:
        """Process ids, for whoever measures or ends them."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def all_parts(self, tenant: str, function: Function, *args: Any) -> list[Any]:
        """The whole answer. Arguments and errors are those of `answer`, and of `Answer`."""
        with await self.answer(tenant, function, *args) as answer:
            return [part async for part in answer]

    async def answer(self, tenant: str, function: Function, *args: Any) -> Answer:
        """An answer that has begun to be computed; whoever takes it releases it.

        Args:
            tenant: who asks; the calibrations that the function is given are this tenant's.
            function: a function of a module; it is given the source of calibrations and `args`, and yields the parts of the answer.

        Raises:
            TooManyAnswersError: the tenant has as many waiting requests as it may have.
            UnavailableError: its turn did not come for long, or too many requests of all tenants wait.
        """
        process = await self._turn(tenant)
        answer = Answer(self, tenant, process, self._limits.time_limit_s)
        try:
            await process.tell(Question(function, args, self._limits.time_limit_s))
        except OSError:
            pass  # the process is gone, which is told to whoever reads the answer
        except BaseException:
            answer.release()
            raise
        return answer

    async def look_up(self, tenant: str, asked: Asked) -> Any:
        """The reply to what an answering process asks."""
        find: Callable[..., Any] = getattr(self._calibrations, asked.what)
        return await run_in_threadpool(find, tenant, *asked.args, **asked.options)

    def take_back(self, tenant: str, process: AnsweringProcess, *, is_complete: bool) -> None:
        """Gives the process to the next who waits, or ends and replaces it where its answer was given up."""
        self._busy.discard(process)
        self._line.done(tenant)
        if is_complete and process.is_alive and not self._is_stopped:
            self._idle.append(process)
        else:
            process.end()
            self._replace()
        self._hand_out()

    async def _turn(self, tenant: str) -> AnsweringProcess:
        turn: asyncio.Future[AnsweringProcess] = asyncio.get_running_loop().create_future()
        self._line.join(tenant, turn)
        self._hand_out()
        try:
            async with asyncio.timeout(self._limits.patience_s):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the turn came in the moment in which it was given up
                self.take_back(tenant, turn.result(), is_complete=True)
            else:
                self._line.leave(tenant, turn)
            if isinstance(error, TimeoutError):
                message = f"no process could compute this within {self._limits.patience_s:g} s"
                raise UnavailableError(message, hint="Try again in a moment.") from None
            raise

    def _hand_out(self) -> None:
        """Gives idle processes to those whose turn it is."""
        while self._idle:
            process = self._idle.pop()
            if not process.is_alive:
                process.end()
                self._replace()
                continue
            following = self._line.next()
            if following is None:
                self._idle.append(process)
                return
            tenant, turn = following
            if turn.cancelled():  # its client has left, and its task has yet to hear of it
                self._line.done(tenant)
                self._idle.append(process)
                continue
            self._busy.add(process)
            turn.set_result(process)

    def _replace(self) -> None:
        if self._is_stopped:
            return
        task = asyncio.get_running_loop().create_task(self._started())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _started(self) -> None:
        while True:
            try:
                process = await AnsweringProcess.started(self._forker, memory_bytes=self._limits.memory_bytes)
            except (OSError, EOFError) as error:
                log.error("an answering process did not start", error=str(error)[:300])  # noqa: TRY400 - repeats
                await asyncio.sleep(_RETRY_AFTER_S)
            else:
                break
        self._idle.append(process)
        self._hand_out()


class Answer:
    """An answer on its way: an asynchronous iterator over its parts, which computes no further than it is read."""

    def __init__(self, pool: AnsweringPool, tenant: str, process: AnsweringProcess, time_limit_s: float) -> None:
        self._pool = pool
        self._tenant = tenant
        self._process = process
        self._time_limit_s = time_limit_s
        self._is_complete = self._is_released = self._is_late = False
        # A call of its own and not a limit on each read: a client that does not take what it asked for keeps nobody's process.
        self._alarm = asyncio.get_running_loop().call_later(time_limit_s, self._be_late)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next part.

        Raises:
            RelayedError: the function refused the question.
            TimeLimitError: the answer took too long.
            WorkerLostError: the process ended, such as for want of memory.
        """
        if self._is_complete:
            raise StopAsyncIteration
        while True:
            try:
                message = await self._process.heard()
                if isinstance(message, Asked):
                    await self._process.tell(await self._pool.look_up(self._tenant, message))
                    continue
            except (EOFError, OSError):
                raise self._lost() from None
            if isinstance(message, Part):
                return message.value
            self._is_complete = True
            self.release()
            if isinstance(message, Last):
                return message.value
            if isinstance(message, Refused):
                if message.traceback is not None:
                    log.error("an answer failed", traceback=message.traceback)
                raise RelayedError(message.problem)
            assert isinstance(message, Ended)
            raise StopAsyncIteration

    def release(self) -> None:
        """Frees the process. One whose answer has not been read to its end is ended, whatever it computes."""
        if not self._is_released:
            self._is_released = True
            self._alarm.cancel()
            self._pool.take_back(self._tenant, self._process, is_complete=self._is_complete)

    def _be_late(self) -> None:
        self._is_late = True
        self.release()

    def _lost(self) -> TimeLimitError | WorkerLostError:
        self.release()
        if self._is_late:
            return TimeLimitError(
                f"the answer was not complete after {self._time_limit_s:g} s", hint="Send fewer rows at a time."
            )
        return WorkerLostError(
            "the process that computed this answer ended",
            hint="Look for an out-of-memory kill in the server's system log, or send fewer rows at a time.",
        )


def unique(parts: Sequence[Any]) -> Any:
    """The only part of an answer that consists of one."""
    (part,) = parts
    return part
