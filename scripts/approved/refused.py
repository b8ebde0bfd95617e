"""Rows and requests at and beyond the limits of what can be asked, whose answers are kept in `tests/approved`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts.approved.jobs import CARDS, NEW, OLD, pools_of
from scripts.approved.rows import CUSTOM, DENSE, FAST, GPT, H100, LATENT_MOE, MLA, MOE, Document, row


def _without(document: Document, *names: str) -> Document:
    return {name: value for name, value in document.items() if name not in names}


def _models() -> list[Document]:
    experts: tuple[Document, ...] = (
        {"top_k": 25}, {"num_groups": 5}, {"num_groups": 4, "topk_groups": 5}, {"moe_layer_freq": [1, 0]}, {"first_dense_layers": 12},
        {"first_dense_layers": 11}, {"num_experts": 0}, {"expert_intermediate_size": None}, {"num_shared_experts": None},
        {"num_shared_experts": None, "shared_expert_intermediate_size": None}, {"capacity_factor": 0.0}, {"moe_layer_freq": 13},
        {"moe_layer_freq": 0}, {"num_experts": 100_001}, {"shared_expert_intermediate_size": None},
    )  # fmt: skip
    return [
        {}, _without(DENSE, "num_layers"), _without(DENSE, "vocab_size", "hidden_size"), _without(DENSE, "intermediate_size"),
        _without(GPT, "max_position_embeddings"), {**DENSE, "head_dim": 127}, {**DENSE, "head_dim": 127, "position_embedding": "none"},
        {**DENSE, "num_key_value_heads": 4}, {**DENSE, "num_attention_heads": 17}, {**DENSE, "norms_per_layer": 8},
        {**DENSE, "norms_per_layer": 9}, {**DENSE, "norms_per_layer": 0}, {**DENSE, "num_layers": 0}, {**DENSE, "num_layers": "12"},
        {**DENSE, "num_layer": 12}, {**DENSE, "norm": "batchnorm"}, {**DENSE, "attention_bias": "none"}, {**MLA, "attention_gate": True},
        {**DENSE, "layer_types": ["full_attention"] * 11}, {**DENSE, "layer_types": ["sliding_attention"] * 12},
        {**DENSE, "layer_types": ["linear_attention"] * 12}, {**DENSE, "activation_parameters": -1}, {**DENSE, "intermediate_size": 0},
        {"preset": "llama-3.1-8b", "hf_config": {}}, {"preset": "llama-3-8b"}, {"preset": "gemma-2-9b", "num_layers": 5},
        {"preset": "mixtral-8x7b", "moe": {"top_k": 3}}, {"model_type": "llama", "hidden_size": 4096}, {"preset": 7},
        {**MOE, "intermediate_size": None}, {**MLA, "mla": {"kv_lora_rank": 512}}, {**DENSE, "gated_mlp": "yes"},
        *({**MOE, "moe": {**MOE["moe"], **each}} for each in experts),
    ]  # fmt: skip


def _clusters() -> list[Document]:
    nodes: tuple[Document, ...] = (
        {"num_nodes": 0}, {"num_nodes": 43_690}, {"num_nodes": 43_691}, {"gpus_per_node": 1025}, {"nvlink_domain_gpus": 5},
        {"nvlink_domain_gpus": 262_145}, {"nvlink_domain_gpus": 24, "segment_nodes": 5}, {"reserved_memory_gib": 90}, {"reserved_memory_gib": 89},
        {"network": {"oversubscription": 0.9}}, {"network": {"fabric": "token-ring"}}, {"network": {"nodes_per_leaf": 0}}, {"network": 3},
        {"intra_node": "nvlink-pairs"}, {"intra_node": "xgmi"}, {"intra_node": {"latency_us": 2}}, {"gpu": "H100"}, {"gpu": {"name": "x"}},
        {"gpu": {**FAST, "memory_gib": -1}}, {"gpu": {**FAST, "nvlink_gb_per_s": 0.0}, "intra_node": "nvswitch"},
        {"gpu": {**FAST, "reference": "none"}}, {"gpu": {**FAST, "peak_tflops": {}}}, {"price_per_gpu_hour": -1.0}, {"price_per_gpu_hour": 0.0},
        {"gpu": "H100-PCIe-80GB", "intra_node": "nvswitch"}, {"calibration": "h100x5"}, {"calibration": "auto"}, {"calibration": []},
        {"calibration": ["h100x1-2026-11-27"]}, {"calibration": "h200x2-nvls-off-2026-11-28"}, {"name": ""}, {"nics_per_nodes": 2},
        {"pcie": {"gpus_per_switch": 3, "gpus_per_socket": 6}, "intra_node": "pcie"}, {"pcie": {"gpus_per_switch": 0}},
    )  # fmt: skip
    found = [{**CUSTOM, **each} for each in nodes]
    found += [_without(CUSTOM, name) for name in ("gpu", "num_nodes", "gpus_per_node")]
    found += [
        {"preset": "dgx-h100"},
        {"preset": "dgx-h1000"},
        {"preset": "selene", "network": {"nodes_per_leaf": 4}, "num_nodes": 3},
    ]
    found += [
        {"pools": []},
        {"pools": {}},
        {"pools": [OLD, OLD]},
        {"pools": [{**OLD, "name": "a"}, {**NEW, "name": "a"}]},
        {"pools": [OLD] * 17},
        {"pools": [{**OLD, "num_nodes": 0}, NEW]},
        {"pools": [OLD, NEW], "num_nodes": 2},
        {"pools": [OLD, NEW], "gpuz": 2},
        {"pools": [OLD, {**NEW, "gpu": "MI300X-192GB"}]},
        {"pools": [OLD, 3]},
        {"pools": [OLD, {**NEW, "calibration": "none"}]},
    ]
    return found


def _training() -> list[Document]:
    return [
        {"seq_length": None}, {"global_batch_size": None}, {"precision": None}, {"framework": None}, {"framework": "megatorn"},
        {"global_batch_tokens": 3072 * 96}, {"global_batch_tokens": 3072 * 90}, {"global_batch_tokens": 3073}, {"framework_version": "newest"},
        {"framework_version": "0.99"}, {"framework_version": "0.16.2"}, {"software_date": "2024-13"}, {"software_date": "2019-01"},
        {"adapter": {"rank": 8}}, {"dropout": 1.0}, {"dropout": 1.1}, {"total_tokens": 0.0}, {"total_tokens": 2e18}, {"precision": "nvfp4"},
        {"precision": "int8"}, {"mean_document_length": 0.0}, {"mean_document_length": 9999.0}, {"recipe": "nvidia"}, {"seq_length": 3072.5},
        {"precision": "fp32", "attention": "flash"}, {"framework": "torchtitan", "recipe": "nvidia-perf"}, {"cuda_graphs": 1},
        {"precision": "fp16", "grad_dtype": "fp16"}, {"sequence_length": 100},
    ]  # fmt: skip


def _strategies() -> list[Document]:
    return [
        {"tp": 0}, {"tp": 25}, {"tp": 5}, {"pp": 4, "tp": 12}, {"dp": 7}, {"dp": 96}, {"micro_batch_size": None}, {"micro_batch_size": 5},
        {"micro_batch_size": 4}, {"zero": 4}, {"zero_shard_size": 5}, {"layers_per_stage": [6, 6]}, {"pp": 2, "layers_per_stage": [6, 7]},
        {"pp": 3, "layers_per_stage": [4, 4]}, {"pp": 2, "layers_per_stage": [12, 0]}, {"recompute_num_layers": 2}, {"recompute": "full", "recompute_num_layers": 13},
        {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 5}, {"recompute": "none", "recompute_method": "block"},
        {"recompute": "full", "recompute_method": "uniform"}, {"recompute_per_stage": [1]}, {"pp": 2, "recompute": "full", "recompute_per_stage": [1, 2, 3]},
        {"recompute": "full", "recompute_per_stage": [13]}, {"pool_per_stage": ["a"]}, {"sequence_parallel": True}, {"tp": 2, "sequence_parallel": False},
        {"flex_backend": "deepep"}, {"flex_backend": "hybridep", "moe_dispatcher": "alltoall"}, {"vpp": 2}, {"pp": 2, "vpp": 5},
        {"pp": 2, "vpp": 2, "schedule": "1f1b"}, {"pp": 2, "schedule": "interleaved"}, {"cp": 2}, {"ep": 2}, {"etp": 2}, {"overlap": {"tp": True}},
        {"offload": {"optimizer_fraction": 1.5}}, {"offload": {"activation_layers": 13}}, {"recompute_modules": ["mlp"]}, {"recompute_modules": ["mpl"]},
        {"recompute": "selective", "recompute_modules": []}, {"pp": 4, "schedule": "zb-h1", "vpp": 2}, {"tp": 24}, {"dp": 24, "pp": 2},
    ]  # fmt: skip


def groups() -> dict[str, list[Document]]:
    """The rows by group."""
    plain: Document = {"model": DENSE, "cluster": CUSTOM, "training": {}, "strategy": {"micro_batch_size": 1}}
    return {
        "limits-models": [row(model, CUSTOM, {}, pp=1) for model in _models()],
        "limits-clusters": [row(DENSE, cluster, {"global_batch_size": 43_690 * 6 if "43" in str(cluster) else 96}) for cluster in _clusters()],
        "limits-training": [_trained(each) for each in _training()],
        "limits-strategies": [
            {**row(model, CUSTOM, {"framework": framework}), "strategy": {"micro_batch_size": 1, **each}}
            for model, framework in ((DENSE, "megatron"), (LATENT_MOE, "torchtitan"))
            for each in _strategies()
        ],
        "limits-pools": [row(DENSE, pools_of(OLD, NEW, CARDS), {}, **each) for each in _on_pools()],
        "limits-rows": [
            {}, _without(plain, "model"), _without(plain, "strategy"), {**plain, "cluster": 3}, {**plain, "model": "llama-3.1-8b"},
            {**plain, "cluster": "dgx-h10"}, {**plain, "training": "megatron"}, {**row(DENSE, H100, {}), "strategy": 3}, {**plain, "id": True},
        ],
    }  # fmt: skip


def _trained(training: Document) -> Document:
    whole = row(DENSE, CUSTOM, training)
    return {**whole, "training": {name: value for name, value in whole["training"].items() if value is not None}}


def _on_pools() -> Iterator[Document]:
    yield from (
        {"pp": 2, "pool_per_stage": ["old"]}, {"pp": 3, "pool_per_stage": ["old", "new", "old"]}, {"pp": 2, "dp": 13}, {"pp": 6, "dp": 6},
        {"pp": 3, "dp": 12}, {"pp": 2, "dp": 6, "pool_per_stage": ["old", "third"]}, {"pp": 2, "dp": 12, "pool_per_stage": ["old", "third"]},
        {"pp": 5, "dp": 6}, {"pp": 4, "dp": 6, "schedule": "zb-h1"}, {"pp": 4, "dp": 6, "offload": {"activation_layers": 1}},
        {"pp": 4, "dp": 6, "vpp": 3}, {"pp": 2, "dp": 3, "tp": 2}, {"dp": 6}, {"pp": 4, "tp": 3, "dp": 2}, {"pp": 4, "dp": 6, "layers_per_stage": [3, 3, 3, 3]},
        {"pp": 4, "dp": 6, "recompute": "full", "recompute_per_stage": [3, 0, 1, 2]}, {"pp": 1, "dp": 30},
    )  # fmt: skip


def requests(request: Any) -> dict[str, Document]:
    """Requests by name that are refused, or that nothing can satisfy. `request` makes one of constraints and other fields."""
    wrong: tuple[Document, ...] = (
        {"constraints": {"num_nodes": {"min": 3}}}, {"constraints": {"num_nodes": {"min": 2, "max": 1}}}, {"targets": {"deadline_h": 3.0}},
        {"objective": "fewest_gpus"}, {"constraints": {"fixed": {"recompute_per_stage": [1, 2], "recompute": "none"}}},
        {"constraints": {"fixed": {"recompute_per_stage": [1, 2], "recompute_num_layers": 1}}},
        {"constraints": {"fixed": {"flex_backend": "deepep", "moe_dispatcher": "alltoall"}}},
        {"constraints": {"allowed": {"flex_backend": ["hybridep"], "moe_dispatcher": ["allgather"]}}},
        {"constraints": {"fixed": {"recompute_method": "block", "recompute": "none"}}}, {"constraints": {"fixed": {"layers_per_stage": [3, 4]}}},
        {"constraints": {"allowed": {"layers_per_stage": [[3, 3], [5, 2]]}}}, {"constraints": {"fixed": {"pool_per_stage": ["a"]}}},
        {"constraints": {"fixed": {"tp": 1}, "allowed": {"tp": [1]}}}, {"constraints": {"fixed": {"tp": 4, "pp": 4}}},
        {"constraints": {"fixed": {"tp": 1, "pp": 1, "dp": 2}}}, {"constraints": {"fixed": {"tp": 1, "pp": 2}, "num_nodes": {"min": 2}, "allowed": {"dp": [2]}}},
        {"constraints": {"allowed": {"pp": [4]}}}, {"constraints": {"fixed": {"dp": 5}, "allow_idle_gpus": False}}, {"top_k": 0}, {"top_k": 1001},
        {"include": ["pareto", "everything"]}, {"constraints": {"memory_headroom_fraction": 1.0}}, {"time_limit_s": 0.0}, {"constraint": {}},
        {"constraints": {"fixed": {"micro_batch_size": 24}}}, {"constraints": {"fixed": {"micro_batch_size": 48}}}, {"seed": -1},
        {"constraints": {"fixed": {"zero_shard_size": 4}}}, {"constraints": {"fixed": {"cp": 5}}}, {"constraints": {"fixed": {"ep": 2}}},
        {"constraints": {"allowed": {"recompute": []}}}, {"constraints": {"allowed": {"zero": [5]}}}, {"targets": {"min_tokens_per_s": 0}},
    )  # fmt: skip
    return {f"limits-{number}": request(**each) for number, each in enumerate(wrong)}


def requests_on_pools(request: Any) -> dict[str, Document]:
    """The same where the request lists pools."""
    wrong: tuple[Document, ...] = (
        {"include": ["pareto"]}, {"constraints": {"fixed": {"recompute_per_stage": [1, 2]}}}, {"constraints": {"fixed": {"schedule": "zb-h1"}}},
        {"constraints": {"allowed": {"schedule": ["1f1b", "zb-v"]}}}, {"constraints": {"fixed": {"offload": {"activation_layers": 1}}}},
        {"constraints": {"fixed": {"pool_per_stage": ["old", "newer"]}}}, {"constraints": {"fixed": {"pool_per_stage": ["old", "new"]}, "allowed": {"pp": [3]}}},
        {"constraints": {"fixed": {"pool_per_stage": ["old", "new"], "layers_per_stage": [2, 2, 2]}}}, {"constraints": {"fixed": {"tp": 5}}},
        {"constraints": {"fixed": {"tp": 3, "pp": 2}}}, {"constraints": {"fixed": {"pool_per_stage": ["old", "new"], "tp": 3}}},
        {"constraints": {"fixed": {"dp": 5, "tp": 1}}}, {"constraints": {"fixed": {"dp": 4, "pp": 2}, "num_nodes": {"max": 1}}},
        {"constraints": {"fixed": {"pool_per_stage": ["old", "new"]}}}, {"constraints": {"fixed": {"layers_per_stage": [2, 4]}}},
        {"constraints": {"allowed": {"layers_per_stage": [[2, 4], [1, 5], [2, 2, 2]]}}}, {"constraints": {"allow_idle_gpus": False}},
    )  # fmt: skip
    return {f"limits-pools-{number}": request(**each) for number, each in enumerate(wrong)}
