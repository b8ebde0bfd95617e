"""How the config keys of hybrids become contract fields: models that attend in some layers and carry a state through the others.

Which layers are which, and the sizes of Mamba's, Mamba-2's, gated delta nets' and short convolutions' modules. Counts are held to the
modules themselves by tests/oracle/test_hf_hybrids.py.
"""

from __future__ import annotations

from typing import Final

from cost_models.inputs.hf.keys import Keys
from cost_models.inputs.hf.readers import Spec, biases, sizes

_LETTERS: Final = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Nemotron-H's pattern of layers, which is also Megatron's (core/ssm/mamba_hybrid_layer_allocation.py)."""
_OLD_NAMES: Final = {"mamba": "linear_attention", "mamba2": "linear_attention", "attention": "full_attention"}


def _listed(k: Keys, key: str = "layer_types") -> list[str] | None:
    """The listed layers under today's names."""
    listed = k.strings(key)
    return None if listed is None else [_OLD_NAMES.get(name, name) for name in listed]


def _checked(k: Keys, layers: list[str], num_layers: int, *, key: str = "layer_types") -> list[str]:
    # One kind then stands for all layers, so that reading goes on and every wrong key is told at once.
    if len(layers) != num_layers:
        k.wrong(key, f"{key} has {len(layers)} entries for {num_layers} layers")
        return layers[:1] * num_layers
    return layers


def _with(spec: Spec, recurrent: Spec) -> Spec:
    """The spec with its recurrent mixer, where any layer has one."""
    has = any(name in ("linear_attention", "conv", "hybrid") for name in spec.get("layer_types", ()))
    # A config keeps the sizes of a mixer although no layer has one; a specification may not.
    return {**spec, "recurrent": recurrent} if has else spec


def mamba2(k: Keys, hidden: int) -> Spec:
    """The mixer of Bamba, Granite 4 and Falcon-H1, in Mamba-2's own names."""
    # Falcon-H1 may state the inner width itself, and a width of "auto" follows from the heads.
    heads = k.count("mamba_n_heads")
    inner = k.optional_count("mamba_d_ssm") if "mamba_d_ssm" in k.defaults else None
    inner = k.count("mamba_expand") * hidden if inner is None else inner
    stated = k.value("mamba_d_head")
    # Heads and width may both be stated, and then have to make the inner width, as the class itself checks.
    width = inner // heads if stated in ("auto", None) else k.count("mamba_d_head")
    if width * heads != inner:
        k.wrong("mamba_n_heads", f"mamba_n_heads {heads} of width {width} do not make {inner} channels")
    return {
        "kind": "mamba2", "num_heads": heads, "head_dim": max(width, 1), "num_groups": k.count("mamba_n_groups"),
        "state_size": k.count("mamba_d_state"), "conv_kernel": k.count("mamba_d_conv"), "conv_bias": k.flag("mamba_conv_bias"),
        "in_bias": k.flag("mamba_proj_bias"), "out_bias": k.flag("mamba_proj_bias"), "gated_norm": "full",
        "chunk_size": k.count("mamba_chunk_size"),
    }  # fmt: skip


def read_nemotron_h(k: Keys) -> Spec:
    """Each layer is one block, of which a list or a string of letters tells the kind."""
    pattern = k.text("hybrid_override_pattern")
    listed = _listed(k, "layers_block_type")
    if listed is None:
        unknown = sorted(set(pattern or "") - set(_LETTERS))
        if unknown or pattern == "":
            found = repr(unknown[0]) if unknown else "no letter"
            k.wrong("hybrid_override_pattern", f"hybrid_override_pattern has {found}; layers are {', '.join(_LETTERS)}")
        listed = (
            ["linear_attention", "moe", "full_attention", "mlp"]
            if pattern is None
            else [_LETTERS.get(x, "mlp") for x in pattern]
        )
    unknown_names = [name for name in listed if name not in _LETTERS.values()]
    if unknown_names:
        k.wrong("layers_block_type", f"layers_block_type has {unknown_names[0]!r}; Nemotron-H has no such layer")
    # transformers follows the list where num_hidden_layers says something else; which of the two is meant cannot be known.
    stated = sizes(k)
    if k.spelling("num_hidden_layers") is not None and stated["num_layers"] != len(listed):
        message = f"num_hidden_layers is {stated['num_layers']}, but the layers that are listed, or the class's own, are {len(listed)}"
        k.wrong("num_hidden_layers", message)
    spec = {
        **stated, "num_layers": max(len(listed), 1), "layer_types": listed or ["mlp"], "single_block_layers": True,
        "attention_bias": False, "mlp_bias": k.flag("mlp_bias"),
        "tie_word_embeddings": False,  # the class ties nothing, whatever the config says
    }  # fmt: skip
    spec = _with(spec, {
        "kind": "mamba2", "num_heads": k.count("mamba_num_heads"), "head_dim": k.count("mamba_head_dim"),
        "num_groups": k.count("n_groups"), "state_size": k.count("ssm_state_size"), "conv_kernel": k.count("conv_kernel"),
        "conv_bias": k.flag("use_conv_bias"), "in_bias": k.flag("use_bias"), "out_bias": k.flag("use_bias"),
        "gated_norm": "full", "chunk_size": k.count("chunk_size"),
    })  # fmt: skip
    if "moe" not in spec["layer_types"]:
        return spec
    if k.optional_count("moe_latent_size") is not None:
        k.refuse("moe_latent_size", "experts that work in a narrower latent space are not modelled")
    if spec["mlp_bias"]:  # the routed experts have none where the shared one has
        k.refuse("mlp_bias", "biases in some of the experts alone are not modelled")
    spec["moe"] = {
        "num_experts": k.count("n_routed_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"), "num_shared_experts": 1,
        "shared_expert_intermediate_size": k.count("moe_shared_expert_intermediate_size"),
        "num_groups": k.count("n_group"), "topk_groups": k.count("topk_group"),
    }  # fmt: skip
    return spec


