"""A bar for a difference, to stand in a cell of a table: to the right of the middle where it is positive, to the left where not."""

from __future__ import annotations

from markupsafe import Markup

from app.report.figures.svg import element

_HALF = 50.0
_HEIGHT = 10


def difference_bar(value: float, *, largest: float) -> Markup:
    """The bar; the cells beside it tell the number, so that it is hidden from those who do not see it.

    Args:
        value: the difference.
        largest: the difference that reaches the edge, in the same unit, positive.
    """
    length = _HALF * min(abs(value) / largest, 1.0) if largest > 0 else 0.0
    # Thin bars stay visible.
    length = max(length, 0.7) if value else 0.0
    bar = element(
        "rect", x=0.0 if value >= 0 else -length, width=length, height=_HEIGHT, class_="more" if value >= 0 else "less"
    )  # fmt: skip
    return element(
        "svg", bar, viewBox=f"{-_HALF:g} 0 {2 * _HALF:g} {_HEIGHT}", preserveAspectRatio="none", aria_hidden="true",
        data_difference=f"{value:.4g}",
    )  # fmt: skip
