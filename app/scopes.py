"""What a key may do: its scopes. This module stays light, because the command line offers them without loading the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast, get_args

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint

Scope = Literal["read", "plan", "profile", "admin"]
"""`read` opens what is stored, `plan` asks for answers, `profile` brings measurements, `admin` manages the tenant's keys."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
USUAL_SCOPES: tuple[Scope, ...] = ("read", "plan", "profile")
"""Those of a key that was made without naming any: all that work needs, but no say over keys."""


def scopes_named(names: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes of these names, each once and in the order of `SCOPES`; the usual ones where no name is given.

    Raises:
        InvalidInputError: there is no such scope.
    """
    given = set(names)
    unknown = sorted(given - set(SCOPES))
    if unknown:
        problems = [
            Problem("", f"{name!r} is not a scope; it must be one of {', '.join(SCOPES)}", choice_hint(name, SCOPES))
            for name in unknown
        ]
        raise InvalidInputError(problems)
    return tuple(scope for scope in SCOPES if scope in given) or USUAL_SCOPES


def scopes_stored(text: str) -> tuple[Scope, ...]:
    """The scopes of a stored text, which separates them by blanks."""
    return cast("tuple[Scope, ...]", tuple(text.split()))
