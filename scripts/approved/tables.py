"""Tables that no row of the book shows: what the agent measures in which order, and what is known of each framework.

Every table is by name, like the answers to rows. It says that an entry changed, and not whether that was right.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from cost_models.constants import Constant
from cost_models.frameworks import FRAMEWORKS
from profiler.bench import attention, collectives, elementwise, gemm, host, memory, overlap
from profiler.machine import topology
from profiler.ranks import Ranks
from profiler.rig import DeviceKind, Rig
from profiler.scale import cpu_scale, gpu_scale
from profiler.tasks import Task
from profiler.timing import Stopwatch, Timing

_RIGS: Mapping[str, tuple[DeviceKind, int, int, float]] = {
    # Kind of device, devices of a node, nodes, seconds of the budget.
    "one GPU": ("cuda", 1, 1, 300.0),
    "one GPU in a minute": ("cuda", 1, 1, 60.0),
    "a node of four GPUs": ("cuda", 4, 1, 300.0),
    "three nodes of six GPUs": ("cuda", 6, 3, 300.0),
    "one processor": ("cpu", 1, 1, 60.0),
    "two processes": ("cpu", 2, 1, 60.0),
}
_MODULES = (gemm, attention, elementwise, memory, host, collectives, overlap)
_ALIKE = ("gemm/", "collectives/", "topology/")
"""Tasks whose sizes can be told without a device: of these, what is measured is kept too."""
_SKIPPED = frozenset({"time_s", "spread_fraction", "bytes_per_s"})


def tables() -> Mapping[str, Callable[[], dict[str, Any]]]:
    """What makes each table, by the name of its group."""
    return {"profiler-tasks": _measured, "framework-facts": _facts, "framework-constants": _constants}


# --- what the agent measures ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Untimed(Rig):
    """A rig whose every call takes a millisecond, and whose rank is a member of no group, so that nothing is run."""

    def local_each(self, builders: Any) -> list[Timing]:
        return [_MILLISECOND for _ in builders]

    def joint(self, call: Any, **_how: Any) -> Timing:
        assert call is None
        return _MILLISECOND

    def group(self, ranks: Any) -> Any:
        return tuple(ranks)

    @property
    def free_bytes(self) -> float:
        return 70e9


_MILLISECOND = Timing(1e-3, 0.0, 10, (1e-3, 1e-3))


def _measured() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (kind, local_world, nodes, budget_s) in _RIGS.items():
        scale = gpu_scale(budget_s=budget_s) if kind == "cuda" else cpu_scale()
        world = local_world * nodes
        place = Ranks(world, world, 0, local_world, "none")
        device = SimpleNamespace(type=kind)
        rig = _Untimed(SimpleNamespace(float16="fp16"), device, place, scale, Stopwatch(None, device))
        found[f"sizes of {name}"] = asdict(scale)
        every = [task for module in _MODULES for task in module.tasks(rig)] + topology.tasks(rig, {})
        found |= {f"{name}: {task.key}": _task(rig, task) for task in every}
    return found


def _task(rig: Rig, task: Task) -> dict[str, Any]:
    told: dict[str, Any] = {"value": task.value, "expected_s": task.expected_s, "title": task.title}
    if task.key.startswith(_ALIKE):
        samples = [sample for its in task.run(rig).values() for sample in its]
        names = list(dict.fromkeys(name for sample in samples for name in sample if name not in _SKIPPED))
        by_name = {name: [sample.get(name) for sample in samples] for name in names}
        # What all samples have in common is told once.
        told |= {name: its[0] if its.count(its[0]) == len(its) else its for name, its in by_name.items()}
    return told


# --- what is known of frameworks --------------------------------------------------------------------------------------


def _facts() -> dict[str, Any]:
    return {
        f"{name} {each.name}": _plain(getattr(facts, each.name))
        for name, facts in FRAMEWORKS.items()
        for each in fields(facts)
    }


def _plain(value: Any) -> Any:
    """Tables, rows and names as JSON; functions are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if callable(value) else value


def _constants() -> dict[str, Any]:
    """Every constant that a framework's module states: value, least and largest plausible value."""
    found: dict[str, Any] = {}
    for framework in FRAMEWORKS:
        module = importlib.import_module(f"cost_models.frameworks.{framework.replace('-', '_')}")
        for name, each in vars(module).items():
            if isinstance(each, Constant):
                found[f"{framework} {name}"] = {"unit": each.unit, "value": each.value, "range": [each.low, each.high]}
    return found
