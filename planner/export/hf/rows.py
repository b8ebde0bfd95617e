"""Fields that a file says under one key each: one table of rows serves the writer and the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.export.quantities import Quantities
from planner.export.settings import Settings


def always(_q: Quantities) -> bool:
    """Whether a row is written: in every plan."""
    return True


@dataclass(frozen=True)
class Row:
    """One field and its key."""

    field: str
    """As in `Quantities`."""
    key: str
    """Keys of the document joined by dots."""
    values: Mapping[Any, Any] | None = None
    """What the file says for each value of the field; None where it says the value itself."""
    why: str = "it has no setting for it"
    """Why other values cannot be said."""
    when: Callable[[Quantities], bool] = always
    """Plans in which the key is written; elsewhere leaving it out says the field's value."""


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value of nested documents by its dotted key."""
    *holders, last = key.split(".")
    for holder in holders:
        document = document.setdefault(holder, {})
    document[last] = value


def said(rows: Iterable[Row], q: Quantities) -> dict[str, Any]:
    """The document that says these fields of a plan.

    Raises:
        FieldNotExpressibleError: a field has a value that its row has no word for.
    """
    document: dict[str, Any] = {}
    for row in rows:
        value = q[row.field] if row.values is None else q.only(row.field, list(row.values), why=row.why)
        unwritten = row.values is not None and value not in row.values  # the field makes no difference in this plan
        if unwritten or not row.when(q):
            continue
        put(document, row.key, value if row.values is None else row.values[value])
    return document


def understood(rows: Iterable[Row], settings: Settings) -> dict[str, Any]:
    """The fields that the settings say, by name; a value that no row has a word for is left to be reported."""
    found: dict[str, Any] = {}
    for row in rows:
        given = last(settings, row.key)
        # "auto" means that the Trainer fills it in, so that the file itself says nothing.
        if given is None or given == "auto":
            continue
        if row.values is None:
            found[row.field] = settings.value(row.key, row.field)
            continue
        meant = [
            value
            for value, word in row.values.items()
            if word == given and isinstance(word, bool) == isinstance(given, bool)
        ]
        if meant:
            found[row.field] = meant[0]
            settings.take(row.key, row.field)
    return found


def last(settings: Settings, key: str) -> Any:
    """The value of a key without taking it; None where it is not set."""
    return next((setting.value for setting in reversed(list(settings)) if setting.key == key), None)


def collected(settings: Settings, prefix: str, *fields: str) -> Any:
    """The list or document under a key, taken; None where there is nothing."""
    found = settings.take_under(prefix, *fields)
    return gathered({setting.key.removeprefix(prefix).removeprefix("."): setting.value for setting in found})


def gathered(flat: Mapping[str, Any]) -> Any:
    """Nested lists and documents from values by dotted key."""
    if not flat:
        return None
    if "" in flat:
        return flat[""]
    groups: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        head, _, rest = key.partition(".")
        groups.setdefault(head, {})[rest] = value
    parts = {head: gathered(rest) for head, rest in groups.items()}
    return list(parts.values()) if all(head.isdigit() for head in parts) else parts


def split(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields by their names in `Quantities` as the training and the strategy of a row."""
    training: dict[str, Any] = {}
    strategy: dict[str, Any] = {}
    for name, value in found.items():
        if name.startswith("training."):
            training[name.removeprefix("training.")] = value
        else:
            put(strategy, name, value)
    return training, strategy
