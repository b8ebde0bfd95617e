"""More rows whose answers are kept in `tests/approved`: models, clusters, ways to train, measured calibrations, pools, and a draw."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, product
from random import Random
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.hardware import document_of, shipped_document
from cost_models.presets import names
from scripts.approved.rows import CUSTOM, DENSE, FAST, FRAMEWORKS, GPT, H100, LATENT_MOE, MLA, MOE, Document, row

PRESETS = (
    "bloom-176b", "deepseek-v2", "deepseek-v3", "falcon-40b", "gemma-2-9b", "gemma-3-27b", "gpt-oss-120b", "gpt-oss-20b",
    "gpt2-xl", "gpt3-1.3b", "gpt3-175b", "llama-2-13b", "llama-2-70b", "llama-3.1-405b", "llama-3.2-3b", "megatron-1t",
    "mistral-7b", "mixtral-8x22b", "mpt-30b", "mpt-7b", "mt-nlg-530b", "nemotron-4-340b", "olmo-2-13b", "opt-66b", "phi-4",
    "qwen2.5-72b", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b",
)  # fmt: skip
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "phi3", "phi", "olmo2", "apertus",
    "ministral", "ministral3", "mimo", "glm4v_text", "gpt_neox", "opt", "bloom", "falcon", "mpt", "starcoder2", "cohere",
    "cohere2", "granite", "stablelm", "nemotron", "gptj", "codegen", "gpt_bigcode", "olmo", "olmo3", "glm", "glm4", "smollm3",
    "exaone4", "ernie4_5", "hunyuan_v1_dense", "arcee", "seed_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
    "deepseek_v3", "deepseek_v2", "gpt_oss", "glm4_moe", "glm4v_moe_text", "glm4_moe_lite", "dots1", "afmoe", "bailing_moe",
    "bailing_moe_v2", "granitemoeshared", "granitemoehybrid", "phimoe", "granitemoe", "minimax_m2", "llama4_text",
    "ernie4_5_moe", "hunyuan_v1_moe", "dbrx", "llava", "qwen2_vl", "kimi_k2", "mamba", "t5", "bert",
)  # fmt: skip
SIZES: Document = {
    "hidden_size": 1920, "num_hidden_layers": 7, "num_attention_heads": 15, "num_key_value_heads": 5,
    "intermediate_size": 5248, "vocab_size": 40013,
}  # fmt: skip
"""What most families call their sizes."""
KEYS: Mapping[str, tuple[Document, ...]] = {
    "llama": ({"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True, "head_dim": 96}, {"hidden_size": "large"}),
    "mistral": ({"sliding_window": 1024}, {"sliding_window": None}),
    "qwen2": ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 3}, {"use_sliding_window": True}),
    "qwen3": ({"use_sliding_window": True, "sliding_window": 768, "max_window_layers": 2}, {"attention_bias": True}),
    "gemma2": ({"sliding_window": 1024}, {"layer_types": ["full_attention"] * 7}),
    "gemma3_text": ({"sliding_window_pattern": 3, "sliding_window": 640}, {"attention_bias": True}),
    "gpt2": ({"n_inner": 4096, "n_embd": 1200, "n_head": 15, "n_layer": 5},),
    "phi": ({"qk_layernorm": True}, {"num_key_value_heads": 3}),
    "mimo": ({"num_nextn_predict_layers": 1},),
    "gpt_neox": ({"use_parallel_residual": False, "attention_bias": False},),
    "opt": ({"word_embed_proj_dim": 1920, "ffn_dim": 5000, "enable_bias": False}, {"do_layer_norm_before": False}),
    "bloom": ({"n_layer": 4, "n_head": 12, "hidden_size": 1536},),
    "falcon": (
        {"new_decoder_architecture": True, "num_kv_heads": 5}, {"multi_query": False, "parallel_attn": False, "bias": True},
        {"alibi": True, "ffn_hidden_size": 5000}, {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "mpt": ({"d_model": 1536, "n_heads": 12, "n_layers": 5, "expansion_ratio": 3, "no_bias": False}, {"attn_config": {"kv_n_heads": 4}}),
    "starcoder2": ({"use_bias": False, "sliding_window": 2000},),
    "cohere": ({"use_qk_norm": True},),
    "cohere2": ({"sliding_window_pattern": 3}, {"layer_types": ["sliding_attention"] * 6 + ["full_attention"]}),
    "stablelm": ({"use_qkv_bias": True, "qk_layernorm": True}, {"use_parallel_residual": True}),
    "gpt_bigcode": ({"multi_query": False}, {"n_embd": 1536, "n_head": 12, "n_inner": None}),
    "olmo3": ({"sliding_window": 700}, {"layer_types": ["full_attention"] * 7}),
    "smollm3": ({"use_sliding_window": True, "sliding_window": 600}, {"no_rope_layer_interval": 2}),
    "exaone4": ({"sliding_window": 800, "sliding_window_pattern": 3}, {"sliding_window": None}),
    "seed_oss": ({"attention_bias": False, "attention_out_bias": True},),
    "mixtral": ({"num_local_experts": 12, "num_experts_per_tok": 3, "sliding_window": 900},),
    "qwen2_moe": ({"mlp_only_layers": [1, 2], "decoder_sparse_step": 2}, {"qkv_bias": False, "shared_expert_intermediate_size": 900}),
    "qwen3_moe": ({"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3], "num_experts": 20}),
    "deepseek_v3": (
        {"num_nextn_predict_layers": 1, "first_k_dense_replace": 2}, {"q_lora_rank": None, "n_group": 4, "topk_group": 2},
        {"n_shared_experts": 2, "moe_intermediate_size": 777},
    ),
    "deepseek_v2": ({"n_group": 4, "topk_group": 2}, {"q_lora_rank": None, "n_shared_experts": None}),
    "gpt_oss": ({"sliding_window": 200, "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 4},),
    "glm4_moe": ({"use_qk_norm": True, "num_nextn_predict_layers": 1}, {"first_k_dense_replace": 3}),
    "afmoe": ({"num_dense_layers": 3, "num_shared_experts": 2}, {"global_attn_every_n_layers": 3}),
    "llama4_text": ({"interleave_moe_layer_step": 2}, {"moe_layers": [1, 4], "num_experts_per_tok": 2}, {"no_rope_layer_interval": 3}),
    "ernie4_5_moe": (
        {"moe_layer_start_index": 2, "moe_layer_end_index": 5, "moe_layer_interval": 2}, {"moe_num_shared_experts": 0, "use_bias": True},
    ),
    "hunyuan_v1_moe": ({"num_experts": 6, "moe_topk": 2}, {"num_experts": 6, "moe_topk": [2] * 7}),
    "granitemoehybrid": ({"layer_types": ["attention"] * 7, "shared_intermediate_size": 1111, "num_local_experts": 0},),
    "bailing_moe": ({"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 700, "num_shared_experts": 1},),
    "bailing_moe_v2": (
        {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 700, "use_qk_norm": True, "num_nextn_predict_layers": 1},
    ),
    "dbrx": (
        {"d_model": 1536, "n_heads": 12, "n_layers": 5, "attn_config": {"kv_n_heads": 4, "clip_qkv": 8},
         "ffn_config": {"ffn_hidden_size": 2100, "moe_num_experts": 6, "moe_top_k": 2}},
    ),
}  # fmt: skip
"""Keys that a family reads its own way, on top of `SIZES`."""


def _configs() -> Iterator[tuple[str, list[Document]]]:
    """Every family with nothing but its type, with the usual sizes, and with the keys that are its own."""
    large = {"preset": "dgx-h100", "num_nodes": 8}
    few = {"seq_length": 1024, "global_batch_size": 64}
    bare = [row({"hf_config": {"model_type": name}}, large, few, zero=1, pp=1) for name in FAMILIES]
    yield "configs-defaults", bare
    yield "configs-sizes", [row({"hf_config": {"model_type": name, **SIZES}}, large, few, zero=1) for name in FAMILIES]
    own = [
        row({"hf_config": {"model_type": name, **SIZES, **keys}}, large, few, zero=1)
        for name, found in KEYS.items()
        for keys in found
    ]
    yield "configs-keys", own
    scaled = {
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 2048},
        "max_position_embeddings": 2048,
    }
    odd: tuple[Document, ...] = (
        {"model_type": "llama", **SIZES, **scaled}, {"model_type": "llama", **SIZES, "quantization_config": {"bits": 4}},
        {"model_type": "llava", "text_config": {"model_type": "llama", **SIZES}, "tie_word_embeddings": True},
        {"model_type": "llama", **SIZES, "num_attention_heads": 0}, {"model_type": "llama", **SIZES, "num_hidden_layers": 10001},
        {"model_type": "llama", **SIZES, "num_key_value_heads": 4}, {"model_type": "lama", **SIZES}, SIZES,
        {"model_type": "llama", **SIZES, "vocab_size": -3}, {"peft_type": "LORA", "base_model_name_or_path": "a/b"},
        {"model_type": "llama", **SIZES, "vocab_size": 40013.0}, {"model_type": "llama", **SIZES, "hidden_size": None},
        {"model_type": "qwen3_moe", **SIZES, "mlp_only_layers": [1.5]}, {"model_type": "gemma2", **SIZES, "layer_types": "full"},
        {"model_type": "olmo3", **SIZES, "layer_types": ["full_attention"] * 3},
    )  # fmt: skip
    yield "configs-odd", [row({"hf_config": each}, large, few, zero=1) for each in odd]


def _models() -> Iterator[tuple[str, list[Document]]]:
    presets = []
    for name in PRESETS:
        of = {"seq_length": 1024, "global_batch_size": 2048}
        big = {"preset": "dgx-h100", "num_nodes": 128}
        presets += [
            row({"preset": name}, big, {**of, "framework": framework}, **split)
            for framework, split in (
                ("megatron", {"tp": 2, "pp": 2, "recompute": "full"}), ("torchtitan", {"zero": 3}),
            )
        ]  # fmt: skip
    yield "model-presets", presets
    features: tuple[Document, ...] = (
        {"num_key_value_heads": 1}, {"num_key_value_heads": 18}, {"head_dim": 160}, {"gated_mlp": False}, {"tie_word_embeddings": True},
        {"norm": "layernorm"}, {"norm": "layernorm", "norm_bias": False}, {"norm_weight": False}, {"norms_per_layer": 4},
        {"norms_per_layer": 1}, {"qk_norm": True}, {"qk_norm": "full"}, {"position_embedding": "alibi"}, {"position_embedding": "none"},
        {"position_embedding": "learned", "max_position_embeddings": 5000}, {"attention_bias": True}, {"attention_bias": "qkv"},
        {"mlp_bias": True}, {"linear_bias": True}, {"head_bias": True}, {"parallel_block": True}, {"embedding_norm": True},
        {"final_norm": False}, {"attention_sinks": True}, {"attention_gate": True}, {"activation_parameters": 2},
        {"sliding_window": 700}, {"sliding_window": 1000, "layer_types": ["sliding_attention", "full_attention"] * 6},
        {"mtp_num_layers": 1}, {"vocab_size": 131072}, {"vocab_size": 200003, "tie_word_embeddings": True},
        {"intermediate_size": 6529}, {"num_layers": 1},
    )  # fmt: skip
    for framework, tp in (("megatron", 2), ("torchtitan", 1), ("deepspeed", 1)):
        rows = [row({**DENSE, **each}, H100, {"framework": framework}, tp=tp) for each in features]
        rows += [row(model, H100, {"framework": framework}, tp=tp) for model in (GPT, MOE, MLA, LATENT_MOE)]
        if framework == "megatron":
            no_rank = {**MLA, "mla": {**MLA["mla"], "q_lora_rank": None}}
            rows += [
                row(model, H100, {}, tp=4, pp=2, **more)
                for model, more in product((MLA, no_rank, LATENT_MOE), ({}, {"recompute": "full"}))
            ]
            rows += [
                row(model, H100, {"framework_version": version}, tp=4, sequence_parallel=split)
                for model, version, split in product(
                    (MLA, no_rank, {**DENSE, "mtp_num_layers": 1, "num_attention_heads": 24, "num_key_value_heads": 8}),
                    ("0.13", "0.14"),
                    (True, False),
                )
            ]
        yield f"model-features-{framework}", rows


def _clusters() -> Iterator[tuple[str, list[Document]]]:
    presets = []
    for name, nodes in product(names("clusters"), (1, 3)):
        cluster = {"preset": name, "num_nodes": nodes}
        presets += [
            row(DENSE, cluster, {"framework": "megatron"}, tp=2),
            row(MOE, cluster, {"framework": "torchtitan"}, zero=3, ep=4),
        ]
    yield "cluster-presets", presets
    kinds: tuple[Document, ...] = (
        {"intra_node": "nvlink-mesh"}, {"intra_node": "pcie"}, {"intra_node": {"bandwidth_gb_per_s": 140, "latency_us": 3.5}},
        {"intra_node": {"bandwidth_gb_per_s": 20}}, {"network": {"fabric": "infiniband"}}, {"network": {"fabric": "efa"}},
        {"network": {"fabric": "tcp"}}, {"network": {"fabric": "roce", "latency_us": 11.0}}, {"nics_per_node": 1}, {"nics_per_node": 6},
        {"nic_gbit_per_s": 800}, {"network": {"oversubscription": 3.0, "nodes_per_leaf": 1}}, {"reserved_memory_gib": 11},
        {"network": {"fabric": "infiniband", "rail_optimized": True, "oversubscription": 2.0, "nodes_per_leaf": 2}},
        {"host_link_gb_per_s": 17}, {"nvlink_domain_gpus": 12}, {"nvlink_domain_gpus": 24}, {"nvlink_domain_gpus": 24, "segment_nodes": 2},
        {"nvlink_domain_gpus": 3}, {"num_nodes": 1}, {"num_nodes": 9}, {"gpus_per_node": 3}, {"price_per_gpu_hour": 2.5},
    )  # fmt: skip
    jobs: tuple[tuple[Document, Document, Document], ...] = (
        (DENSE, {"framework": "torchtitan"}, {"zero": 3}), (MOE, {}, {"ep": 6, "moe_dispatcher": "alltoall"}), (DENSE, {}, {"tp": 2, "pp": 3}),
    )  # fmt: skip
    yield (
        "nodes",
        [
            row(model, {**CUSTOM, **each}, {"global_batch_size": 216, **of}, **split)
            for each in kinds
            for model, of, split in jobs
        ],
    )
    gpus: tuple[Any, ...] = (
        "V100-SXM-16GB", "V100-SXM-32GB", "A100-SXM-40GB", "A100-PCIe-80GB", "A800-SXM-80GB", "H100-PCIe-80GB", "H20-SXM-96GB",
        "GH200-96GB", "B200-SXM-180GB", "L40S-48GB", "RTX4090-24GB", "MI250X-128GB", "MI300X-192GB", "MI355X-288GB",
        {**FAST, "name": "H100 NVL of ours"}, {**FAST, "name": "B300 of ours"}, {**FAST, "name": "PCIe card", "nvlink_gb_per_s": 0.0},
        {**FAST, "name": "plain", "nvlink_gb_per_s": 0.0}, {**FAST, "reference": "A100-SXM-80GB"}, {**FAST, "num_sms": 90, "power_limit_w": 350.0},
        {**FAST, "peak_tflops": {"bf16": 300}},
    )  # fmt: skip
    yield "gpus", [
        row(DENSE, {"gpu": gpu, "num_nodes": count, "gpus_per_node": 4}, {"precision": precision, **of}, **split)
        for gpu in gpus
        for count, precision, of, split in (
            (1, "bf16", {}, {"tp": 2}), (3, "fp16", {"framework": "deepspeed"}, {}), (2, "fp8", {}, {"tp": 2, "pp": 2}),
            (2, "fp32", {"framework": "torchtitan"}, {}),
        )
    ]  # fmt: skip
    racks = {"gpu": "GB200-186GB", "num_nodes": 36, "gpus_per_node": 4, "nvlink_domain_gpus": 72}
    yield (
        "racks",
        [
            row(MOE, {**racks, **more}, {"global_batch_size": 288}, tp=tp, ep=ep, pp=pp, moe_dispatcher=how)
            for more in ({}, {"segment_nodes": 8}, {"num_nodes": 18}, {"nvlink_domain_gpus": 36})
            for tp, ep, pp, how in (
                (1, 24, 1, "flex"),
                (2, 8, 2, "alltoall"),
                (4, 4, 1, "allgather"),
                (1, 12, 4, "alltoall"),
            )
        ],
    )


def _training() -> Iterator[tuple[str, list[Document]]]:
    options: tuple[Document, ...] = (
        {"optimizer": "sgd"}, {"optimizer": "adam-8bit"}, {"param_dtype": "fp32"}, {"param_dtype": "bf16"}, {"main_param_dtype": "none"},
        {"main_param_dtype": "fp16"}, {"grad_dtype": "bf16"}, {"grad_dtype": "fp32"}, {"grad_reduce_dtype": "fp32"},
        {"grad_reduce_dtype": "bf16"}, {"optimizer_state_dtype": "bf16"}, {"optimizer_state_dtype": "fp8", "precision": "fp8"},
        {"transformer_impl": "local"}, {"transformer_impl": "transformer-engine"}, {"attention": "math"},
        {"attention": "math", "dropout": 0.1}, {"dropout": 0.1}, {"compile": True}, {"compile": False}, {"cuda_graphs": True},
        {"expandable_segments": True}, {"expandable_segments": False}, {"mean_document_length": 600.0}, {"total_tokens": 3e11},
        {"model_impl": "liger"}, {"model_impl": "transformers"}, {"model_impl": "native"}, {"recipe": "nvidia-perf"},
        {"seq_length": 57}, {"seq_length": 8192, "global_batch_size": 16}, {"global_batch_tokens": 3072 * 48, "global_batch_size": 48},
        *({"attention_kernel": kernel} for kernel in ("fa1", "fa2", "fa3", "cudnn", "sdpa", "flex")),
        *({"cross_entropy": loss} for loss in ("unfused", "fused", "te", "compiled", "linear", "chunked")),
    )  # fmt: skip
    for framework in FRAMEWORKS:
        # Every other option is priced with recomputation, so that both meet most of the code.
        splits: tuple[Document, ...] = (
            {},
            {"tp": 2, "recompute": "full"} if "tron" in framework else {"recompute": "full"},
        )
        yield (
            f"training-{framework}",
            [
                row(DENSE, H100, {"framework": framework, **each}, **splits[number % 2])
                for number, each in enumerate(options)
            ],
        )
    small = [
        row(DENSE, H100, {"framework": framework, "seq_length": 96, **more}, zero=zero, micro_batch_size=micro)
        for framework, zero, micro in product(FRAMEWORKS, (0, 3), (1, 6))
        for more in ({}, {"compile": True}, {"cuda_graphs": True})
    ]
    yield "training-host-bound", small


ACROSS_NODES = [
    {"op": op, "size_bytes": 2.0**power, "ranks": 8, "ranks_per_node": 4, "time_s": 1.1e-3 * 2.0 ** (power - 24), "spread_fraction": 0.01}
    for op in ("all_reduce", "all_gather", "reduce_scatter") for power in (20, 24, 28)
]  # fmt: skip


@cache
def calibrations() -> dict[str, CalibrationDocument]:
    """A shipped profile with every group that a profile can hold, and the same as an older or shorter run left it."""
    shipped = shipped_document("h100x4-nvls-off-2026-11-28")
    assert shipped is not None
    content = shipped.model_dump(mode="json", exclude_defaults=True)
    special = {"batch", "layout", "output_dtype", "dtype"}
    content["gemm"] = [s for number, s in enumerate(content["gemm"]) if special & set(s) or number % 4 == 0]
    content["collectives"] = [s for s in content["collectives"] if math.log2(s["size_bytes"]) % 4 == 0] + ACROSS_NODES
    content["host_adam"] = [
        {"ranks": 4, "parameters": 10**8, "threads": 8, "bytes_per_s": 1e11, "spread_fraction": 0.01}
    ]
    content["overlap"] += [{**content["overlap"][0], "op": "send_recv"}]
    content.pop("collective_fits")
    older = copy.deepcopy(content)
    older.pop("gemm_fits")
    older["collectives"] = [s for s in older["collectives"] if s["op"] not in ("send_recv", "all_to_all")]
    older["memory_bandwidth"] = [s for s in older["memory_bandwidth"] if s["kind"] != "elementwise"]
    for name in ("eager_op_s", "sequence_parallel_layer_s"):
        older["host"].pop(name)
    for group in ("math_attention", "pairs", "overlap", "host_adam"):
        older.pop(group, None)
    return {"whole": document_of(content), "older": document_of(older)}


def _measured() -> Iterator[tuple[str, list[Document]]]:
    jobs: tuple[tuple[Document, int, Document, Document], ...] = (
        (DENSE, 1, {}, {"tp": 2, "zero": 1}), (DENSE, 1, {"seq_length": 64, "transformer_impl": "local"}, {"tp": 2}),
        (DENSE, 1, {}, {"pp": 2, "tp": 2}), (DENSE, 1, {"seq_length": 4096}, {"pp": 2, "vpp": 2}), (DENSE, 2, {}, {"zero": 1}),
        (DENSE, 2, {}, {"zero": 0}), (MOE, 1, {}, {"ep": 4, "moe_dispatcher": "alltoall"}), (MOE, 2, {"seq_length": 6144}, {"ep": 8}),
        (GPT, 1, {"attention": "math", "software_date": "2022-06"}, {"tp": 2}), (MLA, 2, {}, {"tp": 2, "pp": 2}),
        (DENSE, 1, {"precision": "fp16"}, {"tp": 2, "sequence_parallel": False}), (DENSE, 1, {"precision": "fp8"}, {"tp": 2}),
        (DENSE, 1, {"framework": "torchtitan"}, {"zero": 3}), (DENSE, 1, {"framework": "torchtitan", "seq_length": 64}, {"zero": 3}),
        (DENSE, 2, {"framework": "torchtitan"}, {"zero": 3, "zero_shard_size": 4}), (DENSE, 1, {"framework": "torchtitan", "attention": "math"}, {}),
        (DENSE, 1, {"framework": "torchtitan", "precision": "fp32"}, {}), (DENSE, 1, {"framework": "fsdp", "compile": True}, {}),
        (DENSE, 1, {"framework": "deepspeed"}, {"zero": 2, "offload": {"optimizer_fraction": 1.0}}), (DENSE, 1, {"attention_kernel": "cudnn"}, {}),
        (DENSE, 1, {"seq_length": 12288, "global_batch_size": 32}, {"cp": 2, "tp": 2}), (DENSE, 1, {}, {"tp": 2, "overlap": {"tp_comm": True}}),
    )  # fmt: skip
    names: tuple[Any, ...] = (
        "whole",
        "older",
        ["h100x1-2026-11-27", "h100x4-nvls-off-2026-11-28"],
    )
    for name in names:
        cluster = {"gpu": "H100-SXM-80GB", "gpus_per_node": 4, "network": {"fabric": "infiniband"}, "calibration": name}
        label = name if isinstance(name, str) else "two"
        some = jobs if isinstance(name, str) else jobs[::2]
        yield f"measured-{label}", [row(m, {**cluster, "num_nodes": n}, of, **split) for m, n, of, split in some]
    h200 = {"gpu": "H200-SXM-141GB", "gpus_per_node": 2, "calibration": "h200x2-nvls-off-2026-11-28"}
    yield "measured-h200", [row(m, {**h200, "num_nodes": n}, of, **split) for m, n, of, split in jobs[1::2]]


def pools_of(*kinds: Document) -> Document:
    """Pools "old", "new" and "third" of these kinds of node."""
    names = ("old", "new", "third")
    return {
        "pools": [{"name": name, **kind} for name, kind in zip(names, kinds, strict=False)],
        "network": {"fabric": "infiniband"},
    }


OLD: Document = {"gpu": "A100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 6}
NEW: Document = {"gpu": FAST, "num_nodes": 2, "gpus_per_node": 6, "host_memory_gib": 700}
CARDS: Document = {"gpu": "A100-PCIe-80GB", "num_nodes": 1, "gpus_per_node": 6, "intra_node": "nvlink-pairs"}


def _on_pools() -> Iterator[tuple[str, list[Document]]]:
    stages = {"pp": 4, "pool_per_stage": ["old", "old", "new", "new"]}
    splits: tuple[Document, ...] = (
        {**stages, "tp": 2}, {**stages, "tp": 3, "recompute": "full"}, {**stages, "layers_per_stage": [2, 3, 3, 4]},
        {"pp": 2, "vpp": 2, "pool_per_stage": ["old", "new"]}, {"pp": 2, "pool_per_stage": ["new", "old"], "tp": 2, "zero": 1},
        {**stages, "micro_batch_size": 2, "recompute_per_stage": [1, 0, 2, 1], "recompute": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {"pool_per_stage": ["new"]}, {**stages, "offload": {"optimizer_fraction": 1.0}}, {**stages, "cp": 3},
    )  # fmt: skip
    kinds = (
        (OLD, NEW),
        (NEW, {**OLD, "num_nodes": 3}),
        (CARDS, NEW),
        (OLD, {**NEW, "gpu": "H100-SXM-80GB", "calibration": "h100x4-nvls-off-2026"}),
    )
    yield "pools", [
        row(model, pools_of(*both), {"framework": framework}, **split)
        for model, framework, both in (
            (DENSE, "megatron", kinds[0]), (DENSE, "megatron", kinds[1]), (DENSE, "megatron", kinds[2]), (DENSE, "torchtitan", kinds[0]),
            (MOE, "megatron", kinds[3]),
        )
        for split in splits
    ]  # fmt: skip
    tripled = pools_of(OLD, NEW, CARDS)
    yield "three-pools", [
        row(model, tripled, of, **split)
        for model in (DENSE, MOE, GPT)
        for of in ({}, {"precision": "fp16"}, {"precision": "fp32"})
        for split in (
            {"pp": 3, "tp": 2, "pool_per_stage": ["old", "new", "third"]}, {"pp": 4, "tp": 3, "pool_per_stage": ["old", "new", "new", "third"]},
            {"pp": 4, "pool_per_stage": ["old", "new", "new", "fourth"]}, {"pp": 2},
        )
    ]  # fmt: skip


def _drawn(number: int) -> Iterator[tuple[str, list[Document]]]:
    """Combinations that nobody would think of, many of them refused."""
    draw = Random(11)  # noqa: S311 - equal seeds draw equal rows
    models, clusters = (DENSE, GPT, MOE, MLA, LATENT_MOE), (H100, CUSTOM, {"preset": "dgx-a100-80gb", "num_nodes": 3})
    for framework in FRAMEWORKS:
        rows = []
        for _ in range(number):
            of = {
                "framework": framework,
                "precision": draw.choice(["bf16", "bf16", "fp16", "fp8"]),
                "seq_length": draw.choice([1536, 3072, 6144]),
            }
            rows.append(row(draw.choice(models), draw.choice(clusters), of, **_drawn_strategy(draw)))
        yield f"drawn-{framework}", rows


def _drawn_strategy(draw: Random) -> Document:
    strategy: Document = {"micro_batch_size": draw.choice([1, 1, 2, 4])}
    fields: dict[str, list[Any]] = {
        "tp": [1, 2, 3, 4], "pp": [1, 2, 4, 6], "cp": [1, 2], "ep": [1, 2, 8], "vpp": [1, 2], "zero": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"], "sequence_parallel": [True, False], "zero_shard_size": [4, 6],
        "grad_sync": ["last", "each"], "schedule": ["1f1b", "zb-h1", "gpipe"], "moe_dispatcher": ["allgather", "alltoall", "flex"],
        "cp_comm": ["p2p", "a2a", "allgather"], "offload": [{"optimizer_fraction": 1.0}, {"activation_layers": 2}],
        "overlap": [{"tp_comm": True}, {"grad_reduce": False}, {"p2p": True}],
    }  # fmt: skip
    for name, values in fields.items():
        if draw.random() < (0.5 if name in {"tp", "pp", "zero", "recompute"} else 0.1):
            strategy[name] = draw.choice(values)
    return strategy


def groups() -> dict[str, list[Document]]:
    """The rows by group."""
    return dict(chain(_configs(), _models(), _clusters(), _training(), _measured(), _on_pools(), _drawn(36)))
