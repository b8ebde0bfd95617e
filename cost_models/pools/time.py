"""Costs of strategies whose pipeline stages lie on pools of different nodes: step time as named terms, memory, verdict.

Every stage lies whole in one pool, so its layers, its collectives and its memory are those of a job on that pool alone.
What joins the pools is the pipeline: its pace is the slowest stage's, its bubble the others' own times, and a hop between
pools crosses the network at the pace of the slower end. Layouts name the pool of each stage (`Layout.pool_per_stage`) and
hold every stage as a slot. Array suffixes: K slots, L layouts, J layer kinds, P pools; (N,) has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.hardware.groups import groups
from cost_models.job import PooledJob
from cost_models.step.ddp_comm import tied_gradients_s
from cost_models.step.offload import offload_tier
from cost_models.step.pipeline import exposed_sends_s, hop_s
from cost_models.step.stage_costs import StageCosts, stage_costs
from cost_models.step.stage_parameters import dense_by_slot, expert_by_slot
from cost_models.step.stages import (
    Slowest,
    chunk_passes_s,
    groups_of_unlike_chunks,
    recomputed_shares_by_slot,
    slowest_of,
    slowest_passes_s,
    slowest_terms,
    stage_seconds,
    stage_tiers,
    unlike_chunks_waiting_s,
    waiting_s,
)
from cost_models.step.total import STAGE_END_TERMS, StepTime, stage_end_s, straggling_fraction, term_tiers, with_jitter
from cost_models.strategies.strategy import Codes, Floats, Ints, Strategies
from cost_models.strategies.tensors import summed
from cost_models.terms import TIME_NAMES


@dataclass(frozen=True, eq=False)
class PooledTime(StepTime):
    """Seconds per step of stages on pools, shape (N,) each."""

    slowest_pool: Ints
    """Pool of the stage that sets the pace."""


def pool_by_slot(pooled: PooledJob, strategies: Strategies) -> Ints:
    """Pool of every slot's stage, -1 in slots that repeat the last stage, shape (K, N)."""
    layouts = strategies.layouts
    width = layouts.num_slots
    pools_LK = np.full((len(layouts.table), width), -1)
    for number, layout in enumerate(layouts.table):
        assert layout.pool_per_stage is not None
        pools_LK[number, : layout.pp] = [pooled.names.index(name) for name in layout.pool_per_stage]
        assert (layouts.slot_stage_LK[number, : layout.pp] == np.arange(layout.pp)).all(), "every stage is a slot"
    return np.ascontiguousarray(pools_LK[strategies.layout].T)


