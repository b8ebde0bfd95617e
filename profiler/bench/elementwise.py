"""Streaming kernels: the memory bandwidth that elementwise operators, copies and a fused optimizer step reach."""

from __future__ import annotations

from typing import Any

from profiler.rig import Rig
from profiler.tasks import Findings, Task, rounded
from profiler.timing import Timing

_ADAM_BYTES_PER_PARAMETER = 28.0
"""In fp32 it reads the parameter, its gradient and two moments, and writes the parameter and both moments."""


def tasks(rig: Rig) -> list[Task]:
    """A single task, since all of it takes only a second or two."""
    return [Task("elementwise", 30, 9 * rig.scale.effort.expected_s + 0.5, _run, "memory bandwidth")]


def bandwidth(kind: str, size_bytes: float, timing: Timing) -> dict[str, Any]:
    """A memory sample."""
    return {
        "kind": kind, "size_bytes": size_bytes, "bytes_per_s": rounded(size_bytes / timing.time_s),
        "spread_fraction": rounded(timing.spread_fraction, 3),
    }  # fmt: skip


def _run(rig: Rig) -> Findings:
    torch, found = rig.torch, []
    for size_bytes in rig.scale.stream_bytes:
        count = int(size_bytes / 2)
        sets = [tuple(rig.random(count) for _ in range(3)) for _ in range(rig.rotation(3 * size_bytes, most=4))]

        def add(index: int, sets: list[tuple[Any, ...]] = sets) -> None:
            first, second, out = sets[index % len(sets)]
            torch.add(first, second, out=out)

        def copy(index: int, sets: list[tuple[Any, ...]] = sets) -> None:
            sets[index % len(sets)][2].copy_(sets[index % len(sets)][0])

        found.append(bandwidth("elementwise", 3 * size_bytes, rig.local(add)))
        found.append(bandwidth("copy", 2 * size_bytes, rig.local(copy)))
        # Before the next, larger size: both together would not fit into the memory of a small GPU.
        del sets
        rig.release()
    found.append(_optimizer(rig))
    return {"memory_bandwidth": found}


def _optimizer(rig: Rig) -> dict[str, Any]:
    """A fused AdamW step over fp32 parameters in tensors of equal size."""
    # Several tensors, as a model has: the fused kernel handles lists of them, and one alone would spare it that.
    torch, tensors = rig.torch, 8
    each = rig.scale.optimizer_parameters // tensors
    parameters = [
        torch.nn.Parameter(torch.randn(each, device=rig.device, dtype=torch.float32) * 0.02) for _ in range(tensors)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)
    timing = rig.local(lambda _index: optimizer.step())
    return bandwidth("optimizer", _ADAM_BYTES_PER_PARAMETER * each * tensors, timing)
