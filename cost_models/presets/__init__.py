"""Named models, GPUs and clusters, as data files with unit, source and date beside the numbers.

`gpus/NAME.json` is a GPU's data sheet (dense peaks, memory, NVLink and PCIe bandwidth in one direction) with the nominal network
of the vendor's reference server; `clusters/` and `models/` hold the contract's fields. A file is read when it is first asked
for; listing the names reads none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint, nearest, shown

Kind = Literal["models", "gpus", "clusters"]
KINDS: tuple[Kind, ...] = ("models", "gpus", "clusters")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """One named preset."""

    name: str
    spec: Mapping[str, Any]
    """The contract's fields of its kind."""
    facts: Mapping[str, Any]
    """What stands beside the constants: sources and dates and, for a GPU or cluster, what is not the user's to set."""


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """Names of all presets of a kind, sorted."""
    return tuple(sorted(path.stem for path in (_FOLDER / kind).glob("*.json")))


def load(kind: Kind, name: str, *, pointer: str = "") -> Preset:
    """The preset of this name.

    Args:
        kind: models, gpus or clusters.
        name: as in `names(kind)`.
        pointer: where the name stands in the user's document.

    Raises:
        InvalidInputError: there is no such preset; the hint offers the nearest name.
    """
    if name not in names(kind):
        message = f"{shown(name)} is not a {'GPU' if kind == 'gpus' else kind[:-1]} preset"
        raise InvalidInputError([Problem(pointer, message, _hint(kind, name), "unknown-preset")])
    return _read(kind, name)


def are_other_gpus(planned: object, found: object) -> bool:
    """Whether two GPUs are known to be of different kinds. Of a name that is nobody's but the user's, or a driver's, it is not known."""
    known = names("gpus")
    return planned in known and found in known and planned != found


def documents(kind: Kind) -> list[dict[str, Any]]:
    """All presets of a kind as plain data, sorted by name: `name`, `spec` and `facts`."""
    loaded = [load(kind, name) for name in names(kind)]
    return [{"name": preset.name, "spec": dict(preset.spec), "facts": dict(preset.facts)} for preset in loaded]


def origins(kind: Kind, name: str) -> dict[str, dict[str, str]]:
    """Unit, source, date and check of each field of a preset, as far as its file says them; a model's are those of its config."""
    # An unknown name is refused there, with the nearest one.
    load(kind, name)
    document = _document(kind, name)
    whole = {key: document[key] for key in ("source", "date") if isinstance(document.get(key), str)}
    return {
        field: {key: text for key, text in entry.items() if key != "value"} if _has_origin(entry) else whole
        for field, entry in document["constants"].items()
    }


def _hint(kind: Kind, name: str) -> str:
    """What to give instead: the nearest preset and, for the id of a model on a hub, its config."""
    if kind != "models" or not is_hub_id(name):
        return choice_hint(name, names(kind))
    # Nothing is fetched from a hub: a plan must not depend on a network, nor on a file that may change.
    download = (
        f"Nothing is downloaded: fetch its config (`hf download {name} config.json`) and give the path of that file"
    )
    close = nearest(name.partition("/")[2], names(kind))
    return f"{download}, or take the preset {close!r}." if close else f"{download}."


def is_hub_id(name: str) -> bool:
    """Whether a name looks like `organization/model` on a hub."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None and not name.endswith(".json")


@cache
def _read(kind: Kind, name: str) -> Preset:
    document = _document(kind, name)
    spec = {key: _bare(entry) for key, entry in document["constants"].items()}
    return Preset(name, spec, {key: value for key, value in document.items() if key != "constants"})


def _document(kind: Kind, name: str) -> dict[str, Any]:
    return json.loads((_FOLDER / kind / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _bare(entry: Any) -> Any:
    """The value of a constant without its unit, source and date."""
    return entry["value"] if _has_origin(entry) else entry


def _has_origin(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "value" in entry
