"""torchtitan: PyTorch's own modules under FSDP2, DTensor and torch.distributed.pipelining."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.constants import Constant
from cost_models.frameworks.choices import Choices, Habit, StrategyDefaults
from cost_models.frameworks.facts import REPLICA_OVERLAPS, TORCH_LAYER_KERNELS, FrameworkFacts, HostTraffic
from cost_models.frameworks.megatron import MEMORY as MEGATRON_MEMORY
from cost_models.frameworks.releases import Former
from cost_models.frameworks.splits import ENDS, Split, SplitRule, even_split, told_any_split
from cost_models.frameworks.training_defaults import (
    AMPERE_ON,
    FA1_IN_TORCH,
    PARAM,
    SDPA_ON_VOLTA,
    USUAL,
    Row,
    StateDtypes,
)
from cost_models.specs.model import Model
from cost_models.strategies.fields import CpComm, MoeDispatcher, Recompute, Schedule

RESERVED: Final = Constant(
    1.005, "ratio", 1.0, 1.03, "block rounding of the caching allocator: own_tt reserved against the pool rule"
)

# torch/distributed/fsdp/_fully_shard/_fsdp_api.py: CPUOffloadPolicy is one switch for parameters, gradients and optimizer.
WHOLE_OFFLOAD: Final = {"offload_optimizer_fraction": (1.0,), "offload_parameters": (True,)}
# torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce): shards go down after their reduction and are added
# on the host; clip_grad_norm_ reads them once and scales them (read, write).
FSDP_HOST: Final = HostTraffic(
    gradients_in_backward=True, gradients_return=False, host_adds_gradients=True, parameters_go_up=False,
    norm_and_clip_passes=3.0, takes_whole_optimizer=True,
)  # fmt: skip
MEMORY: Final = replace(
    MEGATRON_MEMORY, transformer_engine=False, torch_operators=True, fuses_gated_activation=False, loss_family="torch",
    casts_gradients_for_step="never", zero2_shards_parameters=True, gradients_persist=False,
    replicated_buckets=True, casts_replicated_parameters=True, embedding_gradient_whole=True,
    defers_pipeline_reduction=True, buffers_pipeline_inputs=True, sequence_workspaces=0, fuses_weight_gradients=False,
    offloads_layer_inputs=True, sgd_states=0, reuses_world_group=True, norm_group=False, pooled_gathers=True,
    reserved_factor=RESERVED.value, reserved_factor_tp=RESERVED.value, spread_low=0.03, spread_high=0.07,
)  # fmt: skip


def _own_split(model: Model, stages: int, _version: str) -> Split | None:
    """Even where it divides, else with the embedding and the head counted as one layer each.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part with its default weights; an
    even split is what `*_less_layers = 0` gives.
    """
    even = even_split(model.num_layers, stages)
    if even is not None:
        return even
    base, extra = divmod(model.num_layers + ENDS, stages)
    if base == 0:
        return None
    with_ends = [base + (stage < extra) for stage in range(stages)]
    return (with_ends[0] - 1, *with_ends[1:-1], with_ends[-1] - 1)


CHOICES: Final = Choices(
    # torchtitan/components/lora.py (LoRAConverter), which is not in 0.2.
    adapters=True,
    zero=(0, 2, 3),
    schedules=(
        Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE, Schedule.ZB_V, Schedule.DUALPIPE_V,
    ),
    cp_comms=(CpComm.P2P, CpComm.ALLGATHER),
    dispatchers=(MoeDispatcher.ALLTOALL, MoeDispatcher.FLEX),
    torch_schedules=True, vpp=True, chunked_loss=True, eight_bit_adam=True, expert_overlap=True,
    # torchtitan/experiments/ft (0.2: fault_tolerance in config/job_config.py): semi_sync_method.
    syncs=frozenset({"local-sgd", "diloco"}), replica_groups=True,
)  # fmt: skip

FACTS: Final = FrameworkFacts(
    name="torchtitan",
    releases=(("0.1", "2025-06"), ("0.2", "2025-10"), ("0.3", "2026-09")),  # by the build dates of their wheels
    default_version="0.3",
    operators_move_rows=True,  # models/moe: utils.py (_permute, _unpermute), moe.py (MoE.forward)
    fused_elementwise=False,
    default_zero=3,
    default_sequence_parallel=True,
    overlaps=REPLICA_OVERLAPS,
    gradient_accumulation_bytes=10.0,
    kernels_forward=TORCH_LAYER_KERNELS[0],
    kernels_backward=TORCH_LAYER_KERNELS[1],
    parallelism_is_pytorchs=True,
    wraps_layers=True,
    copies_units=True,
    copies_around_gathers=True,
    keeps_gathered_norms=True,
    selective_alternates=True,
    selective_repeats_attention=0.0,
    selective_repeats_elementwise=1.0,
    separate_gate_projection=True,
    # models/qwen3/model/model.py (apply_rotary_emb) against models/llama3/model/model.py
    turns_halves_with_qk_norm=True,
    fuses_qkv=True,
    # torchtitan/distributed/fsdp.py (get_fsdp_reshard_after_forward_policy); models/llama3/infra/parallelize.py in 0.1 and 0.2.
    keeps_parameters_in_pipelines=True,
    layerwise_from_zero=2,
    fp8_gather_recipes=frozenset({"tensorwise"}),
    fp8_gather_source="habit of torchtitan's float8 benchmarks (enable_fsdp_float8_all_gather); the parser's default is bf16",
    groups_hold_context=True,
    shard_group_stages=frozenset({1, 2, 3}),
    expert_shard_group_stages=frozenset({1, 2, 3}),
    host=FSDP_HOST,
    memory=MEMORY,
    # torchtitan TrainingConfig: dtype float32, mixed_precision_reduce float32.
    state_dtypes=StateDtypes(param_dtype="fp32", main_param_dtype="none", grad_dtype=PARAM, grad_reduce_dtype="fp32"),
    training_defaults={
        # torchtitan 0.3's language models take FlexAttention (models/common/config_utils.py, models/llama3/__init__.py); what
        # scaled_dot_product_attention runs before is in `sdpa_kernels`.
        "attention_kernel": (
            SDPA_ON_VOLTA, FA1_IN_TORCH, Row("flex", since_version="0.3"),
            Row("cudnn", since_version="0.2", generations=AMPERE_ON), Row("sdpa"),
        ),
        # torchtitan compiles its loss from 2025, and all recipes of 0.3 cut it into chunks (config_registry.py of each model:
        # ChunkedLossWrapper).
        "cross_entropy": (
            Row("chunked", since_version="0.3"), Row("compiled", since="2025-01", compiled=True), *USUAL["cross_entropy"],
        ),
        "fp8_recipe": (Row("tensorwise"),),
        # torchtitan's run_train.sh sets PYTORCH_ALLOC_CONF=expandable_segments:True.
        "expandable_segments": (Row(True),),
    },
    # torchtitan/models/attention.py: FlashAttention comes first in 0.1 (but on B200), cuDNN's kernel from 0.2.
    sdpa_kernels=(Row("cudnn", since_version="0.2", generations=AMPERE_ON), Row("sdpa")),
    # torchtitan/config: activation_checkpoint.mode "selective", context_parallel_rotate_method "allgather".
    strategy=StrategyDefaults(
        recompute=Recompute.SELECTIVE, cp_comm=CpComm.ALLGATHER,
        recompute_modes=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
        fallback_offload=WHOLE_OFFLOAD,
        # enable_async_tensor_parallel rewrites pairs of a product and an all-gather or a reduce-scatter.
        tp_overlap_needs=frozenset({"sequence-parallel", "compile"}),
    ),
    choices=CHOICES,
    splits=SplitRule("torchtitan", _own_split, told=told_any_split),
    # torchtitan/config/job_config.py (selective_ac_option "2" to 0.2); trainer.py of 0.3 (loss).
    habits={
        "recompute": Habit(
            "selective",
            "torchtitan's recipes say selective_ac_option 'op', recomputation by operator; its parser recomputes every second "
            "layer whole.",
            until="0.3",
        ),
        "cross_entropy": Habit(
            "chunked", "Every recipe of torchtitan cuts the loss into 8 chunks; its Trainer.Config names no loss."
        ),
    },
    former=(
        # torchtitan/models/llama3: query, key and value are three products up to 0.2.
        Former({"fuses_qkv": False, "choices": replace(CHOICES, adapters=False)}, until="0.3"),
    ),
)  # fmt: skip
