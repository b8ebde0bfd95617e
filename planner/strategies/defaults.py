"""What a framework does where a strategy says nothing, beyond what `cost_models.frameworks.facts` already knows.

These are choices of a strategy, not facts that move a cost by themselves. Each is reported in `assumed` when applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.frameworks.facts import FrameworkFacts
from cost_models.job import Job
from cost_models.memory.expert_buffers import NVLINK_PEERS
from cost_models.specs.training import Framework
from cost_models.strategies.strategy import CpComm, FlexBackend, MoeDispatcher, Recompute


@dataclass(frozen=True, slots=True)
class StrategyDefaults:
    """Defaults of one framework."""

    recompute: Recompute
    cp_comm: CpComm
    moe_dispatcher: MoeDispatcher = MoeDispatcher.ALLTOALL
    """Every framework's recipes use all-to-all, also Megatron's, whose parser defaults to allgather."""
    recompute_modes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    """Modes a search tries."""
    recompute_counts: bool = False
    """`full` can be limited to some layers of each chunk (block)."""
    any_split: bool = False
    """Any layers-per-stage list can be spelled."""
    expert_parallel: bool = True
    sequence_parallel_optional: bool = True
    """Tensor parallelism without sequence parallelism is worth trying."""


_ALL_MODES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)

STRATEGY_DEFAULTS: Mapping[Framework, StrategyDefaults] = {
    # megatron/core/model_parallel_config.py: cp_comm_type None is p2p; recompute_granularity None.
    "megatron": StrategyDefaults(
        recompute=Recompute.NONE,
        cp_comm=CpComm.P2P,
        recompute_modes=_ALL_MODES,
        recompute_counts=True,
        any_split=True,
    ),
    "megatron-deepspeed": StrategyDefaults(
        recompute=Recompute.NONE, cp_comm=CpComm.A2A, sequence_parallel_optional=False
    ),
    # sequence_parallel_size is Ulysses: all-to-all over heads.
    "deepspeed": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.A2A, sequence_parallel_optional=False),
    # torchtitan/config: activation_checkpoint.mode "selective", context_parallel_rotate_method "allgather".
    "torchtitan": StrategyDefaults(
        recompute=Recompute.SELECTIVE,
        cp_comm=CpComm.ALLGATHER,
        recompute_modes=_ALL_MODES,
        any_split=True,
    ),
    # accelerate/parallelism_config.py: cp_comm_strategy "allgather".
    "fsdp": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.ALLGATHER),
    # nanotron/config/parallelism_config.py: recompute_layer False; ring attention.
    "nanotron": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.P2P),
}


def default_flex_backend(job: Job) -> FlexBackend:
    """DeepEP, the frameworks' default, but in NVLink domains larger than the nodes of 8 that its kernels know."""
    return FlexBackend.HYBRIDEP if job.cluster.nvlink_domain_gpus > NVLINK_PEERS else FlexBackend.DEEPEP


def default_zero(framework: FrameworkFacts, pp: int) -> int:
    """The ZeRO stage where none is given: torchtitan keeps parameters gathered in a pipeline, whose layers would otherwise
    gather them for every micro-batch.

    Source: torchtitan/distributed/fsdp.py (get_fsdp_reshard_after_forward_policy); models/llama3/infra/parallelize.py in 0.1
    and 0.2.
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
        "p2p": (row["pp"] > 1) & ((row["vpp"] > 1) | (framework.state_layout != "megatron")),
        "moe_all_to_all": row["ep"] > 1,
    }
