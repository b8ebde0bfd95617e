"""Legality: what each framework and version refuses, from situations users met and from the frameworks' own checks."""

from __future__ import annotations

import numpy as np
import pytest

from builders import job_of, llama_model, with_experts
from cost_models.strategies.strategy import ARRAY_FIELDS
from planner.rules import (
    RULES,
    active_rules,
    first_violations,
    reasons,
    rule_codes,
    smallest_change,
    violations,
)
from planner.rules.rule import divisors, rule_fields, version_key
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies

DENSE = llama_model(vocab_size=32000)
MOE = with_experts(DENSE, expert_intermediate_size=14336)
TITAN_02 = {"framework_version": "0.2.2"}
"""Scaled dot-product attention, which needs no compiler, and experts overlapped in DualPipe-V."""
MLA = {
    **{name: value for name, value in DENSE.items() if name != "num_key_value_heads"},
    "mla": {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}  # fmt: skip

CLUSTER = {"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8}
ODD_EXPERTS = {**MOE, "moe": {**MOE["moe"], "expert_intermediate_size": 4100}}
"""4100 = 4 x 1025."""
DOZEN = {**MOE, "moe": {**MOE["moe"], "num_experts": 12}}


def job_for(framework="megatron", model=DENSE, cluster=CLUSTER, **training):
    return job_of(model, framework, cluster=cluster, **{"seq_length": 4096, **training})


def codes(strategy, framework="megatron", model=DENSE, **training):
    job = job_for(framework, model, **training)
    resolved = resolve_strategies(job, [StrategyInput(**{"micro_batch_size": 1, **strategy})])
    assert resolved.problems == ([],)
    return [reason["code"] for reason in reasons(job, resolved.strategies, 0)]


TWO_KV_HEADS = {**DENSE, "num_attention_heads": 16, "num_key_value_heads": 2}
TEN_KV_HEADS = {
    **DENSE,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "intermediate_size": 17920,
}
TWELVE_HEADS = {
    **DENSE,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "intermediate_size": 3072,
}


@pytest.mark.parametrize(
    ("strategy", "framework", "model", "training", "code"),
    [
        # Degrees. pytorch/torchtitan#2574, NVIDIA-NeMo/Automodel#799, hpcaitech/ColossalAI#3043
        ({"tp": 4, "dp": 2}, "torchtitan", TWO_KV_HEADS, {}, "kv-heads-not-divisible"),
        ({"tp": 2, "dp": 4}, "torchtitan", TWO_KV_HEADS, {}, None),
        ({"tp": 4, "dp": 1}, "torchtitan", TEN_KV_HEADS, {}, "kv-heads-not-divisible"),
        ({"tp": 2, "dp": 2}, "torchtitan", TEN_KV_HEADS, {}, None),
        ({"tp": 8}, "megatron", TWELVE_HEADS, {}, "heads-not-divisible"),
        ({"tp": 4}, "megatron", TWELVE_HEADS, {}, None),
        # Megatron replicates key-value heads from core 0.16 on (pull request 2565).
        ({"tp": 8}, "megatron", TWO_KV_HEADS, {"framework_version": "0.16"}, None),
        ({"tp": 8}, "megatron", TWO_KV_HEADS, {"framework_version": "0.15"}, "kv-heads-not-divisible"),
        ({"tp": 8}, "megatron", MLA, {"framework_version": "0.15"}, None),
        ({"tp": 4, "zero": 1}, "deepspeed", TWO_KV_HEADS, {"framework_version": "0.19"}, "kv-heads-not-divisible"),
        ({"dp": 32}, "megatron", DENSE, {}, "world-exceeds-gpus"),
        # The sequence must divide by cp x lcm(2, tp): NVIDIA-NeMo/RL#3563. 2 x lcm(2, 8) = 16: 4112 = 257 x 16.
        ({"tp": 8, "cp": 2}, "megatron", DENSE, {"seq_length": 4112}, None),
        ({"tp": 8, "cp": 2}, "megatron", DENSE, {"seq_length": 4104}, "sequence-not-divisible"),
        ({"tp": 2, "cp": 4}, "megatron", DENSE, {"seq_length": 4104}, None),
        ({"cp": 2}, "megatron", DENSE, {"seq_length": 4098}, "sequence-not-divisible"),
        ({"cp": 2}, "megatron", DENSE, {"seq_length": 4100}, None),
        ({"tp": 8}, "megatron", DENSE, {"seq_length": 4104}, None),
        ({"tp": 8}, "megatron", DENSE, {"seq_length": 4100}, "sequence-not-divisible"),
        # torchtitan: tp x 2 cp, also without context parallelism. 4104 = 8 x 513.
        # torchtitan counted 2 x cp without context parallelism too until its trainer counted itself (0.3): 4104 = 513 x 8.
        ({"tp": 8}, "torchtitan", DENSE, {"seq_length": 4104, "framework_version": "0.2"}, "sequence-not-divisible"),
        ({"tp": 8}, "torchtitan", DENSE, {"seq_length": 4104}, None),
        ({"tp": 8}, "torchtitan", DENSE, {"seq_length": 4100}, "sequence-not-divisible"),
        ({"cp": 2}, "torchtitan", DENSE, {"seq_length": 4098}, "sequence-not-divisible"),
        ({"tp": 2, "zero": 1, "sequence_parallel": True}, "deepspeed", DENSE, {}, "sequence-parallel-unsupported"),
        ({"cp": 2}, "megatron-deepspeed", DENSE, {"framework_version": "2022"}, "context-parallel-unsupported"),
        ({"cp": 2}, "megatron", DENSE, {"attention": "math"}, "context-parallel-needs-flash"),
        ({"cp": 2, "cp_comm": "a2a"}, "torchtitan", DENSE, {}, "context-parallel-comm-unsupported"),
        ({"tp": 8, "cp": 2, "cp_comm": "a2a"}, "megatron", DENSE, {}, "context-parallel-heads"),
        # Pipelines. NVIDIA/Megatron-LM#750
        ({"pp": 2, "vpp": 2, "overlap": {"p2p": True}}, "megatron", DENSE, {}, None),
        ({"pp": 2, "vpp": 2, "overlap": {"p2p": False}}, "megatron", DENSE, {}, "interleaving-needs-p2p-overlap"),
        ({"pp": 4, "vpp": 2, "overlap": {"p2p": False}}, "megatron", DENSE, {}, None),
        ({"vpp": 2}, "megatron", DENSE, {}, "virtual-stages-need-pipeline"),
        ({"pp": 2, "vpp": 2}, "nanotron", DENSE, {}, "virtual-stages-unsupported"),
        ({"pp": 2}, "fsdp", DENSE, {}, "pipeline-unsupported"),
        # 12 sequences over dp 2: 6 micro-batches, no multiple of 4 stages.
        ({"pp": 4, "vpp": 2, "dp": 2}, "megatron", DENSE, {"global_batch_size": 12}, "interleaving-needs-micro-batches"),
        ({"pp": 2, "schedule": "gpipe"}, "megatron", DENSE, {}, "schedule-unsupported"),
        ({"pp": 2, "schedule": "gpipe"}, "nanotron", DENSE, {}, None),
        ({"pp": 2, "schedule": "interleaved"}, "megatron", DENSE, {}, "schedule-mismatch"),
        ({"pp": 2, "vpp": 2, "schedule": "zb-v", "recompute": "none"}, "torchtitan", DENSE, TITAN_02, None),
        # Compiled code and selective checkpoints run backward in one piece: pytorch/pytorch#161904, torch/utils/checkpoint.py.
        ({"pp": 2, "vpp": 2, "schedule": "zb-v", "recompute": "none"}, "torchtitan", DENSE, {**TITAN_02, "compile": True},
         "schedule-unsupported"),
        ({"pp": 2, "vpp": 2, "schedule": "zb-v", "recompute": "none"}, "torchtitan", DENSE, {}, "schedule-unsupported"),
        ({"pp": 2, "vpp": 2, "schedule": "zb-v"}, "torchtitan", DENSE, TITAN_02, "schedule-unsupported"),
        ({"pp": 2, "vpp": 2}, "torchtitan", DENSE, {**TITAN_02, "compile": True}, None),
        # 12 sequences over dp 4: 3 micro-batches, fewer than 2 x 2 stages.
        ({"pp": 2, "vpp": 2, "dp": 4, "schedule": "dualpipe-v", "recompute": "none"}, "torchtitan", DENSE,
         {**TITAN_02, "global_batch_size": 12}, "too-few-micro-batches"),
        ({"pp": 4, "layers_per_stage": [6, 10, 8, 8]}, "megatron", DENSE, {"framework_version": "0.12"}, "split-unsupported"),
        ({"pp": 4, "layers_per_stage": [7, 9, 9, 7]}, "megatron", DENSE, {"framework_version": "0.12"}, None),
        ({"pp": 4, "layers_per_stage": [6, 10, 8, 8]}, "megatron", DENSE, {"framework_version": "0.13"}, None),
        ({"pp": 2, "layers_per_stage": [10, 22]}, "nanotron", DENSE, {}, "split-unsupported"),
        ({"pp": 2}, "torchtitan", DENSE, {"cuda_graphs": True}, "cuda-graphs-with-pipeline"),
        # Experts. facebookresearch/FAMBench#103: ep 8 over 4 ranks; then etp x ep x pp beyond the ranks.
        ({"dp": 4, "ep": 8, "etp": 1}, "megatron", MOE, {}, "expert-ranks-not-divisible"),
        ({"dp": 4, "ep": 4, "etp": 1}, "megatron", MOE, {}, None),
        ({"pp": 4, "dp": 4, "ep": 8, "etp": 1}, "megatron", MOE, {}, "expert-ranks-not-divisible"),
        # All of a stage's ranks share the experts: tp 2 x cp 2 x dp 2 = 8 of them hold ep 8 x etp 1, not ep 4 x etp 4.
        ({"tp": 2, "cp": 2, "dp": 2, "ep": 8, "etp": 1}, "megatron", MOE, {}, None),
        ({"tp": 4, "cp": 1, "dp": 2, "ep": 4, "etp": 4}, "megatron", MOE, {}, "expert-ranks-not-divisible"),
        ({"tp": 8, "dp": 2, "ep": 8, "etp": 1}, "megatron", ODD_EXPERTS, {}, None),
        ({"tp": 8, "dp": 2, "ep": 2, "etp": 8}, "megatron", ODD_EXPERTS, {}, "expert-mlp-not-divisible"),
        ({"tp": 8, "dp": 2, "ep": 4, "etp": 4}, "megatron", ODD_EXPERTS, {}, None),
        ({"ep": 2}, "megatron", DENSE, {}, "experts-missing"),
        ({"ep": 16, "etp": 1}, "megatron", MOE, {}, "experts-not-divisible"),
        ({"tp": 2, "ep": 4, "sequence_parallel": False}, "megatron", MOE, {}, "moe-needs-sequence-parallel"),
        ({"ep": 4}, "fsdp", MOE, {}, "expert-parallel-unsupported"),
        ({"tp": 2, "ep": 4, "zero": 1}, "deepspeed", MOE, {"framework_version": "0.19.2"}, "expert-parallel-unsupported"),
        ({"tp": 2, "ep": 4, "zero": 1}, "deepspeed", MOE, {"framework_version": "0.19.3"}, None),
        ({"tp": 2, "ep": 4, "cp": 2, "zero": 1}, "deepspeed", MOE, {"framework_version": "0.19.3"},
         "expert-parallel-unsupported"),
        ({"tp": 2, "ep": 4, "zero": 3}, "deepspeed", MOE, {"framework_version": "0.19.7"}, "expert-parallel-unsupported"),
        ({"tp": 2, "ep": 4, "zero": 3}, "deepspeed", MOE, {"framework_version": "0.19.8"}, None),
        ({"ep": 4, "zero": 3}, "deepspeed", MOE, {"framework_version": "0.19.2"}, "expert-parallel-unsupported"),
        ({"ep": 4, "zero": 3}, "deepspeed", MOE, {"framework_version": "0.19.3"}, None),
        ({"tp": 4, "ep": 2, "etp": 1}, "torchtitan", MOE, {"framework_version": "0.2"}, "expert-ranks-not-divisible"),
        ({"tp": 4, "ep": 2, "etp": 1}, "torchtitan", MOE, {"framework_version": "0.3"}, None),
        ({"tp": 2, "ep": 4, "etp": 2}, "torchtitan", MOE, {"framework_version": "0.3"}, "expert-tensor-parallel-unsupported"),
        ({"tp": 4, "dp": 2, "ep": 4}, "nanotron", MOE, {}, "expert-ranks-not-divisible"),
        ({"ep": 4, "moe_dispatcher": "flex"}, "megatron", MOE, {"framework_version": "0.11"}, "dispatcher-unsupported"),
        ({"ep": 4, "moe_dispatcher": "flex"}, "torchtitan", MOE, {"framework_version": "0.1"}, "dispatcher-unsupported"),
        ({"ep": 4, "moe_dispatcher": "flex"}, "torchtitan", MOE, {"framework_version": "0.2"}, None),
        ({"ep": 4, "moe_dispatcher": "allgather"}, "torchtitan", MOE, {}, "dispatcher-unsupported"),
        # DeepEP knows 8 ranks a node: csrc/config.hpp asserts n < 8 or n % 8 == 0.
        ({"dp": 12, "ep": 12, "etp": 1, "moe_dispatcher": "flex"}, "megatron", DOZEN, {"global_batch_size": 48},
         "dispatcher-unsupported"),
        ({"dp": 12, "ep": 12, "etp": 1, "moe_dispatcher": "flex", "flex_backend": "hybridep"}, "megatron", DOZEN,
         {"global_batch_size": 48}, None),
        ({"ep": 8, "etp": 1, "moe_dispatcher": "flex", "flex_backend": "hybridep"}, "megatron", MOE, {"framework_version": "0.15"},
         "dispatcher-unsupported"),
        ({"ep": 8, "etp": 1, "moe_dispatcher": "flex", "flex_backend": "hybridep"}, "torchtitan", MOE,
         {"framework_version": "0.2"}, "dispatcher-unsupported"),
        ({"dp": 12, "ep": 6, "etp": 1, "moe_dispatcher": "flex"}, "megatron", DOZEN, {"global_batch_size": 48}, None),
        ({"ep": 4, "zero": 1, "moe_dispatcher": "allgather"}, "deepspeed", MOE, {}, "dispatcher-unsupported"),
        # States.
        ({"zero": 2}, "nanotron", DENSE, {}, "zero-unsupported"),
        ({"zero": 1}, "torchtitan", DENSE, {}, "zero-unsupported"),
        ({"zero": 3}, "megatron", DENSE, {"framework_version": "0.11"}, "zero-unsupported"),
        ({"zero": 3}, "megatron", DENSE, {"framework_version": "0.12"}, None),
        ({"zero": 2, "pp": 2}, "deepspeed", DENSE, {}, "zero-with-pipeline"),
        ({"zero": 3, "grad_sync": "last"}, "deepspeed", DENSE, {}, "zero-unsupported"),
        ({"zero": 1, "grad_sync": "last"}, "deepspeed", DENSE, {}, None),
        ({"zero": 3, "grad_sync": "last"}, "torchtitan", DENSE, {}, None),
        # torchtitan: torch's 1F1B wants a micro-batch a stage (16 GPUs, pp 8: dp 2, 64 / (2 x 8) = 4 < 8); tied heads.
        ({"pp": 8, "micro_batch_size": 8}, "torchtitan", DENSE, {}, "too-few-micro-batches"),
        ({"pp": 8, "micro_batch_size": 4}, "torchtitan", DENSE, {}, None),
        ({"pp": 2}, "torchtitan", {**DENSE, "tie_word_embeddings": True}, {}, "pipeline-unsupported"),
        ({"zero": 3, "tp": 2}, "deepspeed", DENSE, {"framework_version": "0.19.3"}, "zero-with-tensor-parallel"),
        ({"zero": 3, "tp": 2}, "deepspeed", DENSE, {"framework_version": "0.19.4"}, None),
        ({"zero": 3, "zero_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.19.6"}, None),
        ({"zero": 3, "zero_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.19.7"}, "zero-shard-size-unsupported"),
        # A release of two numbers is its newest patch, on either side of a bound: 0.19 is 0.19.8, 0.12 is 0.12.6, 0.9 is 0.9.5.
        ({"zero": 3, "tp": 2}, "deepspeed", DENSE, {"framework_version": "0.19"}, None),
        ({"tp": 2, "ep": 4, "zero": 1}, "deepspeed", MOE, {"framework_version": "0.19"}, None),
        ({"zero": 3, "zero_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.19"}, "zero-shard-size-unsupported"),
        ({"zero": 3, "offload": {"optimizer_fraction": 0.5}}, "deepspeed", DENSE, {"framework_version": "0.12"}, None),
        ({"zero": 1, "pp": 2, "ep": 2}, "deepspeed", MOE, {"framework_version": "0.14"}, None),
        # DeepSpeed's source packages: runtime/zero/mics.py from 0.9.2, zero_hpz_partition_size in zero/config.py from 0.10.
        ({"zero": 3, "zero_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.9.1"}, "zero-shard-size-unsupported"),
        ({"zero": 3, "zero_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.9"}, None),
        ({"zero": 3, "zero_param_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.9.5"},
         "zero-param-shard-size-unsupported"),
        ({"zero": 3, "zero_param_shard_size": 8}, "deepspeed", DENSE, {"framework_version": "0.10.0"}, None),
        # Accelerate: replicas of whole parameters exclude tp and cp; what ranks of a context share is never replicated.
        ({"zero": 0, "tp": 2}, "fsdp", DENSE, {}, "zero-with-tensor-parallel"),
        ({"zero": 0}, "fsdp", DENSE, {}, None),
        ({"cp": 4, "zero_shard_size": 2}, "torchtitan", DENSE, {}, "zero-shard-size-not-divisible"),
        ({"cp": 4, "zero_shard_size": 8}, "torchtitan", DENSE, {}, None),
        # 16 ranks, ep 8 of etp 1: 2 expert replicas cannot be cut into 4 optimizer instances.
        ({"ep": 8, "etp": 1, "zero": 1, "zero_shard_size": 4}, "megatron", MOE, {}, "zero-shard-size-not-divisible"),
        ({"ep": 8, "etp": 1, "zero": 1, "zero_shard_size": 8}, "megatron", MOE, {}, None),
        ({"zero": 1, "tp": 2}, "deepspeed", DENSE, {"framework_version": "0.15"}, "tensor-parallel-unsupported"),
        ({"zero": 1, "zero_shard_size": 3}, "megatron", DENSE, {}, "zero-shard-size-not-divisible"),
        ({"zero": 1, "zero_shard_size": 8}, "nanotron", DENSE, {}, "zero-shard-size-unsupported"),
        ({"zero": 3, "zero_param_shard_size": 8}, "deepspeed", DENSE, {}, None),
        ({"zero": 3, "zero_param_shard_size": 1}, "deepspeed", DENSE, {}, "zero-param-shard-size-unsupported"),
        ({"zero": 3, "zero_param_shard_size": 8}, "fsdp", DENSE, {}, "zero-param-shard-size-unsupported"),
        ({}, "megatron", DENSE, {"optimizer": "adam-8bit"}, "optimizer-unsupported"),
        ({"recompute": "selective"}, "nanotron", DENSE, {}, "recompute-unsupported"),
        ({"recompute": "full", "recompute_num_layers": 2}, "fsdp", DENSE, {}, "recompute-unsupported"),
        ({"recompute": "full", "recompute_num_layers": 16}, "torchtitan", DENSE, {"framework_version": "0.2"}, None),
        ({"recompute": "full", "recompute_num_layers": 12}, "torchtitan", DENSE, {"framework_version": "0.2"},
         "recompute-unsupported"),
        ({"recompute": "selective", "recompute_modules": ["moe"]}, "megatron", DENSE, {}, "recompute-modules-unsupported"),
        ({"tp": 2, "sequence_parallel": False, "overlap": {"tp_comm": True}}, "megatron", DENSE, {}, "overlap-unsupported"),
        ({"tp": 2, "sequence_parallel": False, "overlap": {"tp_comm": True}}, "nanotron", DENSE, {}, "overlap-unsupported"),
        ({"tp": 2, "sequence_parallel": True, "overlap": {"tp_comm": True}}, "nanotron", DENSE, {}, None),
        ({"tp": 2, "sequence_parallel": False, "overlap": {"tp_comm": True}}, "torchtitan", DENSE, {"compile": True},
         "overlap-unsupported"),
        # torchtitan hides the exchange between experts in DualPipe-V's pairs, which no recomputation may disturb.
        ({"pp": 2, "vpp": 2, "ep": 2, "recompute": "none", "overlap": {"moe_all_to_all": True}}, "torchtitan", MOE, TITAN_02,
         "overlap-unsupported"),
        ({"pp": 2, "vpp": 2, "ep": 2, "schedule": "dualpipe-v", "recompute": "full", "overlap": {"moe_all_to_all": True}},
         "torchtitan", MOE, TITAN_02, "overlap-unsupported"),
        ({"pp": 2, "vpp": 2, "ep": 2, "schedule": "dualpipe-v", "recompute": "none", "overlap": {"moe_all_to_all": True}},
         "torchtitan", MOE, TITAN_02, None),
        # Only Megatron's wrappers of Transformer Engine's layers read tp_comm_overlap.
        ({"tp": 2, "overlap": {"tp_comm": True}}, "megatron", DENSE, {"transformer_impl": "local"}, "overlap-unsupported"),
        ({"tp": 2, "overlap": {"tp_comm": True}}, "megatron", DENSE, {}, None),
        ({"offload": {"parameters": True}}, "megatron", DENSE, {}, "offload-unsupported"),
        # Megatron offloads whole layers up to core 0.15, modules (--fine-grained-activation-offloading) from 0.16 on.
        ({"pp": 2, "offload": {"activation_layers": 2}}, "megatron", DENSE, {"framework_version": "0.15"},
         "offload-unsupported"),
        ({"recompute": "selective", "offload": {"activation_layers": 2}}, "megatron", DENSE,
         {"framework_version": "0.15"}, "offload-unsupported"),
        ({"pp": 2, "vpp": 2, "recompute": "selective", "offload": {"activation_layers": 2}}, "megatron", MOE,
         {"framework_version": "0.16"}, None),
        ({"offload": {"activation_layers": 2}}, "megatron", DENSE, {"framework_version": "0.15"}, None),
        ({"offload": {"activation_layers": 2}}, "megatron", DENSE, {"framework_version": "0.19"}, None),
        ({"offload": {"activation_layers": 2}}, "torchtitan", DENSE, {}, "offload-unsupported"),
        # DeepSpeed's cpu_checkpointing moves the inputs of checkpointed layers.
        ({"zero": 1, "offload": {"activation_layers": 2}}, "deepspeed", DENSE, {}, "offload-unsupported"),
        ({"zero": 1, "recompute": "full", "offload": {"activation_layers": 2}}, "deepspeed", DENSE, {}, None),
        # deepspeedai/DeepSpeed#3866, deepspeedai/Megatron-DeepSpeed#369
        ({"zero": 0, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {}, "offload-unsupported"),
        ({"zero": 0, "offload": {"optimizer_fraction": 1.0}}, "megatron-deepspeed", DENSE, {}, "offload-unsupported"),
        ({"zero": 1, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {}, None),
        # Megatron's --optimizer-cpu-offload needs the distributed optimizer.
        ({"zero": 0, "offload": {"optimizer_fraction": 1.0}}, "megatron", DENSE, {}, "offload-unsupported"),
        ({"zero": 1, "pp": 2, "offload": {"optimizer_fraction": 0.5}}, "megatron", DENSE, {}, None),
        ({"zero": 1, "pp": 2, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {}, "offload-unsupported"),
        ({"zero": 1, "pp": 2, "offload": {"optimizer_fraction": 1.0}}, "megatron-deepspeed", DENSE, {},
         "offload-unsupported"),
        ({"zero": 1, "pp": 2, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {"precision": "fp16"}, None),
        ({"zero": 2, "offload": {"optimizer_fraction": 0.5}}, "deepspeed", DENSE, {}, "offload-unsupported"),
        # The whole optimizer was moved before parts of it could be (0.12.4).
        ({"zero": 3, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {"framework_version": "0.12.3"}, None),
        ({"zero": 2, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {}, None),
        ({"zero": 3, "offload": {"optimizer_fraction": 0.5}}, "deepspeed", DENSE, {}, None),
        ({"zero": 3, "offload": {"optimizer_fraction": 0.5}}, "deepspeed", DENSE, {"framework_version": "0.9"},
         "offload-unsupported"),
        ({"zero": 3, "offload": {"optimizer_fraction": 1.0}}, "deepspeed", DENSE, {"optimizer": "adam-8bit"},
         "offload-unsupported"),
        # DeepSpeed pull request 5338: MoE in pipelines.
        ({"zero": 1, "pp": 2, "ep": 2}, "deepspeed", MOE, {"framework_version": "0.14.0"}, "expert-parallel-unsupported"),
        ({"zero": 1, "pp": 2, "ep": 2}, "deepspeed", MOE, {"framework_version": "0.14.1"}, None),
        ({"zero": 1, "pp": 2, "ep": 2}, "megatron-deepspeed", MOE, {"framework_version": "2023"},
         "expert-parallel-unsupported"),
        ({"zero": 1, "pp": 2, "ep": 2}, "megatron-deepspeed", MOE, {"framework_version": "2024"}, None),
        # Megatron-DeepSpeed: --ds-sequence-parallel-size (2023, tp and pp 1), --zero-stage 3.
        ({"zero": 3}, "megatron-deepspeed", DENSE, {}, None),
        ({"zero": 3, "pp": 2}, "megatron-deepspeed", DENSE, {}, "zero-with-pipeline"),
        ({"zero": 1, "cp": 2, "cp_comm": "a2a"}, "megatron-deepspeed", DENSE, {"software_date": "2022-06"}, None),
        ({"zero": 3, "cp": 2}, "megatron-deepspeed", DENSE, {"framework_version": "2023"}, None),
        ({"zero": 1, "cp": 2}, "megatron-deepspeed", DENSE, {"framework_version": "2022"}, "context-parallel-unsupported"),
        ({"zero": 1, "cp": 2, "tp": 2}, "megatron-deepspeed", DENSE, {"framework_version": "2023"},
         "context-parallel-unsupported"),
        ({"zero": 1, "cp": 2, "cp_comm": "p2p"}, "megatron-deepspeed", DENSE, {"framework_version": "2023"}, "context-parallel-comm-unsupported"),
        ({"offload": {"optimizer_fraction": 0.5, "parameters": True}}, "fsdp", DENSE, {}, "offload-unsupported"),
        ({"zero": 3, "offload": {"optimizer_fraction": 1.0, "parameters": True}}, "fsdp", DENSE, {}, None),
        # Hardware.
        ({}, "megatron", DENSE, {"precision": "fp8", "transformer_impl": "local"}, "precision-unsupported-by-framework"),
        ({}, "nanotron", DENSE, {"precision": "fp8"}, "precision-unsupported-by-framework"),
        ({}, "megatron", DENSE, {"precision": "fp8", "fp8_recipe": "mxfp8"}, "recipe-unsupported-by-gpu"),
        ({}, "megatron", DENSE, {"precision": "fp8"}, None),
        # torchtitan 0.3's get_attention_config refuses sdpa; FlexAttention and the chunked loss are its own defaults.
        ({}, "torchtitan", DENSE, {"attention_kernel": "sdpa"}, "attention-unsupported-by-framework"),
        ({}, "torchtitan", DENSE, {"attention_kernel": "sdpa", "framework_version": "0.2"}, None),
        ({}, "torchtitan", DENSE, {"attention_kernel": "flex", "cross_entropy": "chunked"}, None),
        ({}, "torchtitan", DENSE, {"cross_entropy": "chunked", "framework_version": "0.2"}, "cross-entropy-unsupported"),
        ({}, "megatron", DENSE, {"attention_kernel": "flex"}, "attention-unsupported-by-framework"),
        ({}, "fsdp", DENSE, {"cross_entropy": "chunked"}, "cross-entropy-unsupported"),
    ],
)  # fmt: skip
def test_what_a_framework_refuses(strategy, framework, model, training, code):
    assert codes(strategy, framework, model, **training) == ([] if code is None else [code])


def test_an_attention_kernel_the_gpu_lacks_is_refused_only_when_asked_for():
    ampere = {**CLUSTER, "gpu": "A100-SXM-80GB"}

    def found(**training):
        job = job_for(cluster=ampere, **training)
        row = resolve_strategies(job, [StrategyInput(micro_batch_size=1)]).strategies
        return [reason["code"] for reason in reasons(job, row, 0)]

    assert found(attention_kernel="fa3") == ["attention-unsupported-by-gpu"]
    assert found(attention_kernel="fa2") == []
    assert found() == []


def test_a_version_that_only_a_date_implies_does_not_forbid_sharded_parameters():
    assert codes({"zero": 3}, software_date="2023-07") == []


def test_a_reason_names_the_value_and_the_fix():
    job = job_for("torchtitan", TEN_KV_HEADS)
    row = resolve_strategies(job, [StrategyInput(tp=4, dp=1, micro_batch_size=1)]).strategies
    (reason,) = reasons(job, row, 0)
    assert reason["message"] == "tp 4 does not divide the model's 10 key-value heads"
    assert reason["hint"] == "Use a tp that divides the key-value heads: 1, 2, 5, 10."
    assert smallest_change(job, row, 0) == "tp 4 -> 2"


def test_a_legal_strategy_has_no_reasons_and_no_change():
    job = job_for()
    row = resolve_strategies(job, [StrategyInput(tp=2, micro_batch_size=1)]).strategies
    assert violations(job, row).legal.tolist() == [True]
    assert reasons(job, row, 0) == []
    assert smallest_change(job, row, 0) == ""


def test_the_first_rule_broken_is_what_is_answered_first():
    """tp 12 on 16 GPUs: heads (32), key-value heads (8), width and sequence, in the order of the rules; the change is the first's."""
    job = job_for()
    row = resolve_strategies(job, [StrategyInput(tp=12, dp=1, micro_batch_size=1)]).strategies
    found = [reason["code"] for reason in reasons(job, row, 0)]
    assert found[0] == "heads-not-divisible"
    assert len(found) > 2
    assert found == sorted(found, key=rule_codes().index)
    assert smallest_change(job, row, 0) == "tp 12 -> 8"


def test_counts_are_by_the_first_rule_broken():
    """tp 3 breaks heads (32), key-value heads, width and sequence at once; it counts once, under heads."""
    job = job_for()
    inputs = [StrategyInput(tp=3, dp=2, micro_batch_size=1), StrategyInput(tp=2, micro_batch_size=1),
              StrategyInput(dp=32, micro_batch_size=1)]  # fmt: skip
    batch = resolve_strategies(job, inputs).strategies
    found = violations(job, batch)
    assert len(found.broken(0)) > 1
    assert found.counts() == {"heads-not-divisible": 1, "world-exceeds-gpus": 1}
    assert [rule_codes()[i] if i >= 0 else None for i in first_violations(job, batch)] == [
        "heads-not-divisible", None, "world-exceeds-gpus",
    ]  # fmt: skip


def test_rules_can_be_limited_to_the_fields_that_are_already_chosen():
    job = job_for()
    batch = resolve_strategies(job, [StrategyInput(zero=1, zero_shard_size=3, micro_batch_size=1)]).strategies
    assert first_violations(job, batch)[0] >= 0
    degrees = frozenset({"tp", "pp", "dp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel"})
    assert first_violations(job, batch, fields=degrees).tolist() == [-1]


def test_the_fields_of_a_rule_are_those_its_test_reads():
    job = job_for()
    one = resolve_strategies(job, [StrategyInput(micro_batch_size=1)]).strategies
    fields = {rule.code: rule_fields(rule, job, one) for rule in active_rules(job)}
    assert fields["world-exceeds-gpus"] == {"tp", "pp", "dp", "cp"}
    assert fields["heads-not-divisible"] == {"tp"}
    assert fields["zero-shard-size-not-divisible"] == {"zero_shard_size", "zero_param_shard_size"}
    assert all(names <= set(ARRAY_FIELDS) for names in fields.values())


def test_nothing_is_broken_in_an_empty_batch():
    job = job_for()
    batch = resolve_strategies(job, [StrategyInput(micro_batch_size=1)]).strategies.take(np.zeros(0, np.int64))
    assert len(first_violations(job, batch)) == 0
    assert violations(job, batch).counts() == {}


def test_every_rule_says_where_it_comes_from():
    assert all(rule.source and rule.message and rule.hint for rule in RULES)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0.16", (0, 16)), ("core_v0.13.1", (0, 13, 1)), ("2022", (2022,)), ("0.9", (0, 9))]
)
def test_versions_compare_by_number(text, numbers):
    assert version_key(text) == numbers


@pytest.mark.parametrize(
    ("number", "count"), [(0, 0), (1, 1), (36, 9), (97, 2), (720720, 240), (10**15, 256), (999_999_999_989, 2)]
)
def test_divisors_are_all_there_are_also_of_large_numbers(number, count):
    """36 = 2²·3² has 3·3; 720720 = 2⁴·3²·5·7·11·13 has 5·3·2⁴; 10¹⁵ = 2¹⁵·5¹⁵ has 16·16; 999999999989 is prime."""
    found = divisors(number)
    assert len(found) == count
    assert found == sorted(found)
    assert all(number % each == 0 for each in found)
