"""Megatron Core's settings as data: the name of each, its option on Megatron-LM's command line, and the releases that have it.

The writer and the reader of every target on Megatron Core speak in these names, which are those of Megatron Core's configuration
classes or of Megatron-LM's arguments; a target adds only how it spells them. Source: `megatron/training/arguments.py` and the
dataclasses that it derives options from, whose parsers of 0.17.0, 0.18.0 and 0.19.2 were run; for 0.14 to 0.16 the dataclasses
of `megatron/core` in the wheels 0.14.0, 0.15.3 and 0.16.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.frameworks.releases import precedes

Kind = Literal["switch", "off", "int", "float", "text", "texts", "pattern", "layout", "counts"]
"""A switch is off unless its option is there, and an off-switch on; a text may be one of several; a pattern lists a number for
each layer."""
Values = dict[str, Any]
"""Settings by name; one that is not there has the framework's own default."""
VERSIONS = ("0.14", "0.15", "0.16", "0.17", "0.18", "0.19")


@dataclass(frozen=True)
class Name:
    """One setting of Megatron Core."""

    name: str
    fields: tuple[str, ...]
    """The fields of a row that it decides."""
    kind: Kind = "int"
    spelled: str = ""
    """Its option, where that is not the name with dashes."""
    since: str = ""
    until: str = ""
    """First release without it."""
    default: Any = None
    """What the parser takes where the option is not there."""

    @property
    def option(self) -> str:
        """On Megatron-LM's command line."""
        return self.spelled or "--" + self.name.replace("_", "-")

    def is_in(self, version: str) -> bool:
        """Whether a release has it."""
        return not precedes(version, self.since or "0") and not (self.until and not precedes(version, self.until))


def _model(*names: str) -> tuple[str, ...]:
    return tuple(f"model.{name}" for name in names)


def _training(*names: str) -> tuple[str, ...]:
    return tuple(f"training.{name}" for name in names)


_MOE = _model("moe")
_ZERO = ("zero",)
_PRECISION = _training("precision", "param_dtype")
_STATES = _training("optimizer_state_dtype")
_STAGES = ("layers_per_stage", "vpp")

