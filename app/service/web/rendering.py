"""Pages from their templates: the frame of the report's pages, our links in its header, and everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from app.plan_cells import seconds
from app.report.frame import EVERYWHERE, STYLE, Frame
from app.report.pages import Link
from planner.request.checked_request import PRODUCT_VERSION

ASSETS = "/static/report"
"""Path under which the report's stylesheet and scripts are served."""
HOME = "/"
SITE = (
    {"href": "/", "label": "New plan"},
    {"href": "/plans", "label": "Plans"},
    {"href": "/tunings", "label": "Tunings"},
    {"href": "/calibrations", "label": "Calibrations"},
    {"href": "/docs", "label": "API"},
    {"href": "/key", "label": "Key"},
)
"""The links of every served page."""
STYLES = (f"{ASSETS}/{STYLE}", "/static/pages.css")
REPORT_SCRIPTS = tuple(f"{ASSETS}/{name}" for name in EVERYWHERE)
HTMX = ("/static/htmx/htmx.min.js", "/static/htmx/hx-sse.min.js")


def page(name: str, *, status: int = 200, **shown: Any) -> HTMLResponse:
    """A page as an answer; arguments are those of `page_text`."""
    return html(page_text(name, **shown), status=status)


def page_text(
    name: str, *, title: str, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = STYLES, **shown: Any
) -> str:
    """A page from `templates/<name>.html`; scripts and styles are the paths of those that it loads."""
    # Deferred, htmx would look for what it connects as soon as it has run itself, with or without its extension.
    first = tuple(path for path in scripts if path in HTMX)
    linked = tuple(path for path in scripts if path not in HTMX)
    frame = Frame(linked_styles=styles, first_scripts=first, linked_scripts=linked)
    origin = f"meshwright {PRODUCT_VERSION}"
    return _rendered(f"{name}.html", title=title, frame=frame, acts=set(HTMX) <= set(scripts), origin=origin, **shown)


def fragment(name: str, **shown: Any) -> str:
    """A part of a page that replaces the one that is shown."""
    return _rendered(f"{name}.html", **shown)


def html(text: str, *, status: int = 200) -> HTMLResponse:
    """An answer that browsers keep for going back, and ask about before they show it otherwise."""
    return HTMLResponse(text, status_code=status, headers={"Cache-Control": "private, no-cache"})


def sentence(text: str) -> str:
    """A message of the program as a sentence: errors are worded to follow the name of a field."""
    text = text.strip()
    return text if not text or text.endswith((".", "…", "!", "?")) else f"{text}."


def _rendered(name: str, *, site: Sequence[Link] = SITE, **shown: Any) -> str:
    return _environment().get_template(name).render(home=HOME, site=site, sentence=sentence, seconds=seconds, **shown)


@cache
def _environment() -> Environment:
    # Ours come first: the report's templates are the frame, and a page of the same name is ours.
    loaders = [PackageLoader("app.service.web", "templates"), PackageLoader("app.report", "templates")]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
