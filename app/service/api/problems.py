"""Errors as they are sent: every failure of every route becomes an RFC 9457 problem, in this one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from app.errors import (
    RETRY_AFTER_S,
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    problem_document,
)
from app.service.answering.messages import RelayedError
from app.service.api.methods import allowed_methods
from app.service.db.troubles import trouble_of
from cost_models.errors import InvalidInputError, MeshwrightError, Problem

MEDIA_TYPE = "application/problem+json"
log = structlog.get_logger("meshwright.http")
Shown = Callable[[Request, JSONResponse], Response]
"""What a problem document becomes for the request that it answers, such as a page for a browser."""
Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def install_problems(app: FastAPI, *, shown: Shown) -> None:
    """Makes the application answer every error with a problem document, or with what `shown` makes of it."""

    def answering(handler: Callable[[Request, Exception], JSONResponse]) -> Handler:
        # A coroutine, because Starlette sends plain functions to a thread, of which there may be none while the database is away.
        async def answered(request: Request, error: Exception) -> Response:
            return shown(request, handler(request, error))

        return answered

    app.add_exception_handler(MeshwrightError, answering(_on_error))
    app.add_exception_handler(RelayedError, answering(_on_relayed))
    app.add_exception_handler(RequestValidationError, answering(_on_invalid))
    app.add_exception_handler(HTTPException, answering(_on_http))
    app.add_exception_handler(SQLAlchemyError, answering(_on_database))


def problem_response(error: MeshwrightError, *, request_id: str | None) -> JSONResponse:
    """The error as a response."""
    answer = stored_problem(problem_document(error), request_id=request_id)
    if "retry_after_s" in error.context:
        answer.headers["Retry-After"] = str(error.context["retry_after_s"])
    return answer


def stored_problem(document: dict[str, Any], *, request_id: str | None) -> JSONResponse:
    """A problem that a failed job has left, or that another process has told, as the response to this request."""
    # A stored problem carries no id of its own: the one that helps in the log is that of the request being answered now.
    document = {**document, "request_id": request_id}
    headers: dict[str, str] = {}
    if document["status"] in {429, 503}:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if document["status"] == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(document, status_code=document["status"], media_type=MEDIA_TYPE, headers=headers)


def _answered(request: Request, error: MeshwrightError) -> JSONResponse:
    return problem_response(error, request_id=request.scope.get("request_id"))


def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MeshwrightError)
    return _answered(request, error)


def _on_relayed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RelayedError)
    return stored_problem(error.document, request_id=request.scope.get("request_id"))


def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = [_parameter_problem(entry) for entry in error.errors()]
    return _answered(request, InvalidInputError(problems))


def _parameter_problem(entry: dict[str, Any]) -> Problem:
    place, *names = entry["loc"]
    name = "/".join(str(part) for part in names)
    hint = "See /docs for what this parameter accepts."
    return Problem(f"/{place}/{name}", f"{name}: {_message(entry)}", hint)


def _message(entry: dict[str, Any]) -> str:
    given = repr(entry.get("input"))
    # Cut, because a parameter may be as long as the server's limit on a request line.
    return f"{entry['msg']} (given {given[:80]})" if entry.get("input") is not None else str(entry["msg"])


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = ", ".join(allowed_methods(request.app.routes, request.scope))
        message = f"{path} does not support {request.method}"
        answer = _answered(request, MethodNotAllowedError(message, hint=f"It supports {allowed}."))
        answer.headers["Allow"] = allowed
        return answer
    if error.status_code == 404:
        return _answered(
            request, NotFoundError(f"there is nothing at {path}", hint="See /docs for every path of this service.")
        )
    return _answered(request, InvalidInputError([Problem("", re.sub(r"\s+", " ", str(error.detail))[:300])]))


def _on_database(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SQLAlchemyError)
    trouble = trouble_of(error)
    if trouble is None:
        raise error  # a faulty statement is a defect of the program, and answered as one
    log.error("the database refused a request", error=str(error)[:500])
    return _answered(request, trouble)


def internal_problem(request_id: str | None) -> JSONResponse:
    """The answer when the program is at fault: no traceback, but the id by which to find it in the log."""
    hint = f"Please report it with the request id {request_id} and the server's log."
    return problem_response(InternalError("the service has failed because of a bug", hint=hint), request_id=request_id)
