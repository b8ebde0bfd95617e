"""The timeline of one optimizer step of a plan: its pipeline played task by task, and what follows at the step's end.

Seconds are those of the cost models that priced the plan, without corrections: these know terms and no tasks. A step is priced by closed forms, in which the slowest stage's work, its
bubble and its sends are totals; here the same seconds are played in the order of the schedule. The two lengths agree where the
closed form is exact (equal stages, or the last one the slowest); `difference_s` says by how much they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated
from cost_models.job import PooledJob
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.strategies.fields import V_SHAPED, Schedule
from cost_models.strategies.strategy import Strategies
from planner.export.launch_plan import launch_plan
from planner.one_plan.neighbours import check_same_price
from planner.request.job import Documents
from planner.timeline.fold import Repeat, repeats
from planner.timeline.orders import rank_orders, round_of
from planner.timeline.play import Events, played
from planner.timeline.seconds import EXPOSED, TaskSeconds, schedule_of, task_seconds

MOST_TASKS = 60_000
"""Tasks up to which every one of a step is played; beyond, rounds that only repeat are counted instead (0.2 s a step)."""
_SETTLING = 8
"""Rounds of a shortened step beyond those that fill the pipeline, after which mostly every round is like the one before."""
ENDS = ("dp_comm", "tied_embedding_comm", "offload", "optimizer", "jitter")
"""Terms that follow the pipeline once a step, in the order in which they are told."""


@dataclass(frozen=True, eq=False)
class RankSummary:
    """How one pipeline rank spends a step, in seconds."""

    rank: int
    forward_s: float
    backward_s: float
    """Data and weight gradients, without what is repeated."""
    repeated_s: float
    sends_s: float
    """Waiting for messages to other stages."""
    idle_s: float
    """Until the last rank has finished: the bubble."""
    exposed_s: Mapping[str, float]
    """Exposed communication within forward and backward, by term of `seconds.EXPOSED`."""

    @property
    def busy_s(self) -> float:
        """Seconds of forwards and backwards."""
        return self.forward_s + self.backward_s + self.repeated_s


@dataclass(frozen=True, eq=False)
class Timeline:
    """One optimizer step."""

    pooled: PooledJob
    strategies: Strategies
    """A batch of one."""
    evaluated: Evaluated
    schedule: Schedule
    ranks: int
    chunks: int
    micro_batches: int
    """Of a step."""
    played_micro_batches: int
    """Those whose tasks are among the events: fewer where a long steady state only repeats."""
    seconds: TaskSeconds
    events: Events
    repeats: tuple[Repeat, ...]
    """Stretches that repeat. Their counts and times are those of the events, without what was left out."""
    left_out: int
    """Periods that were not played, and belong behind the first stretch that repeats."""
    ends_s: Mapping[str, float]
    """Seconds of what follows the pipeline once a step, by term of ENDS; jitter lies all over the step, and is told here."""
    step_time_s: float
    """What the plan was priced at, without corrections."""

    @property
    def left_out_s(self) -> float:
        """Seconds of the periods that were not played."""
        return self.left_out * self.repeats[0].period_s if self.left_out else 0.0

    @property
    def pipeline_s(self) -> float:
        """From the first forward to the last backward, as played."""
        return self.events.seconds + self.left_out_s

    @property
    def played_s(self) -> float:
        """The whole step: the pipeline as played, and what follows it."""
        return self.pipeline_s + sum(self.ends_s.values())

    @property
    def difference_s(self) -> float:
        """Seconds that the closed form which priced the plan counts beyond those played; negative where it counts fewer."""
        return self.step_time_s - self.played_s

    @property
    def is_whole(self) -> bool:
        """Whether the events are all of the step's."""
        return not self.left_out

    def summaries(self) -> list[RankSummary]:
        """How every rank spends the step; of what is summed up, nothing is left out."""
        seconds, m = self.seconds, self.micro_batches
        found = []
        for rank in range(self.ranks):
            mine = [stage for stage, its in enumerate(seconds.rank_V) if its == rank]
            forward = m * sum(seconds.forward_V[stage] for stage in mine)
            repeated = m * sum(seconds.repeated_V[stage] for stage in mine)
            backward = m * sum(seconds.backward_V[stage] for stage in mine) - repeated
            # Two messages a micro-batch and chunk, one each way, as the step's own term counts them. [C-13]
            sends = 2.0 * m * len(mine) * self.events.send_s
            found.append(
                RankSummary(
                    rank=rank,
                    forward_s=forward,
                    backward_s=backward,
                    repeated_s=repeated,
                    sends_s=sends,
                    idle_s=max(self.pipeline_s - forward - backward - repeated - sends, 0.0),
                    exposed_s={name: m * sum(seconds.exposed[name][stage] for stage in mine) for name in EXPOSED},
                )
            )
        return found


