"""Named models, GPUs and clusters, as data files with unit, source and date beside the numbers.

A file is read when it is first asked for; listing the names reads none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.fields import choice_hint, shown

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
        problem = Problem(pointer, f"{shown(name)} is not a {kind[:-1]} preset", choice_hint(name, names(kind)),
                          "unknown-preset")  # fmt: skip
        raise InvalidInputError([problem])
    return _read(kind, name)


@cache
def _read(kind: Kind, name: str) -> Preset:
    document = json.loads((_FOLDER / kind / f"{name}.json").read_text(encoding="utf-8"))
    spec = {key: _bare(entry) for key, entry in document["constants"].items()}
    return Preset(name, spec, {key: value for key, value in document.items() if key != "constants"})


def _bare(entry: Any) -> Any:
    """A constant without its unit, source and date."""
    return entry["value"] if isinstance(entry, Mapping) and "value" in entry else entry
