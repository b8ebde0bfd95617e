"""Megatron-DeepSpeed, BigScience's and Microsoft's: Megatron-LM's layers of 2021 trained by DeepSpeed's engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.frameworks.choices import Choices, StrategyDefaults
from cost_models.frameworks.deepspeed import (
    FALLBACK_OFFLOAD,
    GATHERED_ELEMENTS,
    HOST,
    KNOBS,
    REDUCE_BUCKET_ELEMENTS,
    RESERVED,
    RESERVED_ZERO3,
    own_split,
)
from cost_models.frameworks.facts import REPLICA_OVERLAPS, FrameworkFacts
from cost_models.frameworks.megatron import FACTS as MEGATRON
from cost_models.frameworks.megatron import LOCAL_MEMORY
from cost_models.frameworks.releases import Former
from cost_models.frameworks.splits import SplitRule
from cost_models.frameworks.training_defaults import MIXED_PRECISION
from cost_models.strategies.fields import CpComm, MoeDispatcher, OffloadDevice, OptimizerOverlap, Recompute, Schedule

LEAST_DIFFERENCE_SINCE = "2024"
"""The first Megatron-DeepSpeed that ran on a DeepSpeed whose partition_balanced keeps parts nearly equal."""

FACTS: Final = FrameworkFacts(
    name="megatron-deepspeed",
    # It has no releases: 2022 is BigScience's, 2023 and 2024 Microsoft's; not checked beyond memory of the repositories.
    releases=(("2022", "2022-01"), ("2023", "2023-07"), ("2024", "2024-04")),
    default_version="2022",
    fused_elementwise=True,
    default_zero=0,
    default_sequence_parallel=False,
    overlaps=REPLICA_OVERLAPS,
    overlaps_since="2022-03",
    overlaps_from_zero=3,
    gathers_per_tensor=True,
    gradient_accumulation_bytes=6.0,
    kernels_forward=34.0,
    kernels_backward=45.0,
    scatters_pipeline_messages=True,
    zero1_all_reduces=True,
    zero2_all_reduces=True,
    pads_experts=True,
    loops_experts=True,
    replicas_reduce_once=True,
    param_shards_serve_forward=True,
    reduces_in_backward_from=1,
    gathers_in_forward_from=3,
    overlaps_in_pipelines=False,
    vocab_multiple_per_tp=MEGATRON.vocab_multiple_per_tp,
    host=HOST,
    memory=replace(
        LOCAL_MEMORY, fuses_gated_activation=False, saves_rotary_tables=False, keeps_fp32_logits=True,
        compute_gradients="backward",
        reduce_bucket_elements=REDUCE_BUCKET_ELEMENTS.value, offload_takes_gradients=True, offloads_layer_inputs=True,
        casts_gradients_for_step="always", norm_group=False, gather_elements=GATHERED_ELEMENTS, ends_stay_gathered=True,
        reserved_zero3_bytes=RESERVED_ZERO3.value, reserved_factor=RESERVED.value, reserved_factor_tp=RESERVED.value,
        spread_low=0.10, spread_high=0.10,
    ),
    # DeepSpeed BF16_Optimizer accumulates in fp32; FP16_Optimizer keeps fp16 gradients.
    state_dtypes=replace(MIXED_PRECISION, fp16_gradients=True),
    training_defaults={name: MEGATRON.training_defaults[name] for name in ("attention", "dropout")},
    # Megatron's megatron/arguments.py: --recompute-method block with --recompute-num-layers.
    strategy=StrategyDefaults(
        recompute=Recompute.NONE, cp_comm=CpComm.A2A, recompute_counts=True,
        fallback_offload=FALLBACK_OFFLOAD,
    ),
    choices=Choices(
        zero=(0, 1, 2, 3),
        schedules=(Schedule.ONE_F_ONE_B,),
        cp_comms=(CpComm.A2A,),
        dispatchers=(MoeDispatcher.ALLTOALL,),
        # The state is DeepSpeed's own; ZenFlow came after the last release of the pair.
        offload_places=frozenset(OffloadDevice),
        offload_overlaps=frozenset({OptimizerOverlap.NONE, OptimizerOverlap.PIPELINED}),
        context_needs_flash=False, without_precisions=frozenset({"fp8", "nvfp4"}), tp_overlap=False,
    ),
    splits=SplitRule("deepspeed", own_split(LEAST_DIFFERENCE_SINCE), can_leave_stages_empty=True),
    knobs=KNOBS,
    former=(
        # The files that deepspeed.py names; Megatron-DeepSpeed has no releases of its own, so the months of DeepSpeed's count.
        Former({"zero2_all_reduces": False}, until_month="2023-12"),
        Former({"reduces_in_backward_from": 2}, until_month="2024-01"),
        Former({"lists_slices": True}, until_month="2021-08"),
    ),
)  # fmt: skip
