"""What each framework holds beside weights and activations, as data: buffers, copies, pools and their uncertainty.

`memory_traits` picks an entry by framework and, for Megatron, by the implementation of its layers; the formulas read the
fields and know no framework by name. Sources per field: EQUATIONS.md, section M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from cost_models.frameworks.facts import ActivationTable
from cost_models.frameworks.releases import runtime_of
from cost_models.memory.constants import constant
from cost_models.specs.training import Training

LossFamily = Literal["megatron", "torch", "huggingface"]


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """The memory facts of one framework."""

    table: ActivationTable
    loss_family: LossFamily
    zero2_shards_parameters: bool
    """Parameters are sharded at rest from zero 2 on (FSDP, gathered again for the whole step)."""
    gradients_persist: bool
    """Gradient buffers exist from the first step on; otherwise they appear in backward and vanish after the step."""
    compute_gradients: Literal["none", "backward", "always"]
    """Gradients in the compute type beside a wider held buffer: never, until the backward ends, or permanently."""
    replicated_buckets: bool
    """zero 0 over several replicas keeps reduction buckets as large as the gradients (DistributedDataParallel)."""
    casts_replicated_parameters: bool
    """zero 0 with fp32 parameters runs under autocast: bf16 weight copies and an fp32 residual stream are saved."""
    embedding_gradient_whole: bool
    """tp without zero leaves the embedding's gradient unsharded over tp."""
    defers_pipeline_reduction: bool
    """In a pipeline, gradients accumulate unsharded in the reduction type until the last micro-batch."""
    buffers_pipeline_inputs: bool
    """Receive buffers for every micro-batch, stage outputs kept until their backward."""
    sequence_workspaces: int
    """Gathered-sequence buffers kept by sequence parallelism."""
    fuses_weight_gradients: bool
    """Weight gradients are added into the buffer by the GEMM; a dummy per distinct weight shape is cached instead."""
    ends_stay_gathered: bool
    """The unit with embedding and head stays gathered through forward and backward."""
    gather_elements: float
    """Parameters gathered at once under zero 3; 0 means two layers (the running and the prefetched one)."""
    reduce_bucket_elements: float
    """Elements of a reduction bucket of DeepSpeed's kind; 0 means that a layer is reduced at once."""
    offload_takes_gradients: bool
    """Offloading the optimizer also moves the sharded gradients to the host."""
    offloads_layer_inputs: bool
    """Activation offload moves the inputs of fully recomputed layers too; Megatron's moves what modules save."""
    optimizer_copies: float
    """Temporary copies of the local parameters in the state type during the step."""
    casts_gradients_for_step: Literal["never", "unless-states-narrow", "always"]
    """Owned gradients narrower than the main parameters are cast to their type for the step; Megatron's precision-aware
    optimizer, which keeps narrow states, reads them as they are."""
    sgd_states: int
    reuses_world_group: bool
    """A group that spans all ranks uses the default communicator."""
    norm_group: bool
    """The gradient norm reduces over a communicator of its own."""
    pooled_gathers: bool
    """Gathers and reductions run on streams with allocator pools of their own."""
    reserved_factor: float
    reserved_factor_tp: float
    """The same where tp > 1."""
    reserved_zero3_bytes: float
    spread_low: float
    """80 % interval of the reserved bytes, as fractions below and above."""
    spread_high: float


