"""The documentation of the API: Swagger UI from files inside this package, so that it works without access to any other host.

FastAPI's own page loads its script, its style and its icon from public hosts, and starts Swagger UI by an inline script.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.service.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs() -> HTMLResponse:
    """Swagger UI; `static/docs.js` starts it and says how."""
    return page(
        "docs",
        title="The API",
        scripts=("/static/swagger/swagger-ui-bundle.js", "/static/docs.js"),
        styles=("/static/swagger/swagger-ui.css", "/static/docs.css"),
    )
