"""The step time of a batch of strategies as named terms that sum to it.

    step = m * t_slowest + bubble + exposed sends + once-a-step communication + optimizer + jitter          [T-1]

t_slowest is the time per micro-batch of the slowest stage (`cost_models.step.stages`). Array suffixes: J layer kinds; arrays
of shape (N,) over strategies have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from cost_models.constants import GPU_SPREAD, STRAGGLING
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS
from cost_models.layers.packed_matrices import BUCKET_AXES, padding, pads_buffers
from cost_models.replicas.groups import group_job, has_groups, within_group
from cost_models.step.ddp_comm import DDP_AXES, DdpLinks, ddp_links_s, ddp_s, tied_gradients_s
from cost_models.step.exchange import exchange_s
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.islands import Outer, outer, with_outer
from cost_models.step.offload import offload_s, offload_tier
from cost_models.step.optimizer import optimizer_s
from cost_models.step.pipeline import exposed_sends_s, hop_s
from cost_models.step.stage_costs import Tables
from cost_models.step.stage_parameters import dense_by_slot, expert_by_slot, trained_rank_parameters
from cost_models.step.stages import Stages, stages
from cost_models.strategies.kept_columns import kept_columns
from cost_models.strategies.strategy import Codes, Floats, Strategies
from cost_models.strategies.tensors import combinations_of, levels_of, summed
from cost_models.terms import TIME_NAMES, Tier

STAGE_END_TERMS = ("dp_comm", "optimizer", "offload")
"""What every stage does by itself once a step; the pipeline waits for the stage that takes longest."""

_HELD_AXES = ("layout", *DDP_AXES)
"""What the parameters of the fullest stage depend on, and how long they take to reduce and gather."""


@dataclass(frozen=True, eq=False)
class StepTime:
    """Seconds per step, shape (N,) each."""

    terms_s: dict[str, Floats]
    """By name of TIME_NAMES, in that order."""
    tiers: dict[str, Codes]
    total_s: Floats
    uncorrected: StepTime | None = field(default=None, kw_only=True)
    """The step as the models alone price it, where corrections change it."""

    @property
    def modelled(self) -> StepTime:
        """The step without corrections."""
        return self.uncorrected or self


def step_time(job: Job, strategies: Strategies, *, tables: Tables | None = None) -> StepTime:
    """Seconds of one step and of each of its terms, shape (N,) each. [T-1]

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        tables: costs of layers and ends of these very strategies, where the caller has them; else they are computed.
    """
    if has_groups(job):
        modelled = _of_groups(job, strategies)
    else:
        work = stages(job, strategies, tables=tables)
        once, once_tiers = _once_a_step(job, strategies, work)
        terms = {**work.terms_s, **once, "dp_comm": work.terms_s["dp_comm"] + once["dp_comm"]}
        ordered, total_s = with_jitter(terms, jitter_fraction(job, strategies))
        modelled = StepTime(ordered, term_tiers(job, work.tiers, once_tiers, ordered), total_s)
    if not job.corrections.changes_time:
        return modelled
    terms, total_s = job.corrections.of_time(ordered)
    return StepTime(terms, modelled.tiers, total_s, uncorrected=modelled)


def groups_outer(job: Job, strategies: Strategies) -> Outer:
    """What the groups of replicas tell each other at a step, shape (N,). [C-40] [C-46]"""
    return _inner(job, strategies)[1]


def _inner(job: Job, strategies: Strategies) -> tuple[StepTime, Outer]:
    """The step of one group by itself, and what the groups tell each other."""
    # Tables of the whole job do not serve here: placements of a group's ranks are those of a smaller cluster.
    own, rows = group_job(job), within_group(job, strategies)
    work = stages(own, rows)
    once, once_tiers = _once_a_step(own, rows, work)
    terms = {**work.terms_s, **once, "dp_comm": work.terms_s["dp_comm"] + once["dp_comm"]}
    ordered, total_s = with_jitter(terms, jitter_fraction(own, rows))
    step = StepTime(ordered, term_tiers(own, work.tiers, once_tiers, ordered), total_s)
    return step, outer(job, strategies, inner_s=total_s, forward_s=work.forward_s, backward_s=work.backward_s)


def _of_groups(job: Job, strategies: Strategies) -> StepTime:
    """The step of groups of replicas. [C-40] [C-46]"""
    step, told = _inner(job, strategies)
    # Between two synchronisations a group waits for its own slowest rank alone, but at each of them for the slowest group.
    ordered, total_s = with_jitter(with_outer(step.terms_s, told), jitter_fraction(job, strategies))
    waits = np.where(told.exposed_s > 0, told.tier, 0).astype(np.int8)
    tiers = step.tiers | {"dp_comm": np.maximum(step.tiers["dp_comm"], waits)}
    return StepTime(ordered, tiers, total_s)


def with_jitter(terms: dict[str, Floats], fraction: Floats) -> tuple[dict[str, Floats], Floats]:
    """All terms by name in the order of TIME_NAMES, jitter as this fraction of the others, and their sum, seconds."""
    # The terms are added one by one in a fixed order: summing them along an axis would let NumPy choose pairwise
    # addition for some batch sizes, and a strategy's total would then depend on the batch it stands in (see
    # `tensors.summed`).
    others_s = summed(terms.values())
    terms = terms | {"jitter": others_s * fraction}
    return {name: terms[name] for name in TIME_NAMES}, others_s + terms["jitter"]


def jitter_fraction(job: Job, strategies: Strategies) -> Floats:
    """Share of a step that all ranks spend waiting for the slowest one, 0...1, shape (N,). [T-2]

        sigma * E[max of n standard normals] + per doubling of nodes

    The speeds of n GPUs of one kind differ with a standard deviation of sigma, and everybody waits for the slowest GPU. The
    second part stands for what networks and operating systems add as nodes are added.
    """
    return straggling_fraction(strategies.world, nodes=strategies.world / job.cluster.gpus_per_node)


def straggling_fraction(world: Floats, *, nodes: Floats) -> Floats:
    """Share of a step lost to the slowest rank, from the GPUs (`world`) and the nodes in use, shape (N,). [T-2]"""
    levels, inverse = levels_of(world)
    slowest = np.array([_expected_maximum(n) for n in levels.tolist()])[inverse]
    return np.asarray(GPU_SPREAD.value * slowest + STRAGGLING.value * np.log2(np.maximum(nodes, 1.0)))


@lru_cache(maxsize=4096)
def _expected_maximum(n: float) -> float:
    """Expected largest of n standard normals, in standard deviations; Blom's approximation (1958)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0


