"""uvicorn's HTTP/1.1 protocol with deadlines. A client has so long to send a request's head, its body, or to take its answer; who
takes longer is told so and disconnected. Without them, one idle socket costs a file for as long as its sender likes.

Deadlines are of the client alone: the application has its own, and a stream may last for hours. A head has a largest size too, which
the parser (httptools) leaves to its user.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.errors import BadRequestError, HeadTooLargeError, RequestTimeoutError, UnavailableError
from app.service.api.problems import problem_response
from app.service.server.door import Door
from app.service.web.headers import HEADERS
from cost_models.errors import MeshwrightError

_LINGER_S = 5.0
"""Seconds for which the rest of a request is taken after its answer; most clients look at an answer only once they have sent all."""
_MOST_HEAD_BYTES = 1 << 16
_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz"})
"""Paths that are answered although there are too many connections: a busy service must not be restarted for being busy."""


class Turn(Enum):
    """What a connection waits for."""

    IDLE = auto()
    """The client's next request, after an answer."""
    HEAD = auto()
    """The first byte, or the rest of a request's head."""
    BODY = auto()
    """The rest of a request's body."""
    REST = auto()
    """The rest of a request that is answered or refused already; it is thrown away."""
    TAKING = auto()
    """The client, which does not take what is sent."""
    ANSWER = auto()
    """The service."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a client may take."""

    head_s: float
    body_s: float
    idle_s: float

    def of(self, turn: Turn) -> float:
        """Seconds that this turn may last."""
        match turn:
            case Turn.IDLE:
                return self.idle_s
            case Turn.HEAD:
                return self.head_s
            case Turn.BODY | Turn.TAKING:
                return self.body_s
            case Turn.REST:
                return min(_LINGER_S, self.body_s)
            case Turn.ANSWER:
                return float("inf")


def bounded_protocol(door: Door, deadlines: Deadlines) -> type[BoundedProtocol]:
    """The protocol of the connections that enter by this door. uvicorn makes one object of it for each of them."""

    class Bounded(BoundedProtocol):
        pass

    Bounded.door, Bounded.deadlines = door, deadlines
    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    door: ClassVar[Door]
    deadlines: ClassVar[Deadlines]
    address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Lets the connection in. Where there is no room for it, only the paths of health checks are answered."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._turn, self._since = Turn.HEAD, self.loop.time()
        self._reads: Literal["head", "body", "nothing"] = "nothing"
        self._head_bytes = 0
        self._left_bytes = 0
        self._is_stalled = False
        self._is_refused = False
        self._answered: RequestResponseCycle | None = None
        if not self.door.enter(self):
            self.app = self._crowded
        self._timer = self.loop.call_later(self.deadlines.head_s, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave_answer()
        self._timer.cancel()
        self.door.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # thrown away: the parser may be in the middle of anything
        super().data_received(data)
        if self._reads == "head":
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                message = f"the head of the request is larger than {_MOST_HEAD_BYTES} bytes"
                self.refuse(HeadTooLargeError(message, hint="Send fewer and shorter headers, and a shorter path."))
        self._look()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads, self._head_bytes = "head", 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reads == "head":  # and not in what may follow a body in pieces, which nobody here reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reads = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reads = "nothing"

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_stalled, self._left_bytes = True, self.transport.get_write_buffer_size()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_stalled = False
        self._look()

    def make_room(self) -> None:
        """Ends the connection so that another one can have its place."""
        self._end(UnavailableError("too many connections", hint="Try again in a moment, with fewer connections."))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own words, which say less
        """Answers what is no HTTP request."""
        error = BadRequestError(
            "what was sent cannot be read as HTTP/1.1", hint="Send a well-formed request with a head below 64 KiB."
        )
        self.refuse(error)
        self._look()

    def refuse(self, error: MeshwrightError) -> None:
        """Answers with a problem document, below the application, and closes the connection once the client has looked at it."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        request = self._request
        # Once an answer has begun, nothing else can be said.
        has_begun = request is not None and request.response_started and not request.response_complete
        if not self.pipeline and not has_begun:
            answer = problem_response(error, request_id=None)
            headers = [*self.server_state.default_headers, *answer.raw_headers, *HEADERS, (b"connection", b"close")]
            lines = [b"%s: %s\r\n" % header for header in headers]
            self.transport.write(b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", answer.body]))
        self._leave_answer()
        # Closing now would throw away what comes, and with it, on most systems, the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, app)
        self._answered = cycle

    def _leave_answer(self) -> None:
        """Tells the application, which may be waiting for the body, that its client has left. What it still sends goes nowhere."""
        # uvicorn does so for the newest request only, and others may have come behind the one that is being answered.
        self.pipeline.clear()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    @property
    def _request(self) -> RequestResponseCycle | None:
        """The newest request and its answer; None before the first."""
        return self.cycle

    def _look(self) -> None:
        """Notes whose turn it is now."""
        turn = self._turn_now()
        if turn is self._turn:
            return
        self._turn, self._since = turn, self.loop.time()
        if turn is Turn.ANSWER:
            self.door.works(self)
        else:
            self.door.waits(self)

    def _turn_now(self) -> Turn:
        if self._is_stalled or self.transport.is_closing():
            return Turn.TAKING
        if self._is_refused:
            return Turn.REST
        request = self._request
        if request is None:
            return Turn.HEAD
        if request.response_complete:
            return {"head": Turn.HEAD, "body": Turn.REST, "nothing": Turn.IDLE}[self._reads]
        # A request that came behind another one waits for the answer to that.
        return Turn.BODY if self._reads == "body" and not self.pipeline else Turn.ANSWER

    def _check(self) -> None:
        """Ends the connection if its client has taken too long, and looks again later."""
        self._look()
        now = self.loop.time()
        if self._turn is Turn.BODY and self.flow.read_paused:
            self._since = now  # the service has not taken what is there
        if self._turn is Turn.TAKING and (left := self.transport.get_write_buffer_size()) != self._left_bytes:
            self._since, self._left_bytes = now, left
        due_s = self._since + self.deadlines.of(self._turn) - now
        if due_s <= 0:
            self.door.note(f"slow-{self._turn.name.lower()}")
            self._end(RequestTimeoutError(_TOO_LATE[self._turn], hint="Send it again, in one go."))
            self._since, due_s = now, self.deadlines.head_s
        # Turns change without touching the timer, which would cost every request. So it looks at least this often: a shorter turn may
        # have begun in the meantime.
        self._timer = self.loop.call_later(min(due_s, self.deadlines.head_s), self._check)

    def _end(self, error: MeshwrightError) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait until the client has taken everything
        elif self.transport.is_closing():
            return
        else:
            if self._reads != "nothing" and self._turn is not Turn.REST:
                self.refuse(error)
            self.transport.close()

    async def _crowded(self, scope: Any, receive: Any, send: Any) -> None:
        """The application while there are too many connections."""

        async def send_and_close(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if scope["path"] in _ALWAYS_ANSWERED:
            await self.config.loaded_app(scope, receive, send_and_close)
            return
        error = UnavailableError(
            "the service has as many connections as it takes", hint="Try again in a moment, with fewer connections."
        )
        answer = problem_response(error, request_id=None)
        answer.raw_headers.extend(HEADERS)
        await answer(scope, receive, send_and_close)


_TOO_LATE = {
    Turn.IDLE: "no further request came",
    Turn.HEAD: "the head of the request did not come in time",
    Turn.BODY: "the body of the request did not come in time",
    Turn.REST: "the rest of the request did not come in time",
    Turn.TAKING: "the answer was not taken in time",
}
