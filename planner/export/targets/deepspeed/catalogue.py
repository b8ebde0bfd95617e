"""DeepSpeed's keys by field, as data; the writer and the reader both go by it.

Source: deepspeed/runtime/config.py, constants.py, zero/config.py, zero/offload_config.py, precision_config.py,
tensor_parallel/config.py, activation_checkpointing/config.py and module_inject/auto_ep_presets/base.py of 0.19.8.
"""

from __future__ import annotations

from typing import Any, Final

from cost_models.frameworks.deepspeed import GATHERED_ELEMENTS, LIVE_ELEMENTS, PREFETCH_ELEMENTS, REDUCE_BUCKET_ELEMENTS
from planner.export.quantities import Quantities
from planner.export.spellings import Spelling

FILE: Final = "ds_config.json"
VERSIONS: Final = ("0.17", "0.18", "0.19")
ACCUMULATION: Final = "gradient_accumulation_steps"
SUPPORT: Final = "zero_allow_untested_optimizer"
OPTIMIZER, OPTIMIZER_PARAMETERS = "optimizer.type", "optimizer.params"
EXPERTS: Final = "expert_parallel.enabled"
EXPERTS_SINCE: Final = "0.19.2"
"""deepspeed/module_inject/auto_ep.py, as in `cost_models.frameworks.deepspeed`."""
PREFETCH: Final = "zero_optimization.stage3_prefetch_bucket_size"
OPTIMIZER_DEVICE, OPTIMIZER_RATIO = (f"zero_optimization.offload_optimizer.{key}" for key in ("device", "ratio"))
PARAMETER_DEVICE: Final = "zero_optimization.offload_param.device"
PATHS: Final = ("zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path")
"""Where a node's drives are mounted, which no plan knows: written as in DeepSpeed's own examples, to be replaced."""
PIPELINES: Final = (
    "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write",
)
ZENFLOW: Final = "zero_optimization.zenflow"
ZENFLOW_SETTINGS: Final = {
    "topk_ratio": 0.1, "update_interval": 4, "select_strategy": "auto", "select_interval": "auto", "full_warm_up_rounds": 0,
    "overlap_step": True,
}  # fmt: skip
"""deepspeed/runtime/zenflow/zenflow_config.py; the ratio is its default, the interval that of DeepSpeed's example."""
CPU_CHECKPOINTS: Final = "activation_checkpointing.cpu_checkpointing"
INTERVAL, PARTITION, STAGES = (
    f"pipeline.{key}" for key in ("activation_checkpoint_interval", "partition", "stages")
)  # fmt: skip
PARTITION_METHOD: Final = "type:layer"
"""Parts with nearly equal numbers of modules whose class name holds "layer" (runtime/pipe/module.py), which are the script's
decoder layers alone; it is the split that the planner takes for DeepSpeed's own."""
MASTERS: Final = {"bf16": "bf16.bf16_master_weights_and_grads", "fp16": "fp16.fp16_master_weights_and_grads"}
STATES: Final = "bf16.bf16_optimizer_states"
MASTERS_SINCE: Final = "0.19"
"""The key is in precision_config.py of 0.19.8; which 0.18 brought it was not looked up, so that 0.18 is refused."""
GRADIENTS, REDUCTION = "data_types.grad_accum_dtype", "communication_data_type"
OPTIMIZERS: Final = {"adam": "AdamW", "sgd": "SGD", "sgd-momentum": "SGD", "lion": "Lion", "muon": "Muon"}
"""runtime/engine.py (_configure_basic_optimizer); other names are looked up in torch.optim."""
MOMENTUM: Final = "optimizer.params.momentum"
MOMENTA: Final = {"sgd-momentum": 0.9, "muon": 0.95}
"""Momentum that a file says of SGD, which has none by itself, and of Muon, whose default this is."""
SCATTER: Final = "zero_optimization.reduce_scatter"
"""Muon needs whole gradients, so that DeepSpeed refuses it beside scattered ones (runtime/zero/stage3.py)."""
ONEBIT: Final = {"onebit": ("OneBitAdam", "freeze_step"), "zero-one": ("ZeroOneAdam", "var_freeze_step")}
"""Optimizers that exchange signs, by compression.kind, with the parameter that says when they begin (runtime/fp16/onebit)."""
LOCAL_STEPS: Final = "local_step_clipper"
"""Longest interval of ZeroOneAdam between two exchanges; it doubles until then."""


def _shards(*stages: int) -> Any:
    return lambda q: q.peek("zero") in stages


def _splits(field: str) -> Any:
    return lambda q: q.peek(field) > 1


def _reduces(q: Quantities) -> bool:
    return bool(q.peek("zero") >= 1)


