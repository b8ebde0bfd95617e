"""The form filled from a request, so that a plan can be asked again with a change. Whatever no field can show is written into the
document of its part: the form then stands for the same request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.service.web.form.fields import BY_DOCUMENT, BY_GPU, BY_PRESET, FIELDS, Field, first_values

_KEPT = ("model.preset", "cluster.preset", "cluster.gpu")
"""Fields that keep their first value where the request describes its part in another way."""


def values_of(request: Mapping[str, Any]) -> dict[str, str]:
    """What the form shows for this request."""
    rest = json.loads(json.dumps(request))  # a copy, from which is taken what fields show
    first = first_values()
    values = {name: first[name] for name in _KEPT}
    values |= _described("model", rest.pop("model", {}), {BY_PRESET: ("preset",)})
    ways = {BY_PRESET: ("preset", "num_nodes"), BY_GPU: ("gpu", "num_nodes", "gpus_per_node")}
    values |= _described("cluster", rest.pop("cluster", {}), ways, extras=("nic_gbit_per_s", "calibration"))
    values |= {f"include.{name}": "true" for name in rest.pop("include", None) or () if f"include.{name}" in FIELDS}
    # What no field could take is left for the documents below, so that nothing of the request is lost.
    for field in FIELDS.values():
        text = _taken(field, rest)
        if text:
            values[field.name] = text
    for part in ("training", "constraints"):
        left = {name: value for name, value in (rest.get(part) or {}).items() if value not in ({}, None)}
        if left:
            values[f"{part}.document"] = json.dumps(left, indent=1)
    return values


def _described(
    part: str, given: Mapping[str, Any], ways: Mapping[str, tuple[str, ...]], *, extras: tuple[str, ...] = ()
) -> dict[str, str]:
    """A model or a cluster in the fields of the way that can show all of it, or as a document."""
    stated = {name: value for name, value in given.items() if value is not None}
    for way, needed in ways.items():
        if needed[0] in stated and stated.keys() <= {*needed, *extras}:
            texts = {name: _text(FIELDS[f"{part}.{name}"], value) for name, value in stated.items()}
            if None not in texts.values():
                return {f"{part}.by": way} | {f"{part}.{name}": text for name, text in texts.items() if text}
    return {f"{part}.by": BY_DOCUMENT, f"{part}.document": json.dumps(given, indent=1)}


def _taken(field: Field, rest: Any) -> str | None:
    """The text of a field, whose value is then no longer in the request; None where there is none that it can show."""
    if field.kind in ("document", "way"):
        return None
    *parents, last = field.name.split(".")
    for parent in parents:
        rest = rest.get(parent) if isinstance(rest, dict) else None
    if not isinstance(rest, dict) or last not in rest:
        return None
    text = "" if rest[last] is None else _text(field, rest[last])
    if text is not None:
        del rest[last]
    return text


def _text(field: Field, value: Any) -> str | None:
    """A value as it is written into the field; None if the field cannot show it."""
    if field.kind in ("whole", "number", "seconds", "hours"):
        return None if isinstance(value, bool) or not isinstance(value, int | float) else str(value)
    if field.kind == "flag":
        return {True: "true", False: ""}.get(value) if isinstance(value, bool) else None
    if field.kind == "words":
        words = value if isinstance(value, list) else [value] if value in field.suggested else []
        plain = all(isinstance(word, str) and word.strip() == word and word and "," not in word for word in words)
        return ", ".join(words) if words and plain else None
    if isinstance(value, bool):
        value = "true" if value else "false"
    if not isinstance(value, str):
        return None
    # The form adds a tenant's own calibrations to the choices of that field, so any name may be among them.
    listed = field.kind != "choice" or not field.choices or value in dict(field.choices)
    return value if value and listed else None
