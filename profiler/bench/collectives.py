"""Every collective that a plan uses, by nccl-tests' definitions, on every group that exists. Results are checked.

Sizes are totals: the whole array for all-gather and reduce-scatter, one rank's buffer for all-reduce, all-to-all and send/recv
(to and from both neighbours at once). Buffers rotate so that they exceed the cache, and the slowest member counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.errors import MeasurementError
from cost_models.operations import Op
from profiler.rank_groups import Placed, placements
from profiler.rig import Rig
from profiler.tasks import Findings, Task, timed
from profiler.timing import Call

_MAIN: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter")
_OPS: tuple[Op, ...] = (*_MAIN, "all_to_all", "send_recv")
"""The measured operations; there is no broadcast, because no plan uses one."""
# Enough that every channel of NCCL carries a part; with the small integers below every sum is exact in fp32.
_CHECKED_ELEMENTS = 2**14
_MAIN_SIZES_STEP = 4
"""The first pass measures sizes this factor apart; the second one fills the gaps."""
_TINY_AMPLITUDE = 2.0**-100
"""Values for all-reduce. Repeated sums in place multiply a buffer by the group's size; from here it stays finite for long."""


def tasks(rig: Rig) -> list[Task]:
    """The whole node's three main operations first, then the other operations, then other groups."""
    if rig.place.world < 2:
        return []
    sizes = rig.scale.collective_bytes
    coarse = tuple(dict.fromkeys((*sizes[:: _MAIN_SIZES_STEP // 2], sizes[-1])))
    fine = tuple(size for size in sizes if size not in coarse)
    result = []
    for order, placed in enumerate(placements(local_world=rig.place.local_world, num_nodes=rig.place.num_nodes)):
        first = 24 if order == 0 else 40 + order
        for op in _OPS:
            value = first if op in _MAIN else first + (10 if order == 0 else 5)
            result.append(_task(rig, value, op, placed, coarse, "coarse"))
            result.append(_task(rig, value + (60 if order == 0 else 70), op, placed, fine, "fine"))
    return result


def _task(rig: Rig, value: int, op: Op, placed: Placed, sizes: Sequence[float], part: str) -> Task:
    def run(rig: Rig) -> Findings:
        groups = [rig.group(ranks) for ranks in placed.groups]
        mine = next((i for i, ranks in enumerate(placed.groups) if rig.place.rank in ranks), None)
        member = None if mine is None else (placed.groups[mine], groups[mine])
        check(rig, op, member)
        samples = []
        for size_bytes in sizes:
            sample = _sample(rig, op, placed, member, size_bytes)
            if sample is not None:
                samples.append(sample)
        return {"collectives": samples}

    effort = rig.scale.effort
    # A dozen calls of the largest size at 50 GB/s, a modest rate for NVLink: most of a pass is spent on its largest sizes.
    large_s = 12 * max(sizes, default=0.0) / 50e9 if rig.on_gpu else 0.2
    expected_s = 0.3 + len(sizes) * (effort.warm_s + effort.blocks * 0.005) + 2 * large_s
    return Task(f"collectives/{placed.label}/{op}/{part}", value, expected_s, run, f"{op} in {placed.label}")


def _sample(
    rig: Rig, op: Op, placed: Placed, member: tuple[tuple[int, ...], Any] | None, size_bytes: float
) -> dict[str, Any] | None:
    """One size; None where it does not fit into memory."""
    ranks = placed.ranks
    elements = max(int(size_bytes) // _element_bytes(rig) // ranks * ranks, ranks)
    actual_bytes = float(elements * _element_bytes(rig))
    # What is sent and what is received, and a tenth for NCCL's own buffers. All ranks skip a size if one has no room for it.
    has_room = 2.2 * actual_bytes < rig.free_bytes
    if rig.largest(float(not has_room)) > 0:
        return None
    call = None if member is None else collective_call(rig, op, elements, ranks=member[0], group=member[1])
    timing = rig.joint(call)
    sample: dict[str, Any] = {
        "op": op, "size_bytes": actual_bytes, "ranks": ranks, "ranks_per_node": placed.ranks_per_node,
    }  # fmt: skip
    sample |= {"stride": placed.stride} if placed.stride > 1 else {}
    sample |= {"concurrent_groups": len(placed.groups)} if len(placed.groups) > 1 else {}
    return timed(sample, time_s=timing.time_s, spread_fraction=timing.spread_fraction)


def _element_bytes(rig: Rig) -> int:
    return 2 if rig.on_gpu else 4


def collective_call(rig: Rig, op: Op, elements: int, *, ranks: tuple[int, ...], group: Any) -> Call:
    """Issues the operation on rotating random buffers of `elements` in total."""
    size_bytes = float(elements * _element_bytes(rig))
    amplitude = _TINY_AMPLITUDE if op == "all_reduce" else 1.0
    count = rig.rotation(2 * size_bytes, most=16)
    shard = elements // len(ranks)
    sent = shard if op == "all_gather" else elements
    received = {"all_gather": elements, "reduce_scatter": shard, "all_to_all": elements, "send_recv": elements}.get(
        op, 0
    )
    sets = [
        (
            rig.random(sent, dtype=rig.wire, scale=amplitude),
            rig.torch.empty(received, device=rig.device, dtype=rig.wire) if received else None,
        )
        for _ in range(count)
    ]
    return lambda index: issue(rig, op, *sets[index % count], ranks=ranks, group=group)


def issue(rig: Rig, op: Op, sent: Any, received: Any, *, ranks: tuple[int, ...], group: Any) -> None:
    """One call of the operation."""
    dist = rig.torch.distributed
    if op == "all_reduce":
        dist.all_reduce(sent, group=group)
    elif op == "all_gather":
        rig.all_gather(received, sent, group=group)
    elif op == "reduce_scatter":
        rig.reduce_scatter(received, sent, group=group)
    elif op == "all_to_all":
        dist.all_to_all_single(received, sent, group=group)
    else:
        place = ranks.index(rig.place.rank)
        following, preceding = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        parts = [
            dist.P2POp(dist.isend, sent, following, group=group),
            dist.P2POp(dist.irecv, received, preceding, group=group),
        ]
        # As one batch: sends and receives that are issued one by one around a ring can wait for each other for ever.
        for work in dist.batch_isend_irecv(parts):
            work.wait()


# --- checking ---------------------------------------------------------------------------------------------------------


def check(rig: Rig, op: Op, member: tuple[tuple[int, ...], Any] | None) -> None:
    """Runs the operation once on small integers and compares every element.

    Raises:
        MeasurementError: a wrong result, on any rank.
    """
    wrong = 0.0
    if member is not None:
        ranks, group = member
        wrong = float(_wrong_elements(rig, op, ranks, group))
    worst = rig.largest(wrong)
    if worst > 0:
        raise MeasurementError(
            f"{op} among {len(member[0]) if member else 'other'} ranks gave {worst:.0f} wrong elements",
            hint="Nothing measured here can be trusted: check the links (nvidia-smi nvlink -e) and NCCL's settings.",
        )


def _wrong_elements(rig: Rig, op: Op, ranks: tuple[int, ...], group: Any) -> int:
    torch, size = rig.torch, len(ranks)
    place = ranks.index(rig.place.rank)
    elements = _CHECKED_ELEMENTS // size * size
    # Different from place to place and from rank to rank, so that a shard that arrives in the wrong place shows as well.
    base = (torch.arange(elements, device=rig.device) % 7).to(torch.float32)
    shard, mine = elements // size, slice(place * (elements // size), (place + 1) * (elements // size))
    sent = (base[mine] if op == "all_gather" else base) + (0 if op == "all_gather" else place)
    sent = sent.clone()
    received = torch.full((shard if op == "reduce_scatter" else elements,), -1.0, device=rig.device)
    issue(rig, op, sent, received, ranks=ranks, group=group)
    total = size * (size - 1) / 2
    if op == "all_reduce":
        got, expected = sent, size * base + total
    elif op == "all_gather":
        got, expected = received, base
    elif op == "reduce_scatter":
        got, expected = received, size * base[mine] + total
    elif op == "all_to_all":
        sources = torch.arange(size, device=rig.device, dtype=torch.float32).repeat_interleave(shard)
        got, expected = received, base[mine].repeat(size) + sources
    else:
        got, expected = received, base + (place - 1) % size
    return int((got != expected).sum())
