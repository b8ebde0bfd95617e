"""What the service and an answering process say to each other: pickled objects, each behind its length in bytes."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

# Eight bytes, because the answer to a long list can be larger than the 4 GiB that four could tell.
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be computed."""

    function: Callable[..., Iterator[Any]]
    """Called with the source of calibrations and with `args`; it yields the parts of the answer. Pickled by its name."""
    args: tuple[Any, ...]
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The process can be asked."""

    pid: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The process wants to know something that the database holds about the tenant; it waits for the reply."""

    what: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the answer."""

    value: Any


@dataclass(frozen=True, slots=True)
class Last:
    """A piece of the answer after which none follows. A function may yield it, which saves the message that says so."""

    value: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no answer, or no more of it: a problem document, and for the log the traceback if the program is at fault."""

    problem: dict[str, Any]
    traceback: str | None = None


class RelayedError(Exception):
    """An error that an answering process has met and told as the problem document that is to be sent."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["detail"])
        self.document = document


def framed(message: object) -> bytes:
    """The message as it travels."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


def send(connection: socket.socket, message: object) -> None:
    """Sends a message; it waits for as long as the other side does not read.

    Raises:
        OSError: the other side is gone.
    """
    connection.sendall(framed(message))


def receive(stream: BinaryIO) -> Any:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))  # noqa: S301 - both ends of the socket are ours


async def next_message(stream: asyncio.StreamReader) -> Any:
    """The next message; the event loop goes on meanwhile.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    return pickle.loads(await stream.readexactly(length))  # noqa: S301 - both ends of the socket are ours


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content
