"""A plan's strategy in Megatron Core's settings: degrees, states, overlaps, recomputation, offload."""

from __future__ import annotations

from cost_models.frameworks.optimizers import LAYER_WISE_LAYOUT_SINCE
from cost_models.frameworks.releases import precedes
from planner.export.quantities import Quantities
from planner.export.targets.megatron.hybrid_pattern import blocks_per_layer, has_pattern
from planner.export.targets.megatron.layout import pipeline_layout
from planner.export.targets.megatron.names import Values

SHARDING = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's strategies by ZeRO stage; stage 1 is the distributed optimizer's where nothing more is sharded."""
CP_COMMS = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "a2a+p2p": "a2a+p2p"}
"""Transformer Engine's spelling, to which Megatron hands the value on."""
_ONE_PLACE = "Megatron Core has no setting for it"


def owns_matrices(q: Quantities) -> bool:
    """Whether the optimizer's name says that its state is sharded by whole matrices, in place of --use-distributed-optimizer.

    Core 0.18 takes the option for it; Bridge's recipes go on with the name (recipes/utils/optimizer_utils.py of 0.3 to 0.6).
    """
    named = q.target == "megatron-bridge" or precedes(q.release, LAYER_WISE_LAYOUT_SINCE)
    return q.peek("training.optimizer") == "muon" and q.peek("zero") == 1 and named


def said_elsewhere(q: Quantities, *fields: str) -> None:
    """Promises fields that another setting says, the launch line, or the environment."""
    for field in fields:
        q.get(field)


def strategy_settings(q: Quantities) -> Values:
    """The settings of the strategy, or a refusal."""
    q.implied("zero_param_shard_size", q.peek("zero_shard_size"), why="Megatron Core has no second group of shards")
    return {**_degrees(q), **_pipeline(q), **_states(q), **_overlaps(q), **_recompute(q), **_offload(q), **_experts(q)}