def read_bamba(k: Keys) -> Spec:
    spec = {**sizes(k), **biases(k, mlp=True)}
    attends = k.numbers("attn_layer_indices") or []
    spec["layer_types"] = [
        "full_attention" if i in attends else "linear_attention" for i in range(spec["num_layers"])
    ]  # fmt: skip
    return _with(spec, mamba2(k, spec["hidden_size"]))


def read_granitemoehybrid(k: Keys) -> Spec:
    """Granite 4: its dense MLP is the shared expert, beside which there may be others."""
    # Without a list the class builds Mamba in every layer; such a model is counted here, and refused where a job would plan it.
    spec = {**sizes(k), **biases(k)}
    listed = _listed(k)
    layers = ["linear_attention"] * spec["num_layers"] if listed is None else _checked(k, listed, spec["num_layers"])
    other = [name for name in layers if name not in ("linear_attention", "full_attention")]
    if other:
        k.refuse("layer_types", f"layers of the kind {other[0][:100]!r} are not modelled")
    if "linear_attention" in layers:
        spec = {**spec, "layer_types": layers, "recurrent": mamba2(k, spec["hidden_size"])}
    spec["position_embedding"] = "rope" if k.text("position_embedding_type") == "rope" else "none"
    width = k.count("shared_intermediate_size")
    if not k.count("num_local_experts", if_null=0, least=0):
        return {**spec, "intermediate_size": width}
    spec["moe"] = {
        "num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"], "num_shared_experts": 1,
        "shared_expert_intermediate_size": width,
    }  # fmt: skip
    return spec


def read_falcon_h1(k: Keys) -> Spec:
    """Attention and Mamba-2 read one input side by side in every layer."""
    spec = {**sizes(k), **biases(k, mlp=True)}
    spec["layer_types"] = ["hybrid"] * spec["num_layers"]
    norm = "full" if k.flag("mamba_rms_norm") else "none"
    return _with(spec, {**mamba2(k, spec["hidden_size"]), "out_bias": k.flag("projectors_bias"), "gated_norm": norm})


def read_jamba(k: Keys) -> Spec:
    """Mamba of the first kind; attention and experts stand in layers of a period and an offset each."""
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False}
    hidden, layers = spec["hidden_size"], range(spec["num_layers"])

    def chosen(which: str) -> list[bool]:
        period, offset = k.count(f"{which}_layer_period"), k.count(f"{which}_layer_offset", least=0)
        if offset >= period:
            k.wrong(f"{which}_layer_offset", f"{which}_layer_offset {offset} is not smaller than its period {period}")
        return [i % period == offset for i in layers]

    spec["layer_types"] = ["full_attention" if attends else "linear_attention" for attends in chosen("attn")]
    rank = k.value("mamba_dt_rank")
    bias = k.flag("mamba_proj_bias")
    spec = _with(spec, {
        "kind": "mamba", "num_heads": 1, "head_dim": k.count("mamba_expand") * hidden, "num_groups": 1,
        "state_size": k.count("mamba_d_state"), "conv_kernel": k.count("mamba_d_conv"), "conv_bias": k.flag("mamba_conv_bias"),
        "in_bias": bias, "out_bias": bias, "dt_rank": -(-hidden // 16) if rank == "auto" else k.count("mamba_dt_rank"),
        "inner_norms": True,
    })  # fmt: skip
    experts, sparse = k.count("num_experts"), chosen("expert")
    # With one expert the class builds a dense MLP, whatever the period of experts says.
    if experts == 1 or not any(sparse):
        return spec
    spec["moe"] = {
        "num_experts": experts, "top_k": k.count("num_experts_per_tok"), "expert_intermediate_size": spec["intermediate_size"],
        "moe_layer_freq": [int(has) for has in sparse],
    }  # fmt: skip
    return spec


def _delta_net(k: Keys, heads: int | None = None, hidden: int = 0) -> Spec:
    """A gated delta net; sizes that the class derives follow from `heads` and the hidden size."""
    keys = k.count("linear_num_key_heads", if_null=heads)
    values = k.count("linear_num_value_heads", if_null=heads)
    width = k.count("linear_key_head_dim", if_null=max(int(0.75 * hidden / keys), 1) if heads else None)
    return {
        "kind": "gated-delta-net", "num_heads": values, "num_groups": keys, "state_size": width,
        "head_dim": k.count("linear_value_head_dim", if_null=2 * width if heads else None),
        "conv_kernel": k.count("linear_conv_kernel_dim"), "conv_bias": False, "gated_norm": "per_head",
    }  # fmt: skip


def _every_fourth(k: Keys, num_layers: int) -> list[str]:
    """The layers as listed, or attention in every fourth."""
    listed = _listed(k)
    if listed is not None:
        return _checked(k, listed, num_layers)
    period = k.count("full_attention_interval") if "full_attention_interval" in k.defaults else 4
    return ["linear_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)]


def _qwen_hybrid(k: Keys) -> Spec:
    """What Qwen3-Next and Qwen3.5 share: attention with a gate and a norm per head, and gated delta nets."""
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False, "qk_norm": True, "attention_gate": True}
    # Query and gate are halves of one module, which would have a bias twice as wide as any field here can say.
    if k.flag("attention_bias"):
        k.refuse("attention_bias", "biases beside the gate of attention are not modelled")
    spec["layer_types"] = _every_fourth(k, spec["num_layers"])
    return _with(spec, _delta_net(k))


def _qwen_experts(k: Keys) -> Spec:
    return {
        "num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"), "num_shared_experts": 1,
        "shared_expert_intermediate_size": k.count("shared_expert_intermediate_size"), "shared_expert_gate": True,
    }  # fmt: skip


