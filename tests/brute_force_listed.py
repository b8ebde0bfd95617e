"""Jobs whose request lists every value of every knob, over all frameworks, for the brute force: search and enumeration see the same space."""

from __future__ import annotations

from typing import Any

from brute_force import Document
from brute_force_jobs import KEEPS_ON_THE_GPU, made_up_gpu

DENSE: Document = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "vocab_size": 64000,
}  # fmt: skip
EXPERTS: Document = {**DENSE, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 4096}}
MIXED: Document = {**DENSE, "moe": {**EXPERTS["moe"], "first_dense_layers": 2}}
ALL_MODES = ["none", "selective", "full"]
BOTH = [True, False]


def job(
    framework: str,
    model: Document,
    memory_gib: float,
    lists: dict[str, Any],
    *,
    gpus: int = 8,
    batch: int = 16,
    top_k: int = 1000,
) -> Document:
    """One node; whatever is not listed is 1, and stays on the GPU.

    Megatron's sets of recomputed modules cannot be listed beside other ways to recompute; a job of their own has them.
    """
    ones = {name: [1] for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size")}
    return {
        "model": model,
        "cluster": {"gpu": made_up_gpu("X", memory_gib), "num_nodes": 1, "gpus_per_node": gpus},
        "training": {"framework": framework, "precision": "bf16", "seq_length": 4096, "global_batch_size": batch},
        "constraints": {
            "fixed": {"offload": KEEPS_ON_THE_GPU} if "offload" not in lists else {},
            "allowed": {**ones, "recompute": ["none", "full"] if framework == "megatron" else ALL_MODES, **lists},
            "allow_idle_gpus": False,
        },
        "top_k": top_k,
    }  # fmt: skip


def overlap(**flags: list[bool]) -> Document:
    return {"overlap": {"tp_comm": [False], "moe_all_to_all": [False], **flags}}


PARALLEL = {"tp": [1, 2], "pp": [1, 2], "sequence_parallel": BOTH}
LISTED: dict[str, Document] = {
    "megatron-degrees": job("megatron", DENSE, 80, {**PARALLEL, "cp": [1, 2], "micro_batch_size": [1, 2], "zero": [0, 1], **overlap()}),
    "megatron-tight": job("megatron", DENSE, 12, {**PARALLEL, "vpp": [1, 2, 4], "zero": [1], "micro_batch_size": [1, 2], **overlap()}),
    "megatron-tp-overlap": job("megatron", DENSE, 40, {**PARALLEL, "zero": [1], **overlap(tp_comm=BOTH)}),
    "megatron-dp-overlap": job("megatron", DENSE, 40, {"pp": [1, 2], "zero": [0, 1], **overlap(grad_reduce=BOTH, param_gather=BOTH)}),
    "megatron-p2p": job("megatron", DENSE, 40, {"pp": [2, 4], "vpp": [1, 2], "zero": [1], **overlap(p2p=BOTH)}),
    "megatron-shards": job("megatron", DENSE, 24, {"pp": [1, 2], "zero": [0, 1], "micro_batch_size": [1, 2, 4], **overlap()}),
    "megatron-fsdp": job("megatron", DENSE, 24, {"tp": [1, 2], "sequence_parallel": BOTH, "zero": [1, 2, 3], **overlap()}),
    "megatron-cp": job("megatron", DENSE, 24, {"cp": [1, 2, 4], "cp_comm": ["p2p", "a2a", "allgather"], "zero": [1], **overlap()}),
    "megatron-modules": job(
        "megatron", DENSE, 20,
        {"pp": [1, 2], "zero": [1], "recompute": ["selective"], "recompute_modules": [["core_attn"], ["mlp"], ["core_attn", "mlp"], ["layernorm"]], **overlap()},
    ),
    "megatron-experts": job(
        "megatron", EXPERTS, 80, {"pp": [1, 2], "ep": [1, 2, 4], "etp": [1], "zero": [1], "moe_dispatcher": ["allgather", "alltoall"], **overlap()}
    ),
    "megatron-flex": job(
        "megatron", EXPERTS, 80, {"ep": [2, 4, 8], "etp": [1], "zero": [1], "moe_dispatcher": ["alltoall", "flex"], **overlap(moe_all_to_all=BOTH)}
    ),
    "megatron-mixed": job("megatron", MIXED, 48, {"pp": [1, 2], "vpp": [1, 2], "ep": [1, 2], "etp": [1], "zero": [0, 1], "moe_dispatcher": ["alltoall"], **overlap()}),
    "megatron-offload": job(
        "megatron", DENSE, 14, {"zero": [1], "pp": [1, 2], "offload": {"optimizer_fraction": [0, 0.5, 1], "activation_layers": [0, 2]}, **overlap()}
    ),
    "megatron-top-5": job("megatron", DENSE, 24, {**PARALLEL, "cp": [1, 2], "vpp": [1, 2], "micro_batch_size": [1, 2], "zero": [0, 1], **overlap(tp_comm=BOTH)}, top_k=5),
    "megatron-deepspeed-degrees": job("megatron-deepspeed", DENSE, 40, {**PARALLEL, "zero": [0, 1], "micro_batch_size": [1, 2]}),
    "megatron-deepspeed-tight": job("megatron-deepspeed", DENSE, 16, {"tp": [1, 2, 4], "sequence_parallel": BOTH, "zero": [0, 1, 2, 3]}),
    "deepspeed-stages": job("deepspeed", DENSE, 40, {"zero": [0, 1, 2, 3], "zero_param_shard_size": [8], "micro_batch_size": [1, 2], "overlap": {"grad_reduce": BOTH, "param_gather": BOTH}}),
    "deepspeed-overlap": job("deepspeed", DENSE, 24, {"zero": [1, 2, 3], "zero_param_shard_size": [8], "overlap": {"grad_reduce": BOTH}}),
    "deepspeed-hpz": job("deepspeed", DENSE, 24, {"zero": [3], "zero_param_shard_size": [2, 4, 8], "overlap": {"grad_reduce": BOTH, "param_gather": BOTH}}),
    "deepspeed-pipeline": job("deepspeed", DENSE, 40, {"pp": [1, 2, 4], "zero": [0, 1], "micro_batch_size": [1, 2], "overlap": {"grad_reduce": BOTH}}),
    "torchtitan-shards": job("torchtitan", DENSE, 24, {"tp": [1, 2], "sequence_parallel": BOTH, "zero": [2, 3], **overlap()}),
    "torchtitan-schedules": job(
        "torchtitan", DENSE, 40,
        {"pp": [2, 4], "vpp": [1, 2], "zero": [2, 3], "schedule": ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe-v"], **overlap()},
    ),
    "torchtitan-cp": job("torchtitan", DENSE, 24, {"cp": [1, 2, 4], "zero": [2, 3], "micro_batch_size": [1, 2], **overlap()}),
    "torchtitan-experts": job("torchtitan", EXPERTS, 80, {"ep": [1, 2, 4], "etp": [1], "zero": [2, 3], "moe_dispatcher": ["alltoall"], **overlap()}),
    "fsdp-shards": job("fsdp", DENSE, 24, {"zero": [2, 3], "grad_sync": ["last", "each"], "micro_batch_size": [1, 2]}),
    "fsdp-sync": job("fsdp", DENSE, 40, {"zero": [2, 3], "grad_sync": ["last", "each"], "micro_batch_size": [1]}),
    "nanotron-degrees": job("nanotron", DENSE, 40, {**PARALLEL, "zero": [0, 1], "micro_batch_size": [1, 2]}),
    "nanotron-schedules": job("nanotron", DENSE, 40, {"pp": [1, 2, 4], "zero": [0, 1], "schedule": ["1f1b", "gpipe"]}),
}  # fmt: skip

KNOBS = ("overlap", "schedule", "recompute_modules", "moe_dispatcher", "cp_comm", "grad_sync", "zero_param_shard_size")
"""What a user of a framework can set beside the degrees; the contract has the search find their best values unasked."""


def without_knobs(request: Document) -> Document:
    """The same request with the knobs left to the search, and with its modules whether anything is recomputed: a set that saves next
    to nothing is not tried, and would win where only sets are allowed.
    """
    constraints = request["constraints"]
    dropped = {*KNOBS, "recompute"} if "recompute_modules" in constraints["allowed"] else KNOBS
    allowed = {name: values for name, values in constraints["allowed"].items() if name not in dropped}
    return {**request, "constraints": {**constraints, "allowed": allowed}}


def with_time_limit(request: Document, seconds: float) -> Document:
    return {**request, "time_limit_s": seconds}
