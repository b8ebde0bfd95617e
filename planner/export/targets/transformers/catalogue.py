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
    "dataloader_persistent_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "ddp_backend", "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers", "ddp_find_unused_parameters", "ddp_timeout", "do_eval", "do_predict", "do_train", "eval_accumulation_steps",
    "eval_delay", "eval_do_concat_batches", "eval_on_start", "eval_steps", "eval_strategy", "eval_use_gather_object", "evaluation_strategy",
    "fp16_full_eval", "full_determinism", "gradient_checkpointing_kwargs", "greater_is_better", "group_by_length",
    "group_by_modality_length", "hub_always_push", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_token", "ignore_data_skip",
    "include_for_metrics", "include_inputs_for_metrics", "include_num_input_tokens_seen", "include_tokens_per_second",
    "label_names", "label_smoothing_factor", "lazy_preprocess", "length_column_name", "load_best_model_at_end", "local_rank", "log_level",
    "log_level_replica", "log_on_each_node", "logging_dir", "logging_first_step", "logging_nan_inf_filter", "logging_steps",
    "lr_scheduler_kwargs", "lr_scheduler_type", "metric_for_best_model", "num_train_epochs", "overwrite_output_dir", "past_index",
    "per_device_eval_batch_size", "push_to_hub", "ray_scope", "restore_callback_states_from_checkpoint", "resume_from_checkpoint", "run_name",
    "save_on_each_node", "save_only_model", "save_safetensors", "save_steps", "save_total_limit", "seed", "skip_memory_metrics", "tf32",
    "trust_remote_code", "use_legacy_prediction_loop", "warmup_ratio", "warmup_steps", "weight_decay",
)  # fmt: skip
OF_DATA: Final = (
    "buffer_size", "data_path", "dataset", "dataset_dir", "eval_dataset", "image_folder", "max_eval_samples", "max_samples",
    "max_train_samples", "media_dir", "mix_strategy", "overwrite_cache", "plot_loss", "preprocessing_num_workers", "template",
    "tokenized_path", "tokenizer_name", "train_file", "use_fast_tokenizer", "val_size", "validation_file",
)  # fmt: skip
"""Arguments of training scripts around the Trainer, and of LLaMA-Factory, on data and reports."""
SAYS_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "stage": ("sft", "pt"), "finetuning_type": ("full",), "deepspeed": (None, ""), "fsdp": (None, "", ()), "optim_args": (None,),
    "adafactor": (False,), "auto_find_batch_size": (False,), "average_tokens_across_devices": (False,), "batch_eval_metrics": (False,),
    "fp16_backend": ("auto",), "fp16_opt_level": ("O1",), "half_precision_backend": ("auto",), "jit_mode_eval": (False,), "mp_parameters": ("",),
    "neftune_noise_alpha": (None,), "no_cuda": (False,), "optim_target_modules": (None,), "prediction_loss_only": (False,),
    "torch_compile_backend": (None, "inductor"), "torch_compile_mode": (None, "default"), "torch_empty_cache_steps": (None,),
    "torchdynamo": (None,), "tp_size": (0, 1), "tpu_num_cores": (None,), "tpu_metrics_debug": (False,), "use_cpu": (False,),
    "use_ipex": (False,), "use_mps_device": (False,), "debug": ((), ""), "fsdp_min_num_params": (0,), "model_init_kwargs": (None,),
    "liger_kernel_config": (None,), "split_batches": (None, False), "dispatch_batches": (None,), "pure_bf16": (False,), "flash_attn": ("auto",),
    "fsdp_transformer_layer_cls_to_wrap": (None,), "quantization_bit": (None,), "per_gpu_train_batch_size": (None,),
    "per_gpu_eval_batch_size": (None,), "fsdp_config.xla": (False,), "fsdp_config.xla_fsdp_v2": (False,),
    "fsdp_config.xla_fsdp_grad_ckpt": (False,), "accelerator_config.split_batches": (False,), "accelerator_config.dispatch_batches": (None,),
    "accelerator_config.even_batches": (True, False), "accelerator_config.use_seedable_sampler": (True, False),
    "accelerator_config.non_blocking": (True, False), "accelerator_config.gradient_accumulation_kwargs": (None,), EACH: (None,),
}  # fmt: skip
"""Arguments of which only the value that changes nothing is modelled; another one stays unknown."""
ATTENTIONS: Final[Mapping[str, str]] = {
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "sdpa": "sdpa",
    "disabled": "eager",
}
"""LLaMA-Factory's `flash_attn` by transformers' `attn_implementation`."""
ADAPTED, BITS, PURE = "finetuning_type", "quantization_bit", "pure_bf16"
"""LLaMA-Factory's arguments of adapters, of the type that the base is stored in, and of parameters in bf16 alone."""
ROWS: Final = (*BATCH, *TRAINER)
NAMES: Final = frozenset({
    *WITHOUT_COST, *OF_DATA, *SAYS_NOTHING, *(each.key for each in ROWS), ACCUMULATION, FSDP, DEEPSPEED, CHECKPOINTING.key, *KERNELS,
    "bf16", "fp16", "optim", "attn_implementation", "fsdp_config",
})  # fmt: skip
"""The arguments that a command line may give as options."""
