"""Plan requests whose answers are kept in `tests/approved`: small, quick to search, and each different in what it asks."""

from __future__ import annotations

from typing import Any

from scripts.approved import refused
from scripts.approved.jobs import CARDS, NEW, OLD, pools_of
from scripts.approved.rows import CUSTOM, DENSE, FAST, GPT, LATENT_MOE, MOE, Document

SMALL: Document = {
    "num_layers": 6, "hidden_size": 1152, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 3264,
    "vocab_size": 30011,
}  # fmt: skip
SMALL_MOE: Document = {
    **SMALL,
    "moe": {"num_experts": 6, "top_k": 2, "expert_intermediate_size": 960, "num_shared_experts": 1},
}
UNEVEN: Document = {**SMALL, "num_layers": 7}
FEW: Document = {**CUSTOM, "num_nodes": 2, "gpus_per_node": 3, "price_per_gpu_hour": 2.25}
TIGHT: Document = {**FEW, "gpu": {**FAST, "memory_gib": 6.5}}
TINY: Document = {**FEW, "gpu": {**FAST, "memory_gib": 3}}


def asked(
    model: Document, cluster: Document, framework: str, training: Document | None = None, **more: Any
) -> Document:
    usual = {"seq_length": 2304, "global_batch_size": 24, "precision": "bf16", "framework": framework}
    return {"model": model, "cluster": cluster, "training": {**usual, **(training or {})}, "top_k": 4, **more}


def fixed(**fields: Any) -> Document:
    """Constraints that give these strategy fields one value each."""
    return {"constraints": {"fixed": fields}}


def allowed(**fields: Any) -> Document:
    """Constraints that list values for these strategy fields."""
    return {"constraints": {"allowed": fields}}