def pooled_step_time(pooled: PooledJob, strategies: Strategies) -> PooledTime:
    """Step time of stages on pools, and its terms. [T-5]"""
    pool_KN = pool_by_slot(pooled, strategies)
    used = np.unique(pool_KN[pool_KN >= 0]).tolist()
    costs = {pool: stage_costs(pooled.jobs[pool], strategies) for pool in used}
    share_KN = recomputed_shares_by_slot(strategies)
    # Slots that repeat a stage belong to no pool here; at minus infinity they are never the slowest.
    stage_KN = np.full(pool_KN.shape, -np.inf)
    for pool in used:
        seconds_KN = stage_seconds(strategies, costs[pool].per, share_KN=share_KN)
        stage_KN = np.where(pool_KN == pool, seconds_KN, stage_KN)
    slowest = slowest_of(strategies, stage_KN, share_KN=share_KN)
    slowest_pool = pool_KN[stage_KN.argmax(axis=0), np.arange(len(strategies))]
    # On pools every stage is a slot, so that the sum over slots is the sum over stages, each at its own pool's speed.
    sum_s = summed(np.where(pool_KN >= 0, stage_KN, 0.0))
    # The slowest stage is priced as if it lay on each pool in turn, and its own pool's figures are taken; what it waits for
    # follows from all stages' own times. [P-1]
    work = {
        pool: slowest_terms(strategies, costs[pool], slowest)
        | {"pp_bubble": waiting_s(strategies, costs[pool], slowest, stages_sum_s=sum_s)}
        for pool in used
    }
    _wait_for_unlike_chunks(strategies, pool_KN, costs, work, slowest)
    passes = {pool: slowest_passes_s(costs[pool], slowest) for pool in used}
    forward_s, backward_s = (of_pool(slowest_pool, {p: passes[p][side] for p in used}) for side in (0, 1))
    layers = slowest.layers_JN.sum(axis=0)
    terms = {name: of_pool(slowest_pool, {p: work[p][name] for p in used}) for name in work[used[0]]}
    ends, end_tier = _stage_ends(
        pooled, strategies, pool_KN, costs[used[0]], forward_s=forward_s, backward_s=backward_s
    )
    terms |= ends | {"dp_comm": terms["dp_comm"] + ends["dp_comm"]}
    stages_PN = np.array([(pool_KN == pool).sum(axis=0) for pool in range(len(pooled.jobs))])
    sends, hop_tier = sends_s(pooled, strategies, stages_PN)
    # What a rank holds of the vocabulary does not depend on its GPU, so any pool's figure is that of all.
    tied, tied_tier = tied_s(pooled, strategies, stages_PN, word=costs[used[0]].held.word, layers=layers)
    terms |= {"pp_comm": sends, "tied_embedding_comm": tied}
    ordered, total_s = with_jitter(terms, pooled_jitter_fraction(pooled, strategies, stages_PN))
    once = {"dp_comm": end_tier, "tied_embedding_comm": tied_tier, "pp_comm": hop_tier}
    by_pool = {
        pool: term_tiers(
            pooled.jobs[pool],
            stage_tiers(pooled.jobs[pool], strategies, costs[pool]),
            once | {"offload": offload_tier(pooled.jobs[pool], strategies)},
            ordered,
        )
        for pool in used
    }
    tiers: dict[str, Codes] = {name: np.zeros(len(strategies), np.int8) for name in TIME_NAMES}
    for pool, its in by_pool.items():
        tiers = {name: np.where(slowest_pool == pool, its[name], tier) for name, tier in tiers.items()}
    # The bubble is made of all stages' times, so it is known no better than the least known pool among them.
    bubble = np.max([np.where((pool_KN == p).any(axis=0), by_pool[p]["pp_bubble"], 0) for p in used], axis=0)
    tiers["pp_bubble"] = bubble.astype(np.int8)
    return PooledTime(ordered, tiers, total_s, slowest_pool)


def _wait_for_unlike_chunks(
    strategies: Strategies,
    pool_KN: Ints,
    costs: dict[int, StageCosts],
    work: dict[int, dict[str, Floats]],
    slowest: Slowest,
) -> None:
    """Set the bubble of strategies that interleave chunks of different times, each chunk at its own pool's pace. [P-2]"""
    for rows in groups_of_unlike_chunks(strategies):
        passes = {pool: chunk_passes_s(strategies, each, rows) for pool, each in costs.items()}
        stages = int(strategies.pp[rows[0]])
        pool_VN = np.tile(pool_KN[:stages, rows], (int(strategies.vpp[rows[0]]), 1))
        forward_VN, backward_VN = (
            np.select([pool_VN == pool for pool in costs], [passes[pool][side] for pool in costs]) for side in (0, 1)
        )
        waits_s = unlike_chunks_waiting_s(strategies, rows, forward_VN, backward_VN, slowest_s=slowest.seconds[rows])
        for terms in work.values():
            terms["pp_bubble"][rows] = np.maximum(terms["pp_bubble"][rows], waits_s)


def of_pool(which: Ints, values: dict[int, Floats]) -> Floats:
    """The value of each strategy's pool, shape (N,)."""
    found = np.zeros(len(which))
    for pool, value in values.items():
        found = np.where(which == pool, value, found)
    return found


def _stage_ends(
    pooled: PooledJob,
    strategies: Strategies,
    pool_KN: Ints,
    costs: StageCosts,
    *,
    forward_s: Floats,
    backward_s: Floats,
) -> tuple[dict[str, Floats], Codes]:
    """STAGE_END_TERMS of the stage for which they take longest together."""
    dense_KN, expert_KN = dense_by_slot(costs.held, strategies), expert_by_slot(costs.held, strategies)
    parts_KN = {name: np.zeros(pool_KN.shape) for name in STAGE_END_TERMS}
    tier_KN = np.zeros(pool_KN.shape, np.int8)
    for pool in np.unique(pool_KN[pool_KN >= 0]).tolist():
        slot, row = np.nonzero(pool_KN == pool)
        terms, tier = stage_end_s(
            pooled.jobs[pool],
            strategies.take(row),
            dense=dense_KN[slot, row],
            expert=expert_KN[slot, row],
            forward_s=forward_s[row],
            backward_s=backward_s[row],
        )
        for name, seconds in terms.items():
            parts_KN[name][slot, row] = seconds
        tier_KN[slot, row] = tier
    # All terms are those of one stage: taking each term's maximum would add up what different stages do at the same
    # time.
    longest, rows = summed(parts_KN.values()).argmax(axis=0), np.arange(len(strategies))
    return {name: part_KN[longest, rows] for name, part_KN in parts_KN.items()}, tier_KN[longest, rows]


