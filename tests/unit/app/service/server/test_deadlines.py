"""Connections, over real sockets: how long a client may take, how many there may be, and who has to go when there are more."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.service.server.listen import Server
from app.settings import Settings

HEAD_S, BODY_S, IDLE_S = 0.4, 0.6, 0.5
LIMITS = Settings(
    header_timeout_s=HEAD_S, body_timeout_s=BODY_S, idle_timeout_s=IDLE_S, max_connections=8, max_connections_per_client=6
)  # fmt: skip
PATIENT_S = 60.0
PATIENT = LIMITS.model_copy(update=dict.fromkeys(("header_timeout_s", "body_timeout_s", "idle_timeout_s"), PATIENT_S))
Connect = Callable[..., socket.socket]
HOME, OTHER, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""Three clients: on Linux all of 127.0.0.0/8 is this machine."""
left: list[str] = []
"""Paths of requests whose application heard that the client has left."""
answering: list[str] = []
"""Paths of requests that are being answered slowly."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, after the body, slowly, or with more than anybody takes, as the path says."""
    if scope["type"] != "http":
        return
    content = b"well"
    match scope["path"]:
        case "/reads":
            while (message := await receive()).get("more_body"):
                pass
            if message["type"] == "http.disconnect":
                left.append("/reads")
                return
        case "/slow":
            answering.append("/slow")
            await asyncio.sleep(3 * max(HEAD_S, BODY_S, IDLE_S))
            answering.remove("/slow")
        case "/huge":
            content = b"x" * 50_000_000
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": content})


