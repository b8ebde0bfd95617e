"""Plans of Megatron that say every setting at least once, for the parsers and containers that read them."""

from __future__ import annotations

from random import Random
from typing import Any

from planner.export.launch_plan import LaunchPlan, launch_plan

CAPABILITY = {"ampere": 8, "hopper": 9, "blackwell": 10}
GPUS = {"h100": "dgx-h100", "b200": "dgx-b200"}
PLANS: tuple[tuple[str, str, int, dict[str, Any], dict[str, Any]], ...] = (
    # model, GPU, nodes, training, strategy
    ("llama-3.1-8b", "h100", 1, {}, {}),
    ("llama-3.1-70b", "h100", 8, {}, {"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "recompute": "selective", "overlap": {"tp_comm": True}}),
    ("llama-3.1-70b", "h100", 8, {}, {"tp": 8, "pp": 4, "layers_per_stage": [19, 20, 20, 21], "recompute": "full"}),
    ("llama-3.1-70b", "h100", 8, {}, {"tp": 8, "pp": 2, "vpp": 2, "layers_per_stage": [18, 21, 21, 20], "overlap": {"p2p": True}}),
    ("llama-3.1-70b", "h100", 8, {}, {
        "tp": 8, "pp": 4, "recompute": "full", "recompute_method": "block", "recompute_num_layers": 5,
    }),
    ("mixtral-8x7b", "h100", 8, {}, {"tp": 2, "pp": 2, "ep": 8, "etp": 1, "vpp": 4, "overlap": {"moe_all_to_all": True}}),
    ("mixtral-8x7b", "h100", 8, {}, {"tp": 2, "ep": 4, "etp": 2, "moe_dispatcher": "flex"}),
    ("deepseek-v3", "h100", 64, {"precision": "fp8"}, {
        "tp": 2, "pp": 8, "ep": 16, "etp": 1, "layers_per_stage": [7, 8, 8, 8, 8, 8, 8, 6],
    }),
    ("llama-3.1-8b", "h100", 1, {}, {"tp": 2, "zero": 3}),
    ("llama-3.1-8b", "h100", 1, {}, {"zero": 2, "overlap": {"param_gather": False}}),
    ("llama-3.1-8b", "h100", 1, {"cuda_graphs": True, "expandable_segments": True}, {"zero_shard_size": 4}),
    ("llama-3.1-8b", "h100", 1, {}, {"offload": {"optimizer_fraction": 0.5}}),
    ("llama-3.1-8b", "h100", 1, {}, {"offload": {"activation_layers": 4}}),
    ("gpt3-6.7b", "h100", 1, {"seq_length": 2048, "optimizer_state_dtype": "bf16", "dropout": 0.1}, {"zero": 1}),
    ("gpt3-6.7b", "h100", 1, {"seq_length": 2048, "precision": "fp16", "optimizer": "sgd"}, {"zero": 0}),
    ("gpt-oss-20b", "h100", 1, {}, {"ep": 4}),
    ("qwen3-30b-a3b", "h100", 1, {"cross_entropy": "fused", "grad_dtype": "bf16"}, {"ep": 8, "tp": 2, "etp": 1}),
    ("llama-3.1-8b", "b200", 1, {"precision": "nvfp4"}, {"tp": 2}),
    ("llama-3.1-8b", "b200", 1, {"precision": "fp8", "param_dtype": "fp8"}, {"cp": 2, "cp_comm": "allgather"}),
)  # fmt: skip

PAIRS: dict[str, Any] = {
    "name": "pairs", "num_layers": 12, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 6144,
    "vocab_size": 32000, "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 4,
    "recurrent": {"kind": "mamba2", "num_heads": 64, "head_dim": 64, "num_groups": 8, "chunk_size": 128},
}  # fmt: skip
"""A model of Bamba's kind: every layer has an MLP behind Mamba-2 or attention."""
HYBRIDS: tuple[tuple[str | dict[str, Any], str, int, dict[str, Any], dict[str, Any]], ...] = (
    ("nemotron-h-8b", "h100", 8, {}, {"tp": 2}),
    ("nemotron-h-8b", "h100", 8, {}, {"tp": 2, "pp": 2, "vpp": 2, "recompute": "selective"}),
    ("nemotron-h-56b", "h100", 8, {}, {"tp": 8, "pp": 4, "layers_per_stage": [29, 30, 30, 29]}),
    ("nemotron-3-nano-30b-a3b", "h100", 8, {}, {"tp": 2, "pp": 2, "ep": 8, "etp": 1}),
    ("nemotron-nano-9b-v2", "h100", 8, {}, {"tp": 4, "cp": 2}),
    (PAIRS, "h100", 8, {}, {"tp": 2, "pp": 2, "vpp": 3}),
    ("qwen3-next-80b-a3b", "h100", 8, {}, {"tp": 2, "pp": 2, "ep": 8, "etp": 1}),
    ("qwen3-next-80b-a3b", "h100", 8, {"precision": "fp8"}, {
        "pp": 4, "ep": 8, "layers_per_stage": [11, 13, 13, 11], "recompute": "full",
    }),
)  # fmt: skip
"""Plans of hybrids that every release since 0.17 can be told."""
RECOMPUTED: tuple[tuple[str | dict[str, Any], str, int, dict[str, Any], dict[str, Any]], ...] = (
    ("nemotron-h-8b", "h100", 8, {}, {"tp": 2, "pp": 4, "recompute": "full"}),
    (PAIRS, "h100", 8, {}, {"tp": 2, "pp": 2, "recompute": "full"}),
    (PAIRS, "h100", 8, {}, {"tp": 2, "pp": 2, "recompute": "full", "recompute_method": "block", "recompute_num_layers": 2}),
)  # fmt: skip
"""Those that 0.18 and later can be told."""


def planned(case: int, framework_version: str, **further: Any) -> LaunchPlan:
    """One of the plans, on a release of Megatron Core, with further fields of the training."""
    return launch_plan(row_of(PLANS[case], framework_version, **further))


def row_of(
    case: tuple[str | dict[str, Any], str, int, dict[str, Any], dict[str, Any]], framework_version: str, **further: Any
) -> dict[str, Any]:
    """The row of a plan in these tables."""
    model, gpu, nodes, training, strategy = case
    return {
        "model": {"preset": model} if isinstance(model, str) else model, "cluster": {"preset": GPUS[gpu], "num_nodes": nodes},
        "training": {
            "seq_length": 8192, "global_batch_size": 512, "precision": "bf16", "framework": "megatron",
            "framework_version": framework_version, **training, **further,
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip


MODELS = (
    "llama-3.1-8b",
    "llama-3.2-1b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt3-6.7b",
    "gpt-oss-20b",
    "qwen2.5-7b",
)


def drawn_row(random: Random, framework_version: str) -> dict[str, Any]:
    """A random row, which the planner's rules may refuse."""
    pick = random.choice
    model = pick(MODELS)
    strategy: dict[str, Any] = {
        "tp": pick([1, 2, 4]), "pp": pick([1, 1, 2, 4]), "cp": pick([1, 1, 1, 2]), "dp": pick([1, 2, 4, 8]), "vpp": pick([1, 1, 2]),
        "zero": pick([0, 1, 1, 2, 3]), "micro_batch_size": pick([1, 2]), "recompute": pick(["none", "full", "selective"]),
        "overlap": {"grad_reduce": pick([True, False]), "param_gather": pick([True, False]), "tp_comm": pick([True, False, False])},
    }  # fmt: skip
    if strategy["recompute"] == "full" and random.random() < 0.5:
        strategy |= {"recompute_method": pick(["block", "uniform"]), "recompute_num_layers": pick([1, 2])}
    if strategy["cp"] > 1:
        strategy["cp_comm"] = pick(["p2p", "a2a", "allgather"])
    if model in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"):
        strategy |= {
            "ep": pick([1, 2, 4]),
            "etp": pick([1, strategy["tp"]]),
            "moe_dispatcher": pick(["alltoall", "allgather", "flex"]),
        }
    for chance, fields in (
        (0.1, {"offload": {"optimizer_fraction": pick([0.5, 1.0])}}), (0.1, {"offload": {"activation_layers": 2}}),
        (0.2, {"zero_shard_size": 2}), (0.1, {"sequence_parallel": False}),
    ):  # fmt: skip
        if random.random() < chance:
            strategy |= fields
    training = {
        "precision": pick(["bf16", "bf16", "bf16", "fp8", "fp16", "fp32", "nvfp4"]), "framework": "megatron",
        "framework_version": framework_version, "seq_length": 2048, "global_batch_size": 64,
    }  # fmt: skip
    for chance, told in (
        (0.2, {"cross_entropy": pick(["fused", "te", "unfused"])}), (0.2, {"cuda_graphs": True}), (0.2, {"dropout": 0.1}),
        (0.2, {"expandable_segments": True}), (0.1, {"optimizer": "sgd"}), (0.2, {"optimizer_state_dtype": "bf16"}),
        (0.2, {"attention_kernel": pick(["fa2", "cudnn"])}), (0.1, {"grad_dtype": "bf16"}), (0.1, {"adapter": {"rank": 8}}),
        (0.1, {"transformer_impl": "local"}), (0.1, {"param_dtype": "fp8"}),
    ):  # fmt: skip
        if random.random() < chance:
            training |= told
    return {
        "model": {"preset": model}, "cluster": {"preset": pick(["dgx-h100", "dgx-b200"]), "num_nodes": 32}, "training": training,
        "strategy": strategy,
    }  # fmt: skip
