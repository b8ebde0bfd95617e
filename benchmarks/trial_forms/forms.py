"""Every parallel form that trials run, as rows of tiny models: what the tests on processors and on GPUs have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DENSE: Mapping[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 256, "qk_norm": True,
}  # fmt: skip
MIXTURE: Mapping[str, Any] = {
    **DENSE, "moe": {
        "num_experts": 8, "top_k": 2, "expert_intermediate_size": 32, "num_shared_experts": 1,
        "shared_expert_intermediate_size": 32, "first_dense_layers": 1,
    },
}  # fmt: skip
TENSOR: Mapping[str, Any] = {"tp": 2, "sequence_parallel": True}

# Name: strategy, by the number of its processes. The first word of a name may say which model: one with experts, or with tied embeddings.
ALONE = ("dense", "mixture", "tied")
"""What one process without any split is called, for each model."""
FORMS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    1: {
        "selective recomputation": {"recompute": "selective"},
        "full recomputation of one layer": {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 1},
        "mixture with selective recomputation": {"recompute": "selective"},
        "mixture with full recomputation": {"recompute": "full"},
    },
    2: {
        "replicas": {"dp": 2},
        "ZeRO 1": {"dp": 2, "zero": 1},
        "ZeRO 2": {"dp": 2, "zero": 2},
        "ZeRO 3": {"dp": 2, "zero": 3},
        "ZeRO 3, reduced once": {"dp": 2, "zero": 3, "micro_batch_size": 1, "grad_sync": "last"},
        "ZeRO 3 with selective recomputation": {"dp": 2, "zero": 3, "recompute": "selective"},
        "tensor parallel": TENSOR,
        "tensor parallel with selective recomputation": {**TENSOR, "recompute": "selective"},
        "pipeline": {"pp": 2},
        "pipeline of gpipe": {"pp": 2, "schedule": "gpipe"},
        "pipeline, interleaved": {"pp": 2, "vpp": 2},
        "pipeline of zb-h1": {"pp": 2, "schedule": "zb-h1"},
        "pipeline of zb-v": {"pp": 2, "vpp": 2, "schedule": "zb-v"},
        "pipeline of dualpipe-v": {"pp": 2, "vpp": 2, "schedule": "dualpipe-v"},
        "pipeline, ends without layers": {"pp": 2, "vpp": 2, "layers_per_stage": "inside"},
        "pipeline with full recomputation": {"pp": 2, "recompute": "full"},
        "context, gathered": {"cp": 2, "zero": 3, "cp_comm": "allgather"},
        "context, passed on": {"cp": 2, "zero": 3, "cp_comm": "p2p"},
        "context of replicas": {"cp": 2},
        "tied, tensor parallel": TENSOR,
        "tied, ZeRO 3": {"dp": 2, "zero": 3},
        "mixture, ZeRO 3": {"dp": 2, "zero": 3},
        "mixture, experts spread": {"dp": 2, "zero": 3, "ep": 2},
        "mixture, experts spread, recomputed": {"dp": 2, "zero": 3, "ep": 2, "recompute": "selective"},
        "mixture, experts cut": TENSOR,
        "mixture, experts spread over tensor ranks": {**TENSOR, "ep": 2},
        "mixture, experts spread over context ranks": {"cp": 2, "zero": 3, "ep": 2},
        "mixture, pipeline": {"pp": 2},
    },
    4: {
        "tensor parallel, ZeRO 3": {**TENSOR, "dp": 2, "zero": 3},
        "tensor parallel replicas": {**TENSOR, "dp": 2, "zero": 0},
        "shards of half the replicas": {"dp": 4, "zero": 3, "zero_shard_size": 2},
        "tensor parallel pipeline": {**TENSOR, "pp": 2},
        "pipeline of replicas": {"pp": 2, "dp": 2},
        "pipeline, ZeRO 3": {"pp": 2, "dp": 2, "zero": 3},
        "pipeline of zb-v, ZeRO 2": {"pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2, "zero": 2},
        "context and tensor parallel": {**TENSOR, "cp": 2, "zero": 3},
        "context and pipeline": {"cp": 2, "pp": 2, "zero": 3},
        "context, passed on by four": {"cp": 4, "zero": 3, "cp_comm": "p2p"},
        "mixture, experts spread, the rest cut": {**TENSOR, "dp": 2, "zero": 3, "ep": 2},
        "mixture, experts spread over all": {**TENSOR, "dp": 2, "zero": 3, "ep": 4},
        "mixture, experts spread over half": {"dp": 4, "zero": 3, "ep": 2},
        "mixture, shards of half the replicas": {"dp": 4, "zero": 3, "zero_shard_size": 2, "ep": 2},
        "mixture, experts spread in a pipeline": {"pp": 2, "dp": 2, "zero": 3, "ep": 2},
    },
    8: {
        "tensor, pipeline, ZeRO 3": {**TENSOR, "pp": 2, "dp": 2, "zero": 3},
        "tensor, pipeline, replicas": {**TENSOR, "pp": 2, "dp": 2},
        "tensor, pipeline interleaved, ZeRO 2": {**TENSOR, "pp": 2, "vpp": 2, "dp": 2, "zero": 2},
        "tensor, pipeline, context": {**TENSOR, "pp": 2, "cp": 2, "zero": 3},
        "tensor, context, ZeRO 3": {**TENSOR, "cp": 2, "dp": 2, "zero": 3, "micro_batch_size": 1},
        "tensor, shards of half the replicas": {**TENSOR, "dp": 4, "zero": 3, "zero_shard_size": 2},
        "pipeline of four, ZeRO 3": {"pp": 4, "dp": 2, "zero": 3, "micro_batch_size": 1},
        "pipeline of zb-v, context, ZeRO 3": {"pp": 2, "vpp": 2, "schedule": "zb-v", "cp": 2, "dp": 2, "zero": 3},
        "mixture, tensor, pipeline, experts": {**TENSOR, "pp": 2, "dp": 2, "zero": 3, "ep": 4},
        "mixture, pipeline, context, experts": {"pp": 2, "cp": 2, "dp": 2, "zero": 3, "ep": 4},
        "mixture, tensor, context, experts": {**TENSOR, "cp": 2, "dp": 2, "zero": 3, "ep": 8},
        "mixture, shards of half the replicas, tensor": {**TENSOR, "dp": 4, "zero": 3, "zero_shard_size": 2, "ep": 4},
        "mixture, experts fewer than ranks": {"dp": 8, "zero": 3, "ep": 4, "micro_batch_size": 1},
    },
}  # fmt: skip


def kind(name: str) -> str:
    """Which model a form is of."""
    first = name.split(maxsplit=1)[0].rstrip(",")
    return first if first in ("mixture", "tied") else "dense"


def job(
    name: str, strategy: Mapping[str, Any], *, world: int, layers: int = 2, steps: int = 3, **training: Any
) -> dict[str, Any]:
    """A job of `trial_processes` with the row of a form; single precision, so that only the order of sums tells two plans apart."""
    model = {**(MIXTURE if kind(name) == "mixture" else DENSE), "num_layers": layers}
    if kind(name) == "tied":
        model["tie_word_embeddings"] = True
    if strategy.get("layers_per_stage") == "inside":
        strategy = {**strategy, "layers_per_stage": [0, layers // 2, layers // 2, 0]}
    row = {
        "model": model,
        "training": {"seq_length": 32, "global_batch_size": 8, "precision": "fp32", "optimizer": "sgd", **training},
        "strategy": {"micro_batch_size": 4 if world == 1 else 2, **strategy},
    }
    return {"name": name, "row": row, "world": world, "steps": steps, "learning_rate": 0.5}


# Heads and widths that the kernels of GPUs take.
_WIDER: Mapping[str, Any] = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "head_dim": 64,
}
_WIDER_MIXTURE: Mapping[str, Any] = {"expert_intermediate_size": 256, "shared_expert_intermediate_size": 256}
SHARDED: Mapping[str, Any] = {"dp": 2, "zero": 3}
FAULTS: Mapping[str, str] = {
    "mixture, gradients not summed": "unreduced",
    "mixture, experts' mean over shards": "mean over shards",
}
"""What `processes` takes away from a reduction, by the name of the form."""


def forms_of(*worlds: int, **size: Any) -> Iterator[dict[str, Any]]:
    """Jobs of every form on so many processes, behind those of one process that they are compared with."""
    yield from (job(name, {}, world=1, **size) for name in ALONE)
    for world in worlds:
        yield from (job(name, strategy, world=world, **size) for name, strategy in FORMS[world].items())


def forms_on_gpus(
    count: int, *, precision: str = "bf16", compiled: bool = True, steps: int = 3
) -> Iterator[dict[str, Any]]:
    """Jobs of every form that so many GPUs run, with what processors lack: other attention kernels, and compiled layers.

    In fp32 GPUs have no kernel for rings of context parallel ranks, and no others to try.
    """
    half = precision == "bf16"
    for each in forms_of(*(world for world in FORMS if world <= count), steps=steps, precision=precision):
        if half or each["row"]["strategy"].get("cp", 1) == 1:
            yield _wider(each)
    dense = job("dense", {}, world=1, steps=steps, precision=precision)
    if half:
        yield _wider(dense, name="attention of cuDNN", attention_kernel="cudnn")
    if half and compiled:
        yield _wider(dense, name="FlexAttention", attention_kernel="flex")
        yield _wider(dense, name="FlexAttention, compiled", attention_kernel="flex", compile=True)
    if half and compiled:
        yield _wider(dense, name="compiled", compile=True, cross_entropy="compiled")
    if half and compiled and count >= 2:
        sharded = job("dense", SHARDED, world=2, steps=steps, precision=precision)
        yield _wider(sharded, name="compiled, ZeRO 3", compile=True)
        spread = job("mixture", {**SHARDED, "ep": 2}, world=2, steps=steps, precision=precision)
        yield _wider(spread, name="mixture, compiled", compile=True)


def broken(**size: Any) -> Iterator[dict[str, Any]]:
    """Jobs on two processes whose gradients are reduced wrongly on purpose: a comparison that does not see it proves nothing."""
    spread = job("mixture", {**SHARDED, "ep": 2}, world=2, **size)
    yield from ({**spread, "name": name, "fault": fault} for name, fault in FAULTS.items())


def broken_on_gpus(count: int, **size: Any) -> Iterator[dict[str, Any]]:
    """The same with the widths of forms on GPUs, where there are two."""
    yield from (_wider(each) for each in broken(**size) if each["world"] <= count)


def _wider(made: dict[str, Any], *, name: str = "", **training: Any) -> dict[str, Any]:
    row = made["row"]
    model = {**row["model"], **_WIDER}
    if "moe" in model:
        model["moe"] = {**model["moe"], **_WIDER_MIXTURE}
    training = {**row["training"], "seq_length": 256, **training}
    return {**made, "name": name or made["name"], "row": {**row, "model": model, "training": training}}
