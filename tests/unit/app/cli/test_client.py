"""The client against answers that a test prescribes: what is asked again, how long it waits, and what a refusal becomes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.cli.client import Client
from app.errors import ServiceUnreachableError, TooManyJobsError, UnauthorizedError, UnavailableError
from cost_models.errors import InvalidInputError, MeshwrightError, NotModelledError, Problem
from planner.search.progress import Progress

OK = httpx2.Response(200, json={"status": "succeeded", "id": "p", "plans": []})


class Service:
    """Gives the prepared answers one after the other, the last for ever, and keeps the requests."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self.answers, self.requests = list(answers), list[httpx2.Request]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx2.Response(found.status_code, headers=found.headers, content=found.content)

    def client(self, server: str = "http://there", **options: Any) -> Client:
        return Client(server, http=httpx2.Client(transport=httpx2.MockTransport(self)), **options)

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(request.method, request.url.path) for request in self.requests]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client would have waited."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def busy(status: int = 503, **headers: str) -> httpx2.Response:
    problem = {
        "status": status,
        "code": "too-many-jobs" if status == 429 else "unavailable",
        "detail": "busy",
        "hint": "",
    }
    return httpx2.Response(
        status, json=problem, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("refusals", "error"), [(0, False), (3, False), (4, True)])
def test_a_busy_service_is_asked_four_times(slept: list[float], status: int, refusals: int, error: bool) -> None:
    """Two seconds apart, as it asks; the fourth refusal is told."""
    service = Service(*[busy(status, retry_after="2")] * refusals, OK)
    if error:
        with pytest.raises(TooManyJobsError if status == 429 else UnavailableError, match="busy"):
            service.client().read_plan("p")
    else:
        assert service.client().read_plan("p")["id"] == "p"
    assert len(service.requests) == min(refusals + 1, 4)
    assert slept == [2.0] * min(refusals, 3)


@pytest.mark.parametrize(("asked", "waits"), [(None, 1.0), ("0", 0.0), ("4.5", 4.5), ("5", 5.0), ("3600", 5.0)])
def test_somebody_at_a_terminal_waits_five_seconds_at_most(slept: list[float], asked: str | None, waits: float) -> None:
    service = Service(busy() if asked is None else busy(retry_after=asked), OK)
    service.client().read_plan("p")
    assert slept == [waits]


def test_other_refusals_are_told_at_once(slept: list[float]) -> None:
    service = Service(httpx2.Response(500, json={"status": 500, "code": "internal-error", "detail": "a bug"}), OK)
    with pytest.raises(MeshwrightError, match="a bug"):
        service.client().read_plan("p")
    assert (len(service.requests), slept) == (1, [])


@pytest.mark.parametrize(("retry_after", "times"), [("60", 4), ("61", 1)])
def test_a_quota_that_stays_used_up_is_told_at_once(slept: list[float], retry_after: str, times: int) -> None:
    service = Service(busy(429, retry_after=retry_after))
    with pytest.raises(TooManyJobsError, match="busy"):
        service.client().read_plan("p")
    assert len(service.asked) == times


@pytest.mark.parametrize(("asked", "sent"), [(None, 2.0), (0.5, 0.5), (2.0, 2.0), (60, 2.0), ("long", "long")])
def test_one_request_waits_two_seconds_so_that_an_interrupt_takes_effect_soon(asked: Any, sent: Any) -> None:
    service = Service(OK)
    service.client().plan({"model": {}, **({} if asked is None else {"wait_s": asked})})
    assert json.loads(service.requests[0].content) == {"model": {}, "wait_s": sent}


def state(status: str, **fields: Any) -> httpx2.Response:
    return httpx2.Response(202, json={"id": "p", "status": status, "plans": [], **fields})


