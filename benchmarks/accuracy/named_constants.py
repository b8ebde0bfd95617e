"""The time model's constants (`cost_models.constants`, flash and host constants of `cost_models.hardware`) by name; trials of other values.

Constants are frozen objects that modules share by identity. A trial therefore sets the value inside the object and puts it back
afterwards, and both times forgets whatever was computed from it and cached. Nothing outside this process changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

from cost_models import constants
from cost_models.constants import Constant
from cost_models.hardware import flash_constants, host_constants
from planner.request.job import JobCache, resolve_job


def named_constants() -> dict[str, Constant]:
    """Each constant once, under its first name: NAME, NAME[key], NAME[0]."""
    seen: set[int] = set()
    found: dict[str, Constant] = {}
    for name, value in (vars(constants) | vars(flash_constants) | vars(host_constants)).items():
        for label, constant in _inside(name.lstrip("_"), value):
            if id(constant) not in seen:
                seen.add(id(constant))
                found[label] = constant
    return found


def _inside(name: str, value: Any) -> Iterator[tuple[str, Constant]]:
    if isinstance(value, Constant):
        yield name, value
    elif isinstance(value, Mapping) and name.partition("[")[0].isupper():
        for key, item in value.items():
            yield from _inside(f"{name}[{','.join(map(str, key)) if isinstance(key, tuple) else key}]", item)
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            yield from _inside(f"{name}[{position}]", item)


@contextmanager
def moved(values: Mapping[str, float]) -> Iterator[None]:
    """Gives constants other values inside the with statement."""
    table = named_constants()
    kept = {name: table[name].value for name in values}
    try:
        _set(table, values)
        yield
    finally:
        _set(table, kept)


def _set(table: Mapping[str, Constant], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        # Past the frozen dataclass on purpose: replacing the object would leave the old one in every module that imported it.
        object.__setattr__(table[name], "value", value)
    _forget()


def _forget() -> None:
    """Empties every cache that may hold results of an older value."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in ("cost_models", "planner"):
            for item in vars(module).values():
                if hasattr(item, "cache_clear"):
                    item.cache_clear()
    jobs = signature(resolve_job).parameters["cache"].default
    assert isinstance(jobs, JobCache)
    jobs.clear()