BATCH: Final = (
    Spelling("train_batch_size", "training.global_batch_size"),
    Spelling("train_micro_batch_size_per_gpu", "micro_batch_size"),
)
DEGREES: Final = (
    Spelling("tensor_parallel.autotp_size", "tp", when=_splits("tp")),
    Spelling("tensor_parallel.tp_overlap_comm", "overlap.tp_comm", when=_splits("tp")),
    Spelling("sequence_parallel_size", "cp", when=_splits("cp")),
    Spelling(STAGES, "pp", when=_splits("pp")),
    Spelling("expert_parallel.autoep_size", "ep", when=_splits("ep")),
)
ZERO: Final = (
    Spelling("zero_optimization.stage", "zero"),
    Spelling("zero_optimization.overlap_comm", "overlap.grad_reduce", when=_reduces),
    Spelling("zero_optimization.zero_quantized_weights", "zero_quantized_weights", when=lambda q: q.matters("zero_quantized_weights")),
    Spelling("zero_optimization.zero_quantized_gradients", "zero_quantized_gradients", when=lambda q: q.matters("zero_quantized_gradients")),
    Spelling("zero_optimization.zero_hpz_partition_size", "zero_param_shard_size", when=lambda q: q.matters("zero_param_shard_size")),
)  # fmt: skip
ROWS: Final = (*BATCH, *DEGREES, *ZERO)
FIXED: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("zero_optimization.reduce_bucket_size", int(REDUCE_BUCKET_ELEMENTS.value), _shards(1, 2, 3)),
    ("zero_optimization.allgather_bucket_size", int(5e8), _shards(1, 2)),
    ("zero_optimization.contiguous_gradients", True, _shards(1, 2, 3)),
    ("zero_optimization.allgather_partitions", True, _shards()),
    ("zero_optimization.reduce_scatter", True, lambda q: q.matters("zero_quantized_gradients")),
    ("zero_optimization.sub_group_size", int(1e9), _shards()),
    ("zero_optimization.round_robin_gradients", False, _shards()),
    ("prescale_gradients", False, _shards()),
    ("sparse_gradients", False, _shards()),
    ("communication_data_type", None, _shards()),
    ("compile.disable", True, _shards()),
    ("zero_optimization.stage3_max_live_parameters", int(LIVE_ELEMENTS.value), _shards(3)),
    ("zero_optimization.stage3_max_reuse_distance", int(LIVE_ELEMENTS.value), _shards(3)),
    ("zero_optimization.stage3_param_persistence_threshold", int(1e5), _shards(3)),
)
"""Settings that the planner takes at DeepSpeed's defaults, by key, value and plans; they are written so that one sees them. Another
value in somebody's file is not understood, since no field says it."""
OLDER: Final = {
    "bfloat16.enabled": "bf16.enabled",
    **{f"zero_optimization.{name}": f"zero_optimization.stage3_{name}" for name in (
        "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold",
        "gather_16bit_weights_on_model_save", "gather_fp16_weights_on_model_save",
    )},
}  # fmt: skip
"""Keys that mean the same: the older section of bf16 (runtime/constants.py, BFLOAT16_OLD), and the fields of zero/config.py, which are
taken by their own names as well as by their aliases."""
CPU_OFFLOADS: Final = {
    "zero_optimization.cpu_offload": OPTIMIZER_DEVICE,
    "zero_optimization.cpu_offload_params": PARAMETER_DEVICE,
}
"""Deprecated switches by the device that they set to the host (zero/config.py)."""
PREFETCHED: Final = {True: int(PREFETCH_ELEMENTS.value), False: 0}
"""Elements that are gathered ahead of use."""
assert LIVE_ELEMENTS.value + PREFETCH_ELEMENTS.value == GATHERED_ELEMENTS
WITHOUT_COST: Final = frozenset({
    "_comment", "comms_config", "bf16.loss_scale", "bf16.loss_scale_window", "bf16.initial_scale_power", "bf16.hysteresis", "bf16.min_loss_scale",
    "steps_per_print", "wall_clock_breakdown", "dump_state", "log_level", "memory_breakdown", "dataloader_drop_last", "csv_monitor",
    "tensorboard", "wandb", "comet", "monitor_config", "comms_logger", "flops_profiler", "checkpoint", "timers", "scheduler", "autotuning",
    "zero_force_ds_cpu_optimizer", "disable_python_gc", "vocabulary_size", "bf16.check_grad_overflow", "fp16.loss_scale", "fp16.loss_scale_window",
    "fp16.initial_scale_power", "fp16.hysteresis", "fp16.min_loss_scale", "fp16.auto_cast", "fp16.consecutive_hysteresis",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_param.pin_memory", "zero_optimization.ignore_unused_parameters",
    *PATHS, "gradient_clipping", SUPPORT, *(f"{OPTIMIZER_PARAMETERS}.{name}" for name in ("lr", "betas", "eps", "weight_decay", "bias_correction", "adam_w_mode")),
})  # fmt: skip
"""What changes neither time nor memory as they are modelled, or is a part of every step: reports, checkpoints, scales, clipping."""