_MEGATRON = MemoryTraits(
    table="megatron-te", loss_family="megatron", zero2_shards_parameters=False, gradients_persist=True,
    compute_gradients="none", replicated_buckets=False, casts_replicated_parameters=False,
    embedding_gradient_whole=False, defers_pipeline_reduction=False, buffers_pipeline_inputs=False,
    sequence_workspaces=2, fuses_weight_gradients=True, ends_stay_gathered=False, gather_elements=0.0,
    reduce_bucket_elements=0.0, offload_takes_gradients=False, offloads_layer_inputs=False, optimizer_copies=0.0,
    casts_gradients_for_step="unless-states-narrow",
    sgd_states=1, reuses_world_group=False, norm_group=True, pooled_gathers=False,
    reserved_factor=constant("reserved_megatron_te"), reserved_factor_tp=constant("reserved_megatron_te_tp"),
    reserved_zero3_bytes=0.0, spread_low=0.04, spread_high=0.06,
)  # fmt: skip
_MEGATRON_LOCAL = replace(
    _MEGATRON, table="megatron-local", sequence_workspaces=1, fuses_weight_gradients=False,
    reserved_factor=constant("reserved_megatron_local"), reserved_factor_tp=constant("reserved_megatron_local"),
)  # fmt: skip
_MEGATRON_DEEPSPEED = replace(
    _MEGATRON_LOCAL, table="megatron-2021", compute_gradients="backward", gradients_persist=True,
    reduce_bucket_elements=constant("deepspeed_bucket_elements"), offload_takes_gradients=True,
    offloads_layer_inputs=True,
    casts_gradients_for_step="always", norm_group=False, sequence_workspaces=1,
    gather_elements=constant("deepspeed_live_elements") + constant("deepspeed_prefetch_elements"),
    ends_stay_gathered=True, reserved_zero3_bytes=constant("reserved_zero3"),
    reserved_factor=constant("reserved_deepspeed"), reserved_factor_tp=constant("reserved_deepspeed"),
    spread_low=0.10, spread_high=0.10,
)  # fmt: skip
_DEEPSPEED = replace(
    _MEGATRON_DEEPSPEED, table="huggingface", loss_family="huggingface", compute_gradients="none", sgd_states=0,
    reserved_factor=1.02, reserved_factor_tp=1.02,
    spread_low=0.15, spread_high=0.20,
)  # fmt: skip
_TORCHTITAN = replace(
    _MEGATRON, table="torchtitan", casts_gradients_for_step="never", loss_family="torch", zero2_shards_parameters=True, gradients_persist=False,
    replicated_buckets=True, casts_replicated_parameters=True, embedding_gradient_whole=True,
    defers_pipeline_reduction=True, buffers_pipeline_inputs=True, sequence_workspaces=0, fuses_weight_gradients=False,
    offloads_layer_inputs=True,
    sgd_states=0, reuses_world_group=True, norm_group=False, pooled_gathers=True,
    reserved_factor=constant("reserved_fsdp_rounding"), reserved_factor_tp=constant("reserved_fsdp_rounding"),
    spread_low=0.03, spread_high=0.07,
)  # fmt: skip
_FSDP = replace(
    _TORCHTITAN, table="huggingface", ends_stay_gathered=True, optimizer_copies=1.0, buffers_pipeline_inputs=False,
    spread_low=0.10, spread_high=0.10,
)  # fmt: skip
_NANOTRON = replace(
    _MEGATRON_LOCAL, table="nanotron", casts_gradients_for_step="never", compute_gradients="always", sequence_workspaces=0, norm_group=False,
    reserved_factor=constant("reserved_nanotron"), reserved_factor_tp=constant("reserved_nanotron"),
    spread_low=0.15, spread_high=0.12,
)  # fmt: skip

_NANOTRON_GATHER_BUFFERS: Final = 2
"""nanotron/parallel/tensor_parallel/functional.py: "allgather" and, in backward, "allgather2" of its MemoryBuffer."""

TRAITS: Final[Mapping[str, MemoryTraits]] = {
    "megatron": _MEGATRON,
    "megatron/local": _MEGATRON_LOCAL,
    "megatron-deepspeed": _MEGATRON_DEEPSPEED,
    "deepspeed": _DEEPSPEED,
    "torchtitan": _TORCHTITAN,
    "fsdp": _FSDP,
    "nanotron": _NANOTRON,
}
"""By framework; `framework/implementation` where the layers' implementation changes what is kept."""


def memory_traits(training: Training) -> MemoryTraits:
    """The entry for this training job; math attention in Megatron means its unfused layers of 2021."""
    name = f"{training.framework}/{training.transformer_impl}"
    traits = TRAITS.get(name, TRAITS[training.framework])
    if training.attention == "math" and traits.table.startswith("megatron"):
        return replace(traits, table="megatron-2021", fuses_weight_gradients=False)
    if traits.table == "nanotron" and not runtime_of(training).keeps_gathered_norms:
        return replace(traits, sequence_workspaces=_NANOTRON_GATHER_BUFFERS)
    return traits
