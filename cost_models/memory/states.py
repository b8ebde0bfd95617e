"""Parameters, main copies, gradients and optimizer states per rank, under ZeRO 0-3 and hybrid sharding.

Dense parameters are shared by dp*cp ranks, experts by edp ranks; `zero_shard_size` of the former (and the like share of
the latter) hold one copy of what is sharded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.memory.traits import MemoryTraits
from cost_models.specs.training import BYTES_PER, Training
from cost_models.strategy import Floats, Strategies

_BLOCKWISE_SCALE_BYTES = 4.0 / 256.0
"""bitsandbytes' 8-bit optimizers keep one fp32 scale per 256 elements."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of a rank before sharding, shape (N,) each, for one sharding group."""

    parameters: Floats
    main: Floats
    gradients: Floats
    optimizer: Floats
    step: Floats
    """Gradients cast for the optimizer step, and its temporaries."""
    host: Floats


def optimizer_state_bytes(training: Training, traits: MemoryTraits) -> float:
    """Bytes of optimizer moments per owned parameter. [M-4]"""
    if training.optimizer == "adam-8bit":
        return 2.0 * (1.0 + _BLOCKWISE_SCALE_BYTES)
    moments = 2 if training.optimizer == "adam" else traits.sgd_states
    return moments * BYTES_PER[training.optimizer_state_dtype]


def expert_shard(strategies: Strategies) -> Floats:
    """Ranks that share one copy of sharded expert state: edp by the replicas that zero_shard_size leaves."""
    replicas = strategies.dp_cp / strategies.zero_shard_size
    return np.maximum(strategies.expert_dp / replicas, 1.0)


def state_bytes(job: Job, traits: MemoryTraits, strategies: Strategies, *, shard: Floats) -> StateBytes:
    """Bytes per parameter where `shard` ranks share the sharded state. [M-1, M-2, M-3, M-4, M-11]"""
    training, zero = job.training, strategies.zero
    owned = np.where(zero >= 1, 1.0 / shard, 1.0)
    parameters_owned = np.where(zero >= (2 if traits.zero2_shards_parameters else 3), owned, 1.0)
    gradients_owned = np.where(zero >= 2, owned, 1.0)
    secondary = (zero >= 3) & (strategies.zero_param_shard_size < strategies.zero_shard_size)
    parameter = BYTES_PER[training.param_dtype]
    moments = optimizer_state_bytes(training, traits)
    main = BYTES_PER[training.main_param_dtype]
    gradient = BYTES_PER[training.grad_dtype]

    cast = main if traits.casts_gradients_for_step and gradient < main else 0.0

    moved = strategies.offload_optimizer_fraction
    everything = strategies.offload_parameters & traits.zero2_shards_parameters
    moved = np.where(everything, 1.0, moved)  # FSDP's offload takes parameters, gradients and optimizer together
    away = strategies.offload_parameters.astype(np.float64)
    gradients_moved = np.where(zero >= 2, moved, 0.0) if traits.offload_takes_gradients else np.where(everything, 1.0, 0.0)
    stay = 1.0 - moved
    # A secondary partition (hpZ) keeps a compute-type copy shared by fewer ranks.
    hpz = np.where(secondary, training.compute_bytes / strategies.zero_param_shard_size, 0.0)
    return StateBytes(
        parameters=parameter * parameters_owned * (1.0 - away) + hpz,
        main=main * owned * stay,
        gradients=gradient * gradients_owned * (1.0 - gradients_moved),
        optimizer=moments * owned * stay,
        step=(cast + traits.optimizer_copies * BYTES_PER[training.optimizer_state_dtype]) * owned * stay,
        host=(main + moments) * owned * moved + parameter * parameters_owned * away + gradient * gradients_owned * gradients_moved,
    )
