"""The Trainer's arguments as data.

Source: transformers/training_args.py of 5.17 and 5.24 (TrainingArguments, _process_fsdp_args) and integrations/deepspeed.py
(HfTrainerDeepSpeedConfig, which compares its file with the arguments).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.export.hf.train_file import TRAINER
from planner.export.spellings import Spelling

FILE: Final = "training_args.json"
VERSIONS: Final = ("5.17", "5.24")
BATCH: Final = (Spelling("per_device_train_batch_size", "micro_batch_size"),)
ACCUMULATION: Final = "gradient_accumulation_steps"
FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config.", "deepspeed"
OFFLOAD: Final = "cpu_offload"
"""What `fsdp_config` calls Accelerate's `offload_params`."""
EACH: Final = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
CHECKPOINTING: Final = Spelling("activation_checkpointing", "recompute", {"none": False, "full": True})
"""The newer name of `gradient_checkpointing`, which both releases take."""
KERNELS: Final = ("use_liger_kernel", "liger_kernel_config")
FIXED: Final[Mapping[str, Any]] = {
    "output_dir": "out", "max_steps": 10, "learning_rate": 1e-5, "max_grad_norm": 1.0, "report_to": "none", "save_strategy": "no",
    "logging_strategy": "no", "disable_tqdm": True, "remove_unused_columns": False,
}  # fmt: skip
"""Arguments that no field of a plan is behind."""
WITHOUT_COST: Final = (
    *FIXED, "adam_beta1", "adam_beta2", "adam_epsilon", "bf16_full_eval", "data_seed", "dataloader_drop_last", "dataloader_num_workers",
    "dataloader_pin_memory", "ddp_timeout", "do_eval", "do_train", "eval_steps", "eval_strategy", "evaluation_strategy",
    "gradient_checkpointing_kwargs", "hub_model_id", "logging_dir", "logging_first_step", "logging_steps", "lr_scheduler_type",
    "num_train_epochs", "overwrite_output_dir", "per_device_eval_batch_size", "push_to_hub", "run_name", "save_steps", "save_total_limit",
    "seed", "tf32", "warmup_ratio", "warmup_steps", "weight_decay", "ddp_find_unused_parameters", "group_by_length",
)  # fmt: skip
ROWS: Final = (*BATCH, *TRAINER)
