"""How a pipeline's schedule turns per-stage times into a step: the bubble of each schedule and the sends between stages.

With stage times t_s per micro-batch (forward and backward) and m micro-batches, 1F1B and GPipe take
sum(t_s) + (m - 1) * max(t_s). This is exact when all stages are equal or the last one is the slowest, and an upper bound when
an earlier stage is, as long as every stage has the same ratio of backward to forward; otherwise it is within a tenth.
Everything above m times the slowest stage is bubble. tests/oracle compares the formulas with an event simulator. Interleaved
chunks that differ are played event by event in `interleaving`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from cost_models.constants import SENDS_ON_STAGE
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.strategies.fields import Schedule
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.strategies.tensors import combinations_of

_NO_TIME_S = 1e-30
"""Keeps a division by the time of empty stages finite."""
_ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE_V)
P2P_AXES = ("tp", "cp", "dp", "pp", "micro_batch_size", "sequence_parallel")


def bubble_s(
    strategies: Strategies, *, stages_sum_s: Floats, slowest_s: Floats, forward_s: Floats, wgrad_s: Floats
) -> Floats:
    """Idle seconds of the slowest stage in one step, shape (N,). [P-1]

        1f1b, gpipe:  sum - slowest
        interleaved:  (sum - slowest) / v + max(p - m, 0) (1 - 1/v) slowest, where all chunks hold the same layers
        zb-h1:        (p - 1) max(F, I, F + I - W)
        zb-v:         (p - 1) / 2 max(I, W, 2F - I, 2 (I - W), 2 (F - W))
        dualpipe-v:   (p - 1) / 2 (F + max(F, I) + max(I - W, 0))

    F is the slowest stage's forward, W its weight gradients, and I the rest of its backward, recomputation included. The
    other stages are taken to be smaller in the ratio that their sum implies. In a V-shaped schedule each chunk holds half of
    a stage.

    Args:
        strategies: schedules, stages and virtual stages.
        stages_sum_s: seconds per micro-batch of all stages together, shape (N,).
        slowest_s: seconds per micro-batch of the slowest stage.
        forward_s: seconds of its forward.
        wgrad_s: seconds of its weight gradients, which zero-bubble schedules move into the gaps.

    Source: EQUATIONS.md P-1 (Narayanan 2021, section 2.2; Qi 2023, section 2).
    """
    plain = np.maximum(stages_sum_s - slowest_s, 0.0)
    interleaved = strategies.schedule == Schedule.INTERLEAVED
    chunked = plain / strategies.vpp
    few = interleaved & (strategies.num_micro_batches < strategies.pp)
    if few.any():
        # Fewer micro-batches than stages leave gaps between a stage's chunks as well: without them the step would be shorter
        # than the way of one micro-batch through all stages.
        missing = strategies.pp - strategies.num_micro_batches
        chunked = chunked + np.where(few, missing * (1.0 - 1.0 / strategies.vpp) * slowest_s, 0.0)
    if not splits_backward(strategies).any():
        return np.where(interleaved, chunked, plain)
    kinds = [interleaved, *(strategies.schedule == schedule for schedule in _ZERO_BUBBLE)]
    # The published formulas count p - 1 equal stages. Replacing p - 1 by the other stages' time over the slowest
    # one's extends them to unequal stages and gives the published formula back when all are equal.
    scale = plain / np.maximum(slowest_s, _NO_TIME_S)  # p - 1 for equal stages
    f, w = scale * forward_s, scale * wgrad_s
    i = np.maximum(scale * (slowest_s - forward_s - wgrad_s), 0.0)
    waits = [
        chunked,
        np.maximum.reduce([f, i, f + i - w]),
        # Each entry is one cycle of dependences between a chunk's tasks on neighbouring stages; the longest cycle
        # sets the idle time.
        np.maximum.reduce([i, w, 2.0 * f - i, 2.0 * (i - w), 2.0 * (f - w)]) / 2.0,
        # PyTorch's runtime sends the results of an overlapped forward and backward only when both are done, hence the
        # maximum of F and I instead of the pair's shorter task (torch/distributed/pipelining/schedules.py,
        # _add_send_recv).
        (f + np.maximum(f, i) + np.maximum(i - w, 0.0)) / 2.0,
    ]
    return np.select(kinds, waits, plain)


def splits_backward(strategies: Strategies) -> Bools:
    """Whether the schedule runs weight gradients as tasks of their own, shape (N,)."""
    # The enum lists the schedules that split the backward last, so one comparison serves for all three.
    return np.asarray(strategies.schedule >= _ZERO_BUBBLE[0])


def unpaired_fraction(strategies: Strategies) -> Floats:
    """Share of the micro-batches whose passes no other micro-batch's run beside, 0...1, shape (N,). [C-12]

        min(1, p / (m + (p - 1) / v)),  in dualpipe-v  min(1, (p + (p - 1) / 2) / (m + (p - 1) / 2))

    A rank runs forwards alone while the pipeline fills and as many backwards alone while it drains: on the last one (v - 1) p + 1
    of the m v chunks, one more than without overlap, so that the two of a pair are independent; in dualpipe-v p micro-batches.
    While it waits in the bubble, the other ranks' passes run alone as well. A step counts a stage's seconds m + (p - 1) / v times,
    which is what the share refers to.

    Source: EQUATIONS.md C-12.
    """
    p, m = strategies.pp, strategies.num_micro_batches
    waits = (p - 1.0) / strategies.vpp
    alone = p + waits * (strategies.schedule == Schedule.DUALPIPE_V)
    return np.asarray(np.minimum(alone / (m + waits), 1.0))


def hop_s(job: Job, strategies: Strategies, *, reach: Literal["placed", "network"] = "placed") -> tuple[Floats, Codes]:
    """Seconds to send one micro-batch's activations to the next stage, and their tier; shape (N,), 0 where pp is 1. [C-13]

    The message holds T * h elements. With sequence parallelism each tensor-parallel rank sends its own slice; with Megatron's
    older scatter-gather it does so too, and the slices are gathered again inside the receiving node.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        reach: `placed` takes the slowest hop between neighbouring stages when ranks are numbered node by node; `network`
            takes a hop between two nodes whatever the numbering says, such as one between two pools.
    """
    cases = combinations_of(strategies, P2P_AXES)
    seconds, tier = kept_columns(job, f"hop-{reach}", cases.rows, P2P_AXES, lambda rows: _hop_s(job, rows, reach))
    return cases.spread(seconds), cases.spread(tier)


def _hop_s(job: Job, rows: Strategies, reach: Literal["placed", "network"]) -> Columns:
    """Seconds and tier of one hop for these combinations of P2P_AXES, shape (U,) each. [C-13]"""
    placements = groups(rows, job.cluster)
    tokens = rows.rank_tokens(job.training.seq_length)
    size = tokens * job.model.hidden_size * job.training.compute_bytes
    scattered = rows.sequence_parallel | (job.framework.scatters_pipeline_messages & (rows.tp > 1))
    pipeline = placements.pp if reach == "placed" else placements.pp.over_network()
    send = job.calibration.collective_s("send_recv", np.where(scattered, size / rows.tp, size), placement=pipeline)
    regather = job.calibration.collective_s("all_gather", size, placement=placements.tp)
    seconds = send.seconds + np.where(scattered & ~rows.sequence_parallel, regather.seconds, 0.0)
    # A pipeline of one stage sends nothing, but its group was priced above as one of a single rank.
    used = rows.pp > 1
    return np.where(used, seconds, 0.0), np.where(used, send.tier, 0).astype(np.int8)


def exposed_sends_s(
    strategies: Strategies, *, hop: Floats, interference: float, filling: Floats | None = None
) -> Floats:
    """Seconds of one step for which stages wait for sends, shape (N,). [C-13]

    Forward and backward each send one message per micro-batch and chunk. In the steady state a stage waits for a share of
    them; where sends overlap with computation, it loses only what they slow the computation down. Filling and draining the
    pipeline pass p - 1 hops each way, which nothing can hide.

    Args:
        strategies: schedules and stages.
        hop: seconds of the slowest hop, shape (N,).
        interference: seconds of computation lost for each second of an overlapped send.
        filling: seconds of all p - 1 hops of one direction together, where the hops differ; else each takes `hop`.
    """
    each_way = 2.0 * hop
    steady = steady_fraction(strategies, interference=interference)
    fill = (strategies.pp - 1.0) * each_way if filling is None else 2.0 * filling
    return np.where(strategies.pp > 1, strategies.num_micro_batches * strategies.vpp * each_way * steady + fill, 0.0)


def steady_fraction(strategies: Strategies, *, interference: float) -> Floats:
    """Share of a send for which its stage waits in the steady state, shape (N,): `interference` where sends overlap. [C-13]"""
    return np.where(strategies.overlap_p2p, interference, SENDS_ON_STAGE.value)
