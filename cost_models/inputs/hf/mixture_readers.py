"""How the config keys of mixtures of experts become contract fields, where they are not a plain look-up.

Which layers have experts, how wide one is, what the router carries; what attention and norms share with dense families
is read by `readers`. Counts are held to the modules themselves by tests/oracle/test_hf_parameters.py.
"""

from __future__ import annotations

from cost_models.inputs.hf.keys import Keys
from cost_models.inputs.hf.readers import (
    Spec,
    biases,
    one_window,
    patterned,
    read_ernie,
    read_hunyuan,
    read_plain,
    read_qkv_biased,
    rotary_layers,
    sizes,
)


def read_mixtral(k: Keys) -> Spec:
    spec = read_plain(k)
    spec["moe"] = {
        "num_experts": k.count("num_local_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"],
    }
    return spec


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
    spec = {**sizes(k), **biases(k), "qk_norm": True}
    if k.flag("use_sliding_window"):
        spec.update(one_window(k))
    moe = {
        "num_experts": k.count("num_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"),
    }
    return _with_experts(k, spec, moe)


def read_qwen2_moe(k: Keys) -> Spec:
    spec = {**sizes(k), "attention_bias": "qkv" if k.flag("qkv_bias") else False, "mlp_bias": False}
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


def read_deepseek(k: Keys) -> Spec:
    return _deepseek_experts(k, _latent(k))