@dataclass(frozen=True, slots=True)
class PooledHops:
    """Hops between neighbouring stages on pools, shape (N,) each."""

    slowest: Floats
    """Seconds of the slowest one."""
    filling: Floats
    """Seconds of all p - 1 of one direction together."""
    interference: float
    """Seconds of computation lost for each second of an overlapped send, on the pool that loses most."""
    tier: Codes


def hops_s(pooled: PooledJob, strategies: Strategies, stages_PN: Ints) -> PooledHops:
    """Seconds of the hops between stages; `stages_PN` are the stages on each pool. [C-13]

    A hop inside a pool takes what it takes there; one between pools crosses the network, and the slower end decides.
    """
    slowest, filling, between = (np.zeros(len(strategies)) for _ in range(3))
    tier = np.zeros(len(strategies), np.int8)
    # A pool's stages are consecutive, so the pipeline passes from pool to pool as often as there are further pools.
    crossings = np.maximum((stages_PN > 0).sum(axis=0) - 1, 0)
    for job, stages_N in zip(pooled.jobs, stages_PN, strict=True):
        if not stages_N.any():
            continue
        inside, joins = np.maximum(stages_N - 1, 0), (stages_N > 0) & (crossings > 0)
        hop, hop_tier = hop_s(job, strategies)
        far, far_tier = hop_s(job, strategies, reach="network")
        filling += inside * hop
        slowest = np.maximum(slowest, np.where(inside > 0, hop, 0.0))
        between = np.maximum(between, np.where(joins, far, 0.0))
        tier = np.maximum(tier, np.maximum(np.where(inside > 0, hop_tier, 0), np.where(joins, far_tier, 0)))
    # Both ends of a hop are in a send, and the computation that loses more sets the pace.
    lost = max(job.calibration.beside["send_recv"].lost_fraction for job in pooled.jobs)
    return PooledHops(np.maximum(slowest, between), filling + crossings * between, lost, tier.astype(np.int8))


def sends_s(pooled: PooledJob, strategies: Strategies, stages_PN: Ints) -> tuple[Floats, Codes]:
    """Exposed seconds of the sends between stages, and the tier; `stages_PN` are the stages on each pool. [C-13]"""
    hops = hops_s(pooled, strategies, stages_PN)
    sends = exposed_sends_s(strategies, hop=hops.slowest, interference=hops.interference, filling=hops.filling)
    return sends, hops.tier


def tied_s(
    pooled: PooledJob, strategies: Strategies, stages_PN: Ints, *, word: Floats, layers: Floats
) -> tuple[Floats, Codes]:
    """Seconds of the all-reduces of tied embeddings and partial norms, the slowest pool's, and the tier. [C-15]"""
    found, tier = np.zeros(len(strategies)), np.zeros(len(strategies), np.int8)
    apart = (stages_PN > 0).sum(axis=0) > 1
    for job, stages_N in zip(pooled.jobs, stages_PN, strict=True):
        near = groups(strategies, job.cluster)
        # On several pools the first and the last stage are sure to sit on different nodes, whatever the numbering of
        # ranks says.
        for here, placements in (((stages_N > 0) & ~apart, near), ((stages_N > 0) & apart, near.with_ends_apart())):
            if here.any():
                seconds, its = tied_gradients_s(job, strategies, word=word, layers=layers, placements=placements)
                slower = here & (seconds > found)
                found, tier = np.where(slower, seconds, found), np.where(slower, its, tier)
    return found, tier.astype(np.int8)


def pooled_jitter_fraction(pooled: PooledJob, strategies: Strategies, stages_PN: Ints) -> Floats:
    """Share of a step that all ranks wait for the slowest, over the nodes of all pools, shape (N,). [T-2]"""
    per_stage = strategies.world / strategies.pp
    nodes = np.zeros(len(strategies))
    for job, stages_N in zip(pooled.jobs, stages_PN, strict=True):
        nodes += stages_N * per_stage / job.cluster.gpus_per_node
    return straggling_fraction(strategies.world, nodes=nodes)
