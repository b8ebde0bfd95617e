"""Many connections that send requests again and again, and how long each answer took.

It speaks just enough HTTP/1.1 to know where an answer ends, so that on two cores the client leaves one of them to the service.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MOST_BYTES = 1 << 24


@dataclass(slots=True)
class Answers:
    """What came back from one load."""

    seconds: list[float] = field(default_factory=list)
    """From the first byte sent to the last byte received, one for each answer."""
    statuses: Counter[int] = field(default_factory=Counter)
    lasted_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.lasted_s

    def quantile_ms(self, share: float) -> float:
        """Milliseconds within which this share of the answers came."""
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def request(method: str, path: str, *, key: str | None = None, body: bytes = b"") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: application/json"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def send(
    requests: Iterable[bytes], *, port: int, connections: int, seconds: float = float("inf"), every_s: float = 0.0
) -> Answers:
    """Sends the requests over so many connections, each the next one once its answer before has come.

    Args:
        requests: the bytes of each, see `request`; they may go on for ever.
        port: of the service on this machine.
        connections: number of connections that send at the same time.
        seconds: after which no further request is sent.
        every_s: seconds between two requests of a connection; 0 sends at once.
    """
    answers = Answers()
    begun_at = time.perf_counter()
    shared = iter(requests)
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_connection(shared, answers, port=port, end_at=begun_at + seconds, every_s=every_s))
    answers.lasted_s = time.perf_counter() - begun_at
    return answers


async def _connection(requests: Iterator[bytes], answers: Answers, *, port: int, end_at: float, every_s: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_MOST_BYTES)
    for sent in requests:
        begun_at = time.perf_counter()
        if begun_at >= end_at:
            break
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if found is None:
            raise ValueError(f"an answer without a length: {head!r}")
        await reader.readexactly(int(found[1]))
        answers.seconds.append(time.perf_counter() - begun_at)
        answers.statuses[int(head[9:12])] += 1
        if every_s:
            await asyncio.sleep(every_s)
    writer.close()
