"""Whether the service is alive does not depend on how busy it is."""

from __future__ import annotations

import threading

import anyio
import httpx2
from anyio.to_thread import current_default_thread_limiter, run_sync

from app.service.main import create_app
from app.settings import Settings


def test_liveness_is_answered_while_every_thread_of_the_service_waits(tmp_path):
    app = create_app(Settings(data_dir=tmp_path))
    released = threading.Event()

    async def asked() -> int:
        # What a database that hangs does to forty requests, done to the one thread that is left.
        current_default_thread_limiter().total_tokens = 1
        transport = httpx2.ASGITransport(app=app)
        async with anyio.create_task_group() as group, httpx2.AsyncClient(transport=transport) as client:
            group.start_soon(run_sync, released.wait)
            await anyio.sleep(0.01)
            try:
                with anyio.fail_after(30.0):
                    return (await client.get("http://127.0.0.1/healthz")).status_code
            finally:
                released.set()

    assert anyio.run(asked) == 200
