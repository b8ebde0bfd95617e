"""Every failure has the same shape, names what is wrong and what to do, and never shows a traceback."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from app.service.api.schemas import ProblemDocument
from app.service.main import create_app
from app.settings import Settings

JSON = {"content-type": "application/json"}


def assert_problem(response: Any, status: int, code: str) -> ProblemDocument:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = ProblemDocument.model_validate_json(response.text)
    assert (problem.status, problem.code) == (status, code)
    assert problem.request_id == response.headers["x-request-id"]
    assert problem.detail
    assert problem.hint
    assert "Traceback" not in response.text
    return problem


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/nothing", "/v1/plans/", "/v1/plans/none", "/v1/calibrations/none", "/static/none"]
)
def test_what_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    assert_problem(client.get(path), 404, "not-found")


def test_another_method_is_not_allowed(client: TestClient) -> None:
    response = client.put("/v1/plans", json={})
    assert_problem(response, 405, "method-not-allowed")
    assert "POST" in response.headers["allow"] or "GET" in response.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/evaluate", "/v1/calibrations"])
class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b"", b"{", b"not json", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e999}',
            b'{"a": 1, "a": 2}', b'\xff\xfe{"a": 1}', b'{"a": "\\ud800"}', b'{"a": "\\u0000"}',
            b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 65 + b"1" + b"}" * 65, b"\xef\xbb\xbf{}",
        ],
    )  # fmt: skip
    def test_what_is_not_strict_json_is_refused(self, client: TestClient, path: str, body: bytes) -> None:
        assert_problem(client.post(path, content=body, headers=JSON), 400, "not-json")

    @pytest.mark.parametrize("media_type", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""])
    def test_another_media_type_is_refused(self, client: TestClient, path: str, media_type: str) -> None:
        response = client.post(path, content=b"{}", headers={"content-type": media_type})
        assert_problem(response, 415, "unsupported-media-type")

    def test_an_encoded_body_is_refused(self, client: TestClient, path: str) -> None:
        headers = {**JSON, "content-encoding": "gzip"}
        assert_problem(client.post(path, content=b"{}", headers=headers), 415, "unsupported-media-type")

    def test_more_than_a_mebibyte_is_refused(self, client: TestClient, path: str) -> None:
        body = b'"' + b"a" * (1 << 20) + b'"'
        assert_problem(client.post(path, content=body, headers=JSON), 413, "body-too-large")

    def test_ten_megabytes_in_chunks_are_refused(self, client: TestClient, path: str) -> None:
        response = client.post(path, content=(b" " * (1 << 16) for _ in range(160)), headers=JSON)
        assert "content-length" not in response.request.headers
        assert_problem(response, 413, "body-too-large")

    @pytest.mark.parametrize("body", ["null", "3", '"text"', "true"])
    def test_a_body_that_is_no_object_is_invalid(self, client: TestClient, path: str, body: str) -> None:
        assert_problem(client.post(path, content=body, headers=JSON), 422, "invalid-input")


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"top": 3}, "/top", "top_k"),
        ({"model": {"preset": "lama-3.1-8b"}}, "/model/preset", "llama-3.1-8b"),
        ({"cluster": {"gpu": "H100", "num_nodes": 1, "gpus_per_node": 8}}, "/cluster/gpu", "H100"),
        ({"cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 0, "gpus_per_node": 8}}, "/cluster/num_nodes", "0"),
        ({"cluster": {"gpu": "H100-SXM-80GB", "num_nodes": -1, "gpus_per_node": 8}}, "/cluster/num_nodes", "-1"),
        (
            {"cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1_000_000, "gpus_per_node": 8}},
            "/cluster/num_nodes",
            "GPUs",
        ),
        ({"training": {"seq_length": "many"}}, "/training/seq_length", "many"),
        ({"top_k": 0}, "/top_k", "0"),
        ({"constraints": {"fixed": {"tp": 2}, "allowed": {"tp": [1, 2]}}}, "/constraints", "tp"),
        ({"constraints": {"num_nodes": {"min": 5}}}, "/constraints/num_nodes/min", "5"),
        ({"model": []}, "/model", ""),
    ],
)
def test_an_invalid_field_is_named_with_value_and_hint(
    client: TestClient, asked: dict[str, Any], change: dict[str, Any], pointer: str, words: str
) -> None:
    response = client.post("/v1/plans", json={**asked, **change})
    problem = assert_problem(response, 422, "invalid-input")
    (first, *_) = [entry for entry in problem.errors if entry.pointer == pointer]
    assert words in first.message + first.hint


def test_a_calibration_is_never_a_path(client: TestClient, asked: dict[str, Any]) -> None:
    asked["cluster"] = {**asked["cluster"], "calibration": "/etc/passwd"}
    problem = assert_problem(client.post("/v1/plans", json=asked), 422, "invalid-input")
    assert problem.errors[0].pointer == "/cluster/calibration"


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/plans?limit=0", "/query/limit"),
        ("/v1/plans?limit=many", "/query/limit"),
        ("/v1/plans?cursor=abc", "/query/cursor"),
        ("/v1/plans?cursor=WzEsMl0=", "/query/cursor"),
        ("/v1/plans?status=done", "/query/status"),
        ("/v1/plans/plan-example/ranked/zero", "/path/rank"),
        ("/v1/plans/plan-example/ranked/0", "/path/rank"),
    ],
)
def test_a_wrong_parameter_is_named(client: TestClient, path: str, pointer: str) -> None:
    problem = assert_problem(client.get(path), 422, "invalid-input")
    assert problem.errors[0].pointer == pointer


@pytest.mark.parametrize(("length", "words"), [(300, "this service did not issue it"), (301, "at most 300 characters")])
def test_a_place_in_a_list_has_at_most_300_characters(client: TestClient, length: int, words: str) -> None:
    problem = assert_problem(client.get("/v1/plans", params={"cursor": "x" * length}), 422, "invalid-input")
    assert words in problem.errors[0].message


@pytest.mark.parametrize(
    "place", [["2026-01-01T00:00:00", "plan"], ["2026-01-01T00:00:00Z", 3], ["soon", "plan"], ["x"]]
)
def test_a_place_that_this_service_did_not_issue_is_refused(client: TestClient, place: list[object]) -> None:
    """A moment without a time zone, an id that is no text, no moment, no pair."""
    cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    problem = assert_problem(client.get("/v1/plans", params={"cursor": cursor}), 422, "invalid-input")
    assert problem.errors[0].pointer == "/query/cursor"


def test_a_path_is_told_by_its_first_200_characters(client: TestClient) -> None:
    problem = assert_problem(client.get("/" + "x" * 400), 404, "not-found")
    assert problem.detail == "there is nothing at /" + "x" * 199


def test_only_what_may_be_tried_again_says_when(client: TestClient, tmp_path: Any) -> None:
    assert "retry-after" not in client.get("/nothing").headers
    assert "www-authenticate" not in client.get("/nothing").headers
    app = create_app(Settings(data_dir=tmp_path, log_level="error"))
    assert TestClient(app).get("/readyz").headers["retry-after"] == "2"


def test_a_defect_is_answered_without_its_traceback(tmp_path: Any) -> None:
    app = create_app(Settings(data_dir=tmp_path, log_level="error", seed_examples=False))

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError("a secret")

    problem = assert_problem(TestClient(app).get("/broken"), 500, "internal-error")
    assert "secret" not in problem.model_dump_json()
    assert str(problem.request_id) in problem.hint


def test_a_database_that_is_away_is_unavailable(tmp_path: Any) -> None:
    app = create_app(Settings(data_dir=tmp_path, log_level="error", seed_examples=False))

    @app.get("/away")
    def away() -> None:
        raise OperationalError("SELECT secret", {}, Exception("gone"))

    response = TestClient(app).get("/away")
    assert_problem(response, 503, "database-away")
    assert int(response.headers["retry-after"]) > 0
    assert "secret" not in response.text


def test_a_database_without_tables_is_not_ready(tmp_path: Any) -> None:
    app = create_app(Settings(data_dir=tmp_path, log_level="error", auto_upgrade=False))
    assert_problem(TestClient(app).get("/readyz"), 503, "schema-not-current")
    assert_problem(TestClient(app).get("/v1/plans"), 503, "schema-not-current")


def test_a_service_whose_workers_have_not_started_is_not_ready(tmp_path: Any) -> None:
    settings = Settings(data_dir=tmp_path, log_level="error")
    with TestClient(create_app(settings)) as client:
        pass  # the schema is there now, and no worker any more
    assert_problem(TestClient(client.app).get("/readyz"), 503, "no-worker")


def test_a_request_id_is_kept_where_it_is_harmless(client: TestClient) -> None:
    assert client.get("/healthz", headers={"x-request-id": "trace-1"}).headers["x-request-id"] == "trace-1"
    strange = client.get("/healthz", headers={"x-request-id": 'a"b c'})
    assert strange.headers["x-request-id"] != 'a"b c'


def test_a_foreign_host_name_is_refused_without_a_key(client: TestClient) -> None:
    """A page of another site whose name resolves to this machine reaches nothing."""
    assert_problem(client.get("/v1/plans", headers={"host": "attacker.example"}), 403, "forbidden")
    for own in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000"):
        assert client.get("/v1/plans", headers={"host": own}).status_code == 200


def test_every_error_of_the_openapi_document_is_a_problem(client: TestClient) -> None:
    document = json.loads(client.get("/openapi.json").text)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)


def test_a_sender_that_hangs_up_is_no_failure(live_address: str) -> None:
    with socket.create_connection(("127.0.0.1", int(live_address.rpartition(":")[2]))) as sender:
        head = b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        sender.sendall(head)
    noted = re.compile(r'requests_total\{method="POST",route="/v1/plans",status="(\d+)"\}')
    end_at = time.monotonic() + 60.0
    while not (found := noted.findall(httpx2.get(f"{live_address}/metrics").text)):
        assert time.monotonic() < end_at
        time.sleep(0.05)
    assert found == ["499"]
