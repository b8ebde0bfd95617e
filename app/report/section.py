"""A section of a page, and how it is made from its template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cost_models.errors import MeshwrightError


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page under a heading of its own."""

    name: str
    """Its anchor, and the name of its template."""
    title: str
    body: Markup
    folded: bool = False
    """Whether the page shows it closed at first."""
    scripts: tuple[str, ...] = ()
    """Names of the assets that make it answer to the pointer; it is complete without them."""


@cache
def environment() -> Environment:
    """The templates' environment: everything is escaped, and a missing name is an error."""
    return Environment(
        loader=PackageLoader("app.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def section(name: str, title: str, *, folded: bool = False, scripts: tuple[str, ...] = (), **shown: Any) -> Section:
    """A section filled from `templates/sections/<name>.html`; headings are the page's, so that they keep their order."""
    # Rendered with autoescape, hence markup already.
    body = Markup(environment().get_template(f"sections/{name}.html").render(shown))  # noqa: S704
    return Section(name, title, body, folded=folded, scripts=scripts)


def unavailable(name: str, title: str, error: MeshwrightError) -> Section:
    """A section that cannot be computed here, such as where a calibration was deleted since: it says why."""
    shown = environment().get_template("parts/unavailable.html").render(message=error.message, hint=error.hint)
    return Section(name, title, Markup(shown))  # noqa: S704 - rendered with autoescape
