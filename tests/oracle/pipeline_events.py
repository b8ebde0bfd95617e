"""An event-by-event pipeline: every forward and backward of every micro-batch is started as soon as its stage is free and
its input has arrived, in the order the schedule prescribes. Slow, obvious, and independent of the closed forms.
"""

from __future__ import annotations

from collections.abc import Sequence

Task = tuple[str, int]
"""("F" or "B", micro-batch)."""


def one_f_one_b(stage: int, *, stages: int, micro_batches: int) -> list[Task]:
    """1F1B (PipeDream-flush): p - s - 1 forwards to warm up, then pairs, then the remaining backwards."""
    warm_up = min(stages - stage - 1, micro_batches)
    tasks: list[Task] = [("F", m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        tasks += [("F", warm_up + m), ("B", m)]
    return tasks + [("B", m) for m in range(micro_batches - warm_up, micro_batches)]


def gpipe(_stage: int, *, stages: int, micro_batches: int) -> list[Task]:
    """All forwards, then all backwards in reverse."""
    assert stages
    return [("F", m) for m in range(micro_batches)] + [("B", m) for m in reversed(range(micro_batches))]


def step_s(orders: Sequence[Sequence[Task]], *, forward_s: Sequence[float], backward_s: Sequence[float]) -> float:
    """Seconds until every stage has finished its order."""
    stages = len(orders)
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    while any(position[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            if position[s] == len(orders[s]):
                continue
            kind, m = orders[s][position[s]]
            if kind == "F":
                needs = ("F", m, s - 1) if s else None
            else:
                needs = ("B", m, s + 1) if s < stages - 1 else ("F", m, s)
            if needs is not None and needs not in done:
                continue
            start = max(clock[s], done[needs] if needs is not None else 0.0)
            clock[s] = start + (forward_s[s] if kind == "F" else backward_s[s])
            done[kind, m, s] = clock[s]
            position[s] += 1
            moved = True
        assert moved, "deadlock"
    return max(clock)