def _once_a_step(job: Job, strategies: Strategies, work: Stages) -> tuple[dict[str, Floats], dict[str, Codes]]:
    """Seconds and tiers of what happens once a step, taken on the stage that holds the most parameters."""
    pads = pads_buffers(job)
    cases = combinations_of(strategies, tuple(dict.fromkeys((*_HELD_AXES, *BUCKET_AXES))) if pads else _HELD_AXES)
    held = trained_rank_parameters(job, cases.rows)
    # All stages finish a step together, so the stage with the most parameters sets the pace of whatever grows
    # with them. It need not be the stage that is slowest in computing; dense and expert maxima are taken apart,
    # an upper bound where two stages hold them.
    dense_KN, expert_KN = dense_by_slot(held, cases.rows), expert_by_slot(held, cases.rows)
    dense, expert = dense_KN.max(axis=0), expert_KN.max(axis=0)
    sent, sent_expert = dense, expert
    if pads:  # padding travels with the rest
        more_KN, more_expert_KN = padding(job, cases.rows)
        sent, sent_expert = (dense_KN + more_KN).max(axis=0), (expert_KN + more_expert_KN).max(axis=0)
    links = DdpLinks(
        *kept_columns(
            job,
            "whole buffers",
            cases.rows,
            DDP_AXES,
            lambda rows, dense, expert: ddp_links_s(job, rows, dense=dense, expert=expert).columns,
            also=[sent, sent_expert],
        )
    )
    return once_a_step(
        job,
        strategies,
        dense=cases.spread(dense),
        expert=cases.spread(expert),
        links=links.take(cases.inverse),
        forward_s=work.forward_s,
        backward_s=work.backward_s,
        layers=work.slowest_layers_JN.sum(axis=0),
        word=work.held.word,
    )


