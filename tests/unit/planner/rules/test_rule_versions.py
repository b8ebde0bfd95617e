"""Rules that came or went with a release: each is tried with the last release on one side of its bound and the first on the other.

The releases are those of the frameworks' own change logs and source packages, as each rule's `source` names them. A rule that
gets a bound needs a row here: `test_every_bound_has_a_pair` holds the two together.
"""

from __future__ import annotations

import pytest

from builders import Document, job_of, llama_model, row_of, with_experts
from planner.rules import RULES, reasons

DENSE = llama_model(vocab_size=32000)
MOE = with_experts(DENSE, expert_intermediate_size=14336)

TWO_KV_HEADS = {**DENSE, "num_attention_heads": 16, "num_key_value_heads": 2}
SIX_KV_HEADS = {**DENSE, "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 6}
HALF_OFFLOAD = {"zero": 3, "offload": {"optimizer_fraction": 0.5}}
ALTERNATING = {**DENSE, "layer_types": ["linear_attention", "full_attention"] * 16}
MAMBA = {**ALTERNATING, "recurrent": {"kind": "mamba2", "num_heads": 128, "num_groups": 8}}
BLOCKS = {**DENSE, "layer_types": ["full_attention", "mlp"] * 16, "single_block_layers": True}
MAMBA_EXPERTS = {**MOE, "layer_types": ALTERNATING["layer_types"], "recurrent": MAMBA["recurrent"]}
DELTA = {**ALTERNATING, "recurrent": {"kind": "gated-delta-net", "num_heads": 32, "num_groups": 16, "head_dim": 128}}
SPARSE = {**DENSE, "mla": {
    "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "indexer": {"num_heads": 16, "head_dim": 128, "top_k": 1024},
}}  # fmt: skip
OVERLAP = {"ep": 4, "overlap": {"moe_all_to_all": True}}
HYBRID = {"ep": 4, "moe_dispatcher": "flex", "flex_backend": "hybridep"}

Pair = tuple[str, str, str, Document, Document, Document, list[str], list[str]]
"""Framework, last release before, first release after, model, training, strategy, codes before, codes after."""
PAIRS: tuple[Pair, ...] = (
    # Megatron core: CHANGELOG.md, megatron/training/arguments.py.
    ("megatron", "0.11.9", "0.12", DENSE, {}, {"zero": 2}, ["zero-unsupported"], []),
    ("megatron", "0.11.9", "0.12", MOE, {}, {"ep": 4, "moe_dispatcher": "flex"}, ["dispatcher-unsupported"], []),
    ("megatron", "0.11.9", "0.12", MOE, {}, {"tp": 2, "etp": 2, "moe_dispatcher": "flex"}, ["dispatcher-unsupported"], []),
    ("megatron", "0.11.9", "0.12", DENSE, {}, {"zero": 1, "offload": {"optimizer_fraction": 0.5}},
     ["offload-unsupported"], []),
    ("megatron", "0.11.9", "0.12", DENSE, {}, {"recompute": "selective", "recompute_modules": ["mlp"]},
     ["recompute-modules-unsupported"], []),
    ("megatron", "0.12.9", "0.13", DENSE, {}, {"pp": 4, "layers_per_stage": [6, 10, 8, 8]}, ["split-unsupported"], []),
    ("megatron", "0.13.9", "0.14", MOE, {}, OVERLAP, ["overlap-unsupported"], []),
    ("megatron", "0.14.9", "0.15", DENSE, {"precision": "nvfp4"}, {}, ["precision-unsupported-by-framework"], []),
    ("megatron", "0.15.9", "0.16", DENSE, {}, {"pp": 2, "offload": {"activation_layers": 2}},
     ["offload-unsupported"], []),
    # megatron/core/ssm: gated_delta_net.py from 0.16, with context parallelism from 0.18; stages of a pattern from 0.17.
    ("megatron", "0.15.9", "0.16", DELTA, {}, {}, ["layers-unsupported-by-framework"], []),
    ("megatron", "0.17.9", "0.18", DELTA, {}, {"cp": 2}, ["context-parallel-unsupported"], []),
    ("megatron", "0.16.9", "0.17", MAMBA, {}, {"pp": 2, "vpp": 2}, ["virtual-stages-unsupported"], []),
    ("megatron", "0.16.9", "0.17", MAMBA, {}, {"pp": 4, "layers_per_stage": [6, 10, 8, 8]}, ["split-unsupported"], []),
    ("megatron", "0.16.9", "0.17", BLOCKS, {}, {"pp": 2, "vpp": 2}, ["virtual-stages-unsupported"], []),
    # The stack of blocks: experts from 0.16, whole layers recomputed from 0.18 (core/models/hybrid), Mamba layers as units of
    # Megatron-FSDP from 0.19 (mcore_fsdp_adapter.py).
    ("megatron", "0.15.9", "0.16", MAMBA_EXPERTS, {}, {}, ["layers-unsupported-by-framework"], []),
    ("megatron", "0.17.9", "0.18", MAMBA, {}, {"recompute": "full"}, ["recompute-unsupported"], []),
    ("megatron", "0.18.9", "0.19", MAMBA, {}, {"zero": 3}, ["zero-unsupported"], []),
    # transformer/experimental_attention_variant/dsa_kernels.py came with 0.19.
    ("megatron", "0.18.9", "0.19", SPARSE, {}, {}, ["layers-unsupported-by-framework"], []),
    ("megatron", "0.18.9", "0.19", DENSE, {"cross_entropy": "te"}, {}, [], ["cross-entropy-unsupported"]),
    ("megatron", "0.15.9", "0.16", MOE, {}, HYBRID, ["dispatcher-unsupported"], []),
    ("megatron", "0.15.9", "0.16", DENSE, {}, {"offload": {"activation_modules": ["core_attn"]}}, ["offload-unsupported"], []),
    ("megatron", "0.18.9", "0.19", DENSE, {}, {"offload": {"activation_modules": ["core_attn"], "activation_fraction": 0.5}},
     ["offload-unsupported"], []),
    ("megatron", "0.9.9", "0.10", DENSE, {}, {"cp": 4, "cp_comm": "a2a+p2p"}, ["context-parallel-comm-unsupported"], []),
    ("megatron", "0.15.9", "0.16", {**DENSE, "mtp_num_layers": 1}, {},
     {"pp": 4, "layers_per_stage": [11, 11, 10, 0], "mtp_stage": 2}, ["split-unsupported"], []),
    ("fsdp", "2.7.9", "2.8", MOE, {"software_date": "2026-11"}, {"zero": 3, "ep": 4}, ["expert-parallel-unsupported"], []),
    # Optimizer instances came with 0.10, those of Megatron-FSDP with 0.13; from 0.14 to 0.16 they left experts out.
    ("megatron", "0.9.9", "0.10", DENSE, {}, {"zero": 1, "zero_shard_size": 4}, ["zero-shard-size-unsupported"], []),
    ("megatron", "0.12.9", "0.13", DENSE, {}, {"zero": 2, "zero_shard_size": 4}, ["zero-shard-size-unsupported"], []),
    ("megatron", "0.13.9", "0.14", MOE, {}, {"zero": 2, "zero_shard_size": 4}, [], ["zero-shard-size-unsupported"]),
    ("megatron", "0.16.9", "0.17", MOE, {}, {"zero": 2, "zero_shard_size": 4}, ["zero-shard-size-unsupported"], []),
    # Key-value heads are replicated from 0.16 on: a multiple of them is legal then, what neither divides is still not.
    ("megatron", "0.15.9", "0.16", TWO_KV_HEADS, {}, {"tp": 8}, ["kv-heads-not-divisible"], []),
    ("megatron", "0.15.9", "0.16", SIX_KV_HEADS, {}, {"tp": 4}, ["kv-heads-not-divisible"], ["kv-heads-not-divisible"]),
    # Megatron-DeepSpeed has no releases: 2022 is BigScience's, 2023 Microsoft's with its sequence parallelism.
    ("megatron-deepspeed", "2022", "2023", DENSE, {}, {"zero": 1, "cp": 2}, ["context-parallel-unsupported"], []),
    ("megatron-deepspeed", "2022", "2023", DENSE, {}, {"tp": 2, "zero": 1, "sequence_parallel": True},
     ["sequence-parallel-unsupported"], []),
    ("megatron-deepspeed", "2022", "2023", DENSE, {}, {"recompute": "selective"}, ["recompute-unsupported"], []),
    ("megatron-deepspeed", "2023", "2024", MOE, {}, {"zero": 1, "pp": 2, "ep": 2}, ["expert-parallel-unsupported"], []),
    # DeepSpeed: the source packages of these releases.
    ("deepspeed", "0.9.1", "0.9.2", DENSE, {}, {"zero": 3, "zero_shard_size": 8}, ["zero-shard-size-unsupported"], []),
    ("deepspeed", "0.9.9", "0.10", DENSE, {}, {"zero": 3, "zero_param_shard_size": 8},
     ["zero-param-shard-size-unsupported"], []),
    ("deepspeed", "0.9.9", "0.10", DENSE, {}, {"zero": 3, "zero_quantized_weights": True}, ["zero-quantized-unsupported"], []),
    ("deepspeed", "0.9.9", "0.10", DENSE, {}, {"zero": 3, "zero_quantized_gradients": True}, ["zero-quantized-unsupported"], []),
    ("deepspeed", "0.17.4", "0.17.5", DENSE, {},
     {"zero": 2, "micro_batch_size": 4, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}, ["offload-unsupported"], []),
    ("deepspeed", "0.12.3", "0.12.4", DENSE, {}, HALF_OFFLOAD, ["offload-unsupported"], []),
    ("deepspeed", "0.14.0", "0.14.1", MOE, {}, {"zero": 1, "pp": 2, "ep": 2}, ["expert-parallel-unsupported"], []),
    ("deepspeed", "0.16.3", "0.16.4", DENSE, {}, {"zero": 1, "tp": 2}, ["tensor-parallel-unsupported"], []),
    ("deepspeed", "0.19.2", "0.19.3", MOE, {}, {"zero": 1, "tp": 2, "ep": 4}, ["expert-parallel-unsupported"], []),
    ("deepspeed", "0.19.2", "0.19.3", MOE, {}, {"zero": 1, "tp": 2, "ep": 4, "cp": 2}, ["expert-parallel-unsupported"],
     ["expert-parallel-unsupported"]),
    ("deepspeed", "0.19.2", "0.19.3", MOE, {}, {"zero": 3, "ep": 4}, ["expert-parallel-unsupported"], []),
    ("deepspeed", "0.19.2", "0.19.3", MOE, {}, {"zero": 3, "ep": 4, "cp": 2}, ["expert-parallel-unsupported"],
     ["expert-parallel-unsupported"]),
    ("deepspeed", "0.19.3", "0.19.4", DENSE, {}, {"zero": 3, "tp": 2}, ["zero-with-tensor-parallel"], []),
    ("deepspeed", "0.19.6", "0.19.7", DENSE, {}, {"zero": 3, "zero_shard_size": 8}, [], ["zero-shard-size-unsupported"]),
    ("deepspeed", "0.19.6", "0.19.7", DENSE, {}, {"zero": 1, "zero_shard_size": 8}, ["zero-shard-size-unsupported"],
     ["zero-shard-size-unsupported"]),
    ("deepspeed", "0.19.7", "0.19.8", MOE, {}, {"zero": 3, "tp": 2, "ep": 4}, ["expert-parallel-unsupported"], []),
    # PyTorch's HYBRID_SHARD.
    ("fsdp", "1.12", "2.0", DENSE, {}, {"zero": 3, "zero_shard_size": 8}, ["zero-shard-size-unsupported"], []),
    # torchtitan: torchtitan/config, distributed/parallel_dims.py and trainer.py of its releases.
    ("torchtitan", "0.1.9", "0.2", MOE, {}, {"ep": 4, "moe_dispatcher": "flex"}, ["dispatcher-unsupported"], []),
    ("torchtitan", "0.2.0", "0.2.1", MOE, {"attention_kernel": "cudnn"},
     {**OVERLAP, "pp": 2, "vpp": 2, "schedule": "dualpipe-v", "recompute": "none"}, ["overlap-unsupported"], []),
    ("torchtitan", "0.2.9", "0.3", MOE, {"gpu": "H100-SXM-80GB", "attention_kernel": "fa3"},
     {**OVERLAP, "pp": 2, "vpp": 2, "schedule": "dualpipe-v", "recompute": "none"}, [], ["overlap-unsupported"]),
    ("torchtitan", "0.2.9", "0.3", MOE, {}, OVERLAP, ["overlap-unsupported"], ["overlap-unsupported"]),
    ("torchtitan", "0.1.9", "0.2", DENSE, {}, {"pp": 2, "vpp": 2, "schedule": "dualpipe-v", "recompute": "none"},
     ["schedule-unsupported"], []),
    ("torchtitan", "0.2.9", "0.3", MOE, {}, HYBRID, ["dispatcher-unsupported"], []),
    ("torchtitan", "0.2.9", "0.3", DENSE, {"attention_kernel": "sdpa"}, {}, [], ["attention-unsupported-by-framework"]),
    ("torchtitan", "0.2.9", "0.3", DENSE, {"cross_entropy": "chunked"}, {}, ["cross-entropy-unsupported"], []),
    ("torchtitan", "0.2.9", "0.3", MOE, {}, {"tp": 4, "ep": 2, "etp": 1}, ["expert-ranks-not-divisible"], []),
    ("torchtitan", "0.2.9", "0.3", MOE, {}, {"tp": 2, "ep": 4, "etp": 2}, [], ["expert-tensor-parallel-unsupported"]),
    ("torchtitan", "0.2.9", "0.3", MOE, {}, {"tp": 4, "ep": 4, "etp": 2}, ["expert-tensor-parallel-unsupported"],
     ["expert-tensor-parallel-unsupported"] * 2),
    ("torchtitan", "0.2.9", "0.3", DENSE, {"seq_length": 4104}, {"tp": 8}, ["sequence-not-divisible"], []),
    ("torchtitan", "0.2.9", "0.3", DENSE, {"seq_length": 4100}, {"tp": 8}, ["sequence-not-divisible"],
     ["sequence-not-divisible"]),
    ("torchtitan", "0.2.9", "0.3", DENSE, {}, {"recompute": "full", "recompute_num_layers": 16}, [],
     ["recompute-unsupported"]),
    ("torchtitan", "0.2.9", "0.3", DENSE, {}, {"recompute": "full", "recompute_num_layers": 12},
     ["recompute-unsupported"], ["recompute-unsupported"]),
    # Optimizers beside Adam.
    ("megatron", "0.15.9", "0.16", DENSE, {"optimizer": "muon"}, {}, ["optimizer-unsupported"], []),
    ("megatron", "0.16.9", "0.17", DENSE, {"optimizer": "lion"}, {"zero": 0}, ["optimizer-unsupported"], []),
    ("deepspeed", "0.11.9", "0.12", DENSE, {"optimizer": "lion"}, {"zero": 2}, ["optimizer-unsupported"], []),
    ("deepspeed", "0.17.9", "0.18", DENSE, {"optimizer": "muon"}, {"zero": 2}, ["optimizer-unsupported"], []),
    ("torchtitan", "0.2.9", "0.3", DENSE, {"optimizer": "muon"}, {}, ["optimizer-unsupported"], []),
    ("fsdp", "2.8.9", "2.9", DENSE, {"optimizer": "muon"}, {}, ["optimizer-unsupported"], []),
)  # fmt: skip


def codes(framework: str, version: str, model: Document, training: Document, strategy: Document) -> list[str]:
    """Codes of every rule that the strategy breaks, a code as often as rules give it."""
    given = {"gpu": "B200-SXM-180GB", "num_nodes": 2, "seq_length": 4096, "framework_version": version, **training}
    job = job_of(model, framework, **given)
    return [reason["code"] for reason in reasons(job, row_of(job, **strategy), 0)]


@pytest.mark.parametrize(("framework", "last", "first", "model", "training", "strategy", "before", "after"), PAIRS)
def test_a_rule_comes_and_goes_with_its_release(
    framework: str, last: str, first: str, model: Document, training: Document, strategy: Document, before: list[str],
    after: list[str],
) -> None:  # fmt: skip
    assert codes(framework, last, model, training, strategy) == before
    assert codes(framework, first, model, training, strategy) == after


def test_every_bound_has_a_pair() -> None:
    bounds = {
        (framework, bound, rule.code)
        for rule in RULES
        for framework in rule.frameworks or ()
        for bound in (rule.since, rule.until)
        if bound
    }
    tried = {
        (framework, first, code) for framework, _, first, _, _, _, before, after in PAIRS for code in {*before, *after}
    }
    assert bounds == tried
    assert all(rule.frameworks for rule in RULES if rule.since or rule.until)