def _degrees(q: Quantities) -> Values:
    # Data-parallel replicas are what is left of the ranks that the launch line starts.
    said_elsewhere(q, "dp")
    found: Values = {
        "tensor_model_parallel_size": q["tp"],
        "pipeline_model_parallel_size": q["pp"],
        "context_parallel_size": q["cp"],
        "sequence_parallel": bool(q["sequence_parallel"]),
        "micro_batch_size": q["micro_batch_size"],
        "global_batch_size": q["training.global_batch_size"],
        "seq_length": q["training.seq_length"],
    }
    comm = q["cp_comm"]
    if q.matters("cp_comm"):
        found["cp_comm_type"] = (CP_COMMS[comm],)
    inner = q["cp_a2a_size"]
    if inner is not None and inner > 1:
        if q.target == "nemo":
            why = "its MegatronStrategy does not hand hierarchical_context_parallel_sizes on"
            raise q.refusal("cp_comm", why=why, nearest={"cp_comm": "p2p"})
        found["hierarchical_context_parallel_sizes"] = (inner, q["cp"] // inner)
    return found


def _pipeline(q: Quantities) -> Values:
    pp, vpp, layers = q["pp"], q["vpp"], q.plan.layers_per_stage
    # Micro-batches run through each chunk in groups of pp, which is the default of
    # --microbatch-group-size-per-virtual-pipeline-stage.
    q.implied("schedule", "interleaved" if vpp > 1 else "1f1b", why="its schedule follows from the virtual stages")
    # Stages lie on the nodes in the order of their ranks, which the launch line keeps.
    said_elsewhere(q, "pool_per_stage", "layers_per_stage", "mtp_stage")
    # The pattern of a hybrid's blocks marks its stages itself, and excludes every other way to say them (validate_args).
    if pp == 1 or has_pattern(q):
        return {}
    if len(set(layers)) == 1 and q.peek("mtp_stage") is None:
        # Without a layout, layers of multi-token prediction follow the last stage's decoder layers.
        return {"num_virtual_stages_per_pipeline_rank": vpp} if vpp > 1 else {}
    modules, stage = q.peek("model.mtp_num_layers") or 0, q.peek("mtp_stage")
    return {"pipeline_model_parallel_layout": pipeline_layout(layers, mtp_num_layers=modules, mtp_stage=stage)}


def _states(q: Quantities) -> Values:
    zero, strategy = q["zero"], q.plan.strategy
    q.implied(
        "grad_sync", "each" if zero >= 2 else "last", why="Megatron-FSDP reduces each micro-batch, the others the last"
    )
    found: Values = {"use_distributed_optimizer": zero >= 1 and not owns_matrices(q)}
    if zero >= 2:
        found |= {
            "use_megatron_fsdp": True, "data_parallel_sharding_strategy": SHARDING[zero], "ckpt_format": "fsdp_dtensor",
        }  # fmt: skip
    shard = q["zero_shard_size"]
    if q.matters("zero_shard_size") and zero:
        instances = strategy["dp"] * strategy["cp"] // shard
        if instances > 1:
            found["num_distributed_optimizer_instances"] = instances
    return found


def _overlaps(q: Quantities) -> Values:
    strategy = q.plan.strategy
    interleaved = strategy["pp"] > 1 and strategy["vpp"] > 1
    found: Values = {
        "overlap_grad_reduce": bool(q["overlap.grad_reduce"]),
        "overlap_param_gather": bool(q["overlap.param_gather"]) and strategy["zero"] > 0,
        "tp_comm_overlap": bool(q["overlap.tp_comm"]),
        "overlap_moe_expert_parallel_comm": bool(q["overlap.moe_all_to_all"]),
    }
    p2p = q["overlap.p2p"]
    if interleaved:
        found["overlap_p2p_comm"] = bool(p2p)
    else:
        # megatron/training/arguments.py switches it off where the schedule is not interleaved.
        q.implied("overlap.p2p", False, why="it overlaps sends between stages with virtual stages alone")
    return found


def _recompute(q: Quantities) -> Values:
    kind = q["recompute"]
    method, count, modules = q["recompute_method"], q["recompute_num_layers"], q["recompute_modules"]
    if q.peek("recompute_per_stage") is not None:
        raise q.refusal(
            "recompute_per_stage", why="each model chunk recomputes the same number of layers",
            nearest={"recompute_method": "block", "recompute_num_layers": max(q.peek("recompute_per_stage"))},
        )  # fmt: skip
    if kind == "none":
        return {}
    if kind == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": tuple(modules or ("core_attn",))}
    # Full recomputation needs a method and a count; every layer as a unit of its own is `uniform` with 1.
    counted = (count or 1) * blocks_per_layer(q)
    return {"recompute_granularity": "full", "recompute_method": method or "uniform", "recompute_num_layers": counted}


def _offload(q: Quantities) -> Values:
    found: Values = {}
    q.only("offload.parameters", [False], why=_ONE_PLACE)
    fraction = q["offload.optimizer_fraction"]
    if fraction:
        # megatron/training/arguments.py asserts the precision-aware optimizer, whose path the hybrid optimizer takes.
        found |= {
            "optimizer_cpu_offload": True, "optimizer_offload_fraction": float(fraction), "use_precision_aware_optimizer": True,
        }  # fmt: skip
        overlap = q.only(
            "offload.optimizer_overlap", [None, "pipelined"], why="it overlaps copies alone with the host's update"
        )
        if overlap == "pipelined":
            found["overlap_cpu_optimizer_d2h_h2d"] = True
    modules = q["offload.activation_modules"]
    if modules:
        found |= {"fine_grained_activation_offloading": True, "offload_modules": tuple(modules)}
        share = q["offload.activation_fraction"]
        if share is not None:
            found["activation_offload_fraction"] = float(share)
    layers = q["offload.activation_layers"]
    if layers:
        strategy, total = q.plan.strategy, q.peek("model.num_layers")
        # megatron/core/transformer/transformer_config.py, __post_init__.
        refused = {
            "layer by layer it offloads activations without a pipeline alone": strategy["pp"] > 1,
            "layer by layer it offloads activations without recomputation alone": strategy["recompute"] != "none",
            f"fewer than all {total} layers can be offloaded": layers >= total,
            "--cpu-offloading-num-layers came with core 0.16": precedes(q.release, "0.16"),
        }
        for why, holds in refused.items():
            if holds:
                raise q.refusal("offload.activation_layers", why=why, nearest={"offload.activation_layers": 0})
        found["cpu_offloading_num_layers"] = layers
    return found


def _experts(q: Quantities) -> Values:
    ep, etp, dispatcher, backend = q["ep"], q["etp"], q["moe_dispatcher"], q["flex_backend"]
    if q.peek("model.moe") is None:
        return {}
    found: Values = {
        "expert_model_parallel_size": ep, "expert_tensor_parallel_size": etp, "moe_token_dispatcher_type": dispatcher,
    }  # fmt: skip
    if dispatcher == "flex":
        if precedes(q.release, "0.16"):
            q.only("flex_backend", ["deepep"], why="its flex dispatcher runs DeepEP's kernels alone before core 0.16")
            found["moe_enable_deepep"] = True
        else:
            found["moe_flex_dispatcher_backend"] = backend
    return found
