"""The elements that figures are made of: escaped SVG markup, short numbers, and the frame that makes a figure accessible.

Colours come from classes of the stylesheet (`assets/report.css`), so that a figure follows the dark and the light scheme and
obeys a Content-Security-Policy without inline styles.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

Value = str | int | float


def number(value: float, *, digits: int = 2) -> str:
    """A coordinate in as few characters as its digits need: 12.50 is 12.5, and -0.001 is 0."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return "0" if text in ("-0", "") else text


def element(tag: str, *children: Markup | str, **attributes: Value | None) -> Markup:
    """One element with its children; strings are escaped, attributes that are None are left out.

    An underscore in an attribute's name stands for a hyphen (`text_anchor`), and a trailing one is dropped (`class_`).
    """
    told = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    # Names are our own; values and children were escaped above.
    markup = f"<{tag}{told}>{inside}</{tag}>" if children else f"<{tag}{told}/>"
    return Markup(markup)  # noqa: S704


def figure(
    shapes: Iterable[Markup],
    *,
    name: str,
    title: str,
    description: str,
    width: float,
    height: float,
    role: str = "img",
) -> Markup:
    """An SVG drawing that scales with its column and is read out by its title and description.

    Args:
        shapes: what is drawn, in units of the view box.
        name: unique on a page; ids inside the drawing begin with it.
        title: what the figure shows, a few words.
        description: what a reader who does not see it must know: the numbers that matter, in sentences.
        width: width of the view box; text of 12 units is as large as the page's where the column is as wide as this.
        height: height of the view box.
        role: "img", or "group" where parts of it are links, since what is inside an image is not read out.
    """
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *shapes,
        viewBox=f"0 0 {number(width)} {number(height)}",
        class_="figure",
        role=role,
        aria_labelledby=f"{name}-title {name}-desc",
    )
