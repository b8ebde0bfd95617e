"""Megatron-LM on Megatron Core, with Transformer Engine's layers or its own ("local") ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.constants import Constant
from cost_models.frameworks.choices import Choices, Habit, RecipeFacts, StrategyDefaults
from cost_models.frameworks.facts import FUSED_ACCUMULATION_BYTES, REPLICA_OVERLAPS, FrameworkFacts, HostTraffic
from cost_models.frameworks.knobs import Flag, offloaded_fraction, offloads, reduces_in_buckets, replicas
from cost_models.frameworks.memory import MemoryTraits, MemoryVariant
from cost_models.frameworks.releases import Former, precedes
from cost_models.frameworks.splits import ENDS, Split, SplitRule, even_split, own_even_split, suggested_split
from cost_models.frameworks.training_defaults import (
    FA1,
    HOPPER_ON,
    MATH_BEFORE_FLASH,
    MATH_IN_FP32,
    MIXED_PRECISION,
    SDPA_ON_VOLTA,
    USUAL,
    Row,
)
from cost_models.strategies.fields import CpComm, MoeDispatcher, OptimizerOverlap, Recompute, Schedule

# Checked: 0.8 to 0.16 by the build dates of their wheels, 0.18 by its source archive. 0.17 and 0.19 lie between their
# neighbours and are not checked beyond memory of the release notes.
RELEASES: Final = (
    ("0.8", "2024-08"), ("0.9", "2024-10"), ("0.10", "2025-02"), ("0.11", "2025-03"), ("0.12", "2025-05"),
    ("0.13", "2025-07"), ("0.14", "2025-10"), ("0.15", "2025-12"), ("0.16", "2026-02"), ("0.17", "2026-04"),
    ("0.18", "2026-06"), ("0.19", "2026-08"),
)  # fmt: skip
INSTANCES_SINCE = "0.10"
"""num_distributed_optimizer_instances: in parallel_state.py of 0.10.0, not of 0.9.0."""
FSDP_INSTANCES_SINCE = "0.13"
"""Megatron-FSDP (zero 2 and 3) heeds them: custom_fsdp/fully_sharded_data_parallel.py of 0.13.1, not of 0.12.1."""
EXPERTS_LEFT_OUT_SINCE = "0.14"
EXPERT_INSTANCES_SINCE = "0.17"
"""From 0.14 on, with a device mesh that had none for experts before: fsdp/mcore_fsdp_adapter.py of 0.16.1 and 0.17.0."""
OFFLOAD_MODULES_SINCE = "0.16"
OFFLOAD_FRACTION_SINCE = "0.19"
"""transformer_config.py: offload_modules is in 0.16.1, activation_offload_fraction in 0.19.2 and not in 0.18.0."""
ANY_SPLIT_SINCE = "0.13"
"""Before --pipeline-model-parallel-layout the first and the last stage alone could differ from the others."""

RESERVED_TE: Final = Constant(
    1.07, "ratio", 1.0, 1.15, "reserved over allocated, Transformer Engine, tp = 1: simumax_b200, range 1.052-1.079"
)
RESERVED_TE_TP: Final = Constant(
    1.035, "ratio", 1.0, 1.10, "reserved over allocated, Transformer Engine, tp > 1: simumax_b200, range 1.028-1.077"
)
RESERVED_LOCAL: Final = Constant(
    1.065, "ratio", 1.0, 1.15, "reserved over allocated, local layers: own_mcore, two clean readings 1.064 and 1.067"
)

MEMORY: Final = MemoryTraits(
    loss_family="vocab-parallel", zero2_shards_parameters=False, gradients_persist=True,
    compute_gradients="none", replicated_buckets=False, casts_replicated_parameters=False,
    embedding_gradient_whole=False, defers_pipeline_reduction=False, buffers_pipeline_inputs=False,
    sequence_workspaces=2, fuses_weight_gradients=True, ends_stay_gathered=False, gather_elements=0.0,
    reduce_bucket_elements=0.0, offload_takes_gradients=False, offloads_layer_inputs=False, optimizer_copies=0.0,
    casts_gradients_for_step="unless-states-narrow",
    sgd_states=1, reuses_world_group=False, norm_group=True, pooled_gathers=False,
    reserved_factor=RESERVED_TE.value, reserved_factor_tp=RESERVED_TE_TP.value,
    reserved_zero3_bytes=0.0, spread_low=0.04, spread_high=0.06,
    transformer_engine=True, fuses_gated_activation=True,
)  # fmt: skip
LOCAL: Final = {
    "sequence_workspaces": 1, "fuses_weight_gradients": False,
    "reserved_factor": RESERVED_LOCAL.value, "reserved_factor_tp": RESERVED_LOCAL.value,
    "transformer_engine": False, "keeps_fused_qkv": True, "saves_rotary_tables": True,
}  # fmt: skip
"""Traits of layers without Transformer Engine."""
UNFUSED_OF_2021: Final = {
    "fuses_weight_gradients": False, "transformer_engine": False, "fuses_gated_activation": False, "keeps_fused_qkv": True,
    "saves_rotary_tables": False, "keeps_fp32_logits": True,
}  # fmt: skip
"""Traits of layers as Megatron-LM had them in 2021, which is what attention without a flash kernel is taken for."""
LOCAL_MEMORY: Final = replace(MEMORY, **LOCAL)  # type: ignore[arg-type]


def _told_split(num_layers: int, pp: int, vpp: int, version: str) -> Split | None:
    if not precedes(version, ANY_SPLIT_SINCE):
        return suggested_split(num_layers, pp * vpp)
    return _smaller_ends(num_layers, pp) if vpp == 1 else even_split(num_layers, pp * vpp)


def _smaller_ends(num_layers: int, stages: int) -> Split | None:
    """A split whose stages between the ends are alike, the ends as near to them as can be and rather smaller.

    Source: megatron/training/arguments.py before core 0.13: --decoder-first-pipeline-num-layers and its twin for the last
    stage; what they leave must divide by the other stages.
    """
    middle = num_layers // stages
    for each in (middle + 1, middle):
        rest = num_layers - (stages - ENDS) * each
        if rest >= ENDS:
            return (rest - rest // 2, *[each] * (stages - ENDS), rest // 2)
    return None


NVIDIA_PERF: Final = RecipeFacts(
    # Gradients are held and reduced in bf16: `grad_reduce_in_fp32 = False`, in every performance recipe.
    training={"grad_dtype": "bf16", "grad_reduce_dtype": "bf16"},
    # `fp8_params`, later `fp8_param_gather`: what is stored and gathered is fp8.
    at_precision={"fp8": {"param_dtype": "fp8"}},
    overlaps_tp=True,  # `tp_comm_overlap = True`, where tp is above 1
    source="NVIDIA-NeMo/NeMo and Megatron-Bridge, scripts/performance and recipes/precision: bf16_with_fp8_mixed, comm_overlap",
    # scripts/performance/configs/qwen3/qwen3_llm_pretrain.py of that month: moe_router_fusion; moe_permute_fusion is in the recipes below it.
    fuses_routing_since="2025-11",
)
"""What NVIDIA's published performance tables ran with. CUDA graphs, interleaving, recomputation and the experts' dispatcher differ
from table row to table row; a request states them."""

FACTS: Final = FrameworkFacts(
    name="megatron",
    releases=RELEASES,
    default_version="0.16",
    fused_elementwise=True,
    etp_defaults_to_tp=True,
    default_zero=1,
    default_sequence_parallel=True,
    overlaps={**REPLICA_OVERLAPS, "p2p": True},
    overlaps_since="2023-07",
    overlap_tp_backward=True,
    # core/tensor_parallel/mappings.py (_ReduceScatterToSequenceParallelRegion.backward); transformer_engine/pytorch/module/base.py
    # (grad_output_preprocess with row_parallel_mode).
    tp_gathers_gradients_first=True,
    gradient_accumulation_bytes=FUSED_ACCUMULATION_BYTES,
    kernels_forward=34.0,
    kernels_backward=45.0,
    # megatron-core 0.16.1 with its unfused permutation on two H200 (data/measured_h200, mixture_host.jsonl): a layer with experts
    # takes the host 4.3 ms more than a dense one, 7.0 ms where two ranks share them, 3.1 and 4.6 of it in forward, and the agent's
    # operator takes 30.9 us on such a machine. Transformer Engine's grouped modules and fused permutation were not measured.
    moe_extra_kernels=(100.0, 46.0),
    exchange_kernels=(50.0, 15.0),
    # megatron/core/transformer/moe/token_dispatcher.py: _maybe_dtoh_and_synchronize, and DeepEP's dispatch.
    host_reads_routing=True,
    builds_mtp=True,
    latent_down="shards",
    weighs_inside_experts=True,
    wraps_tp_calls=True,
    # megatron/core/pipeline_parallel/schedules.py: without virtual stages a stage waits for its messages.
    overlaps_p2p_without_vpp=False,
    casts_weights_after_gather=True,
    shard_group_stages=frozenset({1, 2, 3}),
    expert_shard_group_stages=frozenset({1, 2, 3}),
    local_modules_fuse_nothing=True,
    vocab_multiple_per_tp=128,  # --make-vocab-size-divisible-by
    # megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py: step() copies gradients, updates, copies parameters back;
    # the norm is computed and applied on the GPU before. --overlap-cpu-optimizer-d2h-h2d is off unless asked for.
    host=HostTraffic(
        gradients_in_backward=False, gradients_return=False, host_adds_gradients=False, parameters_go_up=True,
        norm_and_clip_passes=0.0,
    ),
    memory=MEMORY,
    memory_variants=(
        MemoryVariant(LOCAL, transformer_impl="local"),
        MemoryVariant(UNFUSED_OF_2021, attention="math"),
    ),
    # Megatron-LM arguments.py: --bf16 implies --accumulate-allreduce-grads-in-fp32, --fp16 does not.
    state_dtypes=replace(MIXED_PRECISION, fp16_gradients=True),
    training_defaults={
        # Megatron-LM arguments.py: --transformer-impl became transformer_engine in early 2024.
        "transformer_impl": (Row("transformer-engine", since="2024-01"), *USUAL["transformer_impl"]),
        "attention": (
            MATH_IN_FP32, Row("math", generations=frozenset({"volta"})), MATH_BEFORE_FLASH, Row("flash"),
        ),
        # Transformer Engine picks cuDNN's kernel on Hopper and later. NVIDIA's manual says so since 2024-05 (NVIDIA/NeMo pull
        # request 9188), NVIDIA's tables of 2024-07 are at FlashAttention 2's speed and those of 2024-11 at cuDNN's: the month is
        # chosen between them, and a row of those months that does not state its kernel reaches to the other one.
        "attention_kernel": (
            SDPA_ON_VOLTA, FA1, Row("cudnn", since="2024-09", generations=HOPPER_ON, impl="transformer-engine"), Row("fa2"),
        ),
        # Transformer Engine's parallel cross entropy is in NVIDIA's recipes of 2025, whereas the parser leaves fusion off and
        # the implementation native (model_parallel_config.py, through 0.19).
        "cross_entropy": (
            Row("te", since="2025-01", impl="transformer-engine", recipe="nvidia-perf"), *USUAL["cross_entropy"],
        ),
        "fp8_recipe": (
            Row("mxfp8", generations=frozenset({"blackwell"}), since="2025-05"), Row("tensorwise", since="2025-05"),
            Row("delayed"),
        ),
        # Megatron-LM arguments.py: --attention-dropout and --hidden-dropout 0.1; the recipes of decoder-only models
        # switched it off from 2023 on.
        "dropout": (Row(0.1, before="2023-01"), *USUAL["dropout"]),
    },
    # megatron/core/model_parallel_config.py: cp_comm_type None is p2p; recompute_granularity None.
    strategy=StrategyDefaults(
        recompute=Recompute.NONE, cp_comm=CpComm.P2P, recompute_counts=True, selective_modules=("core_attn",),
        recompute_modes=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
        searches_expert_overlap=True,
        fallback_offload={"offload_optimizer_fraction": (0.0, 0.5, 1.0), "offload_activation_layers": (0, 1)},
        tp_overlap_needs=frozenset({"sequence-parallel", "transformer-engine"}),  # --tp-comm-overlap
    ),
    choices=Choices(
        # Megatron-Bridge: src/megatron/bridge/peft/lora.py and dora.py.
        towers=True, splits_towers=True, adapters=True, adapter_features=frozenset({"dora", "dropout"}),
        zero=(0, 1, 2, 3),
        schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
        cp_comms=(CpComm.P2P, CpComm.A2A, CpComm.ALLGATHER, CpComm.A2A_P2P),
        dispatchers=(MoeDispatcher.ALLGATHER, MoeDispatcher.ALLTOALL, MoeDispatcher.FLEX),
        # Copies of the hybrid optimizer run beside its update where --overlap-cpu-optimizer-d2h-h2d asks for it.
        offload_overlaps=frozenset({OptimizerOverlap.NONE, OptimizerOverlap.PIPELINED}), offload_modules=True,
        # megatron/core/models/hybrid/hybrid_layer_specs.py and megatron/core/ssm.
        recurrent=frozenset({"mamba2", "gated-delta-net"}), splits_recurrent=True, sparse_attention=True,
        tp_divides_kv_heads=False, vpp=True, recompute_modules=True, expert_overlap=True, recipes={"nvidia-perf": NVIDIA_PERF},
    ),
    splits=SplitRule("even", own_even_split, told=_told_split),
    # megatron/training/arguments.py and megatron/core/model_parallel_config.py, 0.8 to 0.19.
    habits={
        "zero": Habit(
            1, "Megatron's recipes say --use-distributed-optimizer; its parser leaves it off, which is zero 0."
        ),
        "sequence_parallel": Habit(
            True, "Megatron's recipes say --sequence-parallel with tensor parallelism; its parser leaves it off."
        ),
        "overlap.grad_reduce": Habit(
            True, "Megatron's recipes say --overlap-grad-reduce; its parser leaves the overlap off."
        ),
        "overlap.param_gather": Habit(
            True, "Megatron's recipes say --overlap-param-gather; its parser leaves the overlap off."
        ),
        "moe_dispatcher": Habit(
            "alltoall", "Megatron's recipes say --moe-token-dispatcher-type alltoall; its parser says allgather."
        ),
        "dropout": Habit(
            0.0,
            "Recipes of decoder-only models say --attention-dropout 0 and --hidden-dropout 0; Megatron's parser says 0.1.",
        ),
        "cross_entropy": Habit(
            "te",
            "NVIDIA's performance recipes fuse the loss with Transformer Engine; Megatron's parser leaves it unfused.",
        ),
    },
    knobs=(
        Flag(
            "--ddp-bucket-size", "size of a gradient bucket", "parameters",
            lambda strategy: max(40e6, 1e6 * replicas(strategy)), reduces_in_buckets,
            "megatron/core/distributed/distributed_data_parallel_config.py (bucket_size); without overlap there is one bucket",
        ),
        Flag(
            "--optimizer-offload-fraction", "share of the optimizer state on the host", "fraction",
            offloaded_fraction, offloads, "megatron/training/arguments.py, with --optimizer-cpu-offload (core 0.12)",
        ),
    ),
    former=(
        # CHANGELOG.md of core 0.12: "Multi-Token Prediction (MTP) Support".
        Former({"builds_mtp": False}, until="0.12"),
        # CHANGELOG.md of core 0.13: "moving the probs multiplication from unpermutation to activation function".
        Former({"weighs_inside_experts": False}, until="0.13"),
        # megatron/core/models/gpt/gpt_layer_specs.py: TEColumnParallelLinear, and from 0.14 on TELinear, whose parallel
        # mode multi_latent_attention.py sets to "duplicated".
        Former({"latent_down": "columns"}, until="0.14"),
        # Megatron-LM's own p2p_communication.py sent a slice from each rank of a tensor-parallel group (Narayanan 2021,
        # section 4.1). Megatron Core, whose first package (0.1.0) is of 2023-03, has no such thing; the flag in arguments.py
        # is unread.
        Former({"scatters_pipeline_messages": True}, until_month="2023-03"),
        # From then on a layer without Transformer Engine is made of Megatron Core's own modules, which fuse nothing without
        # Apex; before, of Megatron-LM's with Apex's kernels.
        Former({"local_modules_fuse_nothing": False}, until_month="2024-01"),
        Former({"expert_shard_group_stages": frozenset({1})}, until=EXPERT_INSTANCES_SINCE),
        Former({"expert_shard_group_stages": frozenset({1, 2, 3})}, until=EXPERTS_LEFT_OUT_SINCE),
        Former(
            {"shard_group_stages": frozenset({1}), "expert_shard_group_stages": frozenset({1})},
            until=FSDP_INSTANCES_SINCE,
        ),
        Former(
            {"shard_group_stages": frozenset(), "expert_shard_group_stages": frozenset()}, until=INSTANCES_SINCE
        ),
    ),
)  # fmt: skip
