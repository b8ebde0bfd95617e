"""How each family's config keys become contract fields, where they are not a plain look-up.

A reader is given the keys of one config and returns a spec in the contract's names; what an architecture fixes stands in
the family's table entry. Counts are held to the modules themselves by tests/oracle/test_hf_parameters.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.inputs.hf.keys import Keys

Spec = dict[str, Any]


def sizes(k: Keys, *, null_head_dim: bool = False) -> Spec:
    """The sizes that most families spell alike. Null key-value heads mean as many as heads; a null head_dim, where
    the class has a number, is only allowed where it means hidden_size / heads.
    """
    # The heads are read first: null key-value heads mean as many of them as there are heads.
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
        # Where the class has a number, an explicit null is read as hidden_size / heads only in families whose modules
        # do so too.
        nullable = null_head_dim or k.defaults["head_dim"] is None
        width = k.optional_count("head_dim") if nullable else k.count("head_dim")
        if width is not None and k.spelling("head_dim") is None:
            k.assumed["head_dim"] = width
        if width is not None:
            spec["head_dim"] = width
    return spec


def biases(k: Keys, *, mlp: bool = False) -> Spec:
    """The biases of attention and, where the class has a key for it, of the MLP."""
    return {
        "attention_bias": k.flag("attention_bias"),
        "mlp_bias": k.flag("mlp_bias") if mlp else False,
    }


def read_llama(k: Keys) -> Spec:
    return {**sizes(k), **biases(k, mlp=True)}


def read_biased(k: Keys) -> Spec:
    return {**sizes(k), **biases(k)}


def read_plain(k: Keys) -> Spec:
    return {**sizes(k), "attention_bias": False, "mlp_bias": False, **one_window(k)}


def one_window(k: Keys) -> Spec:
    """The sliding window of all layers, where the class has the key and the config a value."""
    window = k.optional_count("sliding_window") if "sliding_window" in k.defaults else None
    return {} if window is None else {"sliding_window": window}


def late_windows(k: Keys, num_layers: int) -> Spec:
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
    spec = sizes(k)
    return {**spec, "attention_bias": "qkv", "mlp_bias": False, **late_windows(k, spec["num_layers"])}


def read_qwen3(k: Keys) -> Spec:
    spec = sizes(k)
    return {**spec, **biases(k), "qk_norm": True, **late_windows(k, spec["num_layers"])}


def patterned(k: Keys, num_layers: int, period: int) -> Spec:
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
    return {**sizes(k), **biases(k)}


def read_gemma2(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = sizes(k)
    return {**spec, **biases(k), **patterned(k, spec["num_layers"], 2)}


def read_gemma3(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = sizes(k)
    return {
        **spec,
        **biases(k),
        "qk_norm": True,
        **patterned(k, spec["num_layers"], k.count("sliding_window_pattern")),
    }


def read_cohere2(k: Keys) -> Spec:
    spec = {**sizes(k), **biases(k)}
    return {**spec, **patterned(k, spec["num_layers"], k.count("sliding_window_pattern"))}


def read_olmo3(k: Keys) -> Spec:
    spec = read_olmo2(k)
    return {**spec, **patterned(k, spec["num_layers"], 4)}


def read_exaone4(k: Keys) -> Spec:
    """The published configs list their layers and spell the pattern "LLLG", which the class cannot count with."""
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False, "qk_norm": True}
    unlisted = k.strings("layer_types") is None and k.optional_count("sliding_window") is not None
    return {**spec, **patterned(k, spec["num_layers"], k.count("sliding_window_pattern") if unlisted else 1)}


def read_smollm3(k: Keys) -> Spec:
    """Windows, where switched on, are in the layers without rotary positions."""
    spec = read_llama(k)
    listed, window = k.strings("layer_types"), k.optional_count("sliding_window")
    if not k.flag("use_sliding_window", if_null=False) or window is None:
        return spec
    if listed is None:
        rotary = rotary_layers(k, spec["num_layers"])
        listed = ["full_attention" if has else "sliding_attention" for has in rotary]
    return {**spec, "sliding_window": window, "layer_types": listed}


def rotary_layers(k: Keys, num_layers: int) -> list[int]:
    """Not 0 where a layer has rotary positions (`no_rope_layers` says 1 there, against its name)."""
    listed, interval = k.numbers("no_rope_layers"), k.count("no_rope_layer_interval")
    return listed or [(i + 1) % interval for i in range(num_layers)]


def read_qkv_biased(k: Keys) -> Spec:
    """GLM: `attention_bias` is of queries, keys and values alone."""
    return {**sizes(k), "attention_bias": "qkv" if k.flag("attention_bias") else False, "mlp_bias": False}


def read_seed_oss(k: Keys) -> Spec:
    qkv, out = k.flag("attention_bias"), k.flag("attention_out_bias")
    bias = qkv if qkv == out else "qkv" if qkv else "out"
    return {**sizes(k, null_head_dim=True), "attention_bias": bias, "mlp_bias": k.flag("mlp_bias")}


def read_ernie(k: Keys) -> Spec:
    bias = k.flag("use_bias", if_null=False)
    return {**sizes(k, null_head_dim=True), "attention_bias": bias, "mlp_bias": bias}


def read_hunyuan(k: Keys) -> Spec:
    return {**sizes(k), **biases(k), "qk_norm": True}


def _refuse_bidirectional(k: Keys) -> None:
    if k.flag("use_bidirectional_attention", if_null=False):
        k.refuse("use_bidirectional_attention", "bidirectional attention is not modelled")


def read_gpt2(k: Keys) -> Spec:
    if k.flag("add_cross_attention"):
        k.refuse("add_cross_attention", "cross-attention is not modelled")
    return read_gptj(k)


def read_gpt_bigcode(k: Keys) -> Spec:
    spec = read_gpt2(k)
    return {**spec, "num_key_value_heads": 1 if k.flag("multi_query") else spec["num_attention_heads"]}


def read_gptj(k: Keys) -> Spec:
    """The spelling of GPT-2, GPT-J and CodeGen."""
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


def read_olmo2(k: Keys) -> Spec:
    return {**sizes(k), **biases(k), "qk_norm": "full"}


def read_gpt_neox(k: Keys) -> Spec:
    parallel = k.flag("use_parallel_residual")
    return {
        **sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": True, "parallel_block": parallel,
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
    # The old decoder's weights do not follow num_kv_heads: multi_query alone decides between one head and all.
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
    # The modules of transformers compute 4 * d_model whatever the key says, so another ratio would be counted
    # wrongly.
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
    return {**sizes(k), "attention_bias": bias, "mlp_bias": bias, **one_window(k)}


def read_cohere(k: Keys) -> Spec:
    return {**sizes(k), **biases(k), "qk_norm": "full" if k.flag("use_qk_norm", if_null=False) else "none"}


def read_stablelm(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a norm per head with its own weights is not modelled")
    parallel = k.flag("use_parallel_residual")
    bias = "qkv" if k.flag("use_qkv_bias") else False
    return {**sizes(k), "attention_bias": bias, "mlp_bias": False, "parallel_block": parallel}


def read_apertus(k: Keys) -> Spec:
    """The activation xIELU (arXiv 2411.13010) learns two scalars in each layer."""
    learned = 2 if k.text("hidden_act") == "xielu" else 0
    return {**sizes(k), **biases(k), "qk_norm": True, "activation_parameters": learned}


def read_ministral(k: Keys) -> Spec:
    """Every layer has the window, where there is one, unless the layers are listed."""
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False}
    listed = k.strings("layer_types")
    return {**spec, **(one_window(k) if listed is None else patterned(k, spec["num_layers"], 1))}


def read_ministral3(k: Keys) -> Spec:
    return {**sizes(k, null_head_dim=True), "attention_bias": False, "mlp_bias": False, **one_window(k)}


def read_mimo(k: Keys) -> Spec:
    """MiMo-7B's published code is Qwen2's with modules that predict further tokens."""
    return {**read_qwen2(k), "mtp_num_layers": k.count("num_nextn_predict_layers", if_null=0, least=0)}


def read_glm4v(k: Keys) -> Spec:
    return {**sizes(k), "attention_bias": "qkv", "mlp_bias": False}


def read_phi(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a LayerNorm of queries and keys is not modelled")
    return sizes(k)


def read_nemotron(k: Keys) -> Spec:
    return {**sizes(k), **biases(k, mlp=True)}