PARALLELISM: tuple[Name, ...] = (
    Name("tensor_model_parallel_size", ("tp",), default=1),
    Name("pipeline_model_parallel_size", ("pp",), default=1),
    # At most one of these three (validate_args); the second excludes stages that differ at the ends.
    Name("num_virtual_stages_per_pipeline_rank", ("vpp",)),
    Name("num_layers_per_virtual_pipeline_stage", ("vpp",)),
    Name("pipeline_model_parallel_layout", ("layers_per_stage", "vpp"), "layout"),
    Name("decoder_first_pipeline_num_layers", ("layers_per_stage",)),
    Name("decoder_last_pipeline_num_layers", ("layers_per_stage",)),
    Name("account_for_embedding_in_pipeline_split", ("layers_per_stage",), "switch"),
    Name("account_for_loss_in_pipeline_split", ("layers_per_stage",), "switch"),
    Name("context_parallel_size", ("cp",), default=1),
    Name("cp_comm_type", ("cp_comm",), "texts", default=("p2p",)),
    Name("hierarchical_context_parallel_sizes", ("cp_a2a_size",), "counts"),
    Name("expert_model_parallel_size", ("ep",), default=1),
    # Unset, it is the tensor-parallel size.
    Name("expert_tensor_parallel_size", ("etp",)),
    Name("sequence_parallel", ("sequence_parallel",), "switch"),
    Name("micro_batch_size", ("micro_batch_size",)),
    Name("global_batch_size", _training("global_batch_size")),
    Name("seq_length", _training("seq_length")),
)  # fmt: skip
STATES: tuple[Name, ...] = (
    Name("use_distributed_optimizer", _ZERO, "switch"),
    Name("use_megatron_fsdp", _ZERO, "switch"),
    # The parser's default was "no_shard" up to 0.17 and is "optim_grads_params" since 0.18, so it is always said.
    Name("data_parallel_sharding_strategy", _ZERO, "text", default="no_shard"),
    Name("num_distributed_optimizer_instances", ("zero_shard_size",), default=1),
    # Megatron-FSDP asserts this format.
    Name("ckpt_format", _ZERO, "text"),
    Name("overlap_grad_reduce", ("overlap.grad_reduce",), "switch"),
    Name("overlap_param_gather", ("overlap.param_gather",), "switch"),
    Name("tp_comm_overlap", ("overlap.tp_comm",), "switch"),
    Name("overlap_p2p_comm", ("overlap.p2p",), "off", "--no-overlap-p2p-communication"),
    Name("overlap_moe_expert_parallel_comm", ("overlap.moe_all_to_all",), "switch"),
    Name("optimizer_cpu_offload", ("offload.optimizer_fraction",), "switch"),
    Name("optimizer_offload_fraction", ("offload.optimizer_fraction",), "float", default=1.0),
    # A field of TransformerConfig before, which no option reached.
    Name("cpu_offloading_num_layers", ("offload.activation_layers",), since="0.16", default=0),
    Name("overlap_cpu_optimizer_d2h_h2d", ("offload.optimizer_overlap",), "switch"),
    Name("fine_grained_activation_offloading", ("offload.activation_modules",), "switch", since="0.16"),
    Name("offload_modules", ("offload.activation_modules",), "texts", since="0.16"),
    Name("activation_offload_fraction", ("offload.activation_fraction",), "float", since="0.19", default=1.0),
)  # fmt: skip
RECOMPUTE: tuple[Name, ...] = (
    Name("recompute_granularity", ("recompute",), "text"),
    # Short for selective recomputation.
    Name("recompute_activations", ("recompute",), "switch"),
    Name("recompute_method", ("recompute_method",), "text"),
    Name("recompute_num_layers", ("recompute_num_layers",)),
    Name("recompute_modules", ("recompute_modules",), "texts"),
)  # fmt: skip
TRAINING: tuple[Name, ...] = (
    Name("bf16", _PRECISION, "switch"),
    Name("fp16", _PRECISION, "switch"),
    Name("fp8", _PRECISION, "text", "--fp8-format"),
    Name("fp8_recipe", _training("fp8_recipe"), "text", default="delayed"),
    Name("fp8_param_gather", _training("param_dtype"), "switch"),
    Name("fp4", _PRECISION, "text", "--fp4-format", since="0.15"),
    Name("fp4_recipe", _PRECISION, "text", since="0.15", default="nvfp4"),
    # --bf16 switches the first of these on unless the second is there (validate_args).
    Name("accumulate_allreduce_grads_in_fp32", _training("grad_dtype", "grad_reduce_dtype"), "switch"),
    Name("grad_reduce_in_bf16", _training("grad_dtype", "grad_reduce_dtype"), "switch"),
    # "auto" takes the type of the parameters' own gradients.
    Name("megatron_fsdp_main_grads_dtype", _training("grad_dtype"), "text", since="0.17", default="auto"),
    Name("megatron_fsdp_grad_comm_dtype", _training("grad_reduce_dtype"), "text", since="0.17", default="auto"),
    Name("use_precision_aware_optimizer", _STATES, "switch"),
    Name("main_params_dtype", _training("main_param_dtype"), "text", default="fp32"),
    Name("exp_avg_dtype", _STATES, "text", default="fp32"),
    Name("exp_avg_sq_dtype", _STATES, "text", default="fp32"),
    Name("optimizer", _training("optimizer"), "text", default="adam"),
    Name("transformer_impl", _training("transformer_impl"), "text", default="transformer_engine"),
    Name("attention_backend", _training("attention", "attention_kernel"), "text", default="auto"),
    Name("cross_entropy_loss_fusion", _training("cross_entropy"), "switch"),
    Name("cross_entropy_fusion_impl", _training("cross_entropy"), "text", default="native"),
    Name("attention_dropout", _training("dropout"), "float", default=0.1),
    Name("hidden_dropout", _training("dropout"), "float", default=0.1),
    Name("cuda_graph_impl", _training("cuda_graphs"), "text", since="0.15", default="none"),
    # Deprecated names of the implementations "local" and "transformer_engine", still taken by 0.19.
    Name("enable_cuda_graph", _training("cuda_graphs"), "switch"),
    Name("external_cuda_graph", _training("cuda_graphs"), "switch"),
)  # fmt: skip
MODEL: tuple[Name, ...] = (
    Name("num_layers", _model("num_layers")),
    Name("hidden_size", _model("hidden_size")),
    Name("ffn_hidden_size", _model("intermediate_size")),
    Name("num_attention_heads", _model("num_attention_heads")),
    Name("group_query_attention", _model("num_key_value_heads"), "switch"),
    Name("num_query_groups", _model("num_key_value_heads"), default=1),
    Name("kv_channels", _model("head_dim")),
    Name("max_position_embeddings", _model("max_position_embeddings")),
    Name("position_embedding_type", _model("position_embedding"), "text", default="learned_absolute"),
    # An old name for the type "rope".
    Name("use_rotary_position_embeddings", _model("position_embedding"), "switch"),
    Name("normalization", _model("norm"), "text", default="LayerNorm"),
    Name("swiglu", _model("gated_mlp"), "switch"),
    Name("squared_relu", _model("gated_mlp"), "switch"),
    Name("add_bias_linear", _model("attention_bias", "mlp_bias"), "off", "--disable-bias-linear"),
    # Implied by biases of all linear layers.
    Name("add_qkv_bias", _model("attention_bias"), "switch"),
    Name("qk_layernorm", _model("qk_norm"), "switch"),
    Name("untie_embeddings_and_output_weights", _model("tie_word_embeddings"), "switch"),
    Name("attention_output_gate", _model("attention_gate"), "switch", since="0.16"),
    Name("softmax_type", _model("attention_sinks"), "text", since="0.15", default="vanilla"),
    Name("window_size", _model("sliding_window"), "text"),
    # 1 for a layer with a window; a number N leaves every N-th layer without one.
    Name("window_attn_skip_freq", _model("layer_types"), "pattern", since="0.15"),
    Name("vocab_size", _model("vocab_size")),
    Name("make_vocab_size_divisible_by", (), default=128),
    Name("mtp_num_layers", _model("mtp_num_layers")),
    Name("multi_latent_attention", _model("mla"), "switch"),
    Name("q_lora_rank", _model("mla")),
    Name("kv_lora_rank", _model("mla"), default=32),
    Name("qk_head_dim", _model("mla"), default=128),
    Name("qk_pos_emb_head_dim", _model("mla"), default=64),
    Name("v_head_dim", _model("mla"), default=128),
    # Sparse attention with an indexer, whose arguments the parser has from 0.19 on, or gated delta nets.
    Name("experimental_attention_variant", _model("mla", "recurrent"), "text", since="0.16"),
    Name("dsa_indexer_n_heads", _model("mla"), since="0.19"),
    Name("dsa_indexer_head_dim", _model("mla"), since="0.19"),
    Name("dsa_indexer_topk", _model("mla"), since="0.19"),
    Name("dsa_indexer_loss_coeff", _model("mla"), "float", since="0.19"),
    Name("dsa_indexer_use_sparse_loss", _model("mla"), "switch", since="0.19"),
    Name("dsa_kernel_backend", _model("mla"), "text", since="0.19", default="none"),
    Name("apply_rope_fusion", _model("mla"), "off", "--no-rope-fusion"),
    # 1 for a layer with a gated delta net; a number N gives every N-th layer attention.
    Name("linear_attention_freq", _model("recurrent", "layer_types"), "pattern", since="0.16"),
    Name("linear_conv_kernel_dim", _model("recurrent"), since="0.16", default=4),
    Name("linear_key_head_dim", _model("recurrent"), since="0.16", default=128),
    Name("linear_value_head_dim", _model("recurrent"), since="0.16", default=128),
    Name("linear_num_key_heads", _model("recurrent"), since="0.16", default=16),
    Name("linear_num_value_heads", _model("recurrent"), since="0.16", default=32),
    # The blocks of a hybrid, with its stages; --num-layers follows from it.
    Name("hybrid_layer_pattern", (*_model("layer_types", "single_block_layers"), *_STAGES), "text", since="0.17"),
    # Before, when it marked no stages; still taken.
    Name("is_hybrid_model", (), "switch"),
    Name("hybrid_override_pattern", (*_model("layer_types", "single_block_layers"), *_STAGES), "text"),
    Name("spec", (), "texts"),
    # Unset, twice the hidden size over the width of a head.
    Name("mamba_num_heads", _model("recurrent")),
    Name("mamba_head_dim", _model("recurrent"), default=64),
    Name("mamba_num_groups", _model("recurrent"), default=8),
    Name("mamba_state_dim", _model("recurrent"), default=128),
    # These cost nothing.
    Name("apply_layernorm_1p", (), "switch"),
    Name("rotary_percent", (), "float", default=1.0),
)  # fmt: skip
EXPERTS: tuple[Name, ...] = (
    Name("num_experts", _MOE),
    Name("moe_router_topk", _MOE, default=2),
    Name("moe_ffn_hidden_size", _MOE),
    Name("moe_layer_freq", _MOE, "pattern", default=1),
    # The width of all shared experts together.
    Name("moe_shared_expert_intermediate_size", _MOE),
    Name("moe_shared_expert_gate", _MOE, "switch", since="0.16"),
    # Asserts sigmoid scores (transformer_config.py).
    Name("moe_router_enable_expert_bias", _MOE, "switch"),
    Name("moe_router_score_function", (), "text", default="softmax"),
    Name("moe_expert_capacity_factor", _MOE, "float"),
    Name("moe_router_num_groups", _MOE),
    Name("moe_router_group_topk", _MOE),
    Name("moe_token_dispatcher_type", ("moe_dispatcher",), "text", default="allgather"),
    # Deprecated in 0.16 by the option after it.
    Name("moe_enable_deepep", ("flex_backend",), "switch"),
    Name("moe_flex_dispatcher_backend", ("flex_backend",), "text", since="0.16", default="deepep"),
    Name("moe_grouped_gemm", (), "switch"),
)  # fmt: skip
ALL: tuple[Name, ...] = (*PARALLELISM, *STATES, *RECOMPUTE, *TRAINING, *MODEL, *EXPERTS)
NAMES: Mapping[str, Name] = {each.name: each for each in ALL}


def stated(values: Values) -> Iterator[tuple[Name, Any]]:
    """The settings that have to be said, in the order of the tables: those that differ from what is assumed where nothing is said.

    A switch that is off and an off-switch that is on say nothing.
    """
    assert values.keys() <= NAMES.keys()
    for each in ALL:
        value = values.get(each.name)
        silent = {"switch": False, "off": True}.get(each.kind)
        if value is not None and not (each.kind in ("switch", "off") and value is silent):
            yield each, value
