"""Generated requests against the OpenAPI document: no server error, no undocumented status, no other shape of an answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import BaseSchema, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from app.main import create_app
from app.settings import Settings

BOUNDED = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    # A plan request can obey the schema and still name no model, so accepting what is valid is not asked for; and in a
    # list of rows a bad one is answered in its place.
]


@pytest.fixture(scope="module")
def live_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The schema of a service that listens."""
    folder = tmp_path_factory.mktemp("data")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = create_app(Settings(data_dir=folder, pool_size=1, log_level="error", max_queued_jobs=10_000))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    end_at = time.monotonic() + 30.0
    while not (server.started and app.state.service.runner.ready_workers()):
        assert time.monotonic() < end_at
        time.sleep(0.05)
    yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_generated_requests_get_documented_answers(live_schema: BaseSchema, mode: GenerationMode) -> None:
    operations = [found.ok() for found in live_schema.get_all_operations()]
    assert len(operations) == 17
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & operation.definition.raw.keys():
            continue  # nothing that could be wrong

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=20)

        check()
