"""The HTTP client of a meshwright service, for `--server` and for the agent that uploads what it has measured.

It stays light until it is used and needs none of the server's libraries. What the service refuses is raised here as the same
error. A service that cannot be reached, or an answer that no meshwright service would give, is a `ServiceUnreachableError`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from app.errors import STATUSES, ServiceUnreachableError, UnauthorizedError, UnavailableError, problems_of
from cost_models.errors import InvalidInputError, MeshwrightError, NotModelledError, Problem

if TYPE_CHECKING:
    import httpx2

    from planner.search.progress import Progress

Document = dict[str, Any]
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 90.0
"""Longer than the longest `wait_s` that a request may ask for."""
# A plan takes seconds, so half a second adds little to it; the service answers each question from one row.
_ASK_EVERY_S = 0.5
_PARTIAL_WAIT_S = 2.0
"""How long one POST waits for the plan. It is short, so that Ctrl-C takes effect soon."""
# With the two seconds that a 429 or 503 asks for, six seconds in all: enough for a service that is just starting.
_RETRIES = 3
_SOON_S = 60.0
"""Who is refused for longer than this, because a quota is used up, is told why at once."""


class Client:
    """One connection to a service; use it as a context manager."""

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        http: httpx2.Client | None = None,
        read_timeout_s: float = _READ_TIMEOUT_S,
    ) -> None:
        """Connects to `server`, such as http://127.0.0.1:8000. `http` is a client to use instead, for in-process services.

        Raises:
            InvalidInputError: `server` is not an http or https address.
        """
        import httpx2

        if not server.startswith(("http://", "https://")):
            message = f"{server!r} is not a service address"
            raise InvalidInputError([Problem("", message, "Write it like http://127.0.0.1:8000.")])
        self._server = server.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = http or httpx2.Client(
            # No redirects: they would carry the key in the headers to wherever the answer points.
            timeout=httpx2.Timeout(read_timeout_s, connect=_CONNECT_TIMEOUT_S),
            follow_redirects=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def plan(
        self,
        request: Mapping[str, Any],
        *,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Document:
        """The finished plan response with the stages of every ranked plan. Waits as long as the service takes.

        `on_progress` is told what the service says of the search while it runs, from another thread.

        Raises:
            MeshwrightError: the service refused the job or the job failed; the error says what the service says.
            ServiceUnreachableError: no service answers at that address.
        """
        plan = self.submit_plan({**request, "wait_s": _short_wait(request.get("wait_s"))})
        if plan["status"] in {"queued", "running"} and on_progress is not None:
            self._follow(plan["id"], on_progress)
        while plan["status"] in {"queued", "running"}:
            if should_stop():
                self.cancel_plan(plan["id"])
            time.sleep(_ASK_EVERY_S)
            plan = self.read_plan(plan["id"])
        if plan["status"] == "failed":
            raise _error_of(plan["error"])
        if plan["status"] == "cancelled":
            raise MeshwrightError("the plan was cancelled", hint="Run the same command again to plan it again.")
        ranked = [self.read_ranked(plan["id"], entry["rank"]) for entry in plan["plans"]]
        return {**plan, "plans": ranked}

    def _follow(self, plan_id: str, on_progress: Callable[[Progress], None]) -> None:
        """Passes on what the events of a plan say of its search, in a thread that ends with the plan or with the program."""

        # Another thread, because the main one has to hear Ctrl-C, and a stream of a queued job is silent for long.
        def follow() -> None:
            import httpx2

            from planner.search.progress import Progress

            # Whether the plan is finished is asked elsewhere. A stream that breaks off, also because this client was closed, only
            # ends what is said of the search.
            with (
                suppress(httpx2.HTTPError, httpx2.StreamError, RuntimeError, OSError, ValueError, KeyError),
                self._http.stream("GET", f"{self._server}/v1/plans/{plan_id}/events", headers=self._headers) as stream,
            ):
                for line in stream.iter_lines():
                    name, _, data = line.partition(":")
                    event = json.loads(data) if name == "data" else {}
                    if isinstance(event, dict) and event.get("evaluated") is not None:
                        on_progress(Progress(event["evaluated"], event["best_s"], event["bound_s"]))

        threading.Thread(target=follow, name="events", daemon=True).start()

    def submit_plan(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Document:
        """The plan in the state that it has reached after at most `wait_s` seconds."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._call("POST", "/v1/plans", json=request, headers=headers)  # type: ignore[no-any-return]

    def read_plan(self, plan_id: str) -> Document:
        """The plan without per-stage detail."""
        return self._call("GET", f"/v1/plans/{plan_id}")  # type: ignore[no-any-return]

    def read_ranked(self, plan_id: str, rank: int) -> Document:
        """One ranked plan with its stages."""
        return self._call("GET", f"/v1/plans/{plan_id}/ranked/{rank}")  # type: ignore[no-any-return]

    def cancel_plan(self, plan_id: str) -> None:
        """Cancels the plan. One that has finished in the meantime is left as it is."""
        try:
            # A plan that finished while somebody pressed Ctrl-C must not be deleted.
            self._call("DELETE", f"/v1/plans/{plan_id}?cancel_only=true")
        except MeshwrightError as error:
            if error.code != "wrong-state":
                raise

    def evaluate(self, rows: Sequence[Mapping[str, Any]]) -> list[Document]:
        """One evaluation per row, in order."""
        return self._call("POST", "/v1/evaluate", json=list(rows))  # type: ignore[no-any-return]

    def upload_calibration(self, document: Mapping[str, Any]) -> str:
        """Stores the calibration in the service and returns its id."""
        return str(self._call("POST", "/v1/calibrations", json=document)["id"])

    def observe(self, told: Mapping[str, Any]) -> Document:
        """The stored observation of a run, with the service's prediction."""
        return self._call("POST", "/v1/observations", json=told)  # type: ignore[no-any-return]

    def register_agent(self, facts: Mapping[str, Any]) -> Document:
        """The agent that this node is registered as, with how often it should call."""
        return self._call("POST", "/v1/agents", json=facts)  # type: ignore[no-any-return]

    def lease_job(self, agent_id: str, *, instance: str, kinds: Sequence[str]) -> Document | None:
        """The measurement that the agent is to make now, or the trial that it is to run; None where nothing is asked."""
        body = {"instance": instance, "kinds": list(kinds)}
        return self._call("POST", f"/v1/agents/{agent_id}/lease", json=body)["job"]  # type: ignore[no-any-return]

    def keep_lease(self, agent_id: str, *, lease: str, parts_done: int | None) -> Document:
        """Whether the agent should go on with the measurement under this lease."""
        body = {"lease": lease, "parts_done": parts_done}
        return self._call("POST", f"/v1/agents/{agent_id}/heartbeat", json=body)  # type: ignore[no-any-return]

    def send_result(self, agent_id: str, result: Mapping[str, Any]) -> Document:
        """The profiling job, or the trial, that the result has ended."""
        return self._call("POST", f"/v1/agents/{agent_id}/results", json=result)  # type: ignore[no-any-return]

    def _call(self, method: str, path: str, *, json: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The parsed answer. A service that is busy or starting is asked again, which is safe: every call can be repeated.

        The same plan request finds the plan that it made, and a calibration is named by its digest.
        """
        for attempt in range(_RETRIES + 1):
            response = self._send(method, path, json=json, headers=headers)
            if response.status_code not in {429, 503} or attempt == _RETRIES:
                break
            if response.status_code == 429 and float(response.headers.get("Retry-After", "0")) > _SOON_S:
                break
            # Never longer than five seconds, whatever a proxy in between asks for: somebody waits at a terminal.
            time.sleep(min(float(response.headers.get("Retry-After", "1")), 5.0))
        return self._answer(response)

    def _send(self, method: str, path: str, *, json: Any, headers: Mapping[str, str] | None) -> httpx2.Response:
        import httpx2

        try:
            return self._http.request(
                method, self._server + path, json=json, headers={**self._headers, **(headers or {})}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServiceUnreachableError(
                f"{self._server} could not be reached: {str(error) or type(error).__name__}",
                hint="Check the address, and that `meshwright serve` is running there.",
            ) from error

    def _answer(self, response: httpx2.Response) -> Any:
        media_type = response.headers.get("content-type", "").partition(";")[0]
        if media_type not in {"application/json", "application/problem+json"}:
            raise ServiceUnreachableError(
                f"{self._server} answered {response.status_code} with {media_type or 'nothing'}, which meshwright does not do",
                hint="Check the address: another program seems to be listening there.",
            )
        try:
            document = response.json()
        except ValueError as error:
            raise ServiceUnreachableError(
                f"{self._server} answered with text that is not JSON", hint="Try again."
            ) from error
        if response.is_success:
            return document
        refusal = _error_of(document if isinstance(document, dict) else {})
        if isinstance(refusal, UnauthorizedError):
            refusal.hint = self._key_hint()
        raise refusal

    def _key_hint(self) -> str:
        """Where to put the key, which the service cannot know about its clients."""
        given = "The key was refused" if "Authorization" in self._headers else "No key was given"
        return (
            f"{given}. Pass one with --token or in the variable MESHWRIGHT_TOKEN; `meshwright keys create NAME` creates one "
            "on the machine where the service runs."
        )


def _short_wait(asked: Any) -> Any:
    """The wait that was asked for if it is shorter than ours. What is not a number is left for the service to refuse."""
    if asked is None:
        return _PARTIAL_WAIT_S
    return min(asked, _PARTIAL_WAIT_S) if isinstance(asked, int | float) else asked


def _error_of(problem: Mapping[str, Any]) -> MeshwrightError:
    """The error that a problem document describes, as an instance of the class with its code."""
    code, detail, hint = (str(problem.get(name) or "") for name in ("code", "detail", "hint"))
    problems = problems_of(problem.get("errors") or [])
    if problems:
        return (NotModelledError if code == NotModelledError.code else InvalidInputError)(problems)
    family = next((cls for cls in STATUSES if cls.code == code and not issubclass(cls, InvalidInputError)), None)
    # A code of a newer service is not known here. Its status still tells whether trying again makes sense.
    if family is None:
        family = UnavailableError if problem.get("status") == 503 else MeshwrightError
    return family(detail or "the service refused the request without saying why", hint=hint)
