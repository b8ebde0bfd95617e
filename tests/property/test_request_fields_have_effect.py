"""Every input field of a request can change an answer: an evaluation of some job, or some request's ranked plans.

The fields come from the schemas themselves, so that a new one without effect fails here by its name. A field is tried with
values of its own type on every job of a list until an answer changes; `HINTS` gives values where the type does not say one.
Labels and transport are exempt, each with its reason.
"""

from __future__ import annotations

import copy
import json
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from cost_models.inputs.cluster import ClusterInput
from cost_models.inputs.model_fields import ModelInput
from cost_models.inputs.training import TrainingInput
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rows import evaluate_rows
from planner.schemas.method import CompressionInput, SyncInput
from planner.schemas.plan_request import PlanRequest
from planner.schemas.strategy import StrategyInput

Json = dict[str, Any]
Path = tuple[str, ...]

EXEMPT = {
    "model.name": "a label",
    "cluster.name": "a label",
    "constraints.fixed.mtp_stage": "refused with its remedy: a search leaves multi-token prediction beside the output layer",
    "cluster.pools.name": "a label, which pool_per_stage refers to",
    "cluster.pools.preset": "pools list their nodes; a preset inside a pool is the same document spelled out",
    "wait_s": "how long the transport waits for a finished answer",
    "strategy.sync.steps_factor": "what a user expects of a method; plans are compared by it (constraints.allowed.sync.steps_factor)",
    "seed": "of a search that has no closed form (Pareto fronts too large to enumerate); the ranking is exact",
}
"""Fields that name things or steer the transport, and why none of them changes an answer."""

# --- jobs -------------------------------------------------------------------------------------------------------------

DENSE = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000,
}  # fmt: skip
MOE = {**DENSE, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 2048, "num_shared_experts": 1}}
MLA = {
    **DENSE,
    "mla": {"q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
}
STATES = {
    "mamba": {**DENSE, "layer_types": ["mamba", "full_attention"] * 4, "recurrent": {"kind": "mamba", "dt_rank": 128, "inner_norms": True}},
    "mamba2": {
        **DENSE, "layer_types": ["mamba", "mlp", "full_attention", "mlp"] * 2, "single_block_layers": True,
        "recurrent": {"kind": "mamba2", "num_heads": 64, "head_dim": 64, "num_groups": 8, "state_size": 128, "conv_kernel": 4,
                      "conv_bias": True, "in_bias": False, "out_bias": False, "gated_norm": "full", "chunk_size": 128},
    },
}  # fmt: skip
H100 = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
TOY = {
    "name": "toy", "memory_gib": 80, "peak_tflops": {"bf16": 400, "fp8": 800, "fp32": 60, "nvfp4": 1600},
    "memory_bandwidth_gb_per_s": 2000, "nvlink_gb_per_s": 300,
}  # fmt: skip
CUSTOM = {"gpu": TOY, "num_nodes": 4, "gpus_per_node": 4, "price_per_gpu_hour": 2.0}
PCIE = {"gpu": "L40S-48GB", "num_nodes": 2, "gpus_per_node": 8, "intra_node": "pcie", "network": {"fabric": "roce"}}
RACKS = {"num_nodes": 36, "gpus_per_node": 4, "nvlink_domain_gpus": 72}
PAIRS = {
    "gpu": "A100-PCIe-80GB", "num_nodes": 1, "gpus_per_node": 8, "intra_node": "nvlink-pairs",
    "pcie": {"gpus_per_switch": 4, "gpus_per_socket": 4},
}  # fmt: skip
RELIABILITY = {"gpu_mtbf_h": 1000.0, "restart_s": 600.0, "detect_s": 60.0, "spares": 1, "repair_h": 12.0}
ISLANDS = {"count": 2, "link_gbit_per_s": 10, "latency_ms": 20}
DILOCO = {"method": "diloco", "sync_every": 64, "fragments": 2, "delay_steps": 1}
NVME = {"read_gb_per_s": 20.0, "write_gb_per_s": 10.0, "capacity_gib": 1000.0}
ON_DRIVES = {"optimizer_fraction": 1.0, "optimizer_device": "nvme", "parameters": True, "parameter_device": "nvme"}
STAGES_ON_POOLS = {"tp": 2, "pp": 4, "pool_per_stage": ["old", "old", "new", "new"]}
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 32000,
}  # fmt: skip
VISION = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
LLAVA = {
    "model_type": "llava",
    "vision_config": {**VISION, "num_hidden_layers": 24, "image_size": 336, "patch_size": 14},
}


