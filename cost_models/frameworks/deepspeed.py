"""DeepSpeed: its engine around, for most people, Hugging Face's modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cost_models.constants import Constant
from cost_models.frameworks.choices import Choices, Habit, StrategyDefaults
from cost_models.frameworks.facts import (
    REPLICA_OVERLAPS,
    TORCH_LAYER_KERNELS,
    FrameworkFacts,
    HostTraffic,
    LayerRuntimes,
)
from cost_models.frameworks.knobs import Flag, always, offloaded_fraction, offloads, shards
from cost_models.frameworks.megatron import LOCAL_MEMORY
from cost_models.frameworks.releases import Former, precedes
from cost_models.frameworks.splits import Split, SplitRule
from cost_models.frameworks.training_defaults import COMPUTE, GRAD, StateDtypes
from cost_models.specs.adapter import ADAPTER_FEATURES
from cost_models.specs.model import Model
from cost_models.specs.recurrent import RECURRENT_KINDS
from cost_models.strategies.fields import (
    CpComm,
    MoeDispatcher,
    OffloadDevice,
    OptimizerOverlap,
    Recompute,
    Schedule,
)
from cost_models.units import GIB

# Checked: 0.5, 0.12 to 0.17 and 0.19 by the dates in their source packages. 0.9 and 0.18 are not checked beyond memory of the
# release notes.
RELEASES: Final = (
    ("0.5", "2021-08"), ("0.9", "2023-04"), ("0.12", "2023-11"), ("0.14", "2024-03"), ("0.15", "2024-08"),
    ("0.16", "2024-11"), ("0.17", "2025-06"), ("0.18", "2025-10"), ("0.19", "2026-05"),
)  # fmt: skip
MICS_SINCE = "0.9.2"
"""runtime/zero/mics.py is in the source package of 0.9.2, not in that of 0.9.1."""
HPZ_SINCE = "0.10"
"""deepspeed/runtime/zero/config.py has zero_hpz_partition_size from then on."""
ZENFLOW_SINCE = "0.17.5"
"""The first source package that was looked into; it has deepspeed/runtime/zenflow, as 0.17.6 and 0.19.8 have."""
MICS_UNTIL = "0.19.7"
"""deepspeed/runtime/config.py lists its keys as removed from then on."""
SIGNS_UNTIL = "0.19.7"
"""deepspeed/runtime/fp16/onebit is in the source package of 0.19.6, not in that of 0.19.7 (pull request 8490)."""
LEAST_DIFFERENCE_SINCE = "0.12.5"
"""The release whose partition_balanced keeps parts nearly equal."""

RESERVED: Final = Constant(
    1.13,
    "ratio",
    1.0,
    1.25,
    "reserved over allocated: bigscience device readings, fitted together with PROCESS_2022_BYTES",
)
RESERVED_ZERO3: Final = Constant(
    2.0 * GIB, "bytes", 0.5 * GIB, 5.0 * GIB,
    "allocator cache of ZeRO-3's changing gather sizes: ml_engineering ZeRO-3 rows, 8 GPUs",
)  # fmt: skip
RESERVED_OWN: Final = Constant(
    1.12, "ratio", 1.02, 1.35,
    "reserved over allocated outside of Megatron-DeepSpeed: 1.09 to 1.53, median 1.19, in 27 own runs of 0.19.8, 1.07 to 1.13 in "
    "published ones (ml_engineering); fitted between the two",
)  # fmt: skip
ZERO3_HOST: Final = Constant(
    5.5, "1", 4.2, 6.5,
    "host time of a Llama layer under stage 3's hooks over a plain one's loop. In steps of 64 tokens, which the host decides, 4.85 "
    "(Llama-3.2-3B) and 6.1 (Qwen3-4B), both with checkpointing (data/measured_h200, hugging_face_runs); in loops of layers 4.7 and 5.1 "
    "(host_layers, host_layers_2)",
)  # fmt: skip
REDUCE_BUCKET_ELEMENTS: Final = Constant(
    5e8, "elements", 1e8, 1e9, "zero_optimization.reduce_bucket_size default; two buckets with overlap"
)
LIVE_ELEMENTS: Final = Constant(
    1e9, "elements", 1e8, 1e9, "gathered parameters kept alive: zero_optimization.stage3_max_live_parameters default"
)
PREFETCH_ELEMENTS: Final = Constant(
    5e7, "elements", 1e7, 5e8, "parameters gathered ahead: zero_optimization.stage3_prefetch_bucket_size default"
)
GATHERED_ELEMENTS: Final = LIVE_ELEMENTS.value + PREFETCH_ELEMENTS.value

# deepspeed/runtime/zero/stage_1_and_2.py: async_accumulate_grad_in_cpu_via_gpu, unscale_and_clip_grads (read, write); norms of
# single parameters are computed on the GPU. stage3.py partition_grads does the same.
HOST: Final = HostTraffic(
    gradients_in_backward=True, gradients_return=True, host_adds_gradients=False, parameters_go_up=True,
    norm_and_clip_passes=2.0,
)  # fmt: skip

_ZERO = "deepspeed/runtime/zero/config.py (DeepSpeedZeroConfig)"
_GATHER_BYTES = (
    "5e8 takes some 9 GB beside the model (Hugging Face's DeepSpeed guide), so no more than twice that is tried"
)
KNOBS: Final = (
    Flag(
        "zero_optimization.reduce_bucket_size", "gradients reduced at a time", "parameters",
        always(5e8), shards(1, 2, 3), f"{_ZERO}; {_GATHER_BYTES}", most=2.0,
    ),
    Flag(
        "zero_optimization.allgather_bucket_size", "updated parameters gathered at a time", "parameters",
        always(5e8), shards(1, 2), f"{_ZERO}; {_GATHER_BYTES}", most=2.0,
    ),
    Flag(
        "zero_optimization.stage3_prefetch_bucket_size", "parameters fetched ahead of use", "parameters",
        always(5e7), shards(3), _ZERO,
    ),
    Flag(
        "zero_optimization.stage3_param_persistence_threshold", "parameters below this size are not sharded",
        "parameters", always(1e5), shards(3), _ZERO,
    ),
    Flag(
        "zero_optimization.stage3_max_live_parameters", "gathered parameters kept before they are freed",
        "parameters", always(1e9), shards(3), _ZERO, most=2.0,
    ),
    Flag(
        "zero_optimization.offload_optimizer.ratio", "share of the optimizer state on the host", "fraction",
        offloaded_fraction, lambda strategy: strategy["zero"] == 3 and offloads(strategy),
        "deepspeed/runtime/zero/offload_config.py (ratio, stage 3 alone)",
    ),
)  # fmt: skip


FALLBACK_OFFLOAD: Final = {
    "offload_optimizer_fraction": (0.0, 0.5, 1.0), "offload_parameters": (False, True), "offload_activation_layers": (0, 1),
}  # fmt: skip


def own_split(least_difference_since: str) -> Callable[[Model, int, str], Split | None]:
    """How DeepSpeed partitions a pipeline's layers, before and since the release that keeps parts nearly equal.

    The transformer layers come in nearly equal parts, larger ones first; before, every part is as large as the largest until
    no layers are left. There is no split where a stage that holds no end of the model would hold no layer.

    Source: deepspeed/runtime/utils.py, partition_balanced on weights of one per transformer layer, which is
    Megatron-DeepSpeed's partition method `type:transformer`. It minimises largest minus smallest part; among equals its
    `>=` keeps the shortest last part. Before, `_lprobe` filled parts up to the least largest part (0.12.4).
    """

    def split_of(model: Model, stages: int, version: str) -> Split | None:
        layers = model.num_layers
        base, extra = divmod(layers, stages)
        split = [base + (stage < extra) for stage in range(stages)]
        if precedes(version, least_difference_since):
            largest = max(split)
            split = [min(largest, max(layers - stage * largest, 0)) for stage in range(stages)]
        return tuple(split) if all(split[:-1]) and base else None

    return split_of


MEMORY: Final = replace(
    LOCAL_MEMORY, fuses_gated_activation=False, keeps_fused_qkv=False, saves_rotary_tables=False,
    loss_family="torch", torch_operators=True, sgd_states=0, gradients_persist=False, zero3_gradients_persist=True,
    buckets_at_first_gradient=True, offload_staging=True,
    reduce_bucket_elements=REDUCE_BUCKET_ELEMENTS.value, offload_takes_gradients=True, offloads_layer_inputs=True,
    casts_gradients_for_step="always", norm_group=False, gather_elements=GATHERED_ELEMENTS, ends_stay_gathered=True,
    reserved_zero3_bytes=RESERVED_ZERO3.value, reserved_factor=RESERVED_OWN.value, reserved_factor_tp=RESERVED_OWN.value,
    spread_low=0.15, spread_high=0.20,
)  # fmt: skip

# peft around Hugging Face's modules. bitsandbytes' NF4 can be stored in a floating-point type that is sharded like any other
# (Linear4bit, quant_storage); its 8-bit weights cannot.
CHOICES: Final = Choices(
    towers=True, adapters=True, adapter_features=frozenset(ADAPTER_FEATURES),
    quantized_bases=frozenset({"nf4", "int8"}), sharded_bases=frozenset({"nf4"}),
    zero=(0, 1, 2, 3),
    schedules=(Schedule.ONE_F_ONE_B,),
    cp_comms=(CpComm.A2A,),
    dispatchers=(MoeDispatcher.ALLTOALL,),
    # DeepSpeed's readers of NVMe drives pipeline; its other swapper, and state in host memory, do not.
    offload_places=frozenset(OffloadDevice), offload_overlaps=frozenset(OptimizerOverlap),
    # transformers' modules: models/nemotron_h, jamba, qwen3_next, lfm2 and falcon_h1.
    recurrent=frozenset(RECURRENT_KINDS), recurrent_beside_attention=True, nearest=("megatron",),
    tp_divides_kv_heads=False, without_precisions=frozenset({"nvfp4"}), eight_bit_adam=True, selective_recompute=False,
)  # fmt: skip

FACTS: Final = FrameworkFacts(
    name="deepspeed",
    releases=RELEASES,
    default_version="0.19",
    fused_elementwise=False,
    default_zero=3,
    default_sequence_parallel=False,
    overlaps=REPLICA_OVERLAPS,
    overlaps_since="2022-03",
    overlaps_from_zero=3,
    gathers_per_tensor=True,
    gradient_accumulation_bytes=6.0,
    kernels_forward=TORCH_LAYER_KERNELS[0],
    kernels_backward=TORCH_LAYER_KERNELS[1],
    # host_layers and host_layers_2 (data/measured_h200; two leases), Llama layer, forward and backward: hooks of stages 1 and 2
    # 7.0 and 5.2 ms where plain ones take 4.9 and 4.2.
    hooked_host_ratio=1.4,
    hooks_from_zero=1,
    zero3_host_ratio=ZERO3_HOST.value,
    # Layers of real jobs took their host up to 2.2 times as long as the agent's (docs/PROFILING.md).
    layer_runtimes=LayerRuntimes(
        sharded=("zero3",), hooked=("zero2", "zero1"), nothing=("zero0",), package="deepspeed", priced=False
    ),
    zero0_checks_gradients=True,
    # Norm, copy and release of each gradient: 1.8 to 2.3 and 0.8 to 0.9 ms a layer of nine tensors, 7 to 18 operators each.
    optimizer_launches_per_tensor=12.0,
    separate_gate_projection=True,
    zero1_all_reduces=True,
    zero2_all_reduces=True,
    replicas_reduce_once=True,
    param_shard_group_stages=frozenset({3}),
    param_shards_serve_forward=True,
    reduces_in_backward_from=1,
    gathers_in_forward_from=3,
    overlaps_in_pipelines=False,
    host=HOST,
    memory=MEMORY,
    # DeepSpeed config: grad_accum_dtype and communication_data_type default to the model's type.
    state_dtypes=StateDtypes(
        param_dtype=COMPUTE, main_param_dtype="fp32", grad_dtype=COMPUTE, grad_reduce_dtype=GRAD
    ),
    model_impl="transformers",
    # sequence_parallel_size is Ulysses: all-to-all over heads.
    strategy=StrategyDefaults(
        recompute=Recompute.NONE, cp_comm=CpComm.A2A, fallback_offload=FALLBACK_OFFLOAD,
    ),
    choices=CHOICES,
    splits=SplitRule("deepspeed", own_split(LEAST_DIFFERENCE_SINCE), can_leave_stages_empty=True),
    # deepspeed/runtime/zero/config.py: stage 0.
    habits={
        "zero": Habit(3, "Most configurations shard parameters too (stage 3); DeepSpeed's own default stage is 0."),
    },
    knobs=KNOBS,
    former=(
        # deepspeed/runtime/zero/stage_1_and_2.py: backward_prologue (0.18.0) made the buckets before any gradient; 0.19.8 makes
        # them in process_gradients.
        Former({"memory": replace(MEMORY, buckets_at_first_gradient=False)}, until="0.19"),
        Former({"choices": replace(CHOICES, compressions=frozenset({"onebit", "zero-one"}))}, until=SIGNS_UNTIL),
        # Before AutoEP (deepspeed/module_inject/auto_ep.py, moe/ep_experts.py) experts were those of deepspeed/moe/layer.py:
        # chunks padded to a capacity, one expert after another.
        Former({"loops_experts": True, "pads_experts": True}, until="0.19.2"),
        # deepspeed/runtime/zero/stage_1_and_2.py (average_tensor): a bucket's slices were reduced to their owners one by
        # one until use_multi_rank_bucket_allreduce came with 0.12.4 and the default true (zero/config.py).
        Former({"zero2_all_reduces": False}, until="0.12.4"),
        # deepspeed/runtime/engine.py (_configure_zero_optimizer) switched overlap_comm off for stage 1.
        Former({"reduces_in_backward_from": 2}, until="0.13"),
        # deepspeed/runtime/zero/partition_parameters.py: 0.13.0 and 0.13.1 take the secondary tensor in backward
        # only, 0.13.2 wherever it exists.
        Former({"param_shards_serve_forward": False}, until="0.13.2"),
        # deepspeed/runtime/zero/partition_parameters.py (_allgather_param, _reduce_scatter_gradient), until pull request 1188.
        Former({"lists_slices": True}, until_month="2021-08"),
        Former({"shard_group_stages": frozenset({3}), "expert_shard_group_stages": frozenset({3})}, until=MICS_UNTIL),
        Former({"shard_group_stages": frozenset(), "expert_shard_group_stages": frozenset()}, until=MICS_SINCE),
        Former({"param_shard_group_stages": frozenset()}, until=HPZ_SINCE),
    ),
)  # fmt: skip
