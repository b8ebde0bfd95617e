"""Reads nanotron's YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.export.settings import InputFile, Settings
from planner.export.spellings import Understood, peeked, taken, whole
from planner.export.target import RowParts
from planner.export.targets.allocator import NAMES
from planner.export.targets.nanotron import keys

_CHANGES_NOTHING = (
    "benchmark_csv_path", "learning_rate_scheduler", "metrics_logging", "model.seed", "profile", "validation", "optimizer.adam_beta1",
    "optimizer.adam_beta2", "optimizer.adam_eps", "optimizer.learning_rate", "optimizer.torch_adam_is_fused",
    "general", "tokenizer", "logging", "checkpoints", "data_stages", "data", "lighteval", "s3_upload", "profiler", "tokens.train_steps",
    "tokens.val_check_interval", "tokens.limit_val_batches", "tokens.limit_test_batches", "model.init_method",
    "optimizer.weight_decay", "optimizer.weight_decay_exclude_named_params", "optimizer.clip_grad",
    "optimizer.learning_rate_scheduler", "optimizer.optimizer_factory.adam_beta1", "optimizer.optimizer_factory.adam_beta2",
    "optimizer.optimizer_factory.adam_eps", "optimizer.optimizer_factory.torch_adam_is_fused",
    *(f"model.model_config.{name}" for name in (
        "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act", "initializer_range", "is_llama_config",
        "interleaved_rotary", "z_loss_coefficient", "z_loss_enabled", "pretraining_tp", "rms_norm_eps", "rope_theta", "rope_scaling",
        "rope_interleaved", "use_cache",
    )),
)  # fmt: skip
"""Sections and keys that decide neither a step's time nor its memory."""
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "parallelism.tp_recompute_allgather": (True,), "parallelism.moe_layer_recompute": (False,), "model.model_config.sliding_window_size": (None,),
    "model.model_config.moe_config": (None,), "model.model_config.attention_dropout": (0, 0.0), "model.model_config.no_rope_layer": (None,),
    "model.model_config.flex_attention_mask": (None,), "parallelism.domino": (None,), "model.model_config._use_doc_masking": (False,),
}  # fmt: skip
"""Settings of which only the usual value is modelled; another one stays unknown."""
_GRANULARITY = "parallelism.recompute_granularity"
"""Before recompute_layer, in 2023 and early 2024: what is recomputed."""
_DEFAULTS = {"schedule": "gpipe", "sequence_parallel": False, "recompute": "none", "training.param_dtype": "bf16"}
"""nanotron/config/parallelism_config.py and config.py (ModelArgs): pp_engine is afab and tp_mode all-reduce unless told."""


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether a file is nanotron's."""
    return any(
        file.path.endswith((".yaml", ".yml"))
        and "\nparallelism:" in f"\n{file.content}"
        and "batch_accumulation_per_replica" in file.content
        for file in files
    )


def read(settings: Settings) -> RowParts:
    """What the file says, and nanotron's own defaults where it says nothing."""
    found = Understood({**_DEFAULTS, **taken(settings, keys.SPELLINGS)})
    row = found.fields
    row["training.framework"] = "nanotron"
    for prefix in _CHANGES_NOTHING:
        settings.take_under(prefix)
    for key, usual in _USUAL.items():
        if any(setting.key == key and setting.value in usual for setting in settings):
            settings.pass_over(key)
    settings.doubt(_GRANULARITY, "recompute")
    # Other degrees of expert parallelism stay unread: the releases disagree about the ranks that they need.
    dp = whole(settings, keys.DP, "dp")
    if peeked(settings, keys.EXPERTS) in (None, 1):
        settings.take(keys.EXPERTS, "ep")
    row["dp"] = dp
    steps = whole(settings, keys.ACCUMULATION, "num_micro_batches")
    if dp and steps and row.get("micro_batch_size"):
        row["training.global_batch_size"] = dp * steps * row["micro_batch_size"]
    if dp:
        found.world_size = dp * row.get("tp", 1) * row.get("pp", 1) * row.get("cp", 1)
    # nanotron has one type for parameters and products.
    row["training.precision"] = row["training.param_dtype"]
    _states(settings, row)
    _model(settings, row)
    for degree, fields in {"tp": ("sequence_parallel", "overlap.tp_comm"), "pp": ("schedule",)}.items():
        if row.get(degree, 1) == 1:
            for field in fields:
                row.pop(field, None)
    row["training.expandable_segments"] = any(
        "expandable_segments:True" in str(settings.value(f"${name}", "training.expandable_segments")) for name in NAMES
    ) or None  # fmt: skip
    return found.parts()


def _states(settings: Settings, row: dict[str, Any]) -> None:
    # False says that gradients have the parameter's type, whichever that is.
    if row.get("training.grad_dtype") not in (None, "fp32"):
        row["training.grad_dtype"] = row["training.param_dtype"]
        row["training.main_param_dtype"] = "none"
        row["training.optimizer_state_dtype"] = row["training.param_dtype"]
    if str(peeked(settings, keys.OPTIMIZER) or "adamW").lower() in ("adam", "adamw"):
        settings.take(keys.OPTIMIZER, "training.optimizer")
        row["training.optimizer"] = "adam"
    settings.take(keys.VOCAB_MULTIPLE)
    settings.take("model.ddp_bucket_cap_mb")
    kernel = peeked(settings, keys.KERNEL)
    known = next(
        (plans for plans, files in keys.KERNELS.items() if files == kernel), "fa2" if kernel == keys.RING else None
    )
    if known is not None:
        settings.take(keys.KERNEL, "training.attention_kernel")
        row["training.attention"], row["training.attention_kernel"] = "flash", known


def _model(settings: Settings, row: dict[str, Any]) -> None:
    prefix = "model.model_config"
    settings.doubt(
        f"{prefix}.sliding_window_size",
        *(["model.sliding_window"] if peeked(settings, f"{prefix}.sliding_window_size") else []),
    )
    for key, field in keys.SHAPE.items():
        row[f"model.{field}"] = settings.value(f"{prefix}.{key}", f"model.{field}")
    # models/llama.py builds its projections without biases whatever LlamaConfig says, so the key decides nothing there.
    bias = settings.value(f"{prefix}.{keys.BIAS}", "model.attention_bias", default=False)
    row["model.attention_bias"] = "qkv" if bias and peeked(settings, f"{prefix}.{keys.QWEN}") else False
    settings.take(f"{prefix}.{keys.QWEN}", "model.attention_bias")
    experts = settings.value(f"{prefix}.moe_config.num_experts", "model.moe")
    if experts is None:
        return
    moe = {"num_experts": experts, "top_k": settings.value(f"{prefix}.moe_config.top_k", "model.moe", default=2)}
    row["model.moe"] = {**moe, "expert_intermediate_size": row.pop("model.intermediate_size")}
    settings.take(f"{prefix}.moe_config.token_dispatcher_type", "moe_dispatcher")
    if peeked(settings, f"{prefix}.moe_config.layers") in ((-1,), None):
        settings.take(f"{prefix}.moe_config.layers", "model.moe")
    row["etp"] = row.get("tp", 1)
