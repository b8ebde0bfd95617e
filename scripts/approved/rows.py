"""Evaluate rows whose answers are kept in `tests/approved`: groups by what they vary, with nothing symmetrical.

Sizes differ from one another and are no powers of two where a framework allows it, so that a swapped pair of factors shows. Each
group is priced by one call, in batches, as a file of rows is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any

Document = dict[str, Any]
Groups = Mapping[str, list[Document]]

DENSE: Document = {
    "num_layers": 12, "hidden_size": 2304, "num_attention_heads": 18, "num_key_value_heads": 6, "intermediate_size": 6528,
    "vocab_size": 50021,
}  # fmt: skip
GPT: Document = {
    "num_layers": 12, "hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144, "vocab_size": 50257,
    "gated_mlp": False, "norm": "layernorm", "position_embedding": "learned", "max_position_embeddings": 4096,
    "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
MOE: Document = {
    **DENSE, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
    "moe": {"num_experts": 24, "top_k": 3, "expert_intermediate_size": 896, "num_shared_experts": 2,
            "shared_expert_intermediate_size": 640, "first_dense_layers": 1, "router_bias": True},
}  # fmt: skip
MLA: Document = {
    "num_layers": 10, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 5632, "vocab_size": 102400,
    "mla": {"q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 96},
}  # fmt: skip
LATENT_MOE: Document = {
    **MLA, "mtp_num_layers": 1,
    "moe": {"num_experts": 32, "top_k": 4, "expert_intermediate_size": 768, "num_shared_experts": 1, "num_groups": 4,
            "topk_groups": 2, "first_dense_layers": 2},
}  # fmt: skip
FAST: Document = {
    "name": "fast", "memory_gib": 90, "peak_tflops": {"bf16": 700, "fp16": 710, "fp8": 1450, "nvfp4": 2900, "fp32": 55},
    "memory_bandwidth_gb_per_s": 3100, "nvlink_gb_per_s": 380, "pcie_gb_per_s": 52,
}  # fmt: skip
"""A GPU that states every peak and borrows its curves."""
H100: Document = {"preset": "dgx-h100", "num_nodes": 2}
CUSTOM: Document = {
    "gpu": FAST, "num_nodes": 4, "gpus_per_node": 6, "nics_per_node": 3, "nic_gbit_per_s": 200, "host_memory_gib": 900,
    "network": {"fabric": "roce", "latency_us": 4.5, "nodes_per_leaf": 2, "oversubscription": 1.7, "rail_optimized": False},
}  # fmt: skip
FRAMEWORKS = ("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron")
VERSIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("0.8", "0.9", "0.10", "0.11", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.19"),
    "megatron-deepspeed": ("2022", "2023", "2024"),
    "deepspeed": ("0.5", "0.9.1", "0.12.3", "0.12.5", "0.13.1", "0.14", "0.19.1", "0.19.8"),
    "torchtitan": ("0.1", "0.2", "0.3"),
    "fsdp": ("1.12", "2.0", "2.6", "2.8", "2.11", "2.13"),
    "nanotron": ("0.4", "2025"),
}


def row(model: Document, cluster: Document, training: Document, **strategy: Any) -> Document:
    """A row; the framework's training is for 96 sequences of 3,072 tokens in bf16 where it says nothing else."""
    usual = {"seq_length": 3072, "global_batch_size": 96, "precision": "bf16", "framework": "megatron"}
    return {
        "model": model,
        "cluster": cluster,
        "training": {**usual, **training},
        "strategy": {"micro_batch_size": 1, **strategy},
    }


