"""What a framework does where a strategy says nothing and the answer depends on the rest of the strategy or on the cluster.

Defaults that depend on nothing are plain facts (`StrategyDefaults`). Each is reported in `assumed` when it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cost_models.frameworks import FrameworkFacts
from cost_models.job import Job
from cost_models.memory.expert_buffers import NVLINK_PEERS
from cost_models.strategies.fields import FlexBackend


def default_flex_backend(job: Job) -> FlexBackend:
    """DeepEP, the frameworks' default, but in NVLink domains larger than the nodes of 8 that its kernels know."""
    return FlexBackend.HYBRIDEP if job.cluster.nvlink_domain_gpus > NVLINK_PEERS else FlexBackend.DEEPEP


def default_zero(framework: FrameworkFacts, pp: int) -> int:
    """The ZeRO stage where none is given. A framework that keeps parameters gathered in a pipeline, whose layers would
    otherwise gather them for every micro-batch, has zero 2 there.
    """
    return 2 if pp > 1 and framework.keeps_parameters_in_pipelines else framework.default_zero


def reduces_each(framework: FrameworkFacts, *, zero: Any, pp: Any) -> Any:
    """Whether gradients are reduced for each micro-batch where `grad_sync` is not given; scalars or arrays.

    torch/distributed/pipelining/stage.py reduces FSDP's gradients behind a pipeline's last backward alone.
    """
    return (zero >= 2) & ~(np.asarray(pp > 1) & framework.keeps_parameters_in_pipelines)


def possible_overlaps(framework: FrameworkFacts, row: Mapping[str, Any]) -> dict[str, Any]:
    """Where each kind of overlap can exist at all, by flag; scalars or arrays, as `row` holds.

    Megatron switches stage-to-stage overlap off without virtual stages, and parameter gather needs sharded state. DeepSpeed
    gathers inside step() below stage 3 and overlaps nothing in pipelines.
    """
    replicas, zero = row["dp"] * row["cp"] > 1, row["zero"]
    piped = (row["pp"] > 1) & (not framework.overlaps_in_pipelines)
    return {
        "grad_reduce": replicas & (zero >= framework.reduces_in_backward_from) & (piped ^ True),
        "param_gather": replicas & (zero >= framework.gathers_in_forward_from),
        "tp_comm": row["tp"] > 1,
        "p2p": (row["pp"] > 1) & ((row["vpp"] > 1) | framework.overlaps_p2p_without_vpp),
        "moe_all_to_all": row["ep"] > 1,
    }
