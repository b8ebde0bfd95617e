"""What public configurations say is what is read: facts of more than thirty of each kind, against a table written by hand.

Nothing of their texts is kept here (`public_configs.py` renders the facts again). `docs/LAUNCH_FILES.md` counts what the texts
themselves gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from public_configs import KINDS, PublicConfig, public_configs, rendered

from cost_models.errors import InvalidInputError
from planner.export.import_config import Imported, import_config
from planner.export.settings import InputFile

CONFIGS = public_configs()
_ON, _OFF = {True: True}, {"cpu": True, "none": False}
_SAME: dict[Any, Any] = {}
_TYPES = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
TABLE: Mapping[str, Mapping[str, tuple[str, Mapping[Any, Any]]]] = {
    "megatron": {
        "tensor-model-parallel-size": ("strategy.tp", _SAME), "model-parallel-size": ("strategy.tp", _SAME),
        "pipeline-model-parallel-size": ("strategy.pp", _SAME), "context-parallel-size": ("strategy.cp", _SAME),
        "expert-model-parallel-size": ("strategy.ep", _SAME), "micro-batch-size": ("strategy.micro_batch_size", _SAME),
        "batch-size": ("strategy.micro_batch_size", _SAME), "global-batch-size": ("training.global_batch_size", _SAME),
        "seq-length": ("training.seq_length", _SAME), "num-layers": ("model.num_layers", _SAME), "hidden-size": ("model.hidden_size", _SAME),
        "num-attention-heads": ("model.num_attention_heads", _SAME), "ffn-hidden-size": ("model.intermediate_size", _SAME),
        "max-position-embeddings": ("model.max_position_embeddings", _SAME), "num-query-groups": ("model.num_key_value_heads", _SAME),
        "num-experts": ("model.moe.num_experts", _SAME), "moe-router-topk": ("model.moe.top_k", _SAME), "swiglu": ("model.gated_mlp", _ON),
        "bf16": ("training.precision", {True: "bf16"}), "fp16": ("training.precision", {True: "fp16"}),
        "use-distributed-optimizer": ("strategy.zero", {True: 1}), "checkpoint-activations": ("strategy.recompute", {True: "full"}),
        "recompute-activations": ("strategy.recompute", {True: "selective"}), "recompute-granularity": ("strategy.recompute", _SAME),
        "untie-embeddings-and-output-weights": ("model.tie_word_embeddings", {True: False}), "vocab-size": ("model.vocab_size", _SAME),
        "normalization": ("model.norm", {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}),
    },
    "deepspeed": {
        "train_micro_batch_size_per_gpu": ("strategy.micro_batch_size", _SAME), "train_batch_size": ("training.global_batch_size", _SAME),
        "zero_optimization.stage": ("strategy.zero", _SAME), "zero_optimization.offload_param.device": ("strategy.offload.parameters", _OFF),
        "zero_optimization.offload_optimizer.device": ("strategy.offload.optimizer_fraction", {"cpu": 1.0, "none": 0.0}),
        "zero_optimization.cpu_offload": ("strategy.offload.optimizer_fraction", {True: 1.0, False: 0.0}),
        "zero_optimization.overlap_comm": ("strategy.overlap.grad_reduce", _SAME), "tensor_parallel.autotp_size": ("strategy.tp", _SAME),
        "bf16.enabled": ("training.precision", {True: "bf16"}), "bfloat16.enabled": ("training.precision", {True: "bf16"}),
        "fp16.enabled": ("training.precision", {True: "fp16"}), "optimizer.type": ("training.optimizer", {"Adam": "adam", "AdamW": "adam"}),
    },
    "accelerate": {
        "distributed_type": ("training.framework", {"FSDP": "fsdp", "DEEPSPEED": "deepspeed", "MULTI_GPU": "fsdp", "NO": "fsdp"}),
        "mixed_precision": ("training.precision", {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}), "num_processes": ("strategy.dp", _SAME),
        "fsdp_config.fsdp_sharding_strategy": ("strategy.zero", {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, 1: 3}),
        "fsdp_config.fsdp_reshard_after_forward": ("strategy.zero", {True: 3, False: 2}),
        "fsdp_config.fsdp_offload_params": ("strategy.offload.parameters", _SAME),
        "fsdp_config.fsdp_activation_checkpointing": ("strategy.recompute", {True: "full", False: "none"}),
        "deepspeed_config.zero_stage": ("strategy.zero", _SAME), "deepspeed_config.offload_param_device": ("strategy.offload.parameters", _OFF),
        "deepspeed_config.offload_optimizer_device": ("strategy.offload.optimizer_fraction", {"cpu": 1.0, "none": 0.0}),
    },
    "torchtitan": {
        "training.seq_len": ("training.seq_length", _SAME), "training.local_batch_size": ("strategy.micro_batch_size", _SAME),
        "training.batch_size": ("strategy.micro_batch_size", _SAME), "parallelism.tensor_parallel_degree": ("strategy.tp", _SAME),
        "training.tensor_parallel_degree": ("strategy.tp", _SAME), "parallelism.pipeline_parallel_degree": ("strategy.pp", _SAME),
        "experimental.pipeline_parallel_degree": ("strategy.pp", _SAME), "parallelism.context_parallel_degree": ("strategy.cp", _SAME),
        "experimental.context_parallel_degree": ("strategy.cp", _SAME), "parallelism.expert_parallel_degree": ("strategy.ep", _SAME),
        "activation_checkpoint.mode": ("strategy.recompute", {"full": "full", "none": "none"}), "compile.enable": ("training.compile", _SAME),
        "training.compile": ("training.compile", _SAME), "training.dtype": ("training.param_dtype", {"bfloat16": "bf16", "float32": "fp32"}),
        "float8.enable_float8_linear": ("training.precision", {True: "fp8", False: "bf16"}),
        "parallelism.enable_async_tensor_parallel": ("strategy.overlap.tp_comm", _ON),
    },
    "nanotron": {
        "parallelism.tp": ("strategy.tp", _SAME), "parallelism.pp": ("strategy.pp", _SAME), "parallelism.dp": ("strategy.dp", _SAME),
        "parallelism.context_parallel_size": ("strategy.cp", _SAME), "tokens.sequence_length": ("training.seq_length", _SAME),
        "parallelism.recompute_layer": ("strategy.recompute", {True: "full", False: "none"}),
        "tokens.micro_batch_size": ("strategy.micro_batch_size", _SAME), "optimizer.zero_stage": ("strategy.zero", _SAME),
        "model.dtype": ("training.precision", {"bfloat16": "bf16", "float16": "fp16"}),
        "optimizer.optimizer_factory.name": ("training.optimizer", {"adamW": "adam"}),
        **{f"model.model_config.{name}": (f"model.{name}", _SAME) for name in (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings",
            "tie_word_embeddings",
        )}, "model.model_config.num_hidden_layers": ("model.num_layers", _SAME),
    },
    "transformers": {
        "per_device_train_batch_size": ("strategy.micro_batch_size", _SAME), "bf16": ("training.precision", {True: "bf16"}),
        "fp16": ("training.precision", {True: "fp16"}), "gradient_checkpointing": ("strategy.recompute", {True: "full", False: "none"}),
        "model_max_length": ("training.seq_length", _SAME), "cutoff_len": ("training.seq_length", _SAME),
        "max_seq_length": ("training.seq_length", _SAME), "torch_compile": ("training.compile", _SAME),
        "flash_attn": ("training.attention_kernel", {"fa2": "fa2"}), "optim": ("training.optimizer", {"adamw_torch": "adam"}),
        "lora_rank": ("training.adapter.rank", _SAME),
    },
}  # fmt: skip
"""For each key the row's field, and the words of both where they differ; a value that is not among those is not compared."""


