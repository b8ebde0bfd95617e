"""Every error of the service, and the one table from error classes to HTTP statuses.

Light on purpose: the command line and the HTTP client import it without loading the server.
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
    """The body is not the strict JSON that can be stored and sent back."""

    code = "not-json"


class UnauthorizedError(MeshwrightError):
    """No key, or one that is not valid."""

    code = "unauthorized"


class ForbiddenError(MeshwrightError):
    """The caller is known, or needs not be, and still may not do this."""

    code = "forbidden"


class NotFoundError(MeshwrightError):
    """Nothing of that name belongs to the caller."""

    code = "not-found"


class MethodNotAllowedError(MeshwrightError):
    """The path exists, not with this method."""

    code = "method-not-allowed"


class WrongStateError(MeshwrightError):
    """The object exists and is not in a state that allows this."""

    code = "wrong-state"


class BodyTooLargeError(MeshwrightError):
    """The body is over the limit."""

    code = "body-too-large"


class MediaTypeError(MeshwrightError):
    """The body is of another media type, or is encoded."""

    code = "unsupported-media-type"


class TooManyJobsError(MeshwrightError):
    """The tenant has as many unfinished jobs as it may have."""

    code = "too-many-jobs"


class UnavailableError(MeshwrightError):
    """The database or the workers are away."""

    code = "unavailable"


class InternalError(MeshwrightError):
    """A defect of the program."""

    code = "internal-error"


class WorkerLostError(MeshwrightError):
    """The process that ran a job ended before the job did."""

    code = "worker-lost"


class TimeLimitError(MeshwrightError):
    """A job ran past its time limit."""

    code = "time-limit"


class ServiceUnreachableError(MeshwrightError):
    """The service could not be reached, or does not answer as one."""

    code = "service-unreachable"


STATUSES: dict[type[MeshwrightError], int] = {
    NotJsonError: 400,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    MethodNotAllowedError: 405,
    WrongStateError: 409,
    BodyTooLargeError: 413,
    MediaTypeError: 415,
    InvalidInputError: 422,
    NotModelledError: 422,
    CalibrationError: 422,
    NotExpressibleError: 422,
    SearchBudgetError: 422,
    MeasurementError: 422,
    TooManyJobsError: 429,
    InternalError: 500,
    WorkerLostError: 500,
    UnavailableError: 503,
    ServiceUnreachableError: 503,
    TimeLimitError: 504,
    MeshwrightError: 500,
}
"""HTTP status of each error class; a class that is not listed takes its nearest listed base's."""

TITLES = {
    400: "Not JSON",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Wrong state",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
    504: "Time limit",
}
RETRY_AFTER_S = 2
"""What 429 and 503 ask the client to wait."""


_HINT = "The examples in /docs show what is accepted."


def status_of(error: MeshwrightError) -> int:
    """HTTP status of an error."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def problem_document(error: MeshwrightError, *, request_id: str | None = None) -> dict[str, Any]:
    """The error as an RFC 9457 problem, with the contract's extension members."""
    status = status_of(error)
    return {
        "type": f"urn:meshwright:error:{error.code}",
        "title": TITLES[status],
        "status": status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint or _HINT,
        "errors": [_entry(p) for p in error.problems] if isinstance(error, InvalidInputError) else [],
        "request_id": request_id,
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
