"""What the shell offers behind an option when somebody presses the tab key: the names of presets and of closed lists.

A file's name is completed by the shell itself, which it does where nothing offered here begins with what was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

Kind = Literal["models", "gpus", "clusters", "frameworks"]
Completion = Callable[[str], list[str]]


def names_of(kind: Kind) -> tuple[str, ...]:
    """The names of a kind of preset, as requests write them."""
    # Loaded when a name is asked for: `--version` and `--help` need none.
    from cost_models.frameworks import FRAMEWORKS
    from cost_models.presets import names

    return tuple(FRAMEWORKS) if kind == "frameworks" else names(kind)


def presets_of(kind: Kind) -> Completion:
    """Offers the presets of a kind whose names begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(names_of(kind), incomplete)

    return complete


def choices(known: Iterable[str]) -> Completion:
    """Offers the members of a closed list."""
    listed = tuple(known)

    def complete(incomplete: str) -> list[str]:
        return _beginning(listed, incomplete)

    return complete


def name_of_kind(ctx: Any, incomplete: str) -> list[str]:
    """Offers the names of the kind that was given before, as `meshwright presets gpus H…` does."""
    kind = ctx.params.get("kind")
    return _beginning(names_of(kind), incomplete) if kind in {"models", "gpus", "clusters", "frameworks"} else []


def _beginning(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]