def training(framework: str, **given: Any) -> Json:
    return {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework, **given}


def pools_of(*kinds: Json) -> Json:
    """A mixed cluster of one node of eight GPUs of each kind."""
    names = ("old", "new")
    nodes = {"num_nodes": 1, "gpus_per_node": 8}
    return {"pools": [{"name": name, **nodes, **kind} for name, kind in zip(names, kinds, strict=True)]}


def row(model: Json, cluster: Json, trained: Json, strategy: Json) -> Json:
    return {"model": model, "cluster": cluster, "training": trained, "strategy": {"micro_batch_size": 1, **strategy}}


ROWS: dict[str, Json] = {
    "megatron": row(DENSE, H100, training("megatron"), {"tp": 2, "zero": 1}),
    "torchtitan": row(DENSE, CUSTOM, training("torchtitan"), {"zero": 3, "zero_shard_size": 4}),
    "pipeline": row(DENSE, CUSTOM, training("megatron"), {
        "tp": 2, "pp": 4, "recompute": "full", "recompute_method": "block", "recompute_num_layers": 1,
    }),
    "interleaved": row(DENSE, CUSTOM, training("megatron"), {"pp": 4, "vpp": 2}),
    "experts": row(MOE, CUSTOM, training("megatron"), {"tp": 2, "ep": 4, "sequence_parallel": True}),
    "groups": row({**DENSE, "moe": {**MOE["moe"], "num_experts": 64, "top_k": 8, "num_groups": 8, "topk_groups": 2}},
                  {"gpu": TOY, "num_nodes": 4, "gpus_per_node": 8}, training("megatron"),
                  {"ep": 32, "moe_dispatcher": "flex"}),
    "racks": row(
        {**DENSE, "moe": {**MOE["moe"], "num_experts": 64}},
        {"gpu": "GB200-186GB", **RACKS},
        training("megatron", global_batch_size=128),
        {"ep": 32, "dp": 128, "moe_dispatcher": "alltoall"},
    ),
    "latent": row({**MLA, "mtp_num_layers": 1}, H100, training("megatron", precision="fp8"), {"tp": 2}),
    "eight-bit": row(DENSE, {**CUSTOM, "intra_node": {"bandwidth_gb_per_s": 200}}, training("torchtitan", precision="fp8"),
                     {"tp": 2, "zero": 3}),
    "context": row(DENSE, CUSTOM, training("megatron", seq_length=32768), {"cp": 4, "cp_comm": "p2p"}),
    "levels": row(DENSE, CUSTOM, training("megatron", seq_length=32768), {"cp": 8, "cp_comm": "a2a+p2p", "cp_a2a_size": 4}),
    "apart": row({**DENSE, "mtp_num_layers": 1}, H100, training("megatron"), {"pp": 4, "layers_per_stage": [3, 3, 2, 0], "mtp_stage": 2}),
    "uniform": row(DENSE, H100, training("megatron"), {"recompute": "full", "recompute_method": "uniform"}),
    "selective": row(MOE, H100, training("megatron"), {"recompute": "selective"}),
    "offload": row(DENSE, {**H100, "host_memory_gib": 4000}, training("deepspeed"),
                   {"zero": 2, "offload": {"optimizer_fraction": 1.0}}),
    "offload-3": row(DENSE, {**H100, "host_memory_gib": 1000}, training("deepspeed"),
                     {"zero": 3, "offload": {"optimizer_fraction": 1.0, "parameters": True}}),
    "drives": row(DENSE, {**H100, "host_memory_gib": 1000, "nvme": NVME}, training("deepspeed"), {"zero": 3, "offload": ON_DRIVES}),
    "modules": row(DENSE, H100, training("megatron", framework_version="0.19"),
                   {"tp": 2, "offload": {"activation_modules": ["core_attn"]}}),
    "pools-drives": row(DENSE, pools_of({"gpu": "A100-SXM-80GB", "nvme": NVME}, {"gpu": TOY, "nvme": NVME}), training("deepspeed"),
                        {"zero": 3, "dp": 8, "pool_per_stage": ["new"], "offload": ON_DRIVES}),
    "state": row(STATES["mamba2"], H100, training("megatron"), {"tp": 2}),
    "scan": row(STATES["mamba"], H100, training("fsdp"), {"zero": 3}),
    "fsdp": row(DENSE, CUSTOM, training("fsdp", optimizer="adam-8bit"), {"zero": 2}),
    "math": row({**DENSE, "position_embedding": "learned", "max_position_embeddings": 4096}, H100,
                training("megatron", attention="math", software_date="2022-06", dropout=0.1, cross_entropy="fused"),
                {"tp": 2}),
    "fp32": row(DENSE, CUSTOM, training("torchtitan", precision="fp32"), {"zero": 3}),
    "half": row(DENSE, CUSTOM, training("megatron", precision="fp16"), {"tp": 2}),
    "nvfp4": row(DENSE, CUSTOM, training("megatron", precision="nvfp4"), {"tp": 2}),
    "pcie": row(DENSE, PCIE, training("deepspeed"), {"zero": 1}),
    "plain-pcie": row(DENSE, {"gpu": {**TOY, "nvlink_gb_per_s": 0.0}, "num_nodes": 1, "gpus_per_node": 4},
                      training("deepspeed"), {"zero": 3}),
    "pairs": row(DENSE, PAIRS, training("megatron"), {"tp": 4, "pp": 2}),
    "leaves": row(DENSE, {**CUSTOM, "num_nodes": 8, "network": {
        "fabric": "infiniband", "oversubscription": 4.0, "nodes_per_leaf": 2, "rail_optimized": False,
    }}, training("megatron"), {"tp": 4}),
    "rails": row({**DENSE, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 6, "intermediate_size": 6144}, {**CUSTOM, "num_nodes": 8, "network": {
        "fabric": "infiniband", "oversubscription": 4.0, "nodes_per_leaf": 4, "rail_optimized": False,
    }}, training("megatron", seq_length=6144), {"tp": 6, "dp": 4}),
    "windowed": row({**DENSE, "sliding_window": 1024}, H100, training("nanotron"), {"tp": 2, "pp": 2}),
    "presets": row({"preset": "llama-3.2-1b"}, {"preset": "dgx-h100", "num_nodes": 1}, {
        "seq_length": 4096, "global_batch_tokens": 4096 * 64, "precision": "bf16", "framework": "megatron",
    }, {"tp": 2}),
    "config": row({"hf_config": CONFIG}, H100, training("megatron"), {"tp": 2}),
    "pools": row(DENSE, pools_of({"gpu": "A100-SXM-80GB"}, {"gpu": TOY}), training("megatron"), STAGES_ON_POOLS),
    "pools-eight-bit": row(DENSE, pools_of({"gpu": {**TOY, "nvlink_gb_per_s": 0.0}},
                                           {"gpu": {**TOY, "name": "other", "nvlink_gb_per_s": 0.0}}),
                           training("megatron", precision="fp8"), STAGES_ON_POOLS),
    "pools-four-bit": row(DENSE, pools_of({"gpu": TOY}, {"gpu": {**TOY, "name": "other"}}),
                          training("megatron", precision="nvfp4"), STAGES_ON_POOLS),
    "pools-small": row(
        DENSE,
        pools_of({"gpu": TOY}, {"gpu": {**TOY, "name": "other"}}),
        training("megatron", seq_length=64),
        STAGES_ON_POOLS,
    ),
    "pools-half": row(
        DENSE,
        pools_of({"gpu": TOY}, {"gpu": {**TOY, "name": "other"}}),
        training("megatron", precision="fp16"),
        STAGES_ON_POOLS,
    ),
    "pools-fp32": row(DENSE, pools_of({"gpu": TOY}, {"gpu": {**TOY, "name": "other"}}),
                      training("megatron", precision="fp32"), STAGES_ON_POOLS),
    "pools-offload": row(DENSE, pools_of({"gpu": "A100-SXM-80GB"}, {"gpu": "H100-SXM-80GB", "host_memory_gib": 1000}),
                         training("megatron"), {**STAGES_ON_POOLS, "offload": {"optimizer_fraction": 1.0}}),
    "pools-links": row(DENSE, pools_of({"gpu": "A100-SXM-80GB"}, {
        "gpu": "A100-PCIe-80GB", "intra_node": "nvlink-pairs", "pcie": {"gpus_per_switch": 4, "gpus_per_socket": 4},
    }), training("megatron"), {**STAGES_ON_POOLS, "tp": 4}),
    "pools-racks": row(
        {**DENSE, "moe": {**MOE["moe"], "num_experts": 64}},
        pools_of({"gpu": "B200-SXM-180GB", "num_nodes": 16}, {"gpu": "GB200-186GB", **RACKS}),
        training("megatron", global_batch_size=128),
        {"pp": 2, "ep": 32, "dp": 128, "moe_dispatcher": "alltoall", "pool_per_stage": ["old", "new"]},
    ),
    "run": row(DENSE, {**CUSTOM, "power_w_per_gpu": 900.0, "carbon_g_per_kwh": 400.0, "reliability": RELIABILITY},
               training("megatron", total_tokens=1e12, checkpoint={"storage_gb_per_s": 10.0}), {"tp": 2}),
    "run-saved": row(DENSE, {**CUSTOM, "reliability": RELIABILITY},
                     training("megatron", total_tokens=1e12, checkpoint={"save_s": 60.0}), {"tp": 2}),
    "pools-run": row(DENSE, pools_of(
        {"gpu": "A100-SXM-80GB", "carbon_g_per_kwh": 400.0, "reliability": RELIABILITY},
        {"gpu": TOY, "power_w_per_gpu": 900.0, "carbon_g_per_kwh": 400.0, "reliability": RELIABILITY},
    ), training("megatron", total_tokens=1e12, checkpoint={"save_s": 60.0}), STAGES_ON_POOLS),
    "diloco": row(DENSE, {**CUSTOM, "islands": ISLANDS}, training("torchtitan"), {"zero": 3, "sync": DILOCO}),
    "gossip": row(DENSE, CUSTOM, training("fsdp"), {"zero": 0, "sync": {"method": "gossip"}}),
    "servers": row(DENSE, {**CUSTOM, "nic_gbit_per_s": 10}, training("fsdp"), {"zero": 0, "sync": {"method": "parameter-server"}}),
    "powersgd": row(DENSE, CUSTOM, training("fsdp", total_tokens=1e9), {"zero": 0, "compression": {"kind": "powersgd"}}),
    "zero-one": row(DENSE, CUSTOM, training("deepspeed", total_tokens=1e11, framework_version="0.19.6"), {"zero": 0, "compression": {"kind": "zero-one", "freeze_steps": 8}}),
    "towers": row({**DENSE, "multimodal": LLAVA}, H100, training("fsdp", towers={"vision": "frozen"}), {"zero": 3}),
    "pools-custom-link": row(DENSE, pools_of({"gpu": TOY}, {"gpu": TOY, "intra_node": {"bandwidth_gb_per_s": 200}}),
                             training("megatron"), STAGES_ON_POOLS),
}  # fmt: skip