def read_qwen3_next(k: Keys) -> Spec:
    # As for Qwen3's mixtures: every step-th layer has experts, unless it is listed as dense.
    spec, step, dense = _qwen_hybrid(k), k.count("decoder_sparse_step"), k.numbers("mlp_only_layers") or []
    layers = [int((i + 1) % step == 0 and i not in dense) for i in range(spec["num_layers"])]
    return {**spec, "moe": {**_qwen_experts(k), "moe_layer_freq": layers}} if any(layers) else spec


def read_qwen3_5(k: Keys) -> Spec:
    return _qwen_hybrid(k)


def read_qwen3_5_moe(k: Keys) -> Spec:
    return {**_qwen_hybrid(k), "moe": _qwen_experts(k)}


def read_olmo_hybrid(k: Keys) -> Spec:
    spec = {**sizes(k), **biases(k), "qk_norm": "full"}
    spec["layer_types"] = layers = _every_fourth(k, spec["num_layers"])
    if "full_attention" not in layers and k.strings("layer_types") is None:
        layers[-1] = "full_attention"  # as the class does for models of fewer than four layers
    return _with(spec, _delta_net(k, spec["num_attention_heads"], spec["hidden_size"]))


def _short_conv(k: Keys, hidden: int) -> Spec:
    bias = k.flag("conv_bias")
    return {
        "kind": "short-conv", "num_heads": 1, "head_dim": hidden, "conv_kernel": k.count("conv_L_cache"), "conv_bias": bias,
        "in_bias": bias, "out_bias": bias,
    }  # fmt: skip


def read_lfm2(k: Keys) -> Spec:
    """The MLP is two thirds of the stated width, times a factor and rounded up to a multiple, where it is adjusted."""
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False, "qk_norm": True}
    num_layers, listed, attends = spec["num_layers"], _listed(k), k.numbers("full_attn_idxs")
    if listed is None:
        attends = list(range(num_layers)) if attends is None else attends
        listed = ["full_attention" if i in attends else "conv" for i in range(num_layers)]
    spec["layer_types"] = _checked(k, listed, num_layers)
    if k.flag("block_auto_adjust_ff_dim"):
        width, factor, multiple = (
            int(2 * spec["intermediate_size"] / 3),
            k.value("block_ffn_dim_multiplier"),
            k.count("block_multiple_of"),
        )
        if isinstance(factor, bool) or not isinstance(factor, (int, float, type(None))) or not 0 < (factor or 1) < 1e6:
            k.wrong("block_ffn_dim_multiplier", "block_ffn_dim_multiplier must be a positive number")
            factor = 1
        if factor is not None:
            width = -(-int(factor * width) // multiple) * multiple
        spec["intermediate_size"] = max(width, 1)
    return _with(spec, _short_conv(k, spec["hidden_size"]))


def read_lfm2_moe(k: Keys) -> Spec:
    spec = {**sizes(k), "attention_bias": False, "mlp_bias": False, "qk_norm": True}
    listed = _listed(k)
    if listed is None:
        k.wrong("layer_types", "layer_types is required")
    spec["layer_types"] = _checked(k, listed or [], spec["num_layers"]) if listed else ["conv"] * spec["num_layers"]
    spec = _with(spec, _short_conv(k, spec["hidden_size"]))
    first_dense = k.count("num_dense_layers", least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    spec["moe"] = {
        "num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"), "first_dense_layers": first_dense,
    }  # fmt: skip
    return spec