def test_a_plan_is_asked_for_until_it_has_ended_and_then_each_of_its_ranks(slept: list[float]) -> None:
    done = state("succeeded", plans=[{"rank": 2}, {"rank": 1}])
    ranks = [httpx2.Response(200, json={"rank": rank, "stages": []}) for rank in (2, 1)]
    service = Service(state("queued"), state("running"), done, *ranks)
    found = service.client().plan({})
    assert [plan["rank"] for plan in found["plans"]] == [2, 1]
    assert service.asked == [
        ("POST", "/v1/plans"), *[("GET", "/v1/plans/p")] * 2,
        ("GET", "/v1/plans/p/ranked/2"), ("GET", "/v1/plans/p/ranked/1"),
    ]  # fmt: skip
    assert len(slept) == 2


def test_events_are_passed_on_while_the_plan_runs(slept: list[float]) -> None:
    """Queued and started say nothing of a search; a comment keeps the stream alive; the plan ends when its progress has arrived."""
    told: list[Progress] = []
    events = [
        {"seq": 1, "type": "queued", "evaluated": None, "best_s": None, "bound_s": None},
        {"seq": 2, "type": "progress", "evaluated": 10.0, "best_s": None, "bound_s": 1.5},
        {"seq": 3, "type": "progress", "evaluated": 20.0, "best_s": 3.0, "bound_s": 2.0},
    ]
    stream = ": ping\n\n" + "".join(
        f"event: {each['type']}\nid: {each['seq']}\ndata: {json.dumps(each)}\n\n" for each in events
    )
    arrived = threading.Event()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/events"):
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream.encode())
        return state("running") if request.method == "POST" or not arrived.wait(60.0) else OK

    def keep(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            arrived.set()

    client = Client("http://there", token="key", http=httpx2.Client(transport=httpx2.MockTransport(answer)))
    assert client.plan({}, on_progress=keep)["status"] == "succeeded"
    assert told == [Progress(10.0, None, 1.5), Progress(20.0, 3.0, 2.0)]


@pytest.mark.parametrize(
    "events",
    [httpx2.Response(404, json={}), httpx2.Response(200, text="data: {"), httpx2.Response(200, text="data: []")],
)
def test_a_stream_that_says_nothing_useful_costs_no_plan(slept: list[float], events: httpx2.Response) -> None:
    """As with a proxy in between that keeps no streams open."""
    asked = threading.Event()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/events"):
            asked.set()
            return httpx2.Response(events.status_code, content=events.content)
        return state("running") if request.method == "POST" or not asked.wait(60.0) else OK

    client = Client("http://there", http=httpx2.Client(transport=httpx2.MockTransport(answer)))
    assert client.plan({}, on_progress=pytest.fail)["status"] == "succeeded"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (
            state("failed", error={"code": "time-limit", "detail": "took too long", "hint": "", "status": 504}),
            "took too long",
        ),
        (state("cancelled"), "the plan was cancelled"),
    ],
)
def test_a_plan_that_did_not_succeed_is_an_error(slept: list[float], last: httpx2.Response, words: str) -> None:
    with pytest.raises(MeshwrightError, match=words):
        Service(state("running"), last).client().plan({})


