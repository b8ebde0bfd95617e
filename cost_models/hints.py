"""How messages show a value, point to a member, and offer the known name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from cost_models.synonyms import synonym


def shown(value: object) -> str:
    """A value as a message shows it, short whatever it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def child(pointer: str, *names: str | int) -> str:
    """The JSON pointer to a member; names are escaped as RFC 6901 says."""
    # The tilde goes first: escaping it after the slash would escape the slash's own tilde again.
    escaped = (str(name)[:100].replace("~", "~0").replace("/", "~1") for name in names)
    return "/".join([pointer, *escaped])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one; None when none is."""
    names = list(known)
    # A framework's spelling says exactly what is meant; only other names are compared letter by letter.
    meant = synonym(name)
    if meant in names:
        return meant
    lower = {n.lower(): n for n in reversed(names)}
    wanted = name.lower()[:100]
    if wanted in lower:
        return lower[wanted]
    longer = [n for key, n in lower.items() if key.startswith(f"{wanted}-")]
    if longer:
        return min(longer, key=lambda n: (len(n), n))
    close = difflib.get_close_matches(wanted, lower, n=1, cutoff=0.6) if wanted else []
    if close:
        return lower[close[0]]
    return next((n for key, n in lower.items() if len(wanted) >= 2 and (wanted in key or key in wanted)), None)


def choice_hint(name: str, known: Iterable[str]) -> str:
    """A hint that offers the nearest known name, or lists them all."""
    names = list(known)
    close = nearest(name, names)
    return f"Did you mean {close!r}?" if close else "Known: " + ", ".join(names) + "."