def requests() -> dict[str, Document]:
    """The requests by name."""
    old, new = (
        {**OLD, "num_nodes": 1, "gpus_per_node": 2, "price_per_gpu_hour": 1.5},
        {**NEW, "num_nodes": 1, "gpus_per_node": 4, "price_per_gpu_hour": 3.0},
    )
    both = pools_of(old, new)
    found: dict[str, Document] = {}
    for framework in ("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron"):
        found[f"dense-{framework}"] = asked(SMALL, FEW, framework)
        found[f"tight-{framework}"] = asked(SMALL, TIGHT, framework, {"global_batch_size": 12, "seq_length": 4608})
    found |= {
        "experts-megatron": asked(SMALL_MOE, FEW, "megatron"),
        "experts-torchtitan": asked(SMALL_MOE, FEW, "torchtitan"),
        "latent": asked({**LATENT_MOE, "num_layers": 6}, {**FEW, "gpus_per_node": 4}, "megatron", **allowed(tp=[1, 2], ep=[1, 4])),
        "gpt-fp16": asked({**GPT, "num_layers": 6}, FEW, "megatron", {"precision": "fp16", "seq_length": 2048}),
        "fp8": asked(SMALL, FEW, "torchtitan", {"precision": "fp8"}),
        "cost": asked(SMALL, FEW, "megatron", objective="cost"),
        "fewest": asked(SMALL, TIGHT, "megatron", objective="fewest_gpus", targets={"min_tokens_per_s": 150_000.0}),
        "deadline": asked(SMALL, FEW, "megatron", {"total_tokens": 2e9}, objective="cost", targets={"deadline_h": 4.0}),
        "throughput": asked(SMALL, FEW, "deepspeed", objective="fewest_gpus", targets={"min_tokens_per_s": 260_000.0}),
        "both-targets": asked(SMALL, FEW, "megatron", {"total_tokens": 2e9}, objective="cost",
                                targets={"deadline_h": 2.5, "min_tokens_per_s": 200_000.0}),
        "missed-target": asked(SMALL, FEW, "megatron", targets={"min_tokens_per_s": 9e6}),
        "at-risk": asked(SMALL, TIGHT, "megatron", {"seq_length": 6912}, constraints={"allow_at_risk": True, "memory_headroom_fraction": 0.11}),
        "whole-nodes": asked(SMALL, {**FEW, "num_nodes": 4}, "torchtitan", constraints={"num_nodes": {"min": 2, "max": 3}}),
        "no-idle": asked(SMALL, {**FEW, "num_nodes": 3}, "megatron", constraints={"allow_idle_gpus": False}),
        "nothing-fits": asked(SMALL, TINY, "megatron", {"seq_length": 9216}),
        "nothing-fits-deepspeed": asked(DENSE, TINY, "deepspeed"),
        "nothing-fits-torchtitan": asked(DENSE, TINY, "torchtitan"),
        "nothing-fits-experts": asked(MOE, TINY, "megatron"),
        "nothing-legal": asked(SMALL, FEW, "megatron", {"global_batch_size": 7}, **fixed(dp=2, tp=3)),
        "illegal-heads": asked(SMALL, FEW, "megatron", **fixed(tp=2)),
        "illegal-layers": asked(SMALL, {**FEW, "gpus_per_node": 5}, "megatron", **fixed(pp=5)),
        "contradiction": asked(SMALL, FEW, "nanotron", **fixed(zero=3)),
        "full": asked(SMALL, TIGHT, "megatron", **fixed(recompute="full")),
        "blocks": asked(SMALL, TIGHT, "megatron", constraints={"fixed": {"recompute": "full", "recompute_method": "block", "pp": 2}}),
        "modules": asked(SMALL_MOE, TIGHT, "megatron", **allowed(recompute=["selective"], recompute_modules=[["mlp"], ["layernorm", "moe_act"]])),
        "schedules": asked(SMALL, FEW, "torchtitan", constraints={"fixed": {"pp": 3}, "allowed": {"schedule": ["1f1b", "gpipe", "interleaved"], "vpp": [1, 2]}}),
        "overlaps": asked(SMALL, FEW, "megatron", constraints={"fixed": {"tp": 3}, "allowed": {"overlap": {"tp_comm": [True, False], "grad_reduce": [True, False]}}}),
        "context": asked(SMALL, FEW, "megatron", {"seq_length": 13824, "global_batch_size": 6}, **allowed(cp=[1, 3], cp_comm=["p2p", "a2a"])),
        "shards": asked(SMALL, FEW, "torchtitan", constraints={"fixed": {"zero": 3}, "allowed": {"zero_shard_size": [2, 3, 6]}}),
        "offload": asked(DENSE, {**TIGHT, "host_memory_gib": 300}, "deepspeed", constraints={"fixed": {"zero": 3}, "allowed": {"offload": {"optimizer_fraction": [0.0, 1.0]}}}),
        "given-splits": asked(UNEVEN, FEW, "megatron", **allowed(layers_per_stage=[[4, 3], [3, 4]], pp=[2])),
        "open-splits": asked(UNEVEN, FEW, "megatron", constraints={"fixed": {"pp": 2}}, include=["open_splits"]),
        "open-splits-3": asked({**SMALL_MOE, "num_layers": 8}, FEW, "megatron", constraints={"fixed": {"pp": 3, "zero": 1}}, include=["open_splits"]),
        "pareto": asked(SMALL, FEW, "torchtitan", include=["pareto"]),
        "pareto-experts": asked(SMALL_MOE, FEW, "megatron", include=["pareto"], **fixed(pp=1)),
        "what-if": asked(SMALL, FEW, "torchtitan", {"total_tokens": 2e9}, include=["what_if"]),
        "what-if-fixed": asked(SMALL, FEW, "megatron", include=["what_if"], **fixed(micro_batch_size=2, pp=1)),
        "documents": asked({**SMALL, "sliding_window": 500}, FEW, "megatron", {"mean_document_length": 300.0}, **allowed(tp=[1, 3])),
        "old-release": asked(SMALL, FEW, "megatron", {"framework_version": "0.9"}, **fixed(pp=2)),
        "dated": asked(GPT, FEW, "megatron", {"software_date": "2022-03", "seq_length": 1024}, **allowed(tp=[1, 3], pp=[1, 2])),
    }  # fmt: skip
    found |= _of_pools_splits_and_long_rankings(old, new)
    found |= _beside(both)
    found |= refused.requests(lambda **more: asked(SMALL, FEW, "megatron", **more))
    return found | refused.requests_on_pools(lambda **more: asked(SMALL, both, "megatron", **more))


