"""One answering process as the service sees it: asked, listened to without blocking the event loop, and ended."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi.concurrency import run_in_threadpool

from app.service.answering.forker import Forker
from app.service.answering.messages import Ready, framed, next_message

# Loading takes one to two seconds; on a cold network file system, or a machine that starts many at once, far longer.
_START_TIMEOUT_S = 60.0
# Bytes of an answer that are read ahead of the client; the process waits while as many have not been taken.
_READ_AHEAD = 1 << 18


class AnsweringProcess:
    """A process that answers one question at a time."""

    def __init__(self, forker: Forker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        self._forker = forker
        self._reader = reader
        self._writer = writer
        self.pid = pid
        self._is_ended = False

    @classmethod
    async def started(cls, forker: Forker, *, memory_bytes: int) -> AnsweringProcess:
        """A process that can be asked.

        Raises:
            OSError, EOFError: none could be started.
        """
        fork = asyncio.ensure_future(run_in_threadpool(forker.fork, memory_bytes=memory_bytes))
        try:
            connection = await asyncio.shield(fork)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and what it brings would be nobody's. The process ends with its connection.
            (await fork).close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_READ_AHEAD)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                ready: Ready = await next_message(reader)
        except BaseException:
            writer.close()
            raise
        return cls(forker, reader, writer, ready.pid)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked, as far as the event loop has heard."""
        return not self._is_ended and not self._reader.at_eof()

    async def tell(self, message: object) -> None:
        """Sends a question, or the reply to one of the process's own.

        Raises:
            OSError: the process is gone.
        """
        self._writer.write(framed(message))
        await self._writer.drain()

    async def heard(self) -> Any:
        """What the process says next.

        Raises:
            EOFError, OSError: the process is gone.
        """
        return await next_message(self._reader)

    def end(self) -> None:
        """Ends the process now."""
        if not self._is_ended:
            self._is_ended = True
            self._forker.kill(self.pid)
            self._writer.close()