def plan_timeline(
    row: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
    *,
    extra: Documents | None = None,
    allow_files: bool = False,
) -> Timeline:
    """The timeline of a plan, from its evaluate row.

    Args:
        row: the plan's evaluate row.
        evaluation: what the plan was priced at, where that is known.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether the row's `cluster.calibration` may be a path.

    Raises:
        planner.one_plan.neighbours.ChangedPriceError: the row is not priced as in `evaluation`.
        cost_models.errors.MeshwrightError: the row cannot be read, or names a calibration that is not there.
    """
    plan = launch_plan(row, extra=extra, allow_files=allow_files)
    evaluated = evaluate_on_pools(plan.pooled, plan.row)
    step_time_s = float(evaluated.step_time_s[0])
    if evaluation is not None:
        # A calibration that lies in a file may have changed since: a schedule beside another price would mislead.
        check_same_price({"verdict": "priced", "step_time_s": step_time_s}, evaluation)
    pooled = plan.pooled.uncorrected
    if pooled is not plan.pooled:
        evaluated = evaluate_on_pools(pooled, plan.row)
    schedule, seconds = schedule_of(plan.row), task_seconds(pooled, plan.row)
    micro_batches = int(plan.row.num_micro_batches[0])
    events, found, left_out = _played(plan.row, schedule, seconds, micro_batches=micro_batches)
    return Timeline(
        pooled=pooled,
        strategies=plan.row,
        evaluated=evaluated,
        schedule=schedule,
        ranks=int(plan.row.pp[0]),
        chunks=int(plan.row.vpp[0]),
        micro_batches=micro_batches,
        played_micro_batches=1 + int(events.micro_batch_E.max()),
        seconds=seconds,
        events=events,
        repeats=found,
        left_out=left_out,
        ends_s=_ends(evaluated, seconds, micro_batches=micro_batches),
        step_time_s=float(evaluated.step_time_s[0]),
    )


def events_of(strategies: Strategies, schedule: Schedule, seconds: TaskSeconds, *, micro_batches: int) -> Events:
    """The played tasks of a step of this many micro-batches."""
    ranks, chunks = int(strategies.pp[0]), int(strategies.vpp[0])
    # Where experts' exchanges overlap other micro-batches' passes, Megatron runs one forward more before the first backward
    # (megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches).
    ahead = int(bool(strategies.overlap_moe_all_to_all[0]))
    orders = rank_orders(schedule, ranks=ranks, chunks=chunks, micro_batches=micro_batches, runs_ahead=ahead)
    return played(orders, seconds.durations, folded=schedule in V_SHAPED)


def _played(
    strategies: Strategies, schedule: Schedule, seconds: TaskSeconds, *, micro_batches: int
) -> tuple[Events, tuple[Repeat, ...], int]:
    """The events, what repeats in them, and the number of periods that were not played."""
    ranks, chunks = int(strategies.pp[0]), int(strategies.vpp[0])
    size = round_of(schedule, ranks=ranks, micro_batches=micro_batches)
    # GPipe repeats forwards and backwards apart, so that rounds left out would be missing in two places.
    attempts = _shortened(ranks, chunks, micro_batches=micro_batches, size=size) if schedule != Schedule.GPIPE else ()
    for fewer in attempts:
        events = events_of(strategies, schedule, seconds, micro_batches=fewer)
        found = repeats(events, micro_batches=fewer, round_=size)
        # Every time is a maximum of sums of earlier ones, so that once all tasks of a period follow their likes by the same
        # time, those of every further period do.
        if len(found) == 1:
            return events, found, (micro_batches - fewer) // size
    events = events_of(strategies, schedule, seconds, micro_batches=micro_batches)
    return events, repeats(events, micro_batches=micro_batches, round_=size), 0


def _shortened(ranks: int, chunks: int, *, micro_batches: int, size: int) -> tuple[int, ...]:
    """How many micro-batches to play instead of these, in the order in which to try: none where the tasks are few."""
    if 2 * ranks * chunks * micro_batches <= MOST_TASKS:
        return ()
    # Three ranks' worth of micro-batches fill any of the schedules. Uneven stages take longer to settle, how long is found out by
    # looking.
    filling, rounds = -(-3 * ranks // size), micro_batches // size
    tried = (filling + _SETTLING, 4 * (filling + _SETTLING))
    return tuple(each * size + micro_batches % size for each in tried if each < rounds)


def _ends(evaluated: Evaluated, seconds: TaskSeconds, *, micro_batches: int) -> dict[str, float]:
    """Seconds of the terms that follow the pipeline, by name of ENDS."""
    ends = {name: float(evaluated.terms_s[name][0]) for name in ENDS}
    # Of data-parallel communication, what lies within the slowest stage's passes was played with them.
    ranks = range(1 + max(seconds.rank_V))
    busy = [
        sum(
            f + b
            for f, b, its in zip(seconds.forward_V, seconds.backward_V, seconds.rank_V, strict=True)
            if its == rank
        )
        for rank in ranks
    ]
    slowest = int(np.argmax(busy))
    within = sum(each for each, its in zip(seconds.exposed["dp_comm"], seconds.rank_V, strict=True) if its == slowest)
    # A difference of two sums: below what rounding explains there is nothing.
    once = ends["dp_comm"] - micro_batches * within
    ends["dp_comm"] = once if once > 1e-9 * ends["dp_comm"] else 0.0
    return ends


def shortened_to(timeline: Timeline, micro_batches: int) -> Timeline:
    """The timeline of a step of fewer micro-batches, whole rounds of them, with the same seconds; for looking at memory."""
    size = round_of(timeline.schedule, ranks=timeline.ranks, micro_batches=timeline.micro_batches)
    assert micro_batches % size == 0
    if micro_batches >= timeline.played_micro_batches and timeline.is_whole:
        return timeline
    events = events_of(timeline.strategies, timeline.schedule, timeline.seconds, micro_batches=micro_batches)
    return replace(
        timeline,
        events=events,
        played_micro_batches=micro_batches,
        repeats=repeats(events, micro_batches=micro_batches, round_=size),
        left_out=0,
    )
