"""Bytes of a moving average of the weights, which lies as the parameters do: whole, or in their shards. [M-56]"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import memory_traits
from cost_models.frameworks.averages import AVERAGES
from cost_models.job import Job
from cost_models.memory.batch import NOTHING
from cost_models.memory.constants import HOST_BUFFER_RATIO
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Bools, Floats, Strategies


def averaged_bytes(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Bytes that a rank averages of these trained parameters, which it holds before data-parallel sharding; shape of `dense`. [M-56]"""
    sharded = is_sharded(job, strategies)
    held = dense / np.where(sharded, strategies.zero_shard_size, 1.0)
    held = held + expert / np.where(sharded, strategies.expert_shard_size, 1.0)
    return np.asarray(held * BYTES_PER[job.training.param_dtype])


def is_sharded(job: Job, strategies: Strategies) -> Bools:
    """Whether ranks keep the average of their own shards, as they keep the parameters between steps; shape (N,)."""
    return np.asarray(strategies.zero >= (2 if memory_traits(job.training).zero2_shards_parameters else 3))


def lies_on_host(job: Job, strategies: Strategies) -> Bools:
    """Whether the average lies in host memory: where it was asked to, or where the parameters lie there; shape (N,)."""
    assert job.training.ema is not None
    return np.asarray(strategies.offload_parameters | (job.training.ema.device == "cpu"))


def average_bytes(job: Job, strategies: Strategies, *, dense_KN: Floats, expert_KN: Floats) -> tuple[Floats, Floats]:
    """Bytes of the average on the GPU and in host memory, shape (K, N) each. [M-56]

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        dense_KN: trained parameters of every slot's stage on a rank before sharding, routed experts left out.
        expert_KN: trained routed experts.
    """
    if job.training.ema is None:
        return NOTHING, NOTHING
    held_KN = averaged_bytes(job, strategies, dense=dense_KN, expert=expert_KN)
    away = lies_on_host(job, strategies)
    support = AVERAGES[job.training.framework]
    # The buffer is made at the first update and never freed; parameters in host memory need none.
    buffered = support.host_in_background & away & ~strategies.offload_parameters
    return np.where(away & ~buffered, 0.0, held_KN), np.where(away, HOST_BUFFER_RATIO.value * held_KN, 0.0)