def _versions() -> Iterator[tuple[str, list[Document]]]:
    """Every framework's releases, with a dense model that is sharded and one with experts."""
    for framework, versions in VERSIONS.items():
        rows = []
        for version in versions:
            of = {"framework": framework, "framework_version": version}
            rows += [row(DENSE, CUSTOM, of, zero=zero, tp=tp) for zero, tp in ((1, 2), (2, 1), (3, 1))]
            rows += [row(DENSE, CUSTOM, of, zero=zero, zero_shard_size=6) for zero in (1, 2, 3)]
            rows += [row(MOE, CUSTOM, of, zero=zero, ep=3, zero_shard_size=6) for zero in (1, 2)]
            rows += [
                row(MOE, H100, of, ep=4, tp=1),
                row(LATENT_MOE, H100, of, pp=2, zero=1),
                row(DENSE, CUSTOM, of, pp=5, dp=4),
            ]
        yield f"versions-{framework}", rows
    months = ("2021-06", "2022-01", "2022-06", "2023-01", "2023-06", "2023-12", "2024-03", "2025-03", "2026-04")
    dated = [
        row(GPT, {"preset": "selene", "num_nodes": 2}, {"framework": framework, "software_date": month, "seq_length": 2048},
            **({"tp": 2, "pp": 2} if "tron" in framework else {"zero": 2}))
        for framework, month in product(FRAMEWORKS, months)
    ]  # fmt: skip
    yield "software-dates", dated


def _precisions() -> Iterator[tuple[str, list[Document]]]:
    recipes = ("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8")
    b200 = {"preset": "dgx-b200", "num_nodes": 1}
    for framework in FRAMEWORKS:
        rows = [
            row(DENSE, CUSTOM, {"framework": framework, "precision": precision}, tp=tp)
            for precision, tp in product(("bf16", "fp16", "fp8", "nvfp4", "fp32"), (1, 2))
        ]
        rows += [
            row(model, cluster, {"framework": framework, "precision": "fp8", "fp8_recipe": recipe}, **split)
            for recipe in (recipes if framework in ("megatron", "torchtitan", "deepspeed", "fsdp") else ())
            for model, cluster, split in (
                (DENSE, b200, {"tp": 2}),
                (MOE, H100, {"ep": 8, "tp": 2}),
                (DENSE, H100, {"zero": 3}),
            )
        ]
        yield f"precisions-{framework}", rows


def _recomputation() -> Iterator[tuple[str, list[Document]]]:
    modules = (
        ["core_attn"], ["mlp"], ["layernorm"], ["moe"], ["moe_act"], ["shared_experts"], ["mla_up_proj"], ["core_attn", "mlp", "layernorm"],
        ["moe_act", "layernorm", "mla_up_proj"],
    )  # fmt: skip
    for name, model in (("dense", DENSE), ("experts", MOE), ("latent", LATENT_MOE), ("gpt", GPT)):
        rows = [row(model, H100, {}, tp=2, pp=2, recompute="selective", recompute_modules=each) for each in modules]
        rows += [
            row(model, H100, {}, tp=2, pp=2, recompute="full", recompute_method=method, recompute_num_layers=layers)
            for method, layers in product(("block", "uniform"), (1, 2, 4))
        ]
        rows += [
            row(model, H100, {"framework": framework}, pp=pp, recompute=kind)
            for framework, pp in (("deepspeed", 1), ("torchtitan", 2), ("fsdp", 1), ("nanotron", 2), ("megatron-deepspeed", 2))
            for kind in ("selective", "full")
        ]  # fmt: skip
        rows += [
            row(model, H100, {}, pp=4, recompute="full", recompute_method="block", recompute_per_stage=[3, 2, 1, 0]),
            row(model, H100, {"precision": "fp8"}, tp=2, recompute="selective", recompute_modules=["layernorm", "mlp"]),
        ]
        yield f"recomputation-{name}", rows


