"""Bytes that a way of keeping replicas together holds beside the optimizer's own state. [M-40]

Outer momentum, errors that are fed back, copies of parameters: every byte follows from a rank's trained parameters.
"""

from __future__ import annotations

import numpy as np

from cost_models.memory.batch import Batch
from cost_models.replicas.powersgd import model_elements
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats

HOOK_BUCKET_BYTES = 25.0 * 2**20
"""Gradients of one call of a hook (bucket_cap_mb of DistributedDataParallel), of which a cast copy is held."""


def replica_state_bytes(batch: Batch, *, trained_KN: Floats) -> tuple[Floats, Floats]:
    """Bytes on the device and in host memory of one rank, shape (K, N) each. [M-40]

    DiLoCo: outer momentum and one fragment's pseudo-gradients on the device, the last synchronised parameters on the host (torchft
    local_sgd.py). Local SGD: the averages of all parameters beside them (torchft local_sgd.py, PyTorch model_averaging/utils.py).
    PowerSGD: its error, as large as the gradients, and both factors (PowerSGDState). 1-bit Adam: errors of a worker and of its part as
    a server (DeepSpeed onebit/adam.py); 0/1 Adam a momentum accumulator beside them. Gossip: the neighbours' average.
    """
    job, strategies, method = batch.job, batch.strategies, batch.job.method
    parameter, held = BYTES_PER[job.training.param_dtype], BYTES_PER[job.training.grad_dtype]
    kind, sync, none = method.compression.kind, method.sync, np.zeros_like(trained_KN)
    if method.is_local:
        # FSDP shards parameters at rest from what is called stage 2 here; torchft's buffers are sharded like them (DTensor).
        from_stage = 2 if batch.traits.zero2_shards_parameters else 3
        # torchft clones every parameter before it averages them all, and PyTorch packs them into one flat buffer.
        own_KN = trained_KN * parameter * np.where(strategies.zero >= from_stage, 1.0 / strategies.zero_shard_size, 1.0)
        if sync.method == "diloco":
            return own_KN * (1.0 + 1.0 / sync.fragments), own_KN
        return own_KN, none
    if sync.method == "gossip":
        return trained_KN * parameter, none
    if kind == "powersgd":
        return trained_KN * held + model_elements(job.model, method.compression.rank).sent * held, none
    if kind in ("onebit", "zero-one"):
        errors = 1.0 + 1.0 / strategies.dp_cp + (kind == "zero-one")
        return trained_KN * BYTES_PER["fp32"] * errors, none
    if kind in ("fp16", "bf16"):
        return none + HOOK_BUCKET_BYTES * 2.0 / held, none
    return none, none
