"""Seconds of every task of a plan's pipeline, from the cost models that priced it, each stage at the pace of its own pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import PooledJob
from cost_models.pools.time import hops_s
from cost_models.step.chunks import ChunkSeconds, chunk_seconds
from cost_models.step.pipeline import hop_s, steady_fraction
from cost_models.step.stage_costs import stage_costs
from cost_models.strategies.fields import SPLIT_BACKWARD, V_SHAPED, Schedule
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Floats, Strategies
from planner.timeline.play import Durations, virtual_stage

EXPOSED = ("tp_comm", "cp_comm", "ep_comm", "dp_comm")
"""Terms whose exposed communication lies within a stage's passes."""


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Seconds of the tasks of one micro-batch, by virtual stage in model order."""

    forward_V: tuple[float, ...]
    backward_V: tuple[float, ...]
    """The whole backward, with what is repeated and with the weight gradient."""
    repeated_V: tuple[float, ...]
    """Full recomputation, which a backward begins with."""
    weight_gradient_V: tuple[float, ...]
    """What the schedule may postpone; 0 where it does not split the backward."""
    exposed: Mapping[str, tuple[float, ...]]
    """Exposed communication within both passes, by term of EXPOSED."""
    rank_V: tuple[int, ...]
    """The pipeline rank that runs each virtual stage."""
    hop_s: float
    """Seconds of the slowest hop between stages."""
    send_s: float
    """Seconds of it for which a stage waits in the steady state."""
    filling_s: float
    """Seconds of an average hop beyond `send_s`, which nothing hides while the pipeline fills and drains."""

    @property
    def durations(self) -> Durations:
        """What the schedule is played with."""
        return Durations(self.forward_V, self.backward_V, self.weight_gradient_V, self.send_s, self.filling_s)

    @property
    def exposed_by_stage(self) -> tuple[float, ...]:
        """Seconds of exposed communication within both passes of every virtual stage."""
        return tuple(map(sum, zip(*self.exposed.values(), strict=True)))


def schedule_of(strategies: Strategies) -> Schedule:
    """The schedule of a batch of one; a pipeline of one rank runs forwards and backwards in turn, whatever it is called."""
    return Schedule(int(strategies.schedule[0])) if strategies.pp[0] > 1 else Schedule.ONE_F_ONE_B


def task_seconds(pooled: PooledJob, strategies: Strategies) -> TaskSeconds:
    """Seconds of every virtual stage's tasks of one micro-batch, for a batch of one that keeps every stage."""
    layout = strategies.layouts.table[int(strategies.layout[0])]
    ranks, chunks = layout.pp, layout.vpp
    schedule = schedule_of(strategies)
    folded = schedule in V_SHAPED
    rank_of = {
        virtual_stage(rank, chunk, ranks=ranks, folded=folded): rank for rank in range(ranks) for chunk in range(chunks)
    }
    rank_V = tuple(rank_of[stage] for stage in range(ranks * chunks))
    pools = _pool_by_rank(pooled, layout)
    # A stage is priced as on a cluster of its pool alone, as the step's own terms are (`cost_models.pools.time`).
    row = np.zeros(1, np.int64)
    found = {
        pool: chunk_seconds(strategies, stage_costs(pooled.jobs[pool], strategies), row) for pool in sorted(set(pools))
    }

    def of(name: str) -> tuple[float, ...]:
        return tuple(float(_part(found[pools[rank]], name)[stage, 0]) for stage, rank in enumerate(rank_V))

    hop, send, filling = _hops(pooled, strategies, pools)
    # Other schedules run a backward as one task, and nothing of it can be moved.
    nothing = (0.0,) * len(rank_V)
    return TaskSeconds(
        forward_V=of("forward"),
        backward_V=of("backward"),
        repeated_V=of("repeated"),
        weight_gradient_V=of("weight_gradient") if schedule in SPLIT_BACKWARD else nothing,
        exposed={name: of(name) for name in EXPOSED},
        rank_V=rank_V,
        hop_s=hop,
        send_s=send,
        filling_s=filling,
    )


def _part(seconds: ChunkSeconds, name: str) -> Floats:
    values: Floats = seconds.exposed[name] if name in EXPOSED else getattr(seconds, name)
    return values


def _pool_by_rank(pooled: PooledJob, layout: Layout) -> list[int]:
    if layout.pool_per_stage is None:
        return [0] * layout.pp
    return [pooled.names.index(name) for name in layout.pool_per_stage]


def _hops(pooled: PooledJob, strategies: Strategies, pools: list[int]) -> tuple[float, float, float]:
    """Seconds of the slowest hop, of what a stage waits for it, and of what an average hop takes beyond that wait."""
    ranks = len(pools)
    if ranks == 1:
        return 0.0, 0.0, 0.0
    if pooled.cluster.lists_pools:
        stages_PN = np.array([[pools.count(pool)] for pool in range(len(pooled.jobs))])
        hops = hops_s(pooled, strategies, stages_PN)
        slowest, filling, lost = float(hops.slowest[0]), float(hops.filling[0]) / (ranks - 1), hops.interference
    else:
        (job,) = pooled.jobs
        slowest = filling = float(hop_s(job, strategies)[0][0])
        lost = job.calibration.beside["send_recv"].lost_fraction
    send = slowest * float(steady_fraction(strategies, interference=lost)[0])
    return slowest, send, filling - send
