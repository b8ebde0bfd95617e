"""Replicas on several islands, or in groups that train by themselves: what crosses the slow boundary, and what a step waits for it.

Islands, or groups of replicas, tell each other gradients at every step, or parameters now and then. What happens inside one is priced
by itself (`replicas.groups`).                                                                                           [C-40] [C-46]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.constants import BACKWARD_USABLE
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.trained import trained_parameters
from cost_models.replicas.averaging import between_islands_s, exposed_per_step_s
from cost_models.replicas.groups import num_groups
from cost_models.specs.training import BYTES_PER
from cost_models.step.ddp_comm import DdpLinks, ddp_exposed_s
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.terms import Tier

FP8_BYTES = 1.0


@dataclass(frozen=True, eq=False)
class Outer:
    """What groups of replicas tell each other, shape (N,) each."""

    groups: Floats
    """Groups that take part; 1 where a strategy lies in one."""
    sync_s: Floats
    """Seconds of one synchronisation of all parameters, or of one step's gradients, whatever hides them."""
    exposed_s: Floats
    """Mean seconds that a step waits for them."""
    tier: Tier = Tier.NOMINAL


def outer(job: Job, strategies: Strategies, *, inner_s: Floats, forward_s: Floats, backward_s: Floats) -> Outer:
    """What the groups tell each other. [C-40] [C-46]

    Args:
        job: the whole job.
        strategies: shape (N,), on the whole cluster.
        inner_s: seconds of a step of one group by itself, jitter included.
        forward_s: seconds of the slowest stage's forward of one micro-batch.
        backward_s: seconds of its backward.
    """
    count = num_groups(job, strategies)
    if not job.method.is_local:
        return _every_step(job, strategies, count, forward_s=forward_s, backward_s=backward_s)
    sync = job.method.sync
    sync_s = _averaging_s(job, strategies, count)
    fragments = sync.fragments if sync.method == "diloco" else 1
    exposed = exposed_per_step_s(
        sync_s / fragments,
        step_s=inner_s,
        sync_every=sync.sync_every,
        fragments=fragments,
        delay_steps=sync.delay_steps,
    )
    return Outer(count, sync_s, exposed)


def averaged_bytes(job: Job) -> float:
    """Bytes of all parameters, or pseudo-gradients, as one synchronisation sends them. [C-40]"""
    fp8 = job.method.sync.quantize == "fp8"
    return _elements(job) * (FP8_BYTES if fp8 else BYTES_PER[job.training.param_dtype])


def copies_of_parameters(strategies: Strategies, count: Floats) -> Floats:
    """How many times one of `count` groups sends every parameter, shape (N,). [C-40]

    torchft forms a group of the ranks with the same number in all replica groups (manager.py, group_rank), so that ranks which hold the
    same parameters each send them. FSDP, which is stage 2 and 3 here, shards them.
    """
    ranks = strategies.dp_cp / count
    return np.where(strategies.zero >= 2, ranks / np.minimum(strategies.zero_shard_size, ranks), ranks)


def _elements(job: Job) -> float:
    """Parameters that are trained, of the whole model."""
    return float(trained_parameters(job.model, job.training).trainable)


def _averaging_s(job: Job, strategies: Strategies, count: Floats) -> Floats:
    """Seconds of one synchronisation of all parameters, shape (N,)."""
    islands = job.cluster.islands
    size: Floats | float = averaged_bytes(job)
    if islands is None:
        placement = groups(strategies, job.cluster).dp_cp
        return job.calibration.collective_s("all_reduce", size, placement=placement).seconds
    if job.framework.choices.replica_groups:
        size = size * copies_of_parameters(strategies, count)
    # Every fragment is a message of its own, with a latency of its own.
    parts = job.method.sync.fragments if job.method.sync.method == "diloco" else 1
    each = between_islands_s(
        size / parts, islands=count, link_bytes_per_s=islands.link_bytes_per_s, latency_s=islands.latency_s
    )
    return np.asarray(parts * each)


def _every_step(job: Job, strategies: Strategies, count: Floats, *, forward_s: Floats, backward_s: Floats) -> Outer:
    """Gradients, and what is sharded over the boundary, at every step. [C-46]

    Reductions and gathers inside an island and between islands use other links, so that each may be hidden behind all of a pass.
    """
    islands = job.cluster.islands
    assert islands is not None
    elements, training = _elements(job), job.training
    whole = between_islands_s(
        elements * BYTES_PER[training.grad_reduce_dtype],
        islands=count,
        link_bytes_per_s=islands.link_bytes_per_s,
        latency_s=islands.latency_s,
    )
    gathered = 0.5 * between_islands_s(
        elements * training.gather_bytes,
        islands=count,
        link_bytes_per_s=islands.link_bytes_per_s,
        latency_s=islands.latency_s,
    )
    # Inside an island a shard's group is cut where the boundary is; what the cut leaves to do is what crosses it.
    crosses = (strategies.zero >= 1) & (strategies.zero_shard_size > strategies.dp_cp / count)
    layerwise = is_fsdp(job, strategies)
    reduce = np.where(crosses, 0.5 * whole, whole)
    gather = np.where(crosses & ~layerwise, gathered, 0.0)
    own = DdpLinks(reduce, gather, np.zeros(len(strategies), np.int8))
    exposed = ddp_exposed_s(
        strategies, own, forward_s=forward_s, backward_s=backward_s, num_layers=job.model.num_layers
    )
    # Shards of layers that lie on several islands are gathered for every forward, and where they are freed behind it, for the backward.
    passes = gathered - BACKWARD_USABLE.value * forward_s, gathered - BACKWARD_USABLE.value * backward_s
    each = np.maximum(passes[0], 0.0) + np.where(strategies.zero >= 3, np.maximum(passes[1], 0.0), 0.0)
    exposed = exposed + np.where(crosses & layerwise, strategies.num_micro_batches * each, 0.0)
    return Outer(
        count, np.asarray(reduce + np.where(crosses, gathered, 0.0)), np.asarray(np.where(count > 1, exposed, 0.0))
    )


def with_outer(terms_s: Mapping[str, Floats], found: Outer) -> dict[str, Floats]:
    """The terms of a group's step, with what it waits for the other groups in `dp_comm`; jitter is left out."""
    rest = {name: value for name, value in terms_s.items() if name != "jitter"}
    return rest | {"dp_comm": rest["dp_comm"] + found.exposed_s}