def test_a_plan_that_is_told_to_stop_is_cancelled_and_one_that_has_just_ended_is_not_an_error(
    slept: list[float],
) -> None:
    ended = httpx2.Response(409, json={"status": 409, "code": "wrong-state", "detail": "has ended"})
    service = Service(state("running"), ended, OK)
    assert service.client().plan({}, should_stop=lambda: True)["status"] == "succeeded"
    assert service.asked[1] == ("DELETE", "/v1/plans/p")
    assert service.requests[1].url.query == b"cancel_only=true"
    gone = httpx2.Response(404, json={"status": 404, "code": "not-found", "detail": "no such plan"})
    with pytest.raises(MeshwrightError, match="no such plan"):
        Service(gone).client().cancel_plan("p")


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        ({"code": "unavailable", "detail": "away", "status": 503}, UnavailableError, "away"),
        ({"code": "of-a-later-release", "detail": "away", "status": 503}, UnavailableError, "away"),
        ({"code": "of-a-later-release", "detail": "no", "status": 418}, MeshwrightError, "no"),
        ({"code": "invalid-input", "detail": "no", "status": 422, "errors": []}, MeshwrightError, "no"),
        ({"status": 400}, MeshwrightError, "the service refused the request without saying why"),
        ({}, MeshwrightError, "the service refused the request without saying why"),
        ([], MeshwrightError, "the service refused the request without saying why"),
    ],
)
def test_a_refusal_becomes_the_error_of_its_code(
    slept: list[float], problem: Any, kind: type[Exception], message: str
) -> None:
    status = problem.get("status", 422) if isinstance(problem, dict) else 422
    with pytest.raises(MeshwrightError) as caught:
        Service(httpx2.Response(status, json=problem)).client().read_plan("p")
    assert type(caught.value) is kind
    assert str(caught.value) == message


@pytest.mark.parametrize(("code", "kind"), [("invalid-input", InvalidInputError), ("not-modelled", NotModelledError)])
def test_every_problem_of_a_refusal_is_kept(code: str, kind: type[InvalidInputError]) -> None:
    entries = [{"pointer": "/a", "message": "is wrong", "hint": "Mend it.", "code": "c"}, {"pointer": "/b"}]
    with pytest.raises(kind) as caught:
        Service(httpx2.Response(422, json={"code": code, "errors": entries})).client().evaluate([])
    assert type(caught.value) is kind
    assert list(caught.value.problems) == [
        Problem("/a", "is wrong", "Mend it.", "c"),
        Problem("/b", "", "", "invalid-field"),
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            httpx2.Response(200, text="hi", headers={"content-type": "text/html; charset=utf-8"}),
            "answered 200 with text/html, which",
        ),
        (httpx2.Response(204), "answered 204 with nothing"),
        (httpx2.Response(200, text="{", headers={"content-type": "application/json"}), "text that is not JSON"),
    ],
)
def test_what_no_meshwright_would_answer_is_unreachable(answer: httpx2.Response, words: str) -> None:
    with pytest.raises(ServiceUnreachableError, match=words):
        Service(answer).client().read_plan("p")


def test_the_key_is_sent_and_a_refused_one_is_told_apart_from_none() -> None:
    refused = httpx2.Response(401, json={"status": 401, "code": "unauthorized", "detail": "this key is not valid"})
    service = Service(refused)
    for token, words in ((None, "No key was given"), ("secret", "The key was refused")):
        with pytest.raises(UnauthorizedError) as caught:
            service.client(token=token).read_plan("p")
        assert words in caught.value.hint
    assert [request.headers.get("authorization") for request in service.requests] == [None, "Bearer secret"]


def test_an_idempotency_key_goes_beside_the_token_and_a_slash_at_the_end_of_the_address_is_dropped() -> None:
    service = Service(OK)
    service.client("http://there/", token="t").submit_plan({}, idempotency_key="k")
    (request,) = service.requests
    assert str(request.url) == "http://there/v1/plans"
    assert (request.headers["idempotency-key"], request.headers["authorization"]) == ("k", "Bearer t")


@pytest.mark.parametrize(
    ("failure", "words"), [(httpx2.ConnectError("refused"), "refused"), (httpx2.ReadTimeout(""), "ReadTimeout")]
)
def test_an_error_on_the_way_is_named_by_what_it_says_or_by_its_kind(failure: Exception, words: str) -> None:
    def fail(_request: httpx2.Request) -> httpx2.Response:
        raise failure

    answering: Callable[[httpx2.Request], httpx2.Response] = fail
    client = Client("http://there", http=httpx2.Client(transport=httpx2.MockTransport(answering)))
    with pytest.raises(ServiceUnreachableError, match=f"http://there could not be reached: {words}"):
        client.read_plan("p")