def _of_pools_splits_and_long_rankings(old: Document, new: Document) -> dict[str, Document]:
    """Two and three kinds of node, open splits, and rankings of more plans than the usual four."""
    cards, both = {**CARDS, "gpus_per_node": 2}, pools_of(old, new)
    return {
        "pools": asked(SMALL, both, "megatron"),
        "pools-cost": asked(SMALL, both, "megatron", objective="cost"),
        "pools-fewest": asked(SMALL, both, "torchtitan", objective="fewest_gpus", targets={"min_tokens_per_s": 120_000.0}),
        "pools-experts": asked(SMALL_MOE, both, "megatron", **allowed(pp=[1, 2])),
        "pools-uneven": asked(UNEVEN, both, "megatron", include=["open_splits"], **fixed(pp=3)),
        "pools-tight": asked(SMALL, pools_of({**old, "gpu": {**FAST, "name": "less", "memory_gib": 4}}, {**new, "gpu": {**FAST, "memory_gib": 6}}), "megatron", {"seq_length": 4608}),
        "pools-nothing-fits": asked(DENSE, pools_of({**old, "gpu": {**FAST, "memory_gib": 3}}, {**new, "gpu": {**FAST, "memory_gib": 4}}), "megatron"),
        "pools-what-if": asked(SMALL, both, "nanotron", include=["what_if"]),
        "three-pools": asked(UNEVEN, pools_of(old, new, cards), "megatron", **fixed(pp=3)),
        "open-splits-kinds": asked({**LATENT_MOE, "num_layers": 9}, {**TIGHT, "num_nodes": 2, "gpus_per_node": 2}, "megatron",
                                   constraints={"fixed": {"pp": 4, "zero": 1, "micro_batch_size": 1}}, include=["open_splits"]),
        "open-splits-inexpressible": asked(UNEVEN, FEW, "nanotron", constraints={"fixed": {"pp": 3}}, include=["open_splits"]),
        "open-splits-tight": asked({**UNEVEN, "num_layers": 11}, TIGHT, "megatron", {"seq_length": 6912}, constraints={"fixed": {"pp": 3}}, include=["open_splits"]),
        "open-splits-old": asked(UNEVEN, FEW, "megatron", {"framework_version": "0.11"}, constraints={"fixed": {"pp": 3}}, include=["open_splits"]),
        "recompute-per-stage": asked(SMALL, TIGHT, "megatron", constraints={"fixed": {"pp": 2, "recompute_per_stage": [3, 1]}}),
        "many": asked(SMALL_MOE, FEW, "megatron", top_k=24),
        "many-tight": asked(SMALL, TIGHT, "megatron", {"seq_length": 4608}, constraints={"allow_at_risk": True}, top_k=16),
        "many-cost": asked(SMALL, {**FEW, "num_nodes": 3}, "torchtitan", objective="cost", top_k=16),
        "many-unpriced": asked(SMALL, {**FEW, "num_nodes": 3, "price_per_gpu_hour": 0.0}, "deepspeed", objective="cost", top_k=9),
        "many-fewest": asked(SMALL, FEW, "megatron", objective="fewest_gpus", targets={"min_tokens_per_s": 300_000.0}, top_k=24),
        "titan-pools": asked(UNEVEN, both, "torchtitan"),
        "nanotron-pools": asked(UNEVEN, both, "nanotron"),
        "pools-target": asked(SMALL, both, "megatron", {"total_tokens": 1e9}, objective="cost", targets={"deadline_h": 1.8}),
    }  # fmt: skip


