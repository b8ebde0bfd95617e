"""Megatron Core's settings as parts of a row: the way back of `strategy_settings`, `training_settings` and `model_settings`."""

from __future__ import annotations

import re
from typing import Any

from planner.export.targets.megatron.hybrid_row import hybrid_layers, hybrid_row
from planner.export.targets.megatron.layout import layers_of_layout, mtp_stage_of_layout, numbers_of_pattern
from planner.export.targets.megatron.model_settings import BIASES, NORMS, POSITIONS
from planner.export.targets.megatron.names import NAMES, Values
from planner.export.targets.megatron.strategy_settings import CP_COMMS, SHARDING

_ZERO = {strategy: stage for stage, strategy in SHARDING.items()} | {"no_shard": 0}
_TRANSPORTS = {spelled: name for name, spelled in CP_COMMS.items()} | {"allgather": "allgather"}
_KERNELS = {"fused": ("flash", "cudnn"), "flash": ("flash", "fa2"), "unfused": ("math", None), "local": ("math", None)}
Part = dict[str, Any]


def _of(values: Values, name: str) -> Any:
    """A setting's value, or the parser's default."""
    kind = NAMES[name].kind
    return values.get(name, {"switch": False, "off": True}.get(kind, NAMES[name].default))


def _stated(part: Part) -> Part:
    return {name: value for name, value in part.items() if value is not None}