def once_a_step(
    job: Job,
    strategies: Strategies,
    *,
    dense: Floats,
    expert: Floats,
    forward_s: Floats,
    backward_s: Floats,
    layers: Floats,
    word: Floats,
    links: DdpLinks | None = None,
) -> tuple[dict[str, Floats], dict[str, Codes]]:
    """Seconds of the terms that occur once a step, by name and of shape (N,), and their tiers.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of the fullest stage holds.
        expert: routed-expert parameters that one rank of the fullest stage holds.
        forward_s: seconds of the slowest stage's forward of one micro-batch.
        backward_s: seconds of its backward.
        layers: decoder layers of the slowest stage.
        word: elements of the embedding on one rank that a tied output projection shares.
        links: link seconds of these parameters, as in `stage_end_s`.
    """
    ends, reduced = stage_end_s(
        job, strategies, dense=dense, expert=expert, forward_s=forward_s, backward_s=backward_s, links=links
    )
    tied, tied_tier = tied_gradients_s(
        job, strategies, word=word, layers=layers, placements=groups(strategies, job.cluster)
    )
    if (strategies.pp > 1).any():
        hop, hop_tier = hop_s(job, strategies)
        sends = exposed_sends_s(strategies, hop=hop, interference=job.calibration.beside["send_recv"].lost_fraction)
    else:
        sends, hop_tier = np.zeros(len(strategies)), np.zeros(len(strategies), np.int8)
    # The order decides the last bits of sums over the terms.
    terms = {"pp_comm": sends, "dp_comm": ends["dp_comm"], "tied_embedding_comm": tied, **ends}
    tiers = {"dp_comm": reduced, "tied_embedding_comm": tied_tier, "pp_comm": hop_tier}
    return terms, tiers | {"offload": offload_tier(job, strategies)}


def stage_end_s(
    job: Job,
    strategies: Strategies,
    *,
    dense: Floats,
    expert: Floats,
    forward_s: Floats,
    backward_s: Floats,
    links: DdpLinks | None = None,
) -> tuple[dict[str, Floats], Codes]:
    """Seconds of what a stage does by itself once a step, by STAGE_END_TERMS, and the tier of its reduction.

    Args:
        job: model, cluster, training and prices of the stage's pool.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of the stage holds.
        expert: routed-expert parameters that it holds.
        forward_s: seconds of the slowest stage's forward of one micro-batch: a faster stage waits for it, so it hides as much.
        backward_s: seconds of its backward.
        links: link seconds of these parameters, where the caller has them; else they are computed.
    """
    ddp = ddp_s(job, strategies, dense=dense, expert=expert, forward_s=forward_s, backward_s=backward_s, links=links)
    if not job.method.is_plain and not job.method.is_local:
        reduced = links or ddp_links_s(job, strategies, dense=dense, expert=expert)
        ddp = exchange_s(
            job, strategies, elements=dense + expert, links=reduced, forward_s=forward_s, backward_s=backward_s
        )
    # Where parameters are sharded layer by layer, the stages' own terms already hold all data-parallel traffic.
    whole = ~is_fsdp(job, strategies)
    terms = {
        "dp_comm": np.where(whole, ddp.exposed, 0.0),
        "optimizer": optimizer_s(job, strategies, dense=dense, expert=expert),
        "offload": offload_s(job, strategies, dense=dense, expert=expert, forward_s=forward_s, backward_s=backward_s),
    }
    return terms, np.where(whole, ddp.tier, 0).astype(np.int8)


def term_tiers(job: Job, work: dict[str, Codes], once: dict[str, Codes], terms: dict[str, Floats]) -> dict[str, Codes]:
    """Tier of every term, by name, from those of the stages' work and of what happens once a step.

    A term that takes no time counts as measured; offload is the exception.
    """
    n = len(terms["gemm"])
    bandwidth = np.full(n, job.calibration.memory_bytes_per_s_effective.tier, np.int8)
    nominal = np.full(n, Tier.NOMINAL, np.int8)
    tiers: dict[str, Codes] = {**work, **once}
    tiers["recompute"] = _worst(tiers, ("gemm", "attention", "elementwise", "tp_comm"))
    tiers |= dict.fromkeys(("embedding", "loss", "grad_accumulation", "optimizer"), bandwidth)
    # A bubble is other stages' time, and thus as well known as the least known part of a layer.
    tiers["pp_bubble"] = _worst(tiers, LAYER_PARTS)
    tiers["dp_comm"] = np.maximum(work["dp_comm"], once["dp_comm"])
    tiers["jitter"] = nominal
    # Whether offloaded traffic hides completely depends on the assumed rate of the host link, so that even an offload term
    # of no seconds is known no better than that rate.
    return {name: tiers[name] * ((terms[name] > 0) | (name == "offload")) for name in TIME_NAMES}


def _worst(tiers: dict[str, Codes], names: tuple[str, ...]) -> Codes:
    worst = tiers[names[0]]
    for name in names[1:]:
        worst = np.maximum(worst, tiers[name])
    return worst
