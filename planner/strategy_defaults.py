"""What a framework does where a strategy says nothing, beyond what `cost_models.runtimes` already knows.

These are choices of a strategy, not facts that move a cost by themselves. Each is reported in `assumed` when applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.specs.training import Framework
from cost_models.strategy import CpComm, MoeDispatcher, Recompute


@dataclass(frozen=True, slots=True)
class StrategyDefaults:
    """Defaults of one framework."""

    recompute: Recompute
    cp_comm: CpComm
    moe_dispatcher: MoeDispatcher = MoeDispatcher.ALLTOALL
    """Every framework's recipes use all-to-all, also Megatron's, whose parser defaults to allgather."""


DEFAULTS: Mapping[Framework, StrategyDefaults] = {
    # megatron/core/model_parallel_config.py: cp_comm_type None is p2p; recompute_granularity None.
    "megatron": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.P2P),
    "megatron-deepspeed": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.A2A),
    # sequence_parallel_size is Ulysses: all-to-all over heads.
    "deepspeed": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.A2A),
    # torchtitan/config: activation_checkpoint.mode "selective", context_parallel_rotate_method "allgather".
    "torchtitan": StrategyDefaults(recompute=Recompute.SELECTIVE, cp_comm=CpComm.ALLGATHER),
    # accelerate/parallelism_config.py: cp_comm_strategy "allgather".
    "fsdp": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.ALLGATHER),
    # nanotron/config/parallelism_config.py: recompute_layer False; ring attention.
    "nanotron": StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.P2P),
}