def _degrees() -> Iterator[tuple[str, list[Document]]]:
    long = {"seq_length": 12288, "global_batch_size": 48}
    context = [
        row(model, H100, {**long, "framework": framework}, cp=cp, tp=tp, cp_comm=comm)
        for model in (DENSE, MLA)
        for framework, cp, tp, comm in product(("megatron", "torchtitan"), (2, 4), (1, 2), ("p2p", "a2a", "allgather"))
    ]
    context += [
        row(DENSE, CUSTOM, {**long, "framework": framework}, cp=3, tp=2)
        for framework in FRAMEWORKS
    ]  # fmt: skip
    yield "context-parallel", context
    tensor = [
        row(model, H100, {"framework": framework}, tp=tp, sequence_parallel=split, overlap={"tp_comm": hidden})
        for model in (DENSE, GPT)
        for framework, tp, split, hidden in product(("megatron", "torchtitan", "nanotron"), (2, 8), (True, False), (True, False))
    ]  # fmt: skip
    tensor += [row(DENSE, CUSTOM, {"framework": framework}, tp=tp) for framework, tp in product(FRAMEWORKS, (3, 6))]
    yield "tensor-parallel", tensor
    shards = [
        row(DENSE, CUSTOM, {"framework": framework}, zero=zero, grad_sync=sync)
        for framework, zero, sync in product(FRAMEWORKS, (0, 1, 2, 3), ("last", "each"))
    ]
    yield "state-shards", shards
    small = [
        row(model, CUSTOM, {"framework": framework}, zero=zero, zero_shard_size=size, ep=ep)
        for model, ep in ((DENSE, 1), (MOE, 3))
        for framework, zero, size in product(("megatron", "deepspeed", "torchtitan", "fsdp"), (1, 2, 3), (6, 12))
    ]
    small += [
        row(DENSE, CUSTOM, {"framework": framework}, zero=3, zero_param_shard_size=size)
        for framework, size in product(("deepspeed", "fsdp", "megatron"), (3, 6, 12))
    ]
    small += [
        row(
            DENSE, H100, {"framework": framework}, zero=1, tp=2, overlap={"grad_reduce": reduce, "param_gather": gather}
        )
        for framework, reduce, gather in product(("megatron", "torchtitan", "nanotron"), (True, False), (True, False))
    ]
    second = ((0, 6), (1, 6), (2, 12), (3, 1))
    small += [
        row(DENSE, CUSTOM, {"framework": framework, **of}, zero=zero, zero_param_shard_size=size)
        for framework, of in (*((name, {}) for name in FRAMEWORKS), ("deepspeed", {"framework_version": "0.9.1"}))
        for zero, size in second
    ]
    yield "smaller-shard-groups", small


