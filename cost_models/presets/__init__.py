"""Named models, GPUs and clusters, as data files with unit, source and date beside the numbers.

A file is read when it is first asked for; listing the names reads none.
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
from cost_models.specs.fields import choice_hint, nearest, shown

Kind = Literal["models", "gpus", "clusters"]
KINDS: tuple[Kind, ...] = ("models", "gpus", "clusters")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """One named preset. `spec` holds the contract's fields for its kind; `facts` what stands beside them."""

    name: str
    spec: Mapping[str, Any]
    facts: Mapping[str, Any]
    """Sources and dates, and for a GPU or cluster the constants that are not the user's to set."""


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """Every preset of a kind, sorted."""
    return tuple(sorted(path.stem for path in (_FOLDER / kind).glob("*.json")))


def load(kind: Kind, name: str, *, pointer: str = "") -> Preset:
    """The preset of this name.

    Raises:
        InvalidInputError: no such preset; the hint offers the nearest name.
    """
    if name not in names(kind):
        message = f"{shown(name)} is not a {kind[:-1]} preset"
        raise InvalidInputError([Problem(pointer, message, _hint(kind, name), "unknown-preset")])
    return _read(kind, name)


def _hint(kind: Kind, name: str) -> str:
    """What to give instead: the nearest preset, and for an id of a model hub its config."""
    if kind != "models" or not is_hub_id(name):
        return choice_hint(name, names(kind))
    download = (
        f"Nothing is downloaded: fetch its config (`hf download {name} config.json`) and give the path of that file"
    )
    close = nearest(name.partition("/")[2], names(kind))
    return f"{download}, or take the preset {close!r}." if close else f"{download}."


def is_hub_id(name: str) -> bool:
    """Whether a name looks like `organisation/model` on a hub."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None and not name.endswith(".json")


@cache
def _read(kind: Kind, name: str) -> Preset:
    document = json.loads((_FOLDER / kind / f"{name}.json").read_text(encoding="utf-8"))
    spec = {key: _bare(entry) for key, entry in document["constants"].items()}
    return Preset(name, spec, {key: value for key, value in document.items() if key != "constants"})


def _bare(entry: Any) -> Any:
    """A constant without its unit, source and date."""
    return entry["value"] if isinstance(entry, Mapping) and "value" in entry else entry