def _latent(k: Keys) -> Spec:
    """Everything of DeepSeek's models but their experts."""
    spec = {**sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": False}
    spec["mla"] = {
        "q_lora_rank": k.optional_count("q_lora_rank"),
        "kv_lora_rank": k.count("kv_lora_rank"),
        "qk_nope_head_dim": k.count("qk_nope_head_dim"),
        "qk_rope_head_dim": k.count("qk_rope_head_dim"),
        "v_head_dim": k.count("v_head_dim"),
    }
    spec["mtp_num_layers"] = k.count("num_nextn_predict_layers", if_null=0, least=0)
    return spec


def _deepseek_experts(k: Keys, spec: Spec) -> Spec:
    """The spec with DeepSeek's experts after the first dense layers, or dense where those are all."""
    first_dense = k.count("first_k_dense_replace", if_null=0, least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    return _shared_and_routed(k, spec, first_dense_layers=first_dense)


def _shared_and_routed(k: Keys, spec: Spec, **which_layers: object) -> Spec:
    """The spec with DeepSeek's experts in these layers."""
    width, shared = k.count("moe_intermediate_size"), k.count("n_shared_experts", if_null=0, least=0)
    spec["moe"] = {
        "num_experts": k.count("n_routed_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width,
        # One module of n_shared x width: the parameters of n_shared experts.
        "num_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0,
        "num_groups": k.count("n_group", if_null=1),
        "topk_groups": k.count("topk_group", if_null=1),
        **which_layers,
    }
    return spec


def read_olmoe(k: Keys) -> Spec:
    spec = {**sizes(k), **biases(k), "qk_norm": "full"}
    moe = {"num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok")}
    return {**spec, "moe": {**moe, "expert_intermediate_size": spec["intermediate_size"]}}


def read_gpt_oss(k: Keys) -> Spec:
    spec = sizes(k)
    moe = {
        "num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"], "router_bias": True,
    }  # fmt: skip
    return {**spec, "attention_bias": k.flag("attention_bias"), "moe": moe, **patterned(k, spec["num_layers"], 2)}


def read_glm4_moe(k: Keys) -> Spec:
    """GLM-4.5V's text model has no norm of queries and keys, whatever its config says."""
    spec = {**read_qkv_biased(k), "qk_norm": "use_qk_norm" in k.defaults and k.flag("use_qk_norm")}
    spec["mtp_num_layers"] = k.count("num_nextn_predict_layers", if_null=0, least=0)
    return _deepseek_experts(k, spec)


def read_glm4_moe_lite(k: Keys) -> Spec:
    """DeepSeek's layers, but the sparse ones are listed; unlisted, all but the first are."""
    spec = _latent(k)
    listed = k.strings("mlp_layer_types")
    layers = [int(i > 0) for i in range(spec["num_layers"])] if listed is None else [int(t == "sparse") for t in listed]
    return _shared_and_routed(k, spec, moe_layer_freq=layers) if any(layers) else spec


def read_deepseek_v32(k: Keys) -> Spec:
    """DeepSeek-V3 with an indexer in every layer; the sparse layers are listed, or follow the first dense ones."""
    spec = _latent(k)
    spec["mla"]["indexer"] = {
        "num_heads": k.count("index_n_heads"), "head_dim": k.count("index_head_dim"), "top_k": k.count("index_topk"),
    }  # fmt: skip
    listed = k.strings("mlp_layer_types")
    if listed is None:
        return _deepseek_experts(k, spec)
    layers = [int(t == "sparse") for t in listed]
    return _shared_and_routed(k, spec, moe_layer_freq=layers) if any(layers) else spec


def read_dots1(k: Keys) -> Spec:
    """Windows from `max_window_layers` on, which is past the last layer in the published models, unless listed."""
    spec = {**sizes(k), **biases(k), "qk_norm": True}
    listed, window = k.strings("layer_types"), k.optional_count("sliding_window")
    if listed is None:
        first = k.count("max_window_layers", least=0)
        listed = ["sliding_attention" if i >= first else "full_attention" for i in range(spec["num_layers"])]
    spec.update(
        patterned(k, spec["num_layers"], 1) if window is None else {"layer_types": listed, "sliding_window": window}
    )
    return _deepseek_experts(k, spec)


def read_afmoe(k: Keys) -> Spec:
    """A gate multiplies the attention's output; the experts' bias of the router is adjusted, not trained."""
    spec = {**sizes(k), **biases(k), "qk_norm": True}
    spec.update(patterned(k, spec["num_layers"], k.count("global_attn_every_n_layers")))
    first_dense = k.count("num_dense_layers", least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    width, shared = k.count("moe_intermediate_size"), k.count("num_shared_experts", least=0)
    spec["moe"] = {
        "num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width, "num_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0, "first_dense_layers": first_dense,
        "router_bias": True,
    }  # fmt: skip
    return spec


def read_bailing(k: Keys) -> Spec:
    """Ling and Ring (inclusionAI): the first version biases every projection where `use_bias` is set, the second the
    attention's output alone; both versions' configs call themselves `bailing_moe` at times.
    """
    second = "n_group" in k.raw or "n_group" in k.defaults
    qkv, out = k.flag("use_qkv_bias"), k.flag("use_bias")
    if out and not second:
        k.refuse("use_bias", "biases in all projections of bailing_moe are not modelled")
    bias = qkv if qkv == out else "qkv" if qkv else "out"
    spec = {**sizes(k), "num_key_value_heads": k.count("num_key_value_heads"), "attention_bias": bias, "mlp_bias": False,
            "qk_norm": k.flag("use_qk_norm")}  # fmt: skip
    spec["mtp_num_layers"] = k.count("num_nextn_predict_layers", if_null=0, least=0)
    first_dense = k.count("first_k_dense_replace", if_null=0, least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    width, shared = k.count("moe_intermediate_size"), k.count("num_shared_experts", if_null=0, least=0)
    spec["moe"] = {
        "num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width, "num_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0, "first_dense_layers": first_dense,
        "num_groups": k.count("n_group") if second else 1, "topk_groups": k.count("topk_group") if second else 1,
    }  # fmt: skip
    return spec


def read_granitemoeshared(k: Keys) -> Spec:
    spec, width = read_granitemoe(k), k.count("shared_intermediate_size", least=0)
    if width:
        spec["moe"] |= {"num_shared_experts": 1, "shared_expert_intermediate_size": width}
    return spec


def _whole_width(k: Keys, spec: Spec, **more: object) -> Spec:
    """The spec with experts as wide as `intermediate_size`."""
    moe = {"num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok")}
    return {**spec, "moe": {**moe, "expert_intermediate_size": spec["intermediate_size"], **more}}


def read_phimoe(k: Keys) -> Spec:
    return _whole_width(k, {**sizes(k), **biases(k), **one_window(k), "head_bias": k.flag("lm_head_bias")})


def read_granitemoe(k: Keys) -> Spec:
    return _whole_width(k, {**sizes(k), **biases(k)})


def read_minimax_m2(k: Keys) -> Spec:
    return _whole_width(k, {**sizes(k), "attention_bias": False, "mlp_bias": False, "qk_norm": "full"})


def read_llama4(k: Keys) -> Spec:
    """Queries and keys are normalised without weights; three of four layers attend within chunks."""
    spec = {**sizes(k), **biases(k)}
    num_layers, width = spec["num_layers"], spec["intermediate_size"]
    sparse = k.numbers("moe_layers")
    if sparse is None:
        step = k.count("interleave_moe_layer_step")
        sparse = list(range(step - 1, num_layers, step))
    spec.update(_chunks(k, num_layers))
    layers = [int(i in sparse) for i in range(num_layers)]
    spec["intermediate_size"] = k.count("intermediate_size_mlp")
    if not any(layers):
        return spec
    spec["moe"] = {
        "num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width, "num_shared_experts": 1, "shared_expert_intermediate_size": width,
        "moe_layer_freq": layers,
    }  # fmt: skip
    return spec


def _chunks(k: Keys, num_layers: int) -> Spec:
    listed, chunk = k.strings("layer_types"), k.optional_count("attention_chunk_size")
    if listed is None:
        rotary = rotary_layers(k, num_layers)
        listed = ["chunked_attention" if has else "full_attention" for has in rotary]
    if chunk is None:
        return {"layer_types": ["full_attention" if kind == "chunked_attention" else kind for kind in listed]}
    return {"layer_types": listed, "sliding_window": chunk}


def read_ernie_moe(k: Keys) -> Spec:
    spec = read_ernie(k)
    num_layers, interval = spec["num_layers"], k.count("moe_layer_interval")
    first, last = k.count("moe_layer_start_index", least=0), k.count("moe_layer_end_index", least=-1)
    last = num_layers - 1 if last == -1 else last
    layers = [int((i + 1) % interval == 0 and first <= i <= last) for i in range(num_layers)]
    if not any(layers):
        return spec
    width, shared = k.count("moe_intermediate_size"), k.count("moe_num_shared_experts", least=0)
    spec["moe"] = {
        "num_experts": k.count("moe_num_experts"), "top_k": k.count("moe_k"), "expert_intermediate_size": width,
        "num_shared_experts": shared, "shared_expert_intermediate_size": width if shared else 0,
        "moe_layer_freq": layers, "router_bias": True,
    }  # fmt: skip
    if spec["mlp_bias"]:  # the routed experts have none where the shared one has
        k.refuse("use_bias", "biases in some of the experts alone are not modelled")
    return spec


def read_hunyuan_moe(k: Keys) -> Spec:
    spec = read_hunyuan(k)
    width = spec["intermediate_size"]
    by_layer = k.numbers("moe_topk") if isinstance(k.value("moe_topk"), list) else None
    if by_layer and len(set(by_layer)) > 1:
        k.refuse("moe_topk", "a number of experts per token that differs by layer is not modelled")
    top_k = by_layer[0] if by_layer else k.count("moe_topk")
    spec["moe"] = {
        "num_experts": k.count("num_experts"), "top_k": top_k, "expert_intermediate_size": width,
        "num_shared_experts": 1, "shared_expert_intermediate_size": width,
    }  # fmt: skip
    return spec


ATTENTION_OF_DBRX = {"kv_n_heads": 1}
EXPERTS_OF_DBRX = {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}


def read_dbrx(k: Keys) -> Spec:
    attention, experts = k.part("attn_config", ATTENTION_OF_DBRX), k.part("ffn_config", EXPERTS_OF_DBRX)
    if k.flag("tie_word_embeddings"):
        k.refuse("tie_word_embeddings", "DBRX has no tied embeddings")
    return {
        "num_layers": k.layers("n_layers"),
        "hidden_size": k.count("d_model", reported_as="hidden_size"),
        "num_attention_heads": k.count("n_heads", reported_as="num_attention_heads"),
        "num_key_value_heads": attention.count("kv_n_heads", reported_as="num_key_value_heads"),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "max_position_embeddings": k.count("max_seq_len"),
        "moe": {
            "num_experts": experts.count("moe_num_experts", reported_as="moe.num_experts"),
            "top_k": experts.count("moe_top_k", reported_as="moe.top_k"),
            "expert_intermediate_size": experts.count("ffn_hidden_size", reported_as="moe.expert_intermediate_size"),
        },
    }
