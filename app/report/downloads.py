"""A plan's step as files for two viewers: a trace for Perfetto or chrome://tracing, a snapshot for pytorch.org/memory_viz.

Both are predictions in the formats of recordings, so that a plan can be looked at, and laid beside a run, in the same viewer.
"""

from __future__ import annotations

import json
import pickle
import pickletools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from app.report.passes import passes
from app.report.report import PlanView
from cost_models.terms import TIME_TERMS
from planner.request.job import Documents
from planner.timeline.memory import Block, StageTrace, fullest_stage, stage_trace
from planner.timeline.orders import round_of
from planner.timeline.step import Timeline, plan_timeline, shortened_to

MOST_ENTRIES = 12_000
"""Entries of a memory snapshot; the viewer draws 15,000 blocks before it sums small ones up."""
_ENTRIES_A_TASK = 6
"""Entries of one chunk's forward and backward: two blocks taken, and each given back in two steps."""
_ADDRESS = 1 << 36
_ALIGNED = 512
"""PyTorch's caching allocator rounds blocks up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
_PHRASES = {term.name: term.phrase for term in TIME_TERMS}

Event = dict[str, Any]


def chrome_trace(view: PlanView, *, extra: Documents | None = None, allow_files: bool = False) -> bytes:
    """The step of a plan as JSON trace events: a process for each stage, micro-batch and chunk among the arguments.

    Args:
        view: the plan.
        extra: the reader's own calibration documents, by id and name.
        allow_files: whether the row's `cluster.calibration` may be a path.

    Raises:
        planner.one_plan.neighbours.ChangedPriceError: the plan's row is not priced as the plan was.
        cost_models.errors.MeshwrightError: the row cannot be read, or names a calibration that is not there.
    """
    timeline = plan_timeline(view.row, view.evaluation, extra=extra, allow_files=allow_files)
    return trace_of(timeline, title=f"plan {view.rank}")


def memory_snapshot(view: PlanView, *, extra: Documents | None = None, allow_files: bool = False) -> bytes:
    """The memory of a plan's fullest stage over the step, as the pickle that pytorch.org/memory_viz opens.

    Arguments and errors are those of `chrome_trace`.
    """
    timeline = plan_timeline(view.row, view.evaluation, extra=extra, allow_files=allow_files)
    return snapshot_of(timeline, most_entries=MOST_ENTRIES)


def trace_of(timeline: Timeline, *, title: str) -> bytes:
    """JSON trace events of a timeline. Source: Trace Event Format (docs of catapult), complete events in microseconds."""
    document = {
        "traceEvents": [*_metadata(timeline, title=title), *_tasks(timeline), *_step_ends(timeline)],
        "displayTimeUnit": "ms",
        "otherData": {
            "predicted_by": "meshwright",
            "step_time_s": timeline.step_time_s,
            "played_s": timeline.played_s,
            "micro_batches": timeline.micro_batches,
            "micro_batches_shown": timeline.played_micro_batches,
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _metadata(timeline: Timeline, *, title: str) -> Iterator[Event]:
    for rank in range(timeline.ranks):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"{title}, stage {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "computation"}}


def _tasks(timeline: Timeline) -> Iterator[Event]:
    """Every task; a backward that begins with repeated forwards is two."""
    for task in passes(timeline):
        # Counted from 0, as the frameworks' own logs count them.
        args = {"micro_batch": task.micro_batch, "chunk": task.chunk}
        begin = task.start_s + task.repeated_s
        if task.repeated_s:
            yield _complete("repeated forward", task.rank, task.start_s, begin, args)
        yield _complete(task.kind.label.replace("-", " "), task.rank, begin, task.end_s, args)


def _step_ends(timeline: Timeline) -> Iterator[Event]:
    for rank in range(timeline.ranks):
        at = timeline.events.seconds
        for name, seconds in timeline.ends_s.items():
            if seconds > 0:
                yield _complete(_PHRASES[name], rank, at, at + seconds, {})
            at += seconds


def _complete(name: str, rank: int, start_s: float, end_s: float, args: Event) -> Event:
    # Rounding both ends, not the length, keeps tasks that follow each other from overlapping.
    start, end = round(start_s * 1e6), round(end_s * 1e6)
    told = {"name": name, "ph": "X", "ts": start, "dur": end - start, "pid": rank, "tid": 0}
    return told | {"args": args} if args else told


def snapshot_of(timeline: Timeline, *, most_entries: int) -> bytes:
    """The pickled snapshot of the fullest stage, over fewer micro-batches where all would take more entries.

    The format is that of torch.cuda.memory._snapshot(): segments of blocks, and the entries of every device's trace. Protocol 4 is
    the newest that the viewer reads (torch/utils/viz/MemoryViz.js, unpickle).
    """
    # The viewer's axis is entries, not time, so that leaving rounds out changes nothing but how often it repeats.
    shown = shortened_to(timeline, snapshot_micro_batches(timeline, most_entries=most_entries))
    trace = stage_trace(shown, fullest_stage(timeline))
    addresses, end = _addresses(trace)
    frames = _Frames(trace.stage)
    entries = [
        {
            "action": action,
            "addr": addresses[change.block],
            "size": trace.blocks[change.block].size_bytes,
            "stream": 0,
            "frames": frames.of(trace.blocks[change.block]),
        }
        for change in trace.changes
        for action in (("alloc",) if change.taken else ("free_requested", "free_completed"))
    ]
    document = {
        "segments": [_segment(trace, addresses, end, frames)],
        "device_traces": [entries],
        "predicted_by": "meshwright",
        "micro_batches": timeline.micro_batches,
        "micro_batches_shown": shown.played_micro_batches,
    }
    return pickletools.optimize(pickle.dumps(document, protocol=4))


def snapshot_micro_batches(timeline: Timeline, *, most_entries: int) -> int:
    """Micro-batches that a snapshot of at most so many entries shows: whole rounds, and enough to fill the pipeline."""
    size = round_of(timeline.schedule, ranks=timeline.ranks, micro_batches=timeline.micro_batches)
    wanted = max(most_entries // (_ENTRIES_A_TASK * timeline.chunks), 3 * timeline.ranks)
    return min(timeline.micro_batches, max(wanted // size, 1) * size)


def entries_of(timeline: Timeline, micro_batches: int) -> int:
    """About how many entries a snapshot of so many micro-batches has."""
    return _ENTRIES_A_TASK * timeline.chunks * micro_batches


class _Frames:
    """The stack that the viewer shows with a block; equal ones are one object, which a pickle holds once."""

    def __init__(self, stage: int) -> None:
        self._stage = f"stage {stage}"
        self._known: dict[tuple[str, int | None], list[Event]] = {}

    def of(self, block: Block) -> list[Event]:
        """One frame, told as file, line and function: the stage, the micro-batch and what it is."""
        name = block.what.replace("_", " ") + ("" if block.chunk is None else f" of chunk {block.chunk}")
        key = name, block.micro_batch
        if key not in self._known:
            where = self._stage if block.micro_batch is None else f"{self._stage}, micro-batch"
            self._known[key] = [{"filename": where, "line": block.micro_batch or 0, "name": name}]
        return self._known[key]


def _addresses(trace: StageTrace) -> tuple[list[int], int]:
    """An address for every block, and where the last one ends. Blocks of one size take each other's places when they are free."""
    addresses, end = [0] * len(trace.blocks), _ADDRESS
    # Only blocks of one size change places, so that the segment is larger than what is ever allocated, as in an allocator.
    free: dict[int, list[int]] = defaultdict(list)
    for at in trace.held:
        addresses[at], end = end, end + _aligned(trace.blocks[at].size_bytes)
    for change in trace.changes:
        size = trace.blocks[change.block].size_bytes
        if not change.taken:
            free[size].append(addresses[change.block])
        elif free[size]:
            addresses[change.block] = free[size].pop()
        else:
            addresses[change.block], end = end, end + _aligned(size)
    return addresses, end


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _segment(trace: StageTrace, addresses: list[int], end: int, frames: _Frames) -> Event:
    """The one segment of the stage as it stands after the step: what is held throughout, and free space behind it."""
    blocks: list[Event] = [
        {
            "address": addresses[at],
            "size": _aligned(trace.blocks[at].size_bytes),
            "requested_size": trace.blocks[at].size_bytes,
            "state": "active_allocated",
            "frames": frames.of(trace.blocks[at]),
        }
        for at in trace.held
    ]
    held = sum(block["size"] for block in blocks)
    rest = end - _ADDRESS - held
    if rest:
        blocks.append(
            {"address": _ADDRESS + held, "size": rest, "requested_size": 0, "state": "inactive", "frames": []}
        )
    return {
        "device": 0,
        "address": _ADDRESS,
        "total_size": end - _ADDRESS,
        "stream": 0,
        "segment_type": "large",
        "allocated_size": held,
        "active_size": held,
        "blocks": blocks,
    }
