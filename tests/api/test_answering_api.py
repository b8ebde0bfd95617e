"""What is computed while a client waits: outside of the service's own process, streamed where asked, ended with its client."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from planner.rows import evaluate_rows

LINES = {"Accept": "application/x-ndjson"}


def rows(number: int) -> list[dict[str, Any]]:
    """Rows of many jobs, each of which has to be priced by itself."""
    return [
        {
            "id": each,
            "model": {"preset": "llama-3.1-8b"},
            "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8},
            "training": {
                "seq_length": 1024 + 128 * each, "global_batch_size": 256, "precision": "bf16", "framework": "megatron",
            },
            "strategy": {"tp": 2 ** (each % 4), "pp": 1, "micro_batch_size": 1},
        }
        for each in range(number)
    ]  # fmt: skip


def test_the_service_computes_nothing_itself(client: TestClient) -> None:
    """What this process, which holds the service, spends on 40 rows is a small share of what pricing them takes."""
    body = json.dumps(rows(40))
    begun = time.process_time()
    list(evaluate_rows(json.loads(body)))
    priced_s = time.process_time() - begun
    client.post("/v1/evaluate", content=body, headers={"Content-Type": "application/json"})
    begun = time.process_time()
    response = client.post("/v1/evaluate", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200
    assert time.process_time() - begun < 0.4 * priced_s


def test_lines_are_the_list_one_evaluation_each(client: TestClient) -> None:
    asked = [*rows(5), {"id": "bad"}]
    response = client.post("/v1/evaluate", json=asked, headers=LINES)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines == client.post("/v1/evaluate", json=asked).json()
    assert [line["id"] for line in lines] == [0, 1, 2, 3, 4, "bad"]


@pytest.mark.parametrize(
    ("accept", "gets"),
    [
        ("application/x-ndjson", "application/x-ndjson"),
        ("APPLICATION/X-NDJSON", "application/x-ndjson"),
        ("text/plain, application/x-ndjson ; q=0.001", "application/x-ndjson"),
        ("application/json, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson;charset=utf-8;Q=1.000", "application/x-ndjson"),
        ("application/x-ndjson;q=0", "application/json"),
        ("application/x-ndjson; q=0.000, */*", "application/json"),
        ("application/json, application/x-ndjson;q=0.9", "application/json"),
        ("application/x-ndjson-seq", "application/json"),
        ("*/*", "application/json"),
        ("", "application/json"),
    ],
)
def test_lines_are_sent_to_those_who_accept_them(client: TestClient, accept: str, gets: str) -> None:
    """RFC 9110: media types are case-insensitive (8.3.1), and a weight of 0 is "not acceptable" (12.4.2)."""
    assert client.post("/v1/evaluate", json=[], headers={"Accept": accept}).headers["content-type"] == gets


@pytest.mark.parametrize(("asked", "number"), [([], 0), (rows(1)[0], 1)])
def test_lines_of_nothing_and_of_a_single_row(client: TestClient, asked: Any, number: int) -> None:
    response = client.post("/v1/evaluate", json=asked, headers=LINES)
    assert (response.status_code, len(response.text.splitlines())) == (200, number)


@pytest.mark.parametrize("headers", [{}, LINES])
@pytest.mark.parametrize(
    ("content", "status", "told"),
    [
        ("[{]", 400, "not JSON"),
        ('{"a": 1, "a": 2}', 400, "a"),
        ("[1]", 422, "row must be an object"),
        ("{}", 422, "is required"),
        ("[" * 70 + "]" * 70, 400, "64 levels"),
    ],
)
def test_a_bad_body_is_a_problem_in_either_form(
    client: TestClient, headers: dict[str, str], content: str, status: int, told: str
) -> None:
    """Also where lines are asked for: nothing has been sent when the body is read."""
    response = client.post("/v1/evaluate", content=content, headers={"Content-Type": "application/json", **headers})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert told in response.text
    assert response.json()["request_id"]


def posted(address: str, body: str, accept: str) -> socket.socket:
    """A connection on which a list of rows has been posted."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    connection = socket.create_connection((host, port), timeout=60)
    head = (
        f"POST /v1/evaluate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall((head + body).encode())
    return connection


def answers(address: str) -> dict[str, int]:
    """Answers of the service by state, as its metrics tell."""
    text = httpx2.get(f"{address}/metrics").text
    return {state: int(float(count)) for state, count in re.findall(r'meshwright_answers\{state="(\w+)"\} (\S+)', text)}


def until_there_are(address: str, expected: dict[str, int]) -> None:
    end_at = time.monotonic() + 30.0
    while (found := answers(address)) != expected:
        assert time.monotonic() < end_at, found
        time.sleep(0.02)


@pytest.mark.parametrize("accept", ["application/json", LINES["Accept"]])
def test_what_a_client_leaves_behind_is_ended(live_address: str, accept: str) -> None:
    """Six lists that take seconds each: all are given up with their clients, those that wait for their turn, too."""
    body = json.dumps(rows(1500))
    connections = [posted(live_address, body, accept) for _ in range(6)]
    until_there_are(live_address, {"running": 2, "waiting": 4})
    for connection in connections:
        connection.close()
    until_there_are(live_address, {"running": 0, "waiting": 0})


def test_lines_are_sent_while_later_ones_are_computed(live_address: str) -> None:
    """The client that reads two lines of a long list and no more keeps the rest from being computed."""
    connection = posted(live_address, json.dumps(rows(1500)), LINES["Accept"])
    received = b""
    while received.count(b"\n{") < 2:
        received += connection.recv(4096)
    assert b"200 OK" in received.partition(b"\r\n")[0]
    assert answers(live_address) == {"running": 1, "waiting": 0}
    connection.close()
    until_there_are(live_address, {"running": 0, "waiting": 0})