TINY = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096, "vocab_size": 32000}
TINY_MOE = {**TINY, "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 1024}}
FEW = {"gpu": TOY, "num_nodes": 2, "gpus_per_node": 4, "price_per_gpu_hour": 2.0}
TIGHT = {"gpu": {**TOY, "memory_gib": 5}, "num_nodes": 2, "gpus_per_node": 2}


def request(model: Json, cluster: Json, framework: str, trained: Json | None = None, **asked: Any) -> Json:
    short = training(framework, seq_length=2048, global_batch_size=16, **(trained or {}))
    return {"model": model, "cluster": cluster, "training": short, "top_k": 20, **asked}


REQUESTS: dict[str, Json] = {
    "megatron": request(TINY, FEW, "megatron"),
    "torchtitan": request(TINY, FEW, "torchtitan"),
    "deepspeed": request(TINY, FEW, "deepspeed"),
    "experts": request(TINY_MOE, FEW, "megatron"),
    "tight": request(TINY, TIGHT, "deepspeed"),
    "recomputing": request(TINY, FEW, "megatron", constraints={"fixed": {"recompute": "full"}}),
    "uniform": request(TINY, FEW, "megatron", constraints={"fixed": {"recompute": "full", "recompute_method": "uniform"}}),
    "selective": request(TINY_MOE, FEW, "megatron", constraints={"fixed": {"recompute": "selective"}}),
    "stages": request(TINY, FEW, "megatron", constraints={"fixed": {"pp": 2}}),
    "context": request(TINY, FEW, "megatron", constraints={"fixed": {"cp": 2}}),
    "state": request(TINY, FEW, "torchtitan", constraints={"fixed": {"zero": 3}}),
    "gathered": request(TINY, FEW, "deepspeed", constraints={"fixed": {"zero": 3}}),
    "tokens": request(TINY, FEW, "megatron", {"total_tokens": 1e9}, targets={"deadline_h": 1.0}),
    "flex": request(
        TINY_MOE,
        {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "megatron",
        {"framework_version": "0.19"},
        constraints={"fixed": {"ep": 4, "moe_dispatcher": "flex"}},
    ),
    "front": request(TINY, FEW, "megatron", include=["pareto"]),
    "pools": request(TINY, pools_of({"gpu": "A100-SXM-80GB", "gpus_per_node": 2}, {"gpu": TOY, "gpus_per_node": 2}),
                     "megatron"),
    "cheapest": request(TINY, pools_of({"gpu": "A100-SXM-80GB", "gpus_per_node": 2, "price_per_gpu_hour": 2.0},
                                       {"gpu": TOY, "gpus_per_node": 2, "price_per_gpu_hour": 2.0}),
                        "megatron", objective="cost"),
}  # fmt: skip


# --- fields -----------------------------------------------------------------------------------------------------------


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Boundary models that a value of this type can be, lists of them included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in models_in(part)]


def values_of(annotation: Any) -> Iterator[Any]:
    """Values of a type, those of its alternatives one after the other; none for models and for free text."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from parts
    elif origin in (Union, types.UnionType):
        for part in parts:
            yield from values_of(part)
    elif origin is Annotated:
        yield from values_of(parts[0])
    elif origin in (tuple, list):
        for value in values_of(parts[0]):
            yield [value]
    elif annotation is bool:
        yield from (True, False)
    elif annotation is int:
        yield from (2, 1, 4, 8, 3, 64, 0, 4096)
    elif annotation is float:
        yield from (0.5, 1.0, 2.0, 1024.0, 1e6, 0.01, 1e12)


def fields_of(model: type[BaseModel], before: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Paths of all fields, nested ones by their names, with the type of what can be written there."""
    for name, field in model.model_fields.items():
        inner = models_in(field.annotation)
        for each in inner:
            yield from fields_of(each, (*before, name))
        if not inner or list(values_of(field.annotation)):
            yield (*before, name), field.annotation


PARTS = {"model": ModelInput, "cluster": ClusterInput, "training": TrainingInput, "strategy": StrategyInput}
ROW_FIELDS = {
    ".".join(path): annotation for part, model in PARTS.items() for path, annotation in fields_of(model, (part,))
}
PLAN_FIELDS = {".".join(path): annotation for path, annotation in fields_of(PlanRequest) if path[0] not in PARTS}
SCOPE = resolve_job(REQUESTS["megatron"]).scope
CORRECTION = {
    "term": "gemm", "factor": 1.5, "kept": True, "framework": SCOPE.framework, "model_impl": SCOPE.model_impl, "gpu": SCOPE.gpu,
    "precision": SCOPE.precision, "calibration": SCOPE.calibration,
}  # fmt: skip
"""What runs like those of the first request would have taught of one term."""
HINTS: dict[str, list[Any]] = {
    "corrections": [{"schema_version": 1, "corrections": [CORRECTION]}],
    "model.preset": ["llama-3.2-3b"],
    "model.hf_config": [{**CONFIG, "vocab_size": 64000}],
    "model.layer_types": [["full_attention"] * 8],
    "training.document_lengths": [[[512, 3], [2048, 1]]],
    "model.max_position_embeddings": [8192],
    "cluster.preset": ["dgx-h200"],
    "cluster.gpu": ["A100-SXM-80GB"],
    "cluster.gpu.name": ["H100 of ours"],
    "cluster.gpu.reference": ["A100-SXM-80GB", "H100-SXM-80GB"],
    "cluster.calibration": ["h100x4-nvls-off-2026"],
    "cluster.pools.gpu": ["L40S-48GB"],
    "cluster.pools.gpu.name": ["H100 of ours"],
    "cluster.pools.gpu.reference": ["A100-SXM-80GB", "H100-SXM-80GB"],
    "cluster.pools.calibration": ["h100x4-nvls-off-2026"],
    "training.framework_version": ["0.1", "0.8", "1.12"],
    "training.software_date": ["2022-06"],
    "training.global_batch_tokens": [4096 * 32],
    "model.multimodal": [{"model_type": "llava", "vision_config": VISION}],
    "training.towers": [{"vision": "trained"}],
    "training.adapter": [{"rank": 8}],
    "training.frozen": [["mlp"]],
    "strategy.layers_per_stage": [[3, 2, 2, 1]],
    "constraints.fixed.layers_per_stage": [[3, 1]],
    "constraints.fixed.recompute_per_stage": [[1, 0]],
    "constraints.fixed.pool_per_stage": [["old", "new"]],
    "constraints.allowed.layers_per_stage": [[[3, 1]]],
    "strategy.sync.method": ["local-sgd", "gossip"],
    "strategy.pool_per_stage": [["old", "new", "new", "new"]],
}

METHODS: dict[str, tuple[str, Json]] = {
    "diloco": ("sync", DILOCO),
    "gossip": ("sync", {"method": "gossip"}),
    "servers": ("sync", {"method": "parameter-server"}),
    "powersgd": ("compression", {"kind": "powersgd"}),
    "zero-one": ("compression", {"kind": "zero-one", "freeze_steps": 8}),
}
_FRAMEWORKS = {"diloco": "torchtitan", "zero-one": "deepspeed"}
FEW_SLOW = {**FEW, "nic_gbit_per_s": 5}


def with_method(name: str, how: str) -> Json:
    """A request that lists or fixes a way of keeping replicas together."""
    field, value = METHODS[name]
    cluster = {**FEW_SLOW, **({"islands": ISLANDS} if name == "diloco" else {"num_nodes": 4})}
    constraints = {how: {field: [value] if how == "allowed" else value}, "num_nodes": {"min": cluster["num_nodes"]}}
    given = {"total_tokens": 1e9, **({"framework_version": "0.19.6"} if name == "zero-one" else {})}
    return request(TINY, cluster, _FRAMEWORKS.get(name, "fsdp"), given, constraints=constraints) | {"top_k": 2}


REQUESTS |= {f"{name}-{how}": with_method(name, how) for name in METHODS for how in ("allowed", "fixed")}
_BY_FIELD = {
    "sync": {"topology": "gossip", "servers": "servers", "method": "servers"},
    "compression": {"kind": "powersgd", "rank": "powersgd", "freeze_steps": "powersgd", "sync_every": "zero-one"},
}
"""The method that a field of a method belongs to; DiLoCo where nothing is said."""
_OF_METHODS = {
    f"constraints.{how}.{field}.{part}": f"{_BY_FIELD[field].get(part, 'diloco')}-{how}"
    for how in ("allowed", "fixed")
    for field, model in (("sync", SyncInput), ("compression", CompressionInput))
    for part in model.model_fields
}
ONLY_IN = _OF_METHODS | {
    "cluster.price_per_gpu_hour": "front",
    "cluster.pools.price_per_gpu_hour": "cheapest",
    "constraints.fixed.pool_per_stage": "pools",
}
"""The request whose plans a field changes that no evaluation asks for, so that it is not tried on all others first."""

# --- trying -----------------------------------------------------------------------------------------------------------


def changed(document: Json, path: str, value: Any) -> Json:
    """The document with one field set; a list on the way stands for its last element."""
    found = copy.deepcopy(document)
    here: Any = found
    *way, last = path.split(".")
    for name in way:
        inner = here.get(name)
        if isinstance(inner, list):
            inner = inner[-1]
        elif not isinstance(inner, dict):
            inner = here[name] = {}
        here = inner
    here[last] = value
    return found


def told(answer: Mapping[str, Any]) -> str:
    """What an evaluation says of time, memory and fitting."""
    left_out = ("id", "assumed", "provenance", "reasons")
    return json.dumps({name: value for name, value in answer.items() if name not in left_out}, sort_keys=True)


@cache
def priced(text: str) -> str | None:
    (answer,) = evaluate_rows([text])
    return None if answer["verdict"] == "invalid" else told(answer)


@cache
def ranked(text: str) -> str | None:
    try:
        response = plan(json.loads(text))
    except Exception:  # noqa: BLE001 - a value that the request's checks refuse
        return None
    plans = [[each["strategy"], told(each["evaluation"])] for each in response["plans"]]
    changed_plans = [told(each["evaluation"]) + str(each["stated_time_ratio"]) for each in response["changed_plans"]]
    beside = (response["pareto"], response["what_if"], response["inexpressible_best"])
    return json.dumps([plans, changed_plans, *beside], sort_keys=True)


def depth(document: Any, path: str) -> int:
    """How many names of a path a document has; a list on the way stands for its last element."""
    first, _, rest = path.partition(".")
    inner = document.get(first) if isinstance(document, dict) else None
    inner = inner[-1] if isinstance(inner, list) else inner
    return 0 if inner is None else 1 + (depth(inner, rest) if rest else 0)


def changes_an_answer(path: str, annotation: Any, *, documents: Mapping[str, Json], answer: Any) -> bool:
    """Whether some value of the field changes the answer to some document."""
    for base in documents.values():
        before = answer(json.dumps(base))
        assert before is not None, f"a document of the list is invalid: {base}"
        for value in [*HINTS.get(path, []), *values_of(annotation)]:
            after = answer(json.dumps(changed(base, path, value)))
            if after is not None and after != before:
                return True
    return False


@pytest.mark.parametrize("path", sorted(set(ROW_FIELDS) - set(EXEMPT)))
def test_a_field_of_a_job_changes_an_evaluation_or_a_plan(path):
    if path in ONLY_IN:
        documents = {name: REQUESTS[name] for name in (ONLY_IN[path],)}
        assert changes_an_answer(path, ROW_FIELDS[path], documents=documents, answer=ranked)
        return
    # A row that says most of the field is most likely changed by it.
    rows = dict(sorted(ROWS.items(), key=lambda row: -depth(row[1], path)))
    found = changes_an_answer(path, ROW_FIELDS[path], documents=rows, answer=priced)
    if not found and not path.startswith("strategy."):
        found = changes_an_answer(path, ROW_FIELDS[path], documents=REQUESTS, answer=ranked)
    assert found, f"{path} changes no evaluation and no plan"


@pytest.mark.parametrize("path", sorted(set(PLAN_FIELDS) - set(EXEMPT)))
def test_a_field_of_a_plan_request_changes_the_plans(path):
    documents = {name: REQUESTS[name] for name in (ONLY_IN[path],)} if path in ONLY_IN else REQUESTS
    assert changes_an_answer(path, PLAN_FIELDS[path], documents=documents, answer=ranked), f"{path} changes no plan"


def test_what_is_exempt_exists():
    assert {*EXEMPT, *ONLY_IN} <= set(ROW_FIELDS) | set(PLAN_FIELDS)
