"""How a pipeline's schedule turns per-stage times into a step: the bubble of each schedule and the sends between stages.

With stage times t_s per micro-batch (forward and backward) and m micro-batches, 1F1B and GPipe take
sum(t_s) + (m - 1) * max(t_s): exact for equal stages and where the last stage is the slowest, an upper bound where an
earlier one is, as long as backward over forward is the same everywhere (else within a tenth). Everything above m times the
slowest stage is bubble.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from cost_models.constants import SENDS_ON_STAGE
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Codes, Floats, Schedule, Strategies
from cost_models.strategies.tensors import distinct

_NO_TIME_S = 1e-30
"""Keeps a division by the time of empty stages finite."""
_ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)
P2P_AXES = ("tp", "cp", "dp", "pp", "micro_batch_size", "sequence_parallel")


def bubble_s(
    strategies: Strategies, *, stages_sum_s: Floats, slowest_s: Floats, forward_s: Floats, wgrad_s: Floats
) -> Floats:
    """Idle seconds of the slowest stage in one step, shape (N,). [P-1]

        1f1b, gpipe:  sum - slowest
        interleaved:  (sum - slowest) / v
        zb-h1:        (p - 1) max(F, I, F + I - W)
        zb-v:         (p - 1) / 2 max(I, W, 2F - I, 2 (I - W), 2 (F - W))
        dualpipe-v:   (p - 1) / 2 (F + max(F, I) + max(I - W, 0))

    F, I and W are a stage's forward, the rest of its backward, and its weight gradients; the other stages' are as much
    smaller than the slowest one's as their sum tells. A V-shaped stage's chunk has half of them.

    Args:
        strategies: schedules, stages and virtual stages.
        stages_sum_s: sum of all stages' time per micro-batch.
        slowest_s: the slowest stage's.
        forward_s: its forward.
        wgrad_s: its weight gradients, which zero-bubble schedules move into the gaps.
    """
    plain = np.maximum(stages_sum_s - slowest_s, 0.0)
    interleaved = strategies.schedule == Schedule.INTERLEAVED
    if not splits_backward(strategies).any():
        return np.where(interleaved, plain / strategies.vpp, plain)
    kinds = [interleaved, *(strategies.schedule == schedule for schedule in _ZERO_BUBBLE)]
    scale = plain / np.maximum(slowest_s, _NO_TIME_S)  # p - 1 for equal stages
    f, w = scale * forward_s, scale * wgrad_s
    i = np.maximum(scale * (slowest_s - forward_s - wgrad_s), 0.0)
    waits = [
        plain / strategies.vpp,
        np.maximum.reduce([f, i, f + i - w]),
        np.maximum.reduce([i, w, 2.0 * f - i, 2.0 * (i - w), 2.0 * (f - w)]) / 2.0,
        (f + np.maximum(f, i) + np.maximum(i - w, 0.0)) / 2.0,
    ]
    return np.select(kinds, waits, plain)


def splits_backward(strategies: Strategies) -> Bools:
    """Where weight gradients are a task of their own, shape (N,)."""
    return np.asarray(strategies.schedule >= _ZERO_BUBBLE[0])


def hop_s(job: Job, strategies: Strategies, *, reach: Literal["placed", "network"] = "placed") -> tuple[Floats, Codes]:
    """Seconds to send one micro-batch's activations to the next stage, and the tier; shape (N,), 0 where pp is 1. [C-13]

    Message: T * h elements, split over tp ranks with sequence parallelism or Megatron's scatter-gather (then gathered
    inside the node). The slowest hop of ranks numbered over all nodes counts (`placed`), or one between two nodes
    (`network`), such as those of two pools.
    """
    cases = distinct(strategies, P2P_AXES)
    rows = cases.rows
    placements = groups(rows, job.cluster)
    tokens = rows.micro_batch_size * job.training.seq_length / rows.cp
    size = tokens * job.model.hidden_size * job.training.compute_bytes
    scattered = rows.sequence_parallel | (job.framework.scatters_pipeline_messages & (rows.tp > 1))
    pipeline = placements.pp if reach == "placed" else placements.pp.over_network()
    send = job.calibration.collective_s("send_recv", np.where(scattered, size / rows.tp, size), placement=pipeline)
    regather = job.calibration.collective_s("all_gather", size, placement=placements.tp)
    seconds = send.seconds + np.where(scattered & ~rows.sequence_parallel, regather.seconds, 0.0)
    used = rows.pp > 1
    seconds = np.where(used, seconds, 0.0)
    tier = np.where(used, send.tier, 0).astype(np.int8)
    return np.asarray(cases.spread(seconds), np.float64), np.asarray(cases.spread(tier), np.int8)


def exposed_sends_s(
    strategies: Strategies, *, hop: Floats, interference: float, filling: Floats | None = None
) -> Floats:
    """Exposed send time of one step, shape (N,). [C-13]

    Forward and backward each send once per micro-batch and chunk. In steady state a stage waits for a share of them, or,
    where they overlap with computation, for what they slow it down; filling and draining the pipeline passes p - 1 hops each way, never hidden.

    Args:
        strategies: schedules and stages.
        hop: seconds of the slowest hop.
        interference: share of a send that computation beside it loses.
        filling: of all p - 1 hops together, where they differ.
    """
    each_way = 2.0 * hop
    steady = np.where(strategies.overlap_p2p, interference, SENDS_ON_STAGE.value)
    fill = (strategies.pp - 1.0) * each_way if filling is None else 2.0 * filling
    return np.where(strategies.pp > 1, strategies.num_micro_batches * strategies.vpp * each_way * steady + fill, 0.0)