@contextmanager
def served(limits: Settings) -> Iterator[int]:
    """Port of a server with these limits."""
    with socket.socket() as listener:
        listener.bind((HOME, 0))
        server = Server(application, limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a server with short deadlines and few places."""
    with served(LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def patient_port() -> Iterator[int]:
    """Port of a server with as few places, whose deadlines nobody meets."""
    with served(PATIENT) as found:
        yield found


@pytest.fixture
def connect(port: int) -> Iterator[Connect]:
    """Opens connections from an address of this machine; they are closed after the test."""
    with connections(port) as connected:
        yield connected


@pytest.fixture
def connect_patiently(patient_port: int) -> Iterator[Connect]:
    """Opens connections to the server whose deadlines nobody meets."""
    with connections(patient_port) as connected:
        yield connected


@contextmanager
def connections(port: int) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def connected(sent: bytes = b"", *, address: str = HOME, buffer_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        opened.append(client)
        if buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.bind((address, 0))
        client.settimeout(60.0)
        client.connect((HOME, port))
        client.sendall(sent)
        return client

    yield connected
    for client in opened:
        client.close()


def request(path: str, *, headers: str = "", body: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n{body}".encode()


def told(client: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def is_closed_within(seconds: float, client: socket.socket) -> bool:
    """Whether the server takes nothing more after so long."""
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        try:
            client.sendall(b"more")
        except ConnectionError:
            return True
        time.sleep(0.05)
    return False


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def is_problem(answer: bytes, code: str) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"content-security-policy" in head, "an answer of the server itself has the headers of all"
    assert b"nosniff" in head
    assert b"connection: close" in head
    document = json.loads(body)
    assert document["status"] == status(answer)
    return bool(document["code"] == code)


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(connect: Connect) -> None:
    begun = time.monotonic()
    assert told(connect()) == b""
    assert time.monotonic() - begun > HEAD_S * 0.9


@pytest.mark.parametrize("trickles", [False, True])
def test_a_head_that_is_not_complete_in_time_is_answered_with_408(connect: Connect, trickles: bool) -> None:
    """However often another byte comes: were the deadline moved by each of them, it would never be over."""
    client = connect(b"GET / HTTP/1.1\r\nHost: x\r\n")
    if trickles:
        bytes_sent = 0
        while not select.select([client], [], [], HEAD_S / 8)[0]:
            client.sendall(b"X")
            bytes_sent += 1
            assert bytes_sent < 8 * 10, "ten deadlines are over"
    assert is_problem(told(client), "request-timeout")


def test_a_body_that_is_not_complete_in_time_is_answered_with_408_and_its_application_told(
    connect: Connect,
) -> None:
    left.clear()
    client = connect(request("/reads", headers="Content-Length: 9\r\n", body="12345"))
    assert is_problem(told(client), "request-timeout")
    end_at = time.monotonic() + 60.0
    while not left and time.monotonic() < end_at:
        time.sleep(0.01)
    assert left == ["/reads"]


def test_the_next_request_of_a_connection_has_its_deadlines_too(connect: Connect) -> None:
    client = connect(request("/"))
    assert status(client.recv(1 << 16)) == 200
    client.sendall(request("/"))
    assert status(client.recv(1 << 16)) == 200
    client.sendall(b"GET / HT")
    assert is_problem(told(client), "request-timeout")


def test_a_connection_without_a_further_request_is_closed(connect: Connect) -> None:
    client = connect(request("/"))
    begun = time.monotonic()
    assert status(told(client)) == 200
    assert time.monotonic() - begun > IDLE_S * 0.9


def test_the_service_may_take_longer_than_a_client(connect: Connect) -> None:
    assert status(connect(request("/slow", headers="Content-Length: 2\r\n", body="{}")).recv(1 << 16)) == 200


def test_a_body_that_never_comes_holds_no_connection_after_its_answer(connect: Connect) -> None:
    client = connect(request("/", headers="Content-Length: 9\r\n", body="12345"))
    assert status(told(client)) == 200


def test_a_client_that_takes_nothing_is_disconnected(connect: Connect) -> None:
    client = connect(request("/huge"), buffer_bytes=4096)
    time.sleep(3 * BODY_S)
    assert len(told(client)) < 50_000_000, "what the system had taken already, and then the end"


def test_a_client_that_takes_little_by_little_is_not(connect: Connect) -> None:
    client = connect(request("/huge"), buffer_bytes=4096)
    end_at = time.monotonic() + 3 * BODY_S
    while time.monotonic() < end_at:
        assert client.recv(1 << 14)
        time.sleep(0.005)


def test_a_client_with_too_many_connections_loses_the_one_that_waited_longest(
    connect_patiently: Connect,
) -> None:
    """At once and not at its deadline, of which the document would speak."""
    first = connect_patiently(b"GET")
    time.sleep(0.1)
    others = [connect_patiently() for _ in range(5)]
    neighbour = connect_patiently(address=OTHER)
    time.sleep(0.1)
    assert status(connect_patiently(request("/")).recv(1 << 16)) == 200
    assert is_problem(told(first), "unavailable")
    for kept in (*others, neighbour):
        kept.sendall(request("/"))
        assert status(kept.recv(1 << 16)) == 200


def test_where_all_have_too_many_the_longest_waiting_of_all_goes(connect_patiently: Connect) -> None:
    first = connect_patiently(address=OTHER)
    time.sleep(0.1)
    others = [connect_patiently(address=address) for address in (OTHER, OTHER, OTHER, THIRD, THIRD, THIRD, HOME)]
    assert status(connect_patiently(request("/")).recv(1 << 16)) == 200
    begun = time.monotonic()
    assert told(first) == b""
    assert time.monotonic() - begun < PATIENT_S / 3, "at once and not at its deadline"
    others[0].sendall(request("/"))
    assert status(others[0].recv(1 << 16)) == 200


def test_where_all_are_being_answered_only_health_checks_are_answered_too(
    connect: Connect,
) -> None:
    busy = [connect(request("/slow")) for _ in range(6)]
    while len(answering) < 6:
        time.sleep(0.01)
    assert is_problem(told(connect(request("/"))), "unavailable")
    for path in ("/healthz", "/readyz"):
        answer = told(connect(request(path)))
        assert b"well" in answer
        assert b"connection: close" in answer
    assert status(connect(request("/"), address=OTHER).recv(1 << 16)) == 200
    assert {status(client.recv(1 << 16)) for client in busy} == {200}, "whoever is being answered keeps the place"


def test_a_request_that_cannot_be_read_gets_a_problem_document(connect: Connect) -> None:
    client = connect(b"nonsense\r\n\r\n")
    assert is_problem(told(client), "bad-request")
    assert is_closed_within(100 * BODY_S, client), "the server waits for the end of it, but not for long"


@pytest.mark.parametrize("size", [1 << 17, 1 << 23])
def test_a_head_that_is_too_large_is_refused_before_it_is_complete(connect: Connect, size: int) -> None:
    client = connect(b"GET / HTTP/1.1\r\nHost: x\r\n")
    piece = b"X-Padding: " + b"a" * 1000 + b"\r\n"
    for _ in range(size // len(piece)):
        client.sendall(piece)
    assert is_problem(told(client), "head-too-large")


def test_what_follows_a_body_in_pieces_is_not_kept(connect: Connect) -> None:
    """Trailers are read and thrown away."""
    client = connect(request("/reads", headers="Transfer-Encoding: chunked\r\n", body="2\r\n{}\r\n0\r\n"))
    client.sendall(b"X-Trailer: 1\r\n" * 1000 + b"\r\n")
    assert status(client.recv(1 << 16)) == 200


def test_requests_that_come_at_once_are_answered_in_their_order(connect: Connect) -> None:
    client = connect(request("/slow") + request("/") + b"GET / HT")
    answer = client.recv(1 << 16)
    while answer.count(b"well") < 2:
        answer += client.recv(1 << 16)
    assert is_problem(told(client), "request-timeout")


def test_requests_that_nobody_waits_for_any_more_end_without_a_traceback(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    # What cannot be read, and a client that leaves, each behind two requests of which none is answered yet.
    assert told(connect(request("/") + request("/") + b"nonsense\r\n\r\n")) == b""
    connect(request("/slow") + request("/slow")).close()
    time.sleep(4 * max(HEAD_S, BODY_S, IDLE_S))
    assert [record.exc_text or record.getMessage() for record in caplog.records if record.exc_info] == []
