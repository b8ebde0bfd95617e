"""A service that listens on a port of this machine, as `meshwright serve` does, in a thread of the tests' own process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.service.jobs.runner import Kinds
from app.service.main import KINDS, create_app
from app.service.server.listen import Server
from app.settings import Settings


@contextmanager
def listening(settings: Settings, *, kinds: Kinds = KINDS, port: int = 0) -> Iterator[str]:
    """Address of a service with these settings that listens, on any port or on this one, and has a ready worker; it stops when the block ends."""
    with socket.socket() as listener:
        # A service that starts again on its port finds the connections of its former self there.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        app = create_app(settings, kinds=kinds)
        server = Server(app, settings, on_stop=app.state.service.begin_to_stop)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        end_at = time.monotonic() + 120.0
        while not (server.started and app.state.service.runner.ready_workers()):
            assert time.monotonic() < end_at
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