def strategy_row(values: Values, *, world_size: int | None) -> Part:
    """The strategy; data-parallel replicas are left to the number of GPUs."""
    pp, cp, tp = (_of(values, f"{each}_size") for each in ("pipeline_model_parallel", "context_parallel", "tensor_model_parallel"))  # fmt: skip
    split = _layers_per_stage(values, pp)
    vpp = _virtual(values, pp, split)
    zero = _zero(values)
    found: Part = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "micro_batch_size": values.get("micro_batch_size"), "zero": zero,
        "layers_per_stage": split, "sequence_parallel": _of(values, "sequence_parallel") if tp > 1 else None,
        "cp_comm": _TRANSPORTS.get(_of(values, "cp_comm_type")[0]) if cp > 1 else None,
        "overlap": {
            "grad_reduce": _of(values, "overlap_grad_reduce"), "param_gather": _of(values, "overlap_param_gather"),
            "tp_comm": _of(values, "tp_comm_overlap"), "p2p": pp > 1 and vpp > 1 and _of(values, "overlap_p2p_comm"),
            "moe_all_to_all": _of(values, "overlap_moe_expert_parallel_comm"),
        },
        **_recompute(values), **_experts(values), **_offload(values),
    }  # fmt: skip
    layout = values.get("pipeline_model_parallel_layout")
    if layout is not None and _of(values, "mtp_num_layers"):
        found["mtp_stage"] = mtp_stage_of_layout(layout)
    levels = values.get("hierarchical_context_parallel_sizes")
    if found["cp_comm"] == "a2a+p2p" and levels:
        found["cp_a2a_size"] = levels[0]
    instances = _of(values, "num_distributed_optimizer_instances")
    if instances > 1 and zero and world_size:
        found["zero_shard_size"] = max(world_size // (tp * pp * instances), 1)
    return _stated(found)


def _zero(values: Values) -> int:
    if _of(values, "use_megatron_fsdp"):
        # The default since 0.18, and what every recipe says.
        return _ZERO.get(values.get("data_parallel_sharding_strategy", "optim_grads_params"), 3)
    return int(_of(values, "use_distributed_optimizer") or _of(values, "optimizer") == "dist_muon")


def _layers_per_stage(values: Values, pp: int) -> list[int] | None:
    hybrid = hybrid_layers(values)
    if hybrid is not None and len(hybrid.stages) > 1:
        return list(hybrid.stages)
    layout = values.get("pipeline_model_parallel_layout")
    if layout is not None:
        return list(layers_of_layout(layout) or ()) or None
    layers, vpp = values.get("num_layers"), values.get("num_virtual_stages_per_pipeline_rank", 1)
    first, last = values.get("decoder_first_pipeline_num_layers"), values.get("decoder_last_pipeline_num_layers")
    counted = int(_of(values, "account_for_embedding_in_pipeline_split")), int(_of(values, "account_for_loss_in_pipeline_split"))  # fmt: skip
    if layers is None or pp == 1:
        return None
    if any(counted):
        each, rest = divmod(layers + sum(counted), pp * vpp)
        even = [each] * (pp * vpp)
        even[0] -= counted[0]
        even[-1] -= counted[1]
        return None if rest else even
    if first is None and last is None:
        return None
    # What the ends leave is shared by the ranks between them; the chunks of a rank are equal.
    middle = pp - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // middle if middle else 0
    ranks = [*([first] if first is not None else []), *[each] * middle, *([last] if last is not None else [])]
    return [count // vpp for _ in range(vpp) for count in ranks]


def _virtual(values: Values, pp: int, split: list[int] | None) -> int:
    if split and ("pipeline_model_parallel_layout" in values or len(split) > pp):
        return max(len(split) // pp, 1)
    each, layers = values.get("num_layers_per_virtual_pipeline_stage"), values.get("num_layers")
    if each and layers:
        return max(int(layers // pp // each), 1)
    return int(values.get("num_virtual_stages_per_pipeline_rank") or 1)


def _recompute(values: Values) -> Part:
    kind = "selective" if _of(values, "recompute_activations") else _of(values, "recompute_granularity")
    if kind == "selective":
        return {"recompute": kind, "recompute_modules": list(values.get("recompute_modules", ("core_attn",)))}
    if kind != "full":
        return {"recompute": "none"}
    method, count = values.get("recompute_method"), values.get("recompute_num_layers")
    hybrid = hybrid_layers(values)
    # Each of a hybrid's blocks counts as a layer.
    if hybrid is not None and not hybrid.single and count:
        count //= 2
    if (method, count) == ("uniform", 1):
        return {"recompute": "full"}
    return {"recompute": "full", "recompute_method": method, "recompute_num_layers": count}


def _experts(values: Values) -> Part:
    if not values.get("num_experts"):
        return {}
    dispatcher = _of(values, "moe_token_dispatcher_type")
    found: Part = {
        "ep": _of(values, "expert_model_parallel_size"), "etp": values.get("expert_tensor_parallel_size"),
        "moe_dispatcher": dispatcher,
    }  # fmt: skip
    if dispatcher == "flex":
        found["flex_backend"] = _of(values, "moe_flex_dispatcher_backend")
    return found


def _offload(values: Values) -> Part:
    fraction = _of(values, "optimizer_offload_fraction") if _of(values, "optimizer_cpu_offload") else 0.0
    layers = _of(values, "cpu_offloading_num_layers")
    found: Part = {"optimizer_fraction": fraction, "activation_layers": layers} if fraction or layers else {}
    if fraction and _of(values, "overlap_cpu_optimizer_d2h_h2d"):
        found["optimizer_overlap"] = "pipelined"
    # The list alone switches nothing on.
    if _of(values, "fine_grained_activation_offloading") and values.get("offload_modules"):
        found["activation_modules"] = list(values["offload_modules"])
        if _of(values, "activation_offload_fraction") != 1.0:
            found["activation_fraction"] = values["activation_offload_fraction"]
    return {"offload": found} if found else {}


def training_row(values: Values) -> Part:
    """The training."""
    precision = next(
        (name for name, said in (("fp8", "fp8"), ("nvfp4", "fp4"), ("bf16", "bf16"), ("fp16", "fp16")) if values.get(said)), "fp32"
    )  # fmt: skip
    compute = {"fp16": "fp16", "fp32": "fp32"}.get(precision, "bf16")
    attention, kernel = _KERNELS.get(_of(values, "attention_backend"), (None, None))
    local = _of(values, "transformer_impl") == "local"
    state = values.get("exp_avg_dtype", "fp32")
    dropout = _of(values, "hidden_dropout"), _of(values, "attention_dropout")
    loss = "unfused"
    if _of(values, "cross_entropy_loss_fusion"):
        loss = "te" if _of(values, "cross_entropy_fusion_impl") == "te" else "fused"
    return _stated({
        "framework": "megatron", "precision": precision, "seq_length": values.get("seq_length"),
        "global_batch_size": values.get("global_batch_size"),
        "fp8_recipe": _of(values, "fp8_recipe") if precision == "fp8" else None,
        "param_dtype": "fp8" if values.get("fp8_param_gather") else compute, **_gradients(values, compute),
        "main_param_dtype": "none" if precision == "fp32" else _of(values, "main_params_dtype"),
        "optimizer_state_dtype": state if state == values.get("exp_avg_sq_dtype", "fp32") else None,
        "optimizer": _of(values, "optimizer").removeprefix("dist_"), "transformer_impl": "local" if local else "transformer-engine",
        "attention": "math" if local else attention, "attention_kernel": None if local else kernel, "cross_entropy": loss,
        "dropout": dropout[0] if dropout[0] == dropout[1] else None, "cuda_graphs": _graphs(values),
    })  # fmt: skip


def _gradients(values: Values, compute: str) -> Part:
    fp32 = compute == "fp32" or bool(values.get("accumulate_allreduce_grads_in_fp32"))
    if compute == "bf16":
        fp32 = not values.get("grad_reduce_in_bf16")
    held = "fp32" if fp32 else compute
    reduced = held
    if values.get("use_megatron_fsdp"):
        held = {"auto": held}.get(_of(values, "megatron_fsdp_main_grads_dtype"), _of(values, "megatron_fsdp_main_grads_dtype"))  # fmt: skip
        reduced = {"auto": held}.get(_of(values, "megatron_fsdp_grad_comm_dtype"), _of(values, "megatron_fsdp_grad_comm_dtype"))  # fmt: skip
    return {"grad_dtype": held, "grad_reduce_dtype": reduced}


def _graphs(values: Values) -> bool:
    return _of(values, "cuda_graph_impl") != "none" or any(values.get(f"{kind}_cuda_graph") for kind in ("enable", "external"))  # fmt: skip


def model_row(values: Values) -> Part:
    """The model; empty where its layers or width are not said."""
    layers, hidden, heads = (values.get(name) for name in ("num_layers", "hidden_size", "num_attention_heads"))
    hybrid = hybrid_layers(values)
    # The pattern overrides --num-layers (validate_args).
    layers = layers if hybrid is None else len(hybrid.blocks)
    if not (layers and hidden):
        return {}
    gated = _of(values, "swiglu")
    moe = _mixture(values, layers)
    if moe is not None and hybrid is not None:
        moe = moe | {"moe_layer_freq": hybrid.moe} if any(hybrid.moe) else None
    # The parser's own widths, where none is said (validate_args).
    width = values.get("ffn_hidden_size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    biases = {told: said for said, told in BIASES.items()}
    every, qkv = _of(values, "add_bias_linear"), _of(values, "add_qkv_bias")
    attention_bias, mlp_bias = biases[every, qkv and not every]
    position = "rope" if _of(values, "use_rotary_position_embeddings") else _of(values, "position_embedding_type")
    # YaRN scales rotary positions, which cost the same.
    positions = {told: said for said, told in POSITIONS.items()} | {"yarn": "rope"}
    norm = {told: said for said, told in NORMS.items()}.get(_of(values, "normalization"))
    return _stated({
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": width,
        "vocab_size": values.get("vocab_size"), "gated_mlp": gated, "norm": norm, "position_embedding": positions.get(position),
        "max_position_embeddings": values.get("max_position_embeddings"), "attention_bias": attention_bias, "mlp_bias": mlp_bias,
        "tie_word_embeddings": not _of(values, "untie_embeddings_and_output_weights"),
        "qk_norm": "per_head" if _of(values, "qk_layernorm") else "none",
        "attention_gate": _of(values, "attention_output_gate"), "attention_sinks": _of(values, "softmax_type") == "learnable",
        "mtp_num_layers": values.get("mtp_num_layers"), "moe": moe, **_heads(values, heads), **_windows(values, layers),
        **hybrid_row(values, layers),
    })  # fmt: skip


def _heads(values: Values, heads: int | None) -> Part:
    if _of(values, "multi_latent_attention"):
        return {"mla": _stated({
            "q_lora_rank": values.get("q_lora_rank"), "kv_lora_rank": _of(values, "kv_lora_rank"),
            "qk_nope_head_dim": _of(values, "qk_head_dim"), "qk_rope_head_dim": _of(values, "qk_pos_emb_head_dim"),
            "v_head_dim": _of(values, "v_head_dim"), "indexer": _indexer(values),
        })}  # fmt: skip
    groups = _of(values, "num_query_groups") if _of(values, "group_query_attention") else heads
    return {"num_key_value_heads": groups, "head_dim": values.get("kv_channels")}


def _indexer(values: Values) -> Part | None:
    """What chooses the keys of sparse attention; None where all are seen."""
    if _of(values, "experimental_attention_variant") != "dsa":
        return None
    return _stated({
        "num_heads": values.get("dsa_indexer_n_heads"), "head_dim": values.get("dsa_indexer_head_dim"),
        "top_k": values.get("dsa_indexer_topk"),
    })  # fmt: skip


def _windows(values: Values, layers: int) -> Part:
    match = re.fullmatch(r"\(?(\d{1,9}),\s*0\)?", values.get("window_size", ""))
    if match is None:
        return {}
    found: Part = {"sliding_window": int(match.group(1)) + 1}
    skip = values.get("window_attn_skip_freq")
    if skip is not None:
        every = int(skip) if re.fullmatch(r"[1-9]\d{0,5}", skip) else None
        numbers = (
            numbers_of_pattern(skip, num_layers=layers)
            if every is None
            else [int(layer % every != 0) for layer in range(1, layers + 1)]
        )
        if numbers is not None:
            found["layer_types"] = ["sliding_attention" if each else "full_attention" for each in numbers]
    return found


def _mixture(values: Values, layers: int) -> Part | None:
    experts = values.get("num_experts")
    if not experts:
        return None
    shared = values.get("moe_shared_expert_intermediate_size")
    numbers = numbers_of_pattern(str(_of(values, "moe_layer_freq")), num_layers=layers)
    bias = _of(values, "moe_router_enable_expert_bias") or _of(values, "add_bias_linear")
    return _stated({
        "num_experts": experts, "top_k": _of(values, "moe_router_topk"),
        "expert_intermediate_size": values.get("moe_ffn_hidden_size") or values.get("ffn_hidden_size"),
        "num_shared_experts": 1 if shared else 0, "shared_expert_intermediate_size": shared,
        "shared_expert_gate": _of(values, "moe_shared_expert_gate"), "router_bias": bias,
        "capacity_factor": values.get("moe_expert_capacity_factor"),
        "num_groups": values.get("moe_router_num_groups"), "topk_groups": values.get("moe_router_group_topk"),
        "moe_layer_freq": list(numbers) if numbers is not None else None,
    })  # fmt: skip
