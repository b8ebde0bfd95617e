"""The keys of torchtitan's configuration, in its sections: TOML up to 0.2, keyword arguments of Python classes from 0.3 on.

Read in torchtitan 0.2.2 (config/job_config.py) and 0.3.0 (config/configs.py, trainer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cost_models.frameworks.releases import precedes
from planner.export.spellings import Spelling

PYTHON_SINCE = "0.3"


def is_python(version: str) -> bool:
    """Whether a release is configured in Python."""
    return not precedes(version, PYTHON_SINCE)


@dataclass(frozen=True)
class Since:
    """A spelling with the releases that have it."""

    spelling: Spelling
    since: str = ""
    until: str = ""

    def holds(self, version: str) -> bool:
        """Whether a release has the key."""
        return not precedes(version, self.since) and (not self.until or precedes(version, self.until))


_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_BOOLEAN = {True: True, False: False}
_ALL: tuple[Since, ...] = (
    Since(Spelling("parallelism.tensor_parallel_degree", "tp")),
    Since(Spelling("parallelism.pipeline_parallel_degree", "pp")),
    Since(Spelling("parallelism.context_parallel_degree", "cp")),
    Since(Spelling("parallelism.expert_parallel_degree", "ep")),
    # With replicas alone there is nothing to reshard, so that zero 0 is the degrees and the default policy.
    Since(Spelling("parallelism.fsdp_reshard_after_forward", "zero", {0: "default", 2: "never", 3: "always"},
                   "torchtitan has replicas and FSDP2 (parallelism.fsdp_reshard_after_forward)")),
    Since(Spelling("parallelism.pipeline_parallel_schedule", "schedule", {
        "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
    }, "torch.distributed.pipelining has no such schedule", idle="1F1B")),
    Since(Spelling("parallelism.context_parallel_rotate_method", "cp_comm", {"allgather": "allgather", "p2p": "alltoall"},
                   "context_parallel_rotate_method knows allgather and alltoall, a ring exchange", idle="allgather"), until="0.3"),
    # These two are not in the wheel of 0.2.0.
    Since(Spelling("parallelism.expert_parallel_comm_backend", "moe_dispatcher", {"alltoall": "standard", "flex": "deepep"},
                   "expert_parallel_comm_backend knows standard and deepep", idle="standard"), since="0.2.1", until="0.3"),
    Since(Spelling("parallelism.pipeline_parallel_expert_parallel_overlap", "overlap.moe_all_to_all", _BOOLEAN, idle=False),
          since="0.2.1", until="0.3"),
    # The key moved to the section of the compiler, which rewrites the collectives.
    Since(Spelling("parallelism.enable_async_tensor_parallel", "overlap.tp_comm", _BOOLEAN, idle=False), until="0.3"),
    Since(Spelling("compile.enable_async_tensor_parallel", "overlap.tp_comm", _BOOLEAN, idle=False), since="0.3"),
    Since(Spelling("parallelism.enable_sequence_parallel", "sequence_parallel", _BOOLEAN, idle=True), since="0.3"),
    Since(Spelling("training.seq_len", "training.seq_length")),
    Since(Spelling("training.global_batch_size", "training.global_batch_size")),
    Since(Spelling("training.dtype", "training.param_dtype", _DTYPES, "training.dtype is float32 or bfloat16")),
    Since(Spelling("training.disable_cuda_graphs", "training.cuda_graphs", {True: False, False: True}), since="0.3"),
)  # fmt: skip


def spellings(version: str) -> tuple[Spelling, ...]:
    """The keys of a release that say one field each."""
    return tuple(each.spelling for each in _ALL if each.holds(version))


REPLICATE = "parallelism.data_parallel_replicate_degree"
SHARD = "parallelism.data_parallel_shard_degree"
EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"
LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
FIRST_LESS = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST_LESS = "parallelism.pipeline_parallel_last_stage_less_layers"
MODULES = "parallelism.module_fqns_per_model_part"
PIPELINE_MICRO_BATCH = "parallelism.pipeline_parallel_microbatch_size"
LOAD_BALANCER = "parallelism.context_parallel_load_balancer"
LOCAL_BATCH = "training.local_batch_size"
COMPUTE = "training.mixed_precision_param"
REDUCE = "training.mixed_precision_reduce"
CPU_OFFLOAD = "training.enable_cpu_offload"
COMPILE = "compile.enable"
COMPONENTS = "compile.components"
CHECKPOINT_MODE = "activation_checkpoint.mode"
CHECKPOINT_OPTION = "activation_checkpoint.selective_ac_option"
CONVERTERS = "model.converters"
FLOAT8_CONVERTER, MX_CONVERTER = "quantize.linear.float8", "quantize.linear.mx"
"""Names that components/quantization registers. Until 0.1 they were "float8" and "mx", as somebody's file may still say."""
FLOAT8_FILTER, MX_FILTER = "quantize.linear.float8.filter_fqns", "quantize.linear.mx.filter_fqns"
FLOAT8_RECIPE = "quantize.linear.float8.recipe_name"
FLOAT8_GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"
FLOAT8_SCALES = "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
MX_RECIPE = "quantize.linear.mx.recipe_name"
FLOAT8_FILTER = "quantize.linear.float8.filter_fqns"
ASYNC = "parallelism.enable_async_tensor_parallel"
OPTIMIZER = "optimizer.name"

OLDER: Mapping[str, str] = {
    "training.batch_size": LOCAL_BATCH, "training.compile": COMPILE, "training.data_parallel_degree": SHARD,
    "training.data_parallel_replicate_degree": REPLICATE, "training.data_parallel_shard_degree": SHARD,
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.enable_loss_parallel": "parallelism.enable_loss_parallel", "training.enable_async_tensor_parallel": ASYNC,
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree", "experimental.enable_async_tensor_parallel": ASYNC,
    "float8.enable_fsdp_float8_all_gather": FLOAT8_GATHER, "float8.precompute_float8_dynamic_scale_for_fsdp": FLOAT8_SCALES,
    "float8.recipe_name": FLOAT8_RECIPE, "float8.filter_fqns": FLOAT8_FILTER, "mx.recipe_name": MX_RECIPE,
}  # fmt: skip
"""Keys of torchtitan before 0.2 by today's: commits of 2024 and 2025, whose configurations are still in use."""
CONVERTERS_OLDER: Mapping[str, str] = {"quantize.linear.float8": "float8", "quantize.linear.mx": "mx"}
FLOAT8_ON: Final = "float8.enable_float8_linear"
"""A switch in the place of a converter, in 2024."""

HEAD: Mapping[bool, str] = {False: "output", True: "lm_head"}
"""What the output projection is called, by whether the release is configured in Python (models/llama3/model)."""
SEMI_SYNC: Mapping[str, str] = {"local-sgd": "local_sgd", "diloco": "diloco"}
"""fault_tolerance.semi_sync_method by sync.method."""
FAULT_TOLERANCE = "fault_tolerance"
CUSTOM_CONFIG = "job.custom_config_module"
MODULE = "plan_model"
STEPS = "plan_steps"
CONFIG = "plan_config"