def _pipelines() -> Iterator[tuple[str, list[Document]]]:
    for framework in ("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "nanotron"):
        of, zero = {"framework": framework}, {"zero": 1} if framework == "deepspeed" else {}
        rows = [
            row(model, H100, {**of, "global_batch_size": batch}, pp=pp, vpp=vpp, schedule=schedule, tp=1 if zero else 2, **zero)
            for model, batch in ((DENSE, 48), (GPT, 8))
            for schedule, pp, vpp in (
                ("1f1b", 4, 1), ("1f1b", 2, 1), ("interleaved", 4, 3), ("interleaved", 2, 2), ("gpipe", 4, 1), ("zb-h1", 4, 1),
                ("zb-v", 2, 2), ("dualpipe-v", 2, 2),
            )
        ]  # fmt: skip
        rows += [
            row(DENSE, H100, of, **zero, pp=4, layers_per_stage=[4, 3, 3, 2]),
            row(DENSE, H100, of, **zero, pp=4, layers_per_stage=[2, 3, 3, 4], recompute="full"),
            row(DENSE, H100, of, **zero, pp=2, vpp=2, layers_per_stage=[2, 4, 4, 2]),
            row({**DENSE, "num_layers": 14}, H100, of, **zero, pp=4),
            row({**MOE, "num_layers": 13}, H100, of, **zero, pp=4),
            row({**MOE, "mtp_num_layers": 1}, H100, of, **zero, pp=2),
            row(DENSE, H100, of, **zero, pp=4, vpp=3, overlap={"p2p": True}, micro_batch_size=2),
            row(DENSE, CUSTOM, of, **zero, pp=2, tp=3, micro_batch_size=2),
        ]
        yield f"pipelines-{framework}", rows


def _experts() -> Iterator[tuple[str, list[Document]]]:
    large = {"preset": "dgx-h100", "num_nodes": 4}
    rows = [
        row(MOE, large, {"framework": framework}, ep=ep, tp=tp, **{"etp": etp} if etp else {})
        for framework in ("megatron", "deepspeed", "torchtitan", "nanotron", "megatron-deepspeed")
        for ep, tp, etp in ((2, 1, None), (8, 2, None), (8, 2, 1), (4, 2, 2), (24, 1, None), (8, 4, 2))
    ]
    yield "experts", rows
    dispatchers: tuple[Document, ...] = (
        {"moe_dispatcher": "allgather"}, {"moe_dispatcher": "alltoall"}, {"moe_dispatcher": "flex"},
        {"moe_dispatcher": "flex", "flex_backend": "hybridep"}, {"moe_dispatcher": "alltoall", "overlap": {"moe_all_to_all": True}},
    )  # fmt: skip
    dispatched = [
        row(model, cluster, {"framework": framework, **more}, ep=8, tp=tp, **how)
        for model, cluster, more in (
            (MOE, large, {}), (LATENT_MOE, large, {"framework_version": "0.19"}),
            (LATENT_MOE, {"preset": "gb200-nvl72", "num_nodes": 18}, {"global_batch_size": 144}),
        )
        for framework, tp, how in product(("megatron", "torchtitan"), (1, 2), dispatchers)
        if framework == "megatron" or "framework_version" not in more
    ]  # fmt: skip
    yield "dispatchers", dispatched
    kinds: tuple[Document, ...] = (
        {"capacity_factor": 1.25}, {"capacity_factor": 0.8}, {"router_bias": False}, {"shared_expert_gate": True}, {"num_shared_experts": 0},
        {"num_shared_experts": 1}, {"moe_layer_freq": 2}, {"moe_layer_freq": [0, 1, 1] * 4}, {"first_dense_layers": 3},
        {"num_experts": 192, "top_k": 8, "num_groups": 8, "topk_groups": 3}, {"top_k": 1}, {"expert_intermediate_size": 3072},
    )  # fmt: skip
    routed = [
        row({**MOE, "moe": {**MOE["moe"], **kind}}, large, {"framework": framework}, ep=8, tp=tp)
        for kind in kinds
        for framework, tp in (("megatron", 2), ("torchtitan", 1), ("deepspeed", 1))
    ]
    yield "routing", routed


def _offload() -> Iterator[tuple[str, list[Document]]]:
    host = {**H100, "host_memory_gib": 1500, "host_link_gb_per_s": 31, "host_adam_gb_per_s": 190}
    what: tuple[Document, ...] = (
        {"optimizer_fraction": 1.0}, {"optimizer_fraction": 0.4}, {"activation_layers": 3}, {"activation_layers": 1},
        {"optimizer_fraction": 1.0, "parameters": True}, {"optimizer_fraction": 0.7, "activation_layers": 2},
    )  # fmt: skip
    rows = [
        row(model, cluster, {"framework": framework, **more}, zero=zero, offload=each)
        for model, cluster, more in ((DENSE, host, {}), (MOE, H100, {"precision": "fp16"}))
        for each in what
        for framework, zero in (("megatron", 1), ("deepspeed", 2), ("deepspeed", 3), ("torchtitan", 3), ("fsdp", 3))
    ]
    rows += [
        row(DENSE, host, {"framework": framework}, zero=3, recompute="full", offload=each)
        for framework, each in product(("deepspeed", "fsdp", "torchtitan"), what)
    ]
    rows.append(row({"preset": "llama-3.1-70b"}, {**H100, "host_memory_gib": 200}, {"framework": "deepspeed"}, zero=3,
                    offload={"optimizer_fraction": 1.0, "parameters": True}))  # fmt: skip
    yield "offload", rows


def _adapters() -> Iterator[tuple[str, list[Document]]]:
    kinds: tuple[Document, ...] = (
        {"rank": 12}, {"rank": 24, "target_modules": "attention"}, {"rank": 12, "quantized_base": "nf4"},
        {"rank": 12, "quantized_base": "int8"}, {"rank": 20, "dora": True}, {"rank": 12, "dropout": 0.05},
        {"rank": 12, "modules_to_save": ["lm_head"]}, {"rank": 12, "rank_pattern": {"q_proj": 3}},
    )  # fmt: skip
    yield "adapters", [
        row(model, H100, {"framework": framework, "adapter": kind, "model_impl": impl}, zero=zero, recompute=recompute)
        for model, kind in product((DENSE, MOE, MLA), kinds)
        for framework, impl, zero, recompute in (
            ("fsdp", "transformers", 0, "none"), ("fsdp", "liger", 3, "full"), ("deepspeed", "transformers", 3, "full"),
            ("deepspeed", "transformers", 2, "none"), ("megatron", "native", 1, "selective"), ("torchtitan", "native", 3, "full"),
        )
    ]  # fmt: skip
    parts = (["embedding"], ["mlp"], ["attention", "norms"], ["head", "embedding", "attention"])
    yield (
        "frozen",
        [
            row(model, H100, {"framework": framework, "frozen": part}, zero=zero)
            for model, part in product((DENSE, MOE, MLA), parts)
            for framework, zero in (("fsdp", 3), ("deepspeed", 2), ("megatron", 1), ("torchtitan", 3))
        ],
    )


def _places_apart() -> Iterator[tuple[str, list[Document]]]:
    new = {"software_date": "2026-11"}
    yield "experts-under-fsdp", [
        row(MOE, H100, {"framework": "fsdp", **new, **more}, zero=3, ep=ep, tp=tp, recompute="full", **given)
        for ep, tp, more, given in (
            (1, 1, {}, {}), (2, 1, {}, {}), (8, 1, {}, {}), (8, 1, {}, {"grad_sync": "each"}), (4, 1, {}, {"zero_shard_size": 8}),
            (8, 2, {"param_dtype": "bf16"}, {"sequence_parallel": False}), (3, 1, {"compile": True}, {}),
        )
    ]  # fmt: skip
    long = {"framework": "megatron", "seq_length": 12288, "global_batch_size": 48}
    yield (
        "context-in-two-levels",
        [
            row(model, H100, {**long, **more}, cp=cp, tp=1, cp_comm="a2a+p2p", **given)
            for model, more in ((DENSE, {}), (MLA, {"precision": "fp8"}))
            for cp, given in ((4, {}), (8, {}), (8, {"cp_a2a_size": 2}), (4, {"cp_a2a_size": 3}))
        ],
    )
    yield "modules-apart", [
        row({**DENSE, "num_layers": 10, "mtp_num_layers": 1}, H100, {"framework": "megatron"}, pp=pp, vpp=vpp, tp=2, recompute=recompute,
            layers_per_stage=split, **given)
        for pp, vpp, split, stage in ((4, 1, [4, 3, 3, 0], 2), (4, 2, [2, 1, 2, 2, 1, 2, 0, 0], 6))
        for recompute, given in product(("none", "full"), ({}, {"mtp_stage": stage}))
    ]  # fmt: skip


def groups() -> dict[str, list[Document]]:
    """The rows by group."""
    found = (
        _versions(),
        _precisions(),
        _recomputation(),
        _degrees(),
        _pipelines(),
        _experts(),
        _offload(),
        _adapters(),
        _places_apart(),
    )
    return dict(chain(*found))
