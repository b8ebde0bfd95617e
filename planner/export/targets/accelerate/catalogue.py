"""Accelerate's keys as data.

Source: accelerate/commands/config/config_args.py (ClusterConfig, which refuses unknown keys at the top and takes any inside of its
parts), commands/launch.py and utils/launch.py (what becomes of them) of 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.export.spellings import Spelling
from planner.export.target import Alias

FILE: Final = "accelerate.yaml"
VERSIONS: Final = ("1.15",)
TYPE, MIXED, PROCESSES, MACHINES = "distributed_type", "mixed_precision", "num_processes", "num_machines"
FSDP: Final = "fsdp_config.fsdp_"
MESH: Final = "parallelism_config.parallelism_config_"
REPLICATED, SHARDED, CONTEXT, TRANSPORT = (
    f"{MESH}{part}" for part in ("dp_replicate_size", "dp_shard_size", "cp_size", "cp_comm_strategy")
)
ALONE: Final[Mapping[str, Any]] = {"tp_size": 1, "cp_backend": "torch", "sp_size": 1, "sp_backend": "deepspeed"}
"""The launcher reads each of these from a configuration that has any mesh."""
TRANSPORTS: Final = Spelling(
    TRANSPORT, "cp_comm", {"allgather": "allgather", "p2p": "alltoall"}, why="cp_comm_strategy is allgather or alltoall"
)
"""torch/distributed/tensor/experimental (set_rotate_method): alltoall passes keys and values round the ring."""
DYNAMO: Final = Spelling("dynamo_config.dynamo_backend", "training.compile", {True: "INDUCTOR", False: "NO"})
DEEPSPEED_FILE, ZERO_INIT = "deepspeed_config.deepspeed_config_file", "deepspeed_config.zero3_init_flag"
LAUNCHER: Final = "deepspeed_config.deepspeed_multinode_launcher"
TYPES: Final[Mapping[str, str]] = {"FSDP": "fsdp", "MULTI_GPU": "fsdp", "NO": "fsdp", "DEEPSPEED": "deepspeed"}
"""Frameworks by `distributed_type`."""
OLDER: Final[Mapping[str, str]] = {"dynamo_backend": "dynamo_config.dynamo_backend"}
"""Keys of Accelerate before 0.14 by today's (commands/config/config_args.py)."""
USUAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "dynamo_config.dynamo_mode": ("default",), "dynamo_config.dynamo_use_dynamic": (False,), "dynamo_config.dynamo_use_fullgraph": (True, False),
    "dynamo_config.dynamo_use_regional_compilation": (False,),
}  # fmt: skip
"""Settings of which only the usual value is modelled; another one stays unknown."""
WITHOUT_COST: Final = (
    "compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "gpu_ids", "machine_rank", "main_process_ip",
    "main_process_port", "main_training_function", "rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_use_cluster", "tpu_use_sudo",
    LAUNCHER, "deepspeed_config.zero3_save_16bit_model", ZERO_INIT,
)  # fmt: skip
BATCH, ACCUMULATION = "micro_batch_size", "gradient_accumulation_steps"
ALIASES: Final[Mapping[str, Alias]] = {
    f"{FSDP}sharding_strategy": Alias(f"{FSDP}reshard_after_forward", {True: "FULL_SHARD", False: "SHARD_GRAD_OP"}),
    "deepspeed_config.zero_stage": Alias("zero_optimization.stage"),
    "deepspeed_config.offload_optimizer_device": Alias("zero_optimization.offload_optimizer.device"),
    "deepspeed_config.offload_param_device": Alias("zero_optimization.offload_param.device"),
    f"deepspeed_config.{ACCUMULATION}": Alias(ACCUMULATION),
}  # fmt: skip
"""Keys of FSDP1 and of DeepSpeed's short form, which stands in Accelerate's own file."""
