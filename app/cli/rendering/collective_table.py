"""The times of a collective by size and algorithm, as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.collective_words import Json, label, measured_at, measured_note, micros, note, priced_words, size_words, title

_EVERY = 2
"""Of the sizes, which double, every second one is shown."""


def collective_parts(document: Json) -> Iterator[RenderableType]:
    """A headline, the table, and what its numbers mean."""
    yield Text(title(document), style="bold")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("size", justify="right", no_wrap=True)
    for curve in document["algorithms"]:
        table.add_column(label(curve), justify="right")
    table.add_column("plans", justify="right")
    table.add_column("by")
    if document["measured"] is not None:
        table.add_column("measured", justify="right")
    for place in range(0, len(document["size_bytes"]), _EVERY):
        table.add_row(*_row(document, place))
    yield table
    yield Text(note(document), style="dim")
    yield Text(measured_note(document), style="dim")


def _row(document: Json, place: int) -> Iterator[str | Text]:
    size = document["size_bytes"][place]
    yield size_words(size)
    # What the library would take is told apart from what one could force on it.
    fastest = min((curve["seconds"][place] for curve in document["algorithms"] if curve["taken"]), default=None)
    for curve in document["algorithms"]:
        told = curve["seconds"][place]
        yield Text(micros(told), style="bold" if told == fastest else "")
    yield micros(document["priced"]["seconds"][place])
    yield priced_words(document, place)
    if document["measured"] is not None:
        found = measured_at(document, size)
        yield "" if found is None else micros(found)
