"""What lies on a node's NVMe drives instead of in its host's memory (ZeRO-Infinity), and the buffers that it passes through. [M-24]

Array suffixes: K slots, N strategies.
"""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.memory.constants import HOST_BUFFER_RATIO
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.fields import OffloadDevice
from cost_models.strategies.strategy import Bools, Floats, Strategies

IN_MEMORY = 1e9
"""Parameters of a rank that stay in host memory: zero_optimization.offload_param.max_in_cpu default."""
SUB_GROUP = 1e9
"""Most parameters that are updated at a time: zero_optimization.sub_group_size default."""
STATE_BUFFERS = 4.0
"""Buffers of the largest group, of one fp32 number a parameter each: offload_optimizer.buffer_count default."""
PARAMETER_BUFFERS = 5e8
"""Elements of the buffers for parameters: offload_param.buffer_count 5 times buffer_size 1e8, the defaults."""


def beyond_memory(strategies: Strategies, owned: Floats) -> Floats:
    """Parameters of a rank that lie on drives, in the shape of `owned`, which are those that it owns."""
    return np.where(_parameters_there(strategies), np.maximum(owned - IN_MEMORY, 0.0), 0.0)


def _parameters_there(strategies: Strategies) -> Bools:
    return np.asarray((strategies.offload_parameter_device == OffloadDevice.NVME) & strategies.offload_parameters)


def uses_drives(strategies: Strategies) -> bool:
    """Whether any strategy of the batch may keep something on drives."""
    return strategies.uses("offload_optimizer_device") or strategies.uses("offload_parameter_device")


def on_drives(job: Job, strategies: Strategies, *, owned_KN: Floats, state_bytes: float) -> tuple[Floats, Floats]:
    """Bytes of a rank on drives, and by how much they lower what it keeps in host memory, shape (K, N) each. [M-24]

    Args:
        job: whose types count.
        strategies: shape (N,).
        owned_KN: parameters that a rank owns of every slot's stage.
        state_bytes: bytes of main parameter and moments of each.
    """
    training = job.training
    moved_KN = owned_KN * np.where(
        strategies.offload_optimizer_device == OffloadDevice.NVME, strategies.offload_optimizer_fraction, 0.0
    )
    # What lies on drives passes through buffers that are allocated once and for all, whatever is in them.
    main = BYTES_PER[training.main_param_dtype] or BYTES_PER[training.param_dtype]
    state_KN = moved_KN * state_bytes
    beyond_KN = beyond_memory(strategies, owned_KN) * BYTES_PER[training.param_dtype]
    parameters = _parameters_there(strategies)
    buffers_KN = STATE_BUFFERS * main * np.minimum(moved_KN, SUB_GROUP)
    buffers_KN = buffers_KN + np.where(parameters, PARAMETER_BUFFERS * BYTES_PER[training.param_dtype], 0.0)
    drives_KN = state_KN + beyond_KN
    return drives_KN, HOST_BUFFER_RATIO.value * drives_KN - buffers_KN
