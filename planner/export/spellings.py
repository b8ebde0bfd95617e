"""How a field of the plan is spelled under a key of a file, as a row that both a writer and a reader use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.strategies.fields import FIELD
from planner.export.quantities import Quantities
from planner.export.settings import Setting, Settings
from planner.export.target import RowParts

_COUNTED = frozenset({"training.seq_length", "training.global_batch_size"})


def always(_q: Quantities) -> bool:
    """Whether a spelling is written: in every plan."""
    return True


@dataclass(frozen=True)
class Spelling:
    """One key and the field that it says."""

    key: str
    """Keys of a document joined by dots."""
    field: str
    """As in `Quantities`."""
    values: Mapping[Any, Any] | None = None
    """The file's value by the plan's; None where they are the same and every value can be said."""
    why: str = "it has no setting for it"
    """Why a value outside of `values` cannot be said, as the end of a sentence; with its source."""
    idle: Any = None
    """What the file says where the field makes no difference in the plan and its own value has no spelling; None leaves it out."""
    when: Callable[[Quantities], bool] = always
    """Plans in which the key is written; elsewhere leaving it out says the field's value."""

    def written(self, quantities: Quantities) -> Any:
        """The file's value.

        Raises:
            FieldNotExpressibleError: the plan's value has no spelling.
        """
        if self.values is None:
            return quantities[self.field]
        # A field without effect may have a value that the file has no word for, and asks for none.
        if not quantities.matters(self.field) and quantities.peek(self.field) not in self.values:
            quantities[self.field]
            return self.idle
        return self.values[quantities.only(self.field, self.values, why=self.why)]

    def read(self, value: Any) -> Any:
        """The plan's value; None where a file's value means nothing that is known."""
        # Hugging Face's Trainer writes "auto" for what it fills in itself, so that the file says nothing.
        if self.values is None:
            return value if value != "auto" and suits(self.field, value) else None
        # True equals 1 in Python, and a file that says one does not mean the other.
        return next(
            (
                plans
                for plans, word in self.values.items()
                if word == value and isinstance(word, bool) == isinstance(value, bool)
            ),
            None,
        )


def suits(field: str, value: Any) -> bool:
    """Whether a value has the type of a field, where that is known; of a number also whether it is one that can be."""
    known = FIELD.get(field)
    kind = known.kind if known else "count" if field in _COUNTED else ""
    if kind in ("degree", "count", "zero"):
        # -1 is how several frameworks say "the rest", or "as it follows".
        return type(value) is int and (value >= 1 or (kind != "degree" and value >= -1))
    if kind == "flag":
        return isinstance(value, bool)
    if kind == "fraction":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "per_stage":
        return isinstance(value, tuple) and all(type(each) is int for each in value)
    return isinstance(value, str | int | float | bool | tuple)


def written(quantities: Quantities, spellings: Iterable[Spelling]) -> dict[str, Any]:
    """The values of all keys that this plan needs, as a document of objects.

    Raises:
        FieldNotExpressibleError: a field has a value that its spelling has no word for.
    """
    document: dict[str, Any] = {}
    for spelling in spellings:
        value = spelling.written(quantities)
        unwritten = value is None and spelling.values is not None
        if spelling.when(quantities) and not unwritten:
            put(document, spelling.key, value)
    return document


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key of a document."""
    *path, last = key.split(".")
    for name in path:
        document = document.setdefault(name, {})
    document[last] = value


def taken(settings: Settings, spellings: Iterable[Spelling]) -> dict[str, Any]:
    """The plan's values by field. A key whose value means nothing that is known is left, and so is reported as not understood."""
    found: dict[str, Any] = {}
    for spelling in spellings:
        last = _last(settings, spelling.key)
        value = None if last is None or last.is_open else spelling.read(last.value)
        # The file decides the field, so that no default may take its place.
        if value is None and last is not None and (last.is_open or last.value not in (None, "auto")):
            settings.doubt(spelling.key, spelling.field)
        if value is not None:
            settings.take(spelling.key, spelling.field)
            found[spelling.field] = value
    return found


def peeked(settings: Settings, key: str) -> Any:
    """The value of a key, without taking it; None where it is not set, or only a shell could tell it."""
    last = _last(settings, key)
    return None if last is None or last.is_open else last.value


def _last(settings: Settings, key: str) -> Setting | None:
    # A later setting overrides an earlier one.
    return next((setting for setting in reversed(list(settings)) if setting.key == key), None)


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


def whole(settings: Settings, key: str, *fields: str, default: int | None = None) -> int | None:
    """A whole number of at least -1, taken; the default where the key is not set or says something else, which is then left."""
    value = peeked(settings, key)
    # A truth value is an int in Python, and no number of ranks; -1 is how several frameworks say "the rest".
    if type(value) is not int or value < -1:
        return default
    settings.take(key, *fields)
    return value


@dataclass
class Understood:
    """Fields by name as a reader collects them; `parts` sorts them into a row."""

    fields: dict[str, Any] = field(default_factory=dict)
    world_size: int | None = None

    def parts(self) -> RowParts:
        """The row's parts; fields without a value are left out."""
        groups: dict[str, dict[str, Any]] = {"training": {}, "model": {}, "strategy": {}}
        for name, value in self.fields.items():
            if value is None:
                continue
            group, _, rest = name.rpartition(".")
            plain = list(value) if isinstance(value, tuple) else value
            if group in ("training", "model"):
                groups[group][rest] = plain
            elif group:
                groups["strategy"].setdefault(group, {})[rest] = plain
            else:
                groups["strategy"][name] = plain
        return RowParts(groups["training"], groups["strategy"], groups["model"], self.world_size)
