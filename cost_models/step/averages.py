"""Seconds in which a moving average of the weights follows them, once a step. [F-37]"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks.averages import AVERAGES
from cost_models.hardware.groups import ranks_per_node
from cost_models.job import Job
from cost_models.memory.averages import averaged_bytes, lies_on_host
from cost_models.strategies.strategy import Floats, Strategies

PASSES = 3.0
"""The average and the weight are read, and the average is written."""


def average_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Exposed seconds of one update of the average, shape of `dense`; 0 where there is none. [F-37]

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        dense: trained parameters that one rank of the stage holds before sharding, routed experts left out.
        expert: its trained routed experts.
    """
    if job.training.ema is None:
        return np.zeros(np.shape(dense))
    held = averaged_bytes(job, strategies, dense=dense, expert=expert)
    away, prices = lies_on_host(job, strategies), job.calibration
    on_gpu_s = PASSES * held / prices.memory_bytes_per_s_effective.value
    processors_s = PASSES * held * ranks_per_node(job.cluster, strategies) / prices.host_adam_bytes_per_s.value
    # Parameters that lie in host memory anyway need not go there.
    down_s = np.where(strategies.offload_parameters, 0.0, held / prices.host_link_bytes_per_s.value)
    hidden = AVERAGES[job.training.framework].host_in_background & ~strategies.offload_parameters
    return np.where(away, np.where(hidden, 0.0, down_s + processors_s), on_gpu_s)
