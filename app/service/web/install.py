"""Adds the pages, and the files that they load, to the application."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from app.service.access import require_guarded
from app.service.web.rendering import ASSETS
from app.service.web.routes import agents, calibrations, documentation, downloads, form, key, plans, tunings
from app.service.web.visitors import visitor_of

_STATIC = Path(__file__).parent / "static"


def install_pages(app: FastAPI) -> None:
    """Adds every page and every static file."""
    # The report's files come first: the path of the others is the beginning of theirs.
    app.mount(ASSETS, StaticFiles(directory=str(files("app.report") / "assets")), name="report")
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    # Routers match whole paths and methods, so their order does not matter.
    for module in (form, plans, downloads, tunings, calibrations, agents, key, documentation):
        require_guarded(module.router, frozenset({visitor_of}))
        app.include_router(module.router)
