"""Errors as pages: a browser that asked for a page is told in words what is wrong and what to do; the API keeps its problem documents."""

from __future__ import annotations

import json

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request

from app.service.web.rendering import page

_NO_PAGES = ("/v1", "/static", "/openapi.json", "/healthz", "/readyz", "/metrics")
"""Paths whose errors stay problem documents, whoever asks."""
_OF_THE_DOCUMENT = frozenset({"content-type", "content-length"})


def as_page(request: Request, problem: JSONResponse) -> Response:
    """The answer that this request wants: the problem as it is, or as a page."""
    # Programs are known by what they accept: browsers name HTML, and clients that accept anything get what a program can read.
    if request.url.path.startswith(_NO_PAGES) or "text/html" not in request.headers.get("accept", ""):
        return problem
    document = json.loads(bytes(problem.body))
    after = request.url.path if request.method in ("GET", "HEAD") else "/"
    answer = page(
        "problem", title=document["title"], status=problem.status_code, problem=document, after=after, reason=""
    )
    for name, value in problem.headers.items():
        if name not in _OF_THE_DOCUMENT:
            answer.headers[name] = value
    return answer
