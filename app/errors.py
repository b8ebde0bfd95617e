"""Every error of the service, and the one table from error classes to HTTP statuses.

This module stays light: the command line and the HTTP client import it without loading the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cost_models.errors import (
    CalibrationError,
    InvalidInputError,
    MeasurementError,
    MeshwrightError,
    NotExpressibleError,
    NotModelledError,
    Problem,
    SearchBudgetError,
)


class NotJsonError(MeshwrightError):
    """The body is not strict JSON, so it could not be stored and sent back unchanged."""

    code = "not-json"


class BadRequestError(MeshwrightError):
    """What was sent cannot be read as an HTTP request."""

    code = "bad-request"


class HeadTooLargeError(MeshwrightError):
    """The head of the request, its path and its headers, is larger than the service accepts."""

    code = "head-too-large"


class UnauthorizedError(MeshwrightError):
    """The request carries no key, or one that is not valid."""

    code = "unauthorized"


class ForbiddenError(MeshwrightError):
    """The request is understood but not allowed: not for this sender, or not for anybody."""

    code = "forbidden"


class NotFoundError(MeshwrightError):
    """The caller owns nothing of that name."""

    code = "not-found"


class MethodNotAllowedError(MeshwrightError):
    """The path exists, but not with this method."""

    code = "method-not-allowed"


class WrongStateError(MeshwrightError):
    """The object exists, but its state does not allow this."""

    code = "wrong-state"


class RequestTimeoutError(MeshwrightError):
    """The client did not send its whole request, or take the answer, in time."""

    code = "request-timeout"


class BodyTooLargeError(MeshwrightError):
    """The body is larger than the service accepts."""

    code = "body-too-large"


class MediaTypeError(MeshwrightError):
    """The body has a media type other than JSON, or a content encoding."""

    code = "unsupported-media-type"


class QuotaError(MeshwrightError):
    """The tenant already has as many plans, as many keys, or as many bytes stored, as it is allowed."""

    code = "quota-exceeded"


class TooManyRequestsError(MeshwrightError):
    """The key has asked as often as it may for now."""

    code = "too-many-requests"


class TooManyJobsError(MeshwrightError):
    """The tenant already has as many unfinished jobs as it is allowed."""

    code = "too-many-jobs"


class TooManyAgentsError(MeshwrightError):
    """The tenant already has as many agents as it is allowed."""

    code = "too-many-agents"


class TooManyAnswersError(MeshwrightError):
    """As many of the tenant's requests wait to be computed as may wait."""

    code = "too-many-answers"


class MemoryLimitError(MeshwrightError):
    """The answer needs more memory than the process that computes it may take."""

    code = "memory-limit"


class UnavailableError(MeshwrightError):
    """The database or the worker processes cannot be reached."""

    code = "unavailable"


class DatabaseAwayError(UnavailableError):
    """The database does not answer."""

    code = "database-away"


class DatabaseFullError(UnavailableError):
    """The database has no room left to write to."""

    code = "database-full"


class SchemaNotCurrentError(UnavailableError):
    """The database has the schema of another release, or none."""

    code = "schema-not-current"


class NoWorkerError(UnavailableError):
    """No process is ready to run jobs."""

    code = "no-worker"


class InternalError(MeshwrightError):
    """The program itself is at fault."""

    code = "internal-error"


class WorkerLostError(MeshwrightError):
    """The process that ran a job ended before the job did."""

    code = "worker-lost"


class TimeLimitError(MeshwrightError):
    """A job ran longer than its time limit."""

    code = "time-limit"


class ServiceUnreachableError(MeshwrightError):
    """The service could not be reached, or what answers there is not a meshwright service."""

    code = "service-unreachable"


# Ordered by status, so that a glance shows what a client has to be ready for. 422 rather than 400 for whatever is well-formed
# JSON but cannot be planned: clients retry neither, but only 400 means that their encoder is broken (RFC 9110, 15.5.21).
STATUSES: dict[type[MeshwrightError], int] = {
    BadRequestError: 400,
    NotJsonError: 400,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    MethodNotAllowedError: 405,
    RequestTimeoutError: 408,
    WrongStateError: 409,
    BodyTooLargeError: 413,
    MediaTypeError: 415,
    InvalidInputError: 422,
    NotModelledError: 422,
    CalibrationError: 422,
    NotExpressibleError: 422,
    SearchBudgetError: 422,
    MeasurementError: 422,
    MemoryLimitError: 422,
    QuotaError: 429,
    TooManyRequestsError: 429,
    TooManyJobsError: 429,
    TooManyAgentsError: 429,
    HeadTooLargeError: 431,
    TooManyAnswersError: 429,
    InternalError: 500,
    WorkerLostError: 500,
    UnavailableError: 503,
    DatabaseAwayError: 503,
    DatabaseFullError: 503,
    SchemaNotCurrentError: 503,
    NoWorkerError: 503,
    ServiceUnreachableError: 503,
    TimeLimitError: 504,
    MeshwrightError: 500,
}
"""HTTP status of each error class; a class that is not listed takes its nearest listed base's."""

TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Wrong state",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many requests",
    431: "Head too large",
    500: "Internal error",
    503: "Unavailable",
    504: "Time limit",
}
# A worker process takes one to two seconds to load, which is the longest of the ordinary reasons for a 503.
RETRY_AFTER_S = 2
"""Seconds that a 429 or 503 asks the client to wait."""


_HINT = "The examples in /docs show what is accepted."


def status_of(error: MeshwrightError) -> int:
    """HTTP status of an error."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def problem_document(error: MeshwrightError, *, request_id: str | None = None) -> dict[str, Any]:
    """The error as an RFC 9457 problem, with the contract's extension members."""
    status = status_of(error)
    told = {name: error.context.get(name) for name in ("quota", "limit", "used")} if status == 429 else {}
    return {
        "type": f"urn:meshwright:error:{error.code}",
        "title": TITLES[status],
        "status": status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint or _HINT,
        "errors": [_entry(p) for p in error.problems] if isinstance(error, InvalidInputError) else [],
        "request_id": request_id,
        **told,
    }


def problems_of(entries: Iterable[dict[str, Any]]) -> list[Problem]:
    """The entries of a problem document's `errors`, read back."""
    return [
        Problem(
            pointer=str(entry.get("pointer", "")),
            message=str(entry.get("message", "")),
            hint=str(entry.get("hint", "")),
            code=str(entry.get("code", "invalid-field")),
        )
        for entry in entries
    ]


def _entry(problem: Problem) -> dict[str, str]:
    return {"pointer": problem.pointer, "message": problem.message, "hint": problem.hint or _HINT, "code": problem.code}
