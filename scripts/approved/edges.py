"""Rows between those of the other groups, whose answers are kept in `tests/approved`: the smallest groups of ranks, parts of a model
that rarely meet, slow hosts, models so small that a single number shows, and draws of everything at once.

A factor of one, an empty branch or a hidden wait looks the same whether its formula is right or not. Here each is asked for where it
shows: two ranks and one, one micro-batch and two, links that set the pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from scripts.approved.jobs import CARDS, NEW, OLD, pools_of
from scripts.approved.rows import CUSTOM, DENSE, FAST, FRAMEWORKS, GPT, H100, LATENT_MOE, MLA, MOE, Document, row

FEATURES: tuple[Document, ...] = (
    {"gated_mlp": False}, {"gated_mlp": False, "mlp_bias": True}, {"mlp_bias": True}, {"attention_bias": True}, {"attention_bias": "qkv"},
    {"linear_bias": True}, {"parallel_block": True}, {"parallel_block": True, "norms_per_layer": 1}, {"norms_per_layer": 4},
    {"norm": "layernorm"}, {"norm": "layernorm", "norm_bias": False}, {"qk_norm": True}, {"tie_word_embeddings": True}, {"head_bias": True},
    {"embedding_norm": True}, {"final_norm": False}, {"position_embedding": "none"}, {"attention_gate": True}, {"attention_sinks": True},
    {"activation_parameters": 3}, {"sliding_window": 700}, {"mtp_num_layers": 2},
)  # fmt: skip
TINY: Document = {
    "num_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 97,
}  # fmt: skip
TINY_GPT: Document = {
    **GPT, "num_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 192, "vocab_size": 97,
    "max_position_embeddings": 40,
}  # fmt: skip
TINY_MOE: Document = {**TINY, "moe": {**MOE["moe"], "num_experts": 4, "top_k": 2, "expert_intermediate_size": 24,
                                      "shared_expert_intermediate_size": 40}}  # fmt: skip
TINY_MLA: Document = {
    **TINY, "mla": {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12},
}  # fmt: skip
SPLITS: tuple[tuple[str, Document], ...] = (
    ("megatron", {"tp": 2, "ep": 4}), ("megatron", {"pp": 2, "recompute": "selective"}), ("torchtitan", {"zero": 3, "ep": 4}),
    ("deepspeed", {"zero": 2, "ep": 2}), ("fsdp", {"zero": 3, "recompute": "full"}),
)  # fmt: skip


def few(gpus: int, **more: Any) -> Document:
    """One node of so many GPUs."""
    return {**CUSTOM, "num_nodes": 1, "gpus_per_node": gpus, "nics_per_node": 1, **more}


def _small_groups() -> Iterator[tuple[str, list[Document]]]:
    """One, two and three ranks, and one to three micro-batches."""
    rows = [
        row(DENSE, few(gpus), {"framework": framework, "global_batch_size": 6}, zero=zero)
        for framework, gpus, zero in product(FRAMEWORKS, (1, 2, 3), (0, 1, 2, 3))
    ]
    degrees: tuple[tuple[Document, int], ...] = (
        ({"tp": 2}, 2), ({"pp": 2}, 1), ({"pp": 2}, 2), ({"pp": 2}, 3), ({"pp": 2, "vpp": 2}, 2), ({"cp": 2}, 2), ({"ep": 2}, 2),
        ({"zero": 2}, 2), ({"zero": 3}, 4), ({"grad_sync": "each"}, 4), ({"grad_sync": "last"}, 4),
    )  # fmt: skip
    rows += [
        row(MOE if "ep" in split else DENSE, few(2), {"framework": framework, "global_batch_size": batch}, **split)
        for framework in FRAMEWORKS
        for split, batch in degrees
    ]
    yield "small-groups", rows
    flags: tuple[tuple[str, Document], ...] = (
        ("tp_comm", {}), ("tp_comm", {"tp": 2, "sequence_parallel": False}), ("p2p", {}), ("p2p", {"pp": 2}),
        ("p2p", {"pp": 2, "vpp": 2}), ("moe_all_to_all", {}), ("moe_all_to_all", {"ep": 2}),
        ("param_gather", {"zero": 0}), ("param_gather", {"zero": 1}), ("grad_reduce", {"zero": 0}), ("grad_reduce", {"zero": 2}),
    )  # fmt: skip
    yield "overlaps-alone", [
        row(MOE, few(4), {"framework": framework}, overlap={name: on}, **split)
        for framework, (name, split), on in product(FRAMEWORKS, flags, (True, False))
        if on or name in ("param_gather", "grad_reduce")
    ]  # fmt: skip


def _features() -> Iterator[tuple[str, list[Document]]]:
    """What dense models have one at a time, with experts, with latent attention, and where parts of the model stand still."""
    yield "features-experts", [
        row({**model, **each}, H100, {"framework": framework}, **split)
        for number, each in enumerate(FEATURES)
        for model, (framework, split) in zip((MOE, LATENT_MOE), (SPLITS * 2)[number % 5 :], strict=False)
    ] + [row({**MOE, **each}, H100, {}, tp=2, ep=2, pp=2) for each in FEATURES]  # fmt: skip
    parts: tuple[Document, ...] = (
        {"frozen": ["mlp"]}, {"frozen": ["attention", "norms"]}, {"frozen": ["head", "embedding"]}, {"adapter": {"rank": 12}},
        {"adapter": {"rank": 20, "target_modules": "attention", "dropout": 0.1}},
    )  # fmt: skip
    how = (("fsdp", 3), ("deepspeed", 2), ("megatron", 1), ("torchtitan", 3), ("fsdp", 0))
    yield "features-frozen", [
        row({**(MOE if number % 3 == 2 else DENSE), **each}, H100, {"framework": framework, **part}, zero=zero)
        for number, each in enumerate(FEATURES)
        for part, (framework, zero) in zip(parts, (how * 2)[number % 5 :], strict=False)
    ]  # fmt: skip


def _slow_hosts() -> Iterator[tuple[str, list[Document]]]:
    """Links to the host and updates on it that set the pace, with one to four micro-batches."""
    slow: tuple[Document, ...] = ({"host_link_gb_per_s": 1.5}, {"host_link_gb_per_s": 90, "host_adam_gb_per_s": 4})
    whole, part, layers = {"optimizer_fraction": 1.0}, {"optimizer_fraction": 0.4}, {"activation_layers": 3}
    parameters = {"optimizer_fraction": 1.0, "parameters": True}
    what: tuple[tuple[str, int, Document], ...] = (
        ("megatron", 1, whole), ("megatron", 1, part), ("megatron", 1, layers), ("deepspeed", 1, whole), ("deepspeed", 2, whole),
        ("deepspeed", 3, whole), ("deepspeed", 3, part), ("deepspeed", 3, parameters), ("torchtitan", 3, parameters), ("fsdp", 3, parameters),
    )  # fmt: skip
    yield "slow-hosts", [
        row(DENSE, few(2, host_memory_gib=400, **link), {"framework": framework, "global_batch_size": batch}, zero=zero, offload=each)
        for (framework, zero, each), (link, batch) in product(what, ((slow[0], 2), (slow[0], 8), (slow[1], 4)))
    ]  # fmt: skip


def _tiny() -> Iterator[tuple[str, list[Document]]]:
    """Models of a few thousand parameters, in which one byte or operation too many is no rounding."""
    of = {"seq_length": 8, "global_batch_size": 4}
    rows = [
        row(model, few(gpus), {**of, "framework": framework}, **({"zero": 1} if framework == "deepspeed" else {}))
        for model, framework, gpus in product((TINY, TINY_GPT, TINY_MOE, TINY_MLA), FRAMEWORKS, (1, 2))
    ]
    rows += [
        row(model, few(2), {**of, **more}, **split)
        for model in (TINY, TINY_MOE)
        for more, split in (
            ({}, {"tp": 2}), ({}, {"pp": 2}), ({}, {"cp": 2}), ({"precision": "fp16"}, {"recompute": "full"}), ({"precision": "fp8"}, {}),
            ({"framework": "fsdp", "frozen": ["mlp"]}, {"zero": 3}), ({"framework": "fsdp", "frozen": ["head"]}, {"zero": 0}),
            ({"framework": "deepspeed", "adapter": {"rank": 2}}, {"zero": 3}), ({"framework": "fsdp", "adapter": {"rank": 2}}, {"zero": 0}),
            ({"dropout": 0.1}, {}), ({"optimizer": "sgd"}, {}), ({"framework": "torchtitan", "optimizer": "adam-8bit"}, {"zero": 2}),
        )
    ]  # fmt: skip
    yield "tiny", rows


def _refused_by_one_pool() -> Iterator[tuple[str, list[Document]]]:
    """Pools of which one cannot do what the other can, in both orders, and pools that differ in one thing."""
    both = (
        pools_of(OLD, NEW),
        pools_of(NEW, OLD),
        pools_of(CARDS, OLD),
        pools_of({**OLD, "num_nodes": 1}, {**OLD, "num_nodes": 3}),
    )
    asks: tuple[tuple[Document, Document], ...] = (
        ({"precision": "fp8"}, {}), ({"precision": "nvfp4"}, {}), ({"attention_kernel": "fa3"}, {}), ({"attention_kernel": "fa2"}, {"tp": 2}),
        ({}, {"tp": 2, "micro_batch_size": 2}), ({"framework": "torchtitan"}, {"zero": 3}), ({"framework": "nanotron"}, {"zero": 1}),
    )  # fmt: skip
    yield "pools-unlike", [
        row(model, cluster, of, pp=3, pool_per_stage=["old", "new", "new"], **split)
        for cluster in both
        for model, (of, split) in zip((DENSE, GPT, MOE, DENSE, GPT, MOE, DENSE), asks, strict=True)
    ]  # fmt: skip


def _everything(number: int) -> Iterator[tuple[str, list[Document]]]:
    """Models, nodes, ways to train and strategies drawn together, mostly from what a framework has."""
    draw = Random(23)  # noqa: S311 - equal seeds draw equal rows
    models = (DENSE, GPT, MOE, MLA, LATENT_MOE)
    clusters = (
        H100, CUSTOM, few(4), few(6, intra_node="pcie"), {"preset": "dgx-a100-80gb", "num_nodes": 2}, {"preset": "dgx-b200", "num_nodes": 1},
        {**few(4), "gpu": {**FAST, "name": "RTX card", "nvlink_gb_per_s": 0.0, "memory_gib": 23}},
    )  # fmt: skip
    for framework in FRAMEWORKS:
        rows = []
        for _ in range(number):
            training = {
                "framework": framework,
                "seq_length": draw.choice([512, 1024, 3072]),
                "global_batch_size": draw.choice([192, 384]),
            }
            training |= draw.choice(_WAYS) if draw.random() < 0.6 else {}
            model = {**draw.choice(models), **(draw.choice(FEATURES) if draw.random() < 0.5 else {})}
            rows.append(
                row(model, draw.choice(clusters), training, **_strategy(draw, framework, experts="moe" in model))
            )
        yield f"everything-{framework}", rows


_WAYS: tuple[Document, ...] = (
    {"optimizer": "sgd"}, {"optimizer": "adam-8bit"}, {"grad_dtype": "fp32"}, {"grad_reduce_dtype": "bf16"}, {"precision": "fp16"},
    {"precision": "fp8"}, {"dropout": 0.1}, {"compile": True}, {"cuda_graphs": True}, {"attention": "math"}, {"mean_document_length": 400.0},
    {"expandable_segments": True}, {"model_impl": "transformers"}, {"cross_entropy": "fused"}, {"software_date": "2023-06"},
    {"adapter": {"rank": 8}}, {"frozen": ["embedding", "mlp"]}, {"optimizer_state_dtype": "bf16"},
)  # fmt: skip


_ALSO: dict[str, dict[str, list[Any]]] = {
    "megatron": {"recompute": ["selective", "full"], "zero": [0, 1], "cp": [2], "vpp": [2], "overlap": [{"tp_comm": True}, {"grad_reduce": False}]},
    "megatron-deepspeed": {"recompute": ["full"], "zero": [0, 1], "grad_sync": ["each"]},
    "deepspeed": {"recompute": ["full"], "zero": [1, 2, 3], "offload": [{"optimizer_fraction": 1.0}], "grad_sync": ["each"]},
    "torchtitan": {"recompute": ["selective", "full"], "zero": [2, 3], "cp": [2], "zero_shard_size": [2, 4], "grad_sync": ["last"]},
    "fsdp": {"recompute": ["full"], "zero": [0, 2, 3], "zero_shard_size": [2], "grad_sync": ["each"], "offload": [{"optimizer_fraction": 1.0, "parameters": True}]},
    "nanotron": {"recompute": ["full"], "zero": [0, 1], "sequence_parallel": [True]},
}  # fmt: skip
"""What each framework has beside tensor, pipeline and expert parallelism."""


def _strategy(draw: Random, framework: str, *, experts: bool) -> Document:
    strategy: Document = {"micro_batch_size": draw.choice([1, 2, 4])}
    split = framework not in ("deepspeed", "fsdp")
    fields = _ALSO[framework] | ({"tp": [2], "pp": [2]} if split else {}) | ({"ep": [2]} if experts else {})
    for name, values in fields.items():
        likely = draw.random() < (0.5 if name in {"tp", "zero", "recompute"} else 0.25)
        if likely and (name != "vpp" or "pp" in strategy):
            strategy[name] = draw.choice(values)
    return strategy


RELIABLE: Document = {"gpu_mtbf_h": 900.0, "restart_s": 420.0}


def _whole_runs() -> Iterator[tuple[str, list[Document]]]:
    """Runs with every part that may be stated and left out: tokens, prices, power, failures, saves, spares, and adapters that are saved alone."""
    sites: tuple[Document, ...] = (
        {}, {"price_per_gpu_hour": 1.75}, {"power_w_per_gpu": 830.0}, {"power_w_per_gpu": 830.0, "pue": 1.3}, {"carbon_g_per_kwh": 270.0},
        {"power_w_per_gpu": 830.0, "carbon_g_per_kwh": 270.0}, {"reliability": RELIABLE}, {"reliability": {**RELIABLE, "detect_s": 95.0}},
        {"reliability": {**RELIABLE, "spares": 2}}, {"reliability": {**RELIABLE, "repair_h": 30.0}}, {"reliability": {**RELIABLE, "gpu_mtbf_h": 3.0}},
        {"price_per_gpu_hour": 1.75, "reliability": {**RELIABLE, "spares": 1, "repair_h": 30.0}},
    )  # fmt: skip
    saves: tuple[Document, ...] = (
        {}, {"checkpoint": {"save_s": 35.0}}, {"checkpoint": {"storage_gb_per_s": 1.5}},
        {"checkpoint": {"storage_gb_per_s": 1.5, "asynchronous": True}}, {"checkpoint": {"save_s": 900.0, "asynchronous": True}},
    )  # fmt: skip
    plain = {"framework": "megatron", "total_tokens": 7e10}
    rows = [row(DENSE, {**H100, **site}, {**plain, **saves[1]}, tp=2) for site in sites]
    rows += [row(DENSE, {**H100, **sites[-1]}, {**plain, **save}, tp=2) for save in saves]
    failing = {**H100, "reliability": RELIABLE}
    rows += [
        row(model, failing, {**plain, "framework": framework, **saves[3]}, zero=zero)
        for model, framework, zero in product((DENSE, MOE), ("fsdp", "deepspeed"), (0, 2, 3))
    ]
    trained: tuple[Document, ...] = ({"adapter": {"rank": 8}}, {"frozen": ["mlp"]}, {"optimizer": "adam-8bit"})
    rows += [row(DENSE, failing, {**plain, "framework": "fsdp", **saves[3], **part}, zero=3) for part in trained]
    rows.append(row(MOE, failing, {"framework": "megatron", "tokens_per_parameter": 21.5, **saves[2]}, ep=2))
    pooled = pools_of({**OLD, "price_per_gpu_hour": 1.5, "reliability": RELIABLE},
                      {**NEW, "power_w_per_gpu": 700.0, "reliability": {**RELIABLE, "spares": 1, "repair_h": 9.0}})  # fmt: skip
    rows += [
        row(DENSE, pooled, {"framework": "megatron", "total_tokens": 7e10, **save}, pp=2, pool_per_stage=["old", "new"])
        for save in saves
    ]
    yield "whole-runs", rows


def _collectives() -> Iterator[tuple[str, list[Document]]]:
    """Every library with every algorithm that it can be forced to take, every protocol, and what is refused."""
    algorithms = ("ring", "tree", "nvls", "nvls-tree", "collnet", "halving-doubling", "hierarchical", "torus-2d")
    stated: list[Document] = [
        *({"library": library} for library in ("nccl", "msccl", "gloo", "rccl")),
        *({"protocol": protocol} for protocol in ("LL", "LL128", "Simple")),
        *({"library": library, "algorithm": {"all_reduce": name}} for library in ("nccl", "msccl") for name in algorithms),
        {"algorithm": {"all_gather": "pat", "reduce_scatter": "pat"}}, {"algorithm": {"all_gather": "nvls"}},
    ]  # fmt: skip
    plain = {"framework": "megatron"}
    # Of six nodes with two GPUs each, tp 2 leaves one rank of a data-parallel group on each node, which PAT needs.
    small: Document = {"gpu": "H100-SXM-80GB", "num_nodes": 6, "gpus_per_node": 2}
    rows = [
        row(DENSE, {**nodes, "collectives": each}, plain, tp=2, zero=zero)
        for each in stated
        for nodes, zero in (({**H100, "num_nodes": 3}, 0), (small, 1))
    ]
    yield "collectives", rows


def groups() -> dict[str, list[Document]]:
    """The rows by group."""
    found = (
        _small_groups(),
        _features(),
        _slow_hosts(),
        _tiny(),
        _refused_by_one_pool(),
        _everything(48),
        _whole_runs(),
        _collectives(),
    )
    return {name: rows for each in found for name, rows in each}
