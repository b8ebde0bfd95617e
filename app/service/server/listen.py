"""The server of the service: uvicorn with this project's protocol, and one log line a minute where it would write thousands."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from app.service.metrics import Metrics
from app.service.server.door import Door, door_of
from app.service.server.figures import ConnectionFigures
from app.service.server.protocol import Deadlines, bounded_protocol
from app.settings import Settings

log = structlog.get_logger("meshwright.server")
# Connections that asyncio accepts in one turn of its loop. Those that have to go close two turns later, so that three times as many
# files are in use beyond the door's bound at worst.
_ACCEPTED_AT_ONCE = 128
# Connections that the system keeps until they are accepted. A client that finds no place there tries again after a second.
_QUEUE = 2048
_STOP_S = 3


class Server(uvicorn.Server):
    """A server that listens for this application, and calls `on_stop` before it waits for the answers that are still to come."""

    def __init__(self, app: ASGIApp, settings: Settings, *, on_stop: Callable[[], None] = lambda: None) -> None:
        door = door_of(settings)
        deadlines = Deadlines(
            head_s=settings.header_timeout_s, body_s=settings.body_timeout_s, idle_s=settings.idle_timeout_s
        )
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=bounded_protocol(door, deadlines),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            # The protocol has a deadline of its own, in fractions of seconds; uvicorn's is a timer per answer.
            timeout_keep_alive=math.ceil(settings.idle_timeout_s),
            timeout_graceful_shutdown=_STOP_S,
        )
        super().__init__(config)
        self.door: Door = door
        self._wanted = settings.max_connections
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        asyncio.get_running_loop().set_exception_handler(self._on_error_of_loop)
        await super().startup(sockets=sockets)
        # asyncio has one number for both, so the queue is made longer once it listens.
        for listener in (each for server in self.servers for each in server.sockets):
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as same:
                same.listen(_QUEUE)
        if self.door.most < self._wanted:
            log.info("fewer connections than set, because of the limit on open files", most=self.door.most)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests that wait answer and streams end, and then stops."""
        # uvicorn tells the application only once every answer is sent, and breaks off those that take longer than three seconds.
        self._on_stop()
        await super().shutdown(sockets=sockets)

    def _on_error_of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Where no file is left, asyncio reports each attempt with a traceback, a hundred times a second, and tries again.
        if str(context.get("message", "")).startswith("socket.accept() out of system resource"):
            self.door.note("no-file-left")
            return
        loop.default_exception_handler(context)


def listen(app: ASGIApp, settings: Settings, *, metrics: Metrics, on_stop: Callable[[], None] = lambda: None) -> None:
    """Serves the application until the process is told to stop. The figures get those of its connections.

    `on_stop` is called then, on the event loop; afterwards no request may wait for longer than a moment.

    Raises:
        SystemExit: the server could not start, or could not listen on the address; the log says why.
    """
    # uvicorn is given the object and not its import name, because it would look a name up in the current folder first.
    server = Server(app, settings, on_stop=on_stop)
    metrics.watch(ConnectionFigures(server.door))
    # uvicorn raises the signal that stopped it once more when it is done.
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
