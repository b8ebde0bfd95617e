"""The page of a collective's algorithms: the curves of time by size, and all numbers in a table. It needs no network and no script."""

from __future__ import annotations

from app.collective_words import Json, label, measured_note, micros, note, priced_words, size_words, title
from app.report.figures.times import Times, times
from app.report.frame import frame_of_file
from app.report.section import Section, environment, section


def collectives_file(document: Json) -> str:
    """The page as one HTML document.

    Args:
        document: what `meshwright collectives --json` prints.
    """
    sections = [_curves(document), _numbers(document)]
    return (
        environment()
        .get_template("evaluation.html")
        .render(
            frame=frame_of_file((), wanted=True), title=title(document), sections=sections, note=measured_note(document)
        )
    )


def _curves(document: Json) -> Section:
    sizes, priced = document["size_bytes"], document["priced"]["seconds"]
    shown = [
        Times(label(curve), tuple(zip(sizes, curve["seconds"], strict=True)), is_dashed=not curve["taken"])
        for curve in document["algorithms"]
    ]
    # Dashes mark what nobody gets without asking for it.
    measured = document["measured"]
    # Points are drawn last, so that no curve hides them.
    shown.append(Times("as plans are priced", tuple(zip(sizes, priced, strict=True)), is_chosen=True))
    if measured is not None:
        points = tuple(
            point for point in zip(measured["size_bytes"], measured["seconds"], strict=True)
            if sizes[0] <= point[0] <= sizes[-1]
        )  # fmt: skip
        shown.append(Times("measured", points, is_measured=True))
    told = "; ".join(
        f"{curve.label} {micros(curve.points[0][1])} to {micros(curve.points[-1][1])}"
        for curve in shown
        if curve.points
    )
    picture = times(
        [curve for curve in shown if curve.points],
        name="times",
        title="Time by size",
        description=f"Microseconds of one call, from {size_words(sizes[0])} to {size_words(sizes[-1])}: {told}.",
        size_words=size_words,
        time_words=micros,
    )
    return section("times", "Time by size", figure=picture, note=note(document))


def _numbers(document: Json) -> Section:
    columns = ["size", *map(label, document["algorithms"]), "plans"]
    rows = [
        (
            size_words(size),
            *(micros(curve["seconds"][place]) for curve in document["algorithms"]),
            micros(document["priced"]["seconds"][place]),
            priced_words(document, place),
        )
        for place, size in enumerate(document["size_bytes"])
    ]
    return section("numbers", "All numbers, in microseconds", columns=columns, rows=rows)
