"""The HTTP client against a real service: the same answers and the same errors as in process, and clear ones without it."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.cli.client import Client
from app.errors import NotFoundError, ServiceUnreachableError, UnauthorizedError, WorkerLostError, WrongStateError
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.main import create_app
from app.settings import Settings
from cost_models.errors import InvalidInputError, MeshwrightError
from planner.plan import plan


@pytest.fixture
def service(client: TestClient) -> Client:
    return Client("http://testserver", http=client)


@pytest.fixture
def slow_service(slow_client: TestClient) -> Client:
    return Client("http://testserver", http=slow_client)


def test_a_plan_is_the_planners_own_answer_with_all_stages(service: Client, asked: dict[str, Any]) -> None:
    there, here = service.plan(asked), plan(asked)
    assert there["request_digest"] == here["request_digest"]
    assert [entry["evaluation"] for entry in there["plans"]] == [
        {**entry["evaluation"], "step_time_range_s": list(entry["evaluation"]["step_time_range_s"])}
        | {"memory": {**entry["evaluation"]["memory"],
                      "peak_device_range_bytes": list(entry["evaluation"]["memory"]["peak_device_range_bytes"])}}
        for entry in here["plans"]
    ]  # fmt: skip


def test_evaluations_come_in_order(service: Client, asked: dict[str, Any]) -> None:
    row = {name: asked[name] for name in ("model", "cluster", "training")}
    answers = service.evaluate([{**row, "id": i, "strategy": {"tp": tp}} for i, tp in enumerate((1, 2, 4))])
    assert [answer["id"] for answer in answers] == [0, 1, 2]


def test_a_calibration_is_uploaded(service: Client) -> None:
    assert len(service.upload_calibration({**EXAMPLE_CALIBRATION, "name": "by the client"})) == 64


def test_what_is_invalid_raises_the_same_problems_as_in_process(service: Client, asked: dict[str, Any]) -> None:
    bad = {**asked, "top": 3}
    with pytest.raises(InvalidInputError) as there:
        service.plan(bad)
    with pytest.raises(InvalidInputError) as here:
        plan(bad)
    assert there.value.problems == here.value.problems


def test_what_is_not_modelled_says_so(service: Client, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        service.plan({**asked, "training": {**asked["training"], "adapter": {"peft_type": "IA3"}}})
    assert caught.value.problems[0].code == "not-modelled"


def test_a_plan_longer_than_a_request_is_waited_for(slow_service: Client, asked: dict[str, Any]) -> None:
    assert slow_service.plan({**asked, "seed": 30})["status"] == "succeeded"


def test_a_plan_can_be_stopped(slow_service: Client, asked: dict[str, Any]) -> None:
    with pytest.raises(MeshwrightError, match="cancelled"):
        slow_service.plan({**asked, "seed": 300}, should_stop=lambda: True)


def test_a_failed_job_raises_its_reason(slow_service: Client, asked: dict[str, Any]) -> None:
    with pytest.raises(WorkerLostError, match="SIGKILL"):
        slow_service.plan({**asked, "seed": 666})


def test_other_refusals_keep_their_class(service: Client, client: TestClient, asked: dict[str, Any]) -> None:
    with pytest.raises(NotFoundError):
        service.read_plan("plan-nobody")
    done = service.submit_plan(asked)
    service.cancel_plan(done["id"])
    assert client.get(f"/v1/plans/{done['id']}").json()["status"] == "succeeded", "cancelling never deletes"
    refused = client.delete(f"/v1/plans/{done['id']}?cancel_only=true")
    assert refused.json()["code"] == WrongStateError.code
    with pytest.raises(UnauthorizedError) as caught:
        Client("http://testserver", token="wrong", http=client).evaluate([])
    assert "The key was refused" in caught.value.hint


def test_a_service_that_wants_a_key_is_answered_with_where_to_give_it(tmp_path: Path, asked: dict[str, Any]) -> None:
    settings = Settings(data_dir=tmp_path, log_level="error", seed_examples=False, host="0.0.0.0")
    with TestClient(create_app(settings)) as guarded, pytest.raises(UnauthorizedError) as caught:
        Client("http://testserver", http=guarded).plan(asked)
    assert "No key was given. Pass one with --token or in the variable MESHWRIGHT_TOKEN" in caught.value.hint


def test_a_strange_wait_is_the_services_to_refuse(service: Client, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        service.plan({**asked, "wait_s": "long"})
    assert caught.value.problems[0].pointer == "/wait_s"


def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as nobody, pytest.raises(ServiceUnreachableError, match=str(port)):
        nobody.read_plan("x")


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "ftp://host", ""])
def test_what_is_no_address_is_bad_input(server: str) -> None:
    with pytest.raises(InvalidInputError):
        Client(server)


@pytest.fixture
def something_else() -> Iterator[str]:
    """Address of a web server that is not this service."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"hi")

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_something_else_there_is_unreachable(something_else: str) -> None:
    with Client(something_else) as client, pytest.raises(ServiceUnreachableError, match="text/html"):
        client.read_plan("x")


def test_importing_it_loads_no_server() -> None:
    code = "import app.cli.client, sys; print([m for m in ('fastapi', 'sqlalchemy', 'httpx2', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
