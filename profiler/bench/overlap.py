"""Computing and communicating at once: how much a matrix product and a collective slow each other down.

Each is timed alone, and then beside enough of the other to outlast it.
"""

from __future__ import annotations

import math
from typing import Any

from cost_models.operations import Op
from profiler.bench.collectives import collective_call
from profiler.rig import Rig
from profiler.tasks import Findings, Task, rounded
from profiler.timing import Call, Effort

_OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")


def tasks(rig: Rig) -> list[Task]:
    """One task per operation; none for a single process."""
    if rig.place.world < 2:
        return []
    return [_task(rig, op, 46 + order) for order, op in enumerate(_OPS)]


def _task(rig: Rig, op: Op, value: int) -> Task:
    def run(rig: Rig) -> Findings:
        return {"overlap": [_sample(rig, op)]}

    return Task(f"overlap/{op}", value, 8 * rig.scale.effort.expected_s + 0.5, run, f"{op} beside a matrix product")


def _sample(rig: Rig, op: Op) -> dict[str, Any]:
    torch, size = rig.torch, rig.scale.overlap_size
    ranks = tuple(range(rig.place.world))
    elements = int(rig.scale.overlap_bytes) // (2 if rig.on_gpu else 4) // len(ranks) * len(ranks)
    communicate = collective_call(rig, op, elements, ranks=ranks, group=rig.group(ranks))
    left, right, out = (rig.random(size, size) for _ in range(3))

    def compute(_index: int) -> None:
        torch.matmul(left, right, out=out)

    effort = Effort(rig.scale.effort.block_s, 3, rig.scale.effort.warm_s)
    alone = rig.joint(compute, effort=effort).time_s, rig.joint(communicate, effort=effort).time_s
    compute_s = _beside(rig, compute, communicate, ratio=alone[0] / alone[1])
    communicate_s = _beside(rig, communicate, compute, ratio=alone[1] / alone[0])
    return {
        "op": op, "ranks": len(ranks), "size_bytes": float(elements * (2 if rig.on_gpu else 4)), "m": size, "n": size,
        "k": size, "compute_slowdown_fraction": rounded(max(compute_s / alone[0] - 1.0, 0.0), 3),
        "communication_slowdown_fraction": rounded(max(communicate_s / alone[1] - 1.0, 0.0), 3),
    }  # fmt: skip


def _beside(rig: Rig, timed: Call, other: Call, *, ratio: float) -> float:
    """Seconds of one `timed` call while `other` runs on a second stream for twice as long.

    Args:
        ratio: seconds of `timed` over those of `other`, alone.
    """
    # At least four of the timed calls per block, more where they are short beside the other. `largest` keeps the ranks alike: they
    # must issue the same number of collectives.
    per_block = max(1, math.ceil(rig.largest(4.0 / max(ratio, 0.25))))
    # Twice as long as the timed calls take alone, so that the other still runs when these have been slowed down.
    others = math.ceil(2.0 * per_block * ratio) + 1
    if not rig.on_gpu:
        return _beside_in_thread(rig, timed, other, per_block, others)
    torch = rig.torch
    side = torch.cuda.Stream()

    def block(_index: int) -> None:
        # Both begin at the same point of the device's work; the main stream waits for the other only after its own event.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for index in range(others):
                other(index)
        before.record()
        for index in range(per_block):
            timed(index)
        after.record()
        torch.cuda.current_stream().wait_stream(side)

    seconds = []
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        rig.align()
        block(0)
        torch.cuda.synchronize()
        seconds.append(rig.largest(before.elapsed_time(after) / 1e3 / per_block))
    return sorted(seconds)[2]


def _beside_in_thread(rig: Rig, timed: Call, other: Call, per_block: int, others: int) -> float:
    """The same on a processor, with the other work in a thread of its own."""
    from threading import Thread

    seconds = []
    for _ in range(3):
        rig.align()
        thread = Thread(target=lambda: [other(index) for index in range(others)])
        thread.start()
        seconds.append(rig.largest(rig.stopwatch.elapsed(timed, calls=per_block)))
        thread.join()
    return sorted(seconds)[1]
