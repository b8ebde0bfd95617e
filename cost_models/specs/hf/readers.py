"""How each family's config keys become contract fields, where they are not a plain look-up.

A reader is given the keys of one config and returns a spec in the contract's names; what an architecture fixes stands in
the family's table entry. Counts are held to the modules themselves by tests/oracle/test_hf_parameters.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.specs.hf.keys import Keys

Spec = dict[str, Any]


def _sizes(k: Keys) -> Spec:
    """The sizes that most families spell alike. Null key-value heads mean as many as heads."""
    heads = k.count("num_attention_heads", reported_as="num_attention_heads")
    spec: Spec = {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": k.count("hidden_size", reported_as="hidden_size"),
        "num_attention_heads": heads,
        "intermediate_size": k.count("intermediate_size", reported_as="intermediate_size"),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "max_position_embeddings": k.count("max_position_embeddings"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }
    if "num_key_value_heads" in k.defaults:
        spec["num_key_value_heads"] = k.count("num_key_value_heads", reported_as="num_key_value_heads", if_null=heads)
    if "head_dim" in k.defaults:
        width = k.optional_count("head_dim") if k.defaults["head_dim"] is None else k.count(
            "head_dim", reported_as="head_dim"
        )  # fmt: skip
        if width is not None:
            spec["head_dim"] = width
    return spec


def _biases(k: Keys, *, mlp: bool = False) -> Spec:
    return {
        "attention_bias": k.flag("attention_bias"),
        "mlp_bias": k.flag("mlp_bias") if mlp else False,
    }


def read_llama(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k, mlp=True)}


def read_plain(k: Keys) -> Spec:
    return {**_sizes(k), "attention_bias": False, "mlp_bias": False, **_one_window(k)}


def _one_window(k: Keys) -> Spec:
    window = k.optional_count("sliding_window") if "sliding_window" in k.defaults else None
    return {} if window is None else {"sliding_window": window}


def read_mixtral(k: Keys) -> Spec:
    spec = read_plain(k)
    spec["moe"] = {
        "num_experts": k.count("num_local_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"],
    }
    return spec


def _late_windows(k: Keys, num_layers: int) -> Spec:
    """Qwen: windows only where switched on, and then from `max_window_layers` on unless listed."""
    listed = k.strings("layer_types")
    if not k.flag("use_sliding_window"):
        return {} if listed is None else {"layer_types": ["full_attention" if "attention" in t else t for t in listed]}
    window = k.optional_count("sliding_window")
    if window is None:
        return {}
    if listed is None:
        first = k.count("max_window_layers", least=0)
        listed = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    return {"sliding_window": window, "layer_types": listed}


def read_qwen2(k: Keys) -> Spec:
    spec = _sizes(k)
    return {**spec, "attention_bias": "qkv", "mlp_bias": False, **_late_windows(k, spec["num_layers"])}


def read_qwen3(k: Keys) -> Spec:
    spec = _sizes(k)
    return {**spec, **_biases(k), "qk_norm": True, **_late_windows(k, spec["num_layers"])}


def _sparse_layers(k: Keys, num_layers: int) -> list[int]:
    """Qwen MoE: every `decoder_sparse_step`-th layer counted from 1, less `mlp_only_layers`."""
    step = k.count("decoder_sparse_step")
    dense = k.value("mlp_only_layers") or []
    if not isinstance(dense, list):
        k.count("mlp_only_layers")
        dense = []
    return [int((i + 1) % step == 0 and i not in dense) for i in range(num_layers)]


def _with_experts(k: Keys, spec: Spec, moe: Spec) -> Spec:
    """The spec with its experts, or dense where no layer is sparse."""
    layers = _sparse_layers(k, spec["num_layers"])
    return {**spec, "moe": {**moe, "moe_layer_freq": layers}} if any(layers) else spec


def read_qwen3_moe(k: Keys) -> Spec:
    spec = {**_sizes(k), **_biases(k), "qk_norm": True}
    if k.flag("use_sliding_window"):
        spec.update(_one_window(k))
    moe = {
        "num_experts": k.count("num_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"),
    }
    return _with_experts(k, spec, moe)


def read_qwen2_moe(k: Keys) -> Spec:
    spec = {**_sizes(k), "attention_bias": "qkv" if k.flag("qkv_bias") else False, "mlp_bias": False}
    if k.flag("use_sliding_window"):
        k.refuse("use_sliding_window", "sliding windows of qwen2_moe are not modelled")
    moe = {
        "num_experts": k.count("num_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": k.count("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }
    return _with_experts(k, spec, moe)


def _patterned(k: Keys, num_layers: int, period: int) -> Spec:
    """Windows in all layers but every `period`-th, unless listed."""
    listed = k.strings("layer_types")
    window = k.optional_count("sliding_window")
    if listed is None:
        listed = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)]
    if window is None:
        listed = ["full_attention" if t == "sliding_attention" else t for t in listed]
        return {"layer_types": listed}
    return {"layer_types": listed, "sliding_window": window}


def read_gemma(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    return {**_sizes(k), **_biases(k)}


def read_gemma2(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = _sizes(k)
    return {**spec, **_biases(k), **_patterned(k, spec["num_layers"], 2)}


def read_gemma3(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = _sizes(k)
    return {
        **spec,
        **_biases(k),
        "qk_norm": True,
        **_patterned(k, spec["num_layers"], k.count("sliding_window_pattern")),
    }


def _refuse_bidirectional(k: Keys) -> None:
    if k.flag("use_bidirectional_attention", if_null=False):
        k.refuse("use_bidirectional_attention", "bidirectional attention is not modelled")


def read_gpt2(k: Keys) -> Spec:
    if k.flag("add_cross_attention"):
        k.refuse("add_cross_attention", "cross-attention is not modelled")
    hidden = k.count("n_embd", reported_as="hidden_size")
    return {
        "num_layers": k.layers("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_head", reported_as="num_attention_heads"),
        "intermediate_size": k.count("n_inner", if_null=4 * hidden),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "max_position_embeddings": k.count("n_positions", reported_as="max_position_embeddings"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def read_deepseek(k: Keys) -> Spec:
    spec = {**_sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": False}
    spec["mla"] = {
        "q_lora_rank": k.optional_count("q_lora_rank"),
        "kv_lora_rank": k.count("kv_lora_rank"),
        "qk_nope_head_dim": k.count("qk_nope_head_dim"),
        "qk_rope_head_dim": k.count("qk_rope_head_dim"),
        "v_head_dim": k.count("v_head_dim"),
    }
    spec["mtp_num_layers"] = k.count("num_nextn_predict_layers", if_null=0, least=0)
    first_dense = k.count("first_k_dense_replace", if_null=0, least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    width, shared = k.count("moe_intermediate_size"), k.count("n_shared_experts", if_null=0, least=0)
    spec["moe"] = {
        "num_experts": k.count("n_routed_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width,
        # One module of n_shared x width: the parameters of n_shared experts.
        "num_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0,
        "first_dense_layers": first_dense,
        "num_groups": k.count("n_group", if_null=1),
        "topk_groups": k.count("topk_group", if_null=1),
    }
    return spec


def read_olmo2(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k), "qk_norm": "full"}


def read_olmoe(k: Keys) -> Spec:
    spec = {**_sizes(k), **_biases(k), "qk_norm": "full"}
    moe = {"num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok")}
    return {**spec, "moe": {**moe, "expert_intermediate_size": spec["intermediate_size"]}}


def read_gpt_neox(k: Keys) -> Spec:
    parallel = k.flag("use_parallel_residual")
    return {
        **_sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": True, "parallel_block": parallel,
        "norms_per_layer": 2,
    }  # fmt: skip


def read_opt(k: Keys) -> Spec:
    hidden = k.count("hidden_size", reported_as="hidden_size")
    if k.optional_count("word_embed_proj_dim") not in (None, hidden):
        k.refuse("word_embed_proj_dim", "an embedding narrower than hidden_size is not modelled")
    bias = k.flag("enable_bias")
    return {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("num_attention_heads", reported_as="num_attention_heads"),
        "intermediate_size": k.count("ffn_dim", reported_as="intermediate_size"),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        # OPT's learned table has two rows before position 0.
        "max_position_embeddings": k.count("max_position_embeddings") + 2,
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
        "attention_bias": bias,
        "mlp_bias": bias,
        "final_norm": k.flag("do_layer_norm_before") and not k.flag("_remove_final_layer_norm"),
    }


def read_bloom(k: Keys) -> Spec:
    hidden = k.count("hidden_size", reported_as="hidden_size")
    return {
        "num_layers": k.layers("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_head", reported_as="num_attention_heads"),
        "intermediate_size": 4 * hidden,
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def read_falcon(k: Keys) -> Spec:
    hidden, heads = k.count("hidden_size", reported_as="hidden_size"), k.count("num_attention_heads")
    new = k.flag("new_decoder_architecture", if_null=False)
    parallel = k.flag("parallel_attn", if_null=False) or new
    kv_heads = k.count("num_kv_heads", if_null=heads) if new else 1 if k.flag("multi_query", if_null=False) else heads
    norms = k.count("num_ln_in_parallel_attn", if_null=2 if new else 1) if parallel else 2
    bias = k.flag("bias", if_null=False)
    return {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": k.count("ffn_hidden_size", if_null=4 * hidden),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
        "position_embedding": "alibi" if k.flag("alibi", if_null=False) else "rope",
        "parallel_block": parallel,
        "norms_per_layer": norms if new or not parallel else 1,
        "attention_bias": bias,
        "mlp_bias": bias,
    }


def read_mpt(k: Keys) -> Spec:
    if not k.flag("no_bias"):
        k.refuse("no_bias", "MPT with biases is not modelled")
    hidden = k.count("d_model", reported_as="hidden_size")
    if k.count("expansion_ratio") != 4:
        k.refuse("expansion_ratio", "an MPT expansion_ratio other than 4 is not modelled: transformers ignores the key")
    return {
        "num_layers": k.layers("n_layers"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_heads", reported_as="num_attention_heads"),
        "intermediate_size": 4 * hidden,
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def read_starcoder2(k: Keys) -> Spec:
    bias = k.flag("use_bias")
    return {**_sizes(k), "attention_bias": bias, "mlp_bias": bias, **_one_window(k)}


def read_cohere(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k), "qk_norm": "full" if k.flag("use_qk_norm", if_null=False) else "none"}


def read_stablelm(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a norm per head with its own weights is not modelled")
    parallel = k.flag("use_parallel_residual")
    bias = "qkv" if k.flag("use_qkv_bias") else False
    return {**_sizes(k), "attention_bias": bias, "mlp_bias": False, "parallel_block": parallel}


def read_phi(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a LayerNorm of queries and keys is not modelled")
    return _sizes(k)


def read_nemotron(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k, mlp=True)}


def read_gpt_oss(k: Keys) -> Spec:
    spec = _sizes(k)
    moe = {
        "num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"], "router_bias": True,
    }  # fmt: skip
    return {**spec, "attention_bias": k.flag("attention_bias"), "moe": moe, **_patterned(k, spec["num_layers"], 2)}
