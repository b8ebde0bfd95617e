"""The settings of launch files that somebody already has, and the account of which were understood.

Reading runs nothing: YAML is composed without constructing objects, scripts are split into words without a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class InputFile:
    """A file as it was given."""

    path: str
    content: str


@dataclass(frozen=True)
class Setting:
    """One value of a file: where it stands and what it says."""

    key: str
    """A command line's option with its dashes ("--bf16"), an environment variable with a dollar sign ("$NCCL_DEBUG"), or the keys of
    a document joined by dots ("zero_optimization.stage"); entries of lists of objects count from 0 ("plugins.0.name"). For scripts see
    `planner.export.formats.arguments.read_script`."""
    value: Any
    """A text, number, truth value, None or a tuple of them. Options of a command line hold texts: one, a tuple of several, or True
    for none."""
    file: str
    line: int
    """Counts from 1."""
    column: int = 1
    end_line: int = 0
    """Last line of the value; 0 where it is `line`."""
    text: str = ""
    """As it stands in the file."""
    is_open: bool = False
    """Whether the value depends on something that only a shell could compute, such as `$(hostname)` or `$1`."""
    written: str = ""
    """The key that the file has, where a reader restated the setting under another one."""

    @property
    def own_key(self) -> str:
        """The key as it stands in the file."""
        return self.written or self.key


class Settings:
    """All settings of the files, of which readers take what they understand."""

    def __init__(self, found: Sequence[Setting], *, files: Sequence[InputFile] = ()) -> None:
        self.files = tuple(files)
        self._all = tuple(found)
        self._taken: dict[int, tuple[str, ...]] = {}
        self._undecided: dict[int, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._all)

    def has(self, key: str) -> bool:
        """Whether a key is set, without taking it."""
        return any(setting.key == key for setting in self._all)

    def is_given(self, name: Any) -> bool:
        """Whether the file of that name, which a setting names, is among the files."""
        return isinstance(name, str) and any(
            each.path.rpartition("/")[2] == name.rpartition("/")[2] for each in self.files
        )

    def take(self, key: str, *fields: str) -> Setting | None:
        """The last setting of a key, since a later option overrides an earlier one; None where it is not set or stays open.

        Args:
            fields: the fields of the row that it decides, in the contract's names as in `Quantities`.
        """
        found, last = None, -1
        for position, setting in enumerate(self._all):
            if setting.key == key:
                found, last = (None if setting.is_open else setting), position
                if found is not None:
                    self._taken[position] = fields
        if found is None and last >= 0:
            self._undecided[last] = fields
        return found

    def doubt(self, key: str, *fields: str) -> None:
        """States that the last setting of a key decides these fields, but says something that a row has no word for."""
        for position, setting in reversed(list(enumerate(self._all))):
            if setting.key == key:
                self._undecided[position] = fields
                return

    def doubt_one(self, setting: Setting, *fields: str) -> None:
        """States that this setting may decide these fields, which cannot be told."""
        self._undecided[next(n for n, each in enumerate(self._all) if each is setting)] = fields

    def pass_over(self, *keys: str) -> None:
        """Takes all settings of these keys, which decide nothing whatever they say, so that they may stay open."""
        for position, setting in enumerate(self._all):
            if setting.key in keys:
                self._taken.setdefault(position, ())

    def take_one(self, setting: Setting, *fields: str) -> None:
        """Takes this setting alone, open or not."""
        self._taken[next(n for n, each in enumerate(self._all) if each is setting)] = fields

    def restate(self, change: Callable[[Setting], Setting]) -> None:
        """Replaces settings by others in today's words, before any is taken: names that a release or a launcher spells otherwise."""
        changed = ((setting, change(setting)) for setting in self._all)
        self._all = tuple(
            new if new.key == old.key or new.written else replace(new, written=old.own_key) for old, new in changed
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives settings the names that keys have today, where nothing is set under these."""
        there = {setting.key for setting in self._all}
        self.restate(
            lambda each: (
                replace(each, key=names[each.key]) if each.key in names and names[each.key] not in there else each
            )
        )

    def value(self, key: str, *fields: str, default: Any = None) -> Any:
        """The value of a key, taken; `default` where it is not set."""
        found = self.take(key, *fields)
        return default if found is None else found.value

    def take_under(self, prefix: str, *fields: str) -> list[Setting]:
        """All settings whose key is `prefix` or lies under it, taken."""
        found = []
        for position, setting in enumerate(self._all):
            if setting.key == prefix or setting.key.startswith(prefix + "."):
                found.append(setting)
                self._taken[position] = fields
        return found

    def unknown(self) -> list[Setting]:
        """What no reader took."""
        return [setting for position, setting in enumerate(self._all) if position not in self._taken]

    def undecided(self) -> dict[str, Setting]:
        """The fields that hang on a setting whose value is not known, each with that setting."""
        return {field: self._all[position] for position, fields in self._undecided.items() for field in fields}

    def decided(self) -> list[tuple[Setting, tuple[str, ...]]]:
        """Every setting that decides fields of the row, with these."""
        return [(self._all[position], fields) for position, fields in sorted(self._taken.items()) if fields]

    def behind(self, field: str) -> list[Setting]:
        """The settings that decided a field."""
        return [self._all[position] for position, fields in self._taken.items() if field in fields]