def expected(config: PublicConfig) -> Iterator[tuple[str, Any]]:
    """The fields that the settings decide, with their values."""
    said = config.settings
    staged = said.get("parallelism.pipeline_parallel_degree", said.get("experimental.pipeline_parallel_degree", 1)) > 1
    for key, value in said.items():
        field, words = TABLE[config.kind].get(key, ("", _SAME))
        section = _TYPES.get(key.split(".")[0])
        # Accelerate reads the section of its type alone, and torchtitan's pipelines split the local batch.
        if (section and said["distributed_type"] != section) or (staged and field == "strategy.micro_batch_size"):
            continue
        if field and value != "auto" and not isinstance(value, list) and (not words or value in words):
            yield field, words[value] if words else value
    if "deepspeed_config.deepspeed_config_file" in said:
        yield "strategy.zero", "what the other file says"
    if config.kind == "nanotron":
        copies = (
            said["tokens.batch_accumulation_per_replica"] * said["tokens.micro_batch_size"] * said["parallelism.dp"]
        )
        yield "training.global_batch_size", copies
    if config.kind == "megatron" and {"nproc_per_node", "nnodes"} <= said.keys():
        ways = [said.get(f"{name}-parallel-size", 1) for name in ("tensor-model", "pipeline-model", "context")]
        yield "strategy.dp", said["nproc_per_node"] * said["nnodes"] // (ways[0] * ways[1] * ways[2])


def field_of(found: Imported, name: str) -> Any:
    """A field of the row; None where it is not there."""
    value: Any = found.row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def asked_for(found: Imported, name: str) -> bool:
    """Whether a field, or what it lies in, is among those that are missing."""
    pointer = "/" + name.replace(".", "/")
    return any(pointer == each or pointer.startswith(each + "/") for each in found.missing)


def imported(config: PublicConfig) -> Imported:
    return import_config([InputFile(config.name, rendered(config))], framework=config.kind)


def does_not_fit(config: PublicConfig) -> bool:
    """Whether a script starts fewer ranks than its degrees need, as one example of Megatron-LM does until it is edited."""
    said = config.settings
    ways = said.get("tensor-model-parallel-size", 1) * said.get("pipeline-model-parallel-size", 1)
    return "nproc_per_node" in said and said["nproc_per_node"] * said.get("nnodes", 1) % ways != 0


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind} {config.repository} {config.path}")
def test_every_setting_is_read_or_named(config):
    if does_not_fit(config):
        with pytest.raises(InvalidInputError, match=r"line \d+: 8 ranks are started, which do not fit"):
            imported(config)
        return
    found = imported(config)
    for field, value in expected(config):
        assert field_of(found, field) == value or asked_for(found, field), field
    keys = [each.key for each in found.settings]
    assert len(keys) >= sum(value is not False for value in config.settings.values())


def test_few_settings_are_asked_for_again():
    outcomes = Counter[bool]()
    for config in CONFIGS:
        if not does_not_fit(config):
            found = imported(config)
            outcomes.update(field_of(found, field) == value for field, value in expected(config))
    assert outcomes[True] > 1500
    assert outcomes[False] < 0.02 * outcomes[True]


def test_there_are_thirty_of_each_kind_with_their_sources():
    counts = Counter(config.kind for config in CONFIGS)
    assert min(counts[kind] for kind in KINDS) >= 30
    assert all(config.repository.count("/") == 1 and config.path and config.revision for config in CONFIGS)
    assert len({(each.repository, each.path, each.revision) for each in CONFIGS}) == len(CONFIGS)
