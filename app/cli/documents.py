"""Documents that commands take from others: a request, a row, corrections.

Each command writes a document that another one reads, so that people give them the wrong one of several. It is then named by its kind,
with the command that makes the right one of it. What is no document of ours is left to whoever names its fields.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from app.cli.inputs import MAX_DOCUMENT_BYTES, MAX_RESPONSE_BYTES, Json, called, content_of, object_of, require_size
from cost_models.errors import InvalidInputError, Problem

_REQUEST, _ROW, _CORRECTIONS = "a plan request", "a row", "a set of corrections"
_RESPONSE, _TUNING = "a plan response", "a tuning"
_FIELDS: tuple[tuple[str, AbstractSet[str]], ...] = (
    (_RESPONSE, {"request", "plans"}),
    (_TUNING, {"request", "trials"}),
    ("an observation", {"row", "measured"}),
    ("the record of a trial", {"row", "status"}),
    ("an evaluation", {"verdict"}),
    (_ROW, {"model", "cluster", "training", "strategy"}),
    (_REQUEST, {"model", "cluster", "training"}),
    (_CORRECTIONS, {"schema_version", "corrections"}),
)
"""What each kind has, the first that fits counting: a row has all that a request has."""
_MOST_CORRECTION_BYTES = 1 << 24
"""Largest document of corrections: those of many frameworks and GPUs, with the names of runs."""


def read_request(source: str) -> Json:
    """The plan request in a file, or the one that a plan response or a tuning was made of."""
    hint = "A request has a model, a cluster and a training; a plan response and a tuning hold the one that they were made of."
    document, kind = _read(source, wanted=(_REQUEST, _RESPONSE, _TUNING), hint=hint)
    if kind == _REQUEST or not isinstance(document.get("request"), dict):
        return document
    return dict(document["request"])


def read_row(source: str) -> Json:
    """The row in a file, as `evaluate` takes it."""
    return _read(
        source, wanted=(_ROW,), hint="`meshwright export` writes the row of a plan into its folder, as plan.json."
    )[0]


def read_corrections(source: str) -> Json | str:
    """The document of corrections in a file, or the word `auto` or `none`."""
    if source in ("auto", "none"):
        return source
    hint = "Make corrections of tunings and observations with: meshwright correct RUNS --out corrections.json."
    return _read(source, wanted=(_CORRECTIONS,), hint=hint, most_bytes=_MOST_CORRECTION_BYTES)[0]


def _read(source: str, *, wanted: tuple[str, ...], hint: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> tuple[Json, str]:
    """The document in a file and its kind, which is the first of those wanted where nobody knows it."""
    name, content = called(source), content_of(source, most_bytes=MAX_RESPONSE_BYTES)
    document = object_of(content, name=name)
    kind = next((kind for kind, fields in _FIELDS if fields <= document.keys()), wanted[0])
    if kind not in wanted:
        raise InvalidInputError([Problem("", f"{name} is {kind}, not {wanted[0]}", hint, code="another-document")])
    if kind == wanted[0]:  # of the others only a part is used, however large they are
        require_size(content, name=name, most_bytes=most_bytes)
    return document, kind
