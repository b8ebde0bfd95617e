"""The documentation page: Swagger UI from files inside this package, so that it works without access to any other host.

FastAPI's own page loads its script, its style and its icon from public hosts.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.staticfiles import StaticFiles

_STATIC = Path(__file__).parent.parent / "web" / "static"
# No validator: Swagger UI would otherwise send the address of this service to validator.swagger.io.
_UI = {"tryItOutEnabled": True, "displayRequestDuration": True, "defaultModelsExpandDepth": 0, "validatorUrl": None}


def install_pages(app: FastAPI) -> None:
    """Adds /docs with the files that it loads, and a redirect to it from /."""
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="meshwright",
            swagger_js_url="/static/swagger/swagger-ui-bundle.js",
            swagger_css_url="/static/swagger/swagger-ui.css",
            swagger_favicon_url="/static/favicon.svg",
            swagger_ui_parameters=_UI,
        )

    @app.get("/", include_in_schema=False)
    def root() -> RedirectResponse:
        return RedirectResponse("/docs")
