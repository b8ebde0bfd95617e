"""Typed look-up of a Hugging Face config's keys.

An absent key takes the default of its config class, which is reported. An explicit null is a value of its own and only allowed
where the class says what it means. Nothing here knows an architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, shown
from cost_models.inputs.fields import LARGEST

MAX_LAYERS = 10_000


@dataclass(slots=True)
class Keys:
    """One config that is being read. Look-ups note defaults in `assumed` and broken rules in `problems`."""

    raw: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """Class default by key; a key that is missing here is required."""
    aliases: Mapping[str, tuple[str, ...]]
    """Other spellings of a key, tried in order after the key itself."""
    pointer: str
    assumed: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def value(self, key: str) -> Any:
        """The raw value, or the class default."""
        found = self.spelling(key)
        if found is not None:
            return self.raw[found]
        if key not in self.defaults:
            self._problem(key, f"{key} is required", f"Add {key!r}.", "missing-field")
            return None
        return self.defaults[key]

    def spelling(self, key: str) -> str | None:
        """The spelling under which the config holds a key; None if it does not."""
        return next((name for name in (key, *self.aliases.get(key, ())) if name in self.raw), None)

    def count(self, key: str, *, reported_as: str | None = None, if_null: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; `if_null` is what null means, where it means anything."""
        value = self.value(key)
        if value is None and if_null is not None:
            value = if_null
        elif isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
            value = int(value)
        if self.problems and key not in self.defaults and self.spelling(key) is None:
            return least
        if value is None and self.spelling(key) is None:  # the class itself has no number to offer
            self._problem(key, f"{key} is required", f"Add {key!r}.", "missing-field")
            return least
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            rule = f"{key} is {shown(value)}; it must be a whole number of at least {least}"
            self._problem(key, rule, "Correct the config, or leave the key out for its class default.")
            return least
        if reported_as is not None and self.spelling(key) is None:
            self.assumed[reported_as] = value
        return value

    def layers(self, key: str) -> int:
        """A number of layers, which is bounded because layers are held one by one."""
        count = self.count(key, reported_as="num_layers")
        if count > MAX_LAYERS:
            self._problem(key, f"{key} is {count}; it must be at most {MAX_LAYERS}", "Lower it.")
            return 1
        return count

    def flag(self, key: str, *, reported_as: str | None = None, if_null: bool | None = None) -> bool:
        """A boolean."""
        value = self.value(key)
        if value is None and if_null is not None:
            value = if_null
        if not isinstance(value, bool):
            self._problem(key, f"{key} is {shown(value)}; it must be true or false", "Correct the config.")
            return False
        if reported_as is not None and self.spelling(key) is None:
            self.assumed[reported_as] = value
        return value

    def optional_count(self, key: str, *, least: int = 1) -> int | None:
        """A whole number; None where the config (or its class) says null."""
        return None if self.value(key) is None else self.count(key, least=least)

    def text(self, key: str) -> str | None:
        """A string, or None where absent or null."""
        value = self.value(key)
        if value is not None and not isinstance(value, str):
            self._problem(key, f"{key} is {shown(value)}; it must be a string", "Correct the config.")
            return None
        return value

    def strings(self, key: str) -> list[str] | None:
        """A list of strings, or None where absent or null."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(isinstance(entry, str) for entry in value):
            self._problem(key, f"{key} is {shown(value)}; it must be a list of strings", "Correct the config.")
            return None
        return value

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers from 0, or None where absent or null."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(type(n) is int and n >= 0 for n in value):
            self._problem(key, f"{key} is {shown(value)}; it must be a list of whole numbers", "Correct the config.")
            return None
        return value

    def part(self, key: str, defaults: Mapping[str, Any]) -> Keys:
        """A config inside the config; absent and null mean its class's defaults."""
        value = self.value(key)
        if value is not None and not isinstance(value, Mapping):
            self._problem(key, f"{key} is {shown(value)}; it must be an object", "Correct the config.")
            value = None
        return Keys(value or {}, defaults, {}, child(self.pointer, key), self.assumed, self.problems)

    def refuse(self, key: str, why: str) -> None:
        """Stops reading: the config asks for something that has no cost model here."""
        problem = Problem(child(self.pointer, key), why, "No cost model exists for it here.", "not-modelled")
        raise NotModelledError([problem])

    def wrong(self, key: str, message: str) -> None:
        """Notes a rule that the config breaks."""
        self._problem(key, message, "Correct the config.")

    def _problem(self, key: str, message: str, hint: str, code: str = "invalid-field") -> None:
        self.problems.append(Problem(child(self.pointer, self.spelling(key) or key), message, hint, code))

    def check(self) -> None:
        """Raises InvalidInputError with every broken rule that the look-ups noted."""
        if self.problems:
            raise InvalidInputError(self.problems)