def _beside(both: Document) -> dict[str, Document]:
    """Splits at risk, every schedule, several extras at once, links without NVLink, and one GPU."""
    nine, eight = {**SMALL, "num_layers": 9}, {**SMALL_MOE, "num_layers": 8}
    wide, cards = {**FEW, "gpus_per_node": 4}, {**FEW, "gpu": {**FAST, "memory_gib": 9.0}, "intra_node": "pcie"}
    schedules = {"schedule": ["1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "gpipe"], "vpp": [1, 2]}
    opened: Document = {"include": ["open_splits"]}
    risk = {"fixed": {"pp": 3, "micro_batch_size": 1, "zero": 1, "recompute": "none"}, "allow_at_risk": True}
    alike = {**NEW, "num_nodes": 1, "gpus_per_node": 2}
    return {
        "open-splits-risk": asked(UNEVEN, TIGHT, "megatron", {"seq_length": 6048}, constraints=risk, **opened, top_k=8),
        "open-splits-risk-far": asked(UNEVEN, TIGHT, "megatron", {"seq_length": 7488}, constraints=risk, **opened),
        "open-splits-titan": asked(nine, FEW, "torchtitan", **fixed(pp=2), **opened, top_k=6),
        "open-splits-virtual": asked(nine, FEW, "megatron", **fixed(pp=2, vpp=2, tp=1), **opened, top_k=3),
        "open-splits-cost": asked(UNEVEN, {**FEW, "num_nodes": 3}, "megatron", objective="cost", **fixed(tp=1), **opened, top_k=5),
        "open-splits-target": asked(UNEVEN, FEW, "megatron", {"total_tokens": 1e9}, objective="fewest_gpus", targets={"deadline_h": 2.6}, **opened),
        "open-splits-full": asked(UNEVEN, TIGHT, "megatron", {"seq_length": 9216}, **fixed(pp=3, recompute="full"), **opened),
        "all-schedules": asked(eight, wide, "torchtitan", constraints={"fixed": {"pp": 4, "micro_batch_size": 1}, "allowed": schedules}, top_k=12),
        "all-schedules-few": asked({**SMALL, "num_layers": 8}, wide, "torchtitan", {"global_batch_size": 8}, constraints={"fixed": {"pp": 2}, "allowed": schedules}, top_k=12),
        "every-extra": asked(SMALL, FEW, "megatron", include=["pareto", "what_if", "open_splits"], top_k=3),
        "pareto-offload": asked(SMALL, {**TIGHT, "host_memory_gib": 300}, "deepspeed", include=["pareto"]),
        "pareto-cards": asked(SMALL, cards, "fsdp", {"global_batch_size": 12}, include=["pareto"], top_k=6),
        "cost-cards": asked(SMALL, cards, "nanotron", objective="cost", top_k=8),
        "one-gpu": asked(SMALL, {**FEW, "num_nodes": 1, "gpus_per_node": 1}, "megatron", top_k=10),
        "two-gpus": asked(SMALL_MOE, {**FEW, "num_nodes": 1, "gpus_per_node": 2}, "torchtitan", top_k=10),
        "pools-risk": asked(UNEVEN, pools_of({**alike, "gpu": {**FAST, "memory_gib": 7}}, {**alike, "gpu": {**FAST, "memory_gib": 6.5}}), "megatron",
                            {"seq_length": 4608}, constraints={"allow_at_risk": True}, top_k=6),
        "pools-eight-layers": asked({**SMALL, "num_layers": 8}, both, "nanotron", top_k=8),
        "pools-of-two-prices": asked(UNEVEN, pools_of({**alike, "price_per_gpu_hour": 3.0}, {**alike, "price_per_gpu_hour": 1.0}), "megatron", objective="cost", top_k=6),
    }  # fmt: skip
