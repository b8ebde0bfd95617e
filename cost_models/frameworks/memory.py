"""What a framework holds beside weights and activations, as data: buffers, copies, pools and their uncertainty.

The memory formulas read these fields and know no framework by name. Sources per field: EQUATIONS.md, section M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LossFamily = Literal["vocab-parallel", "torch", "huggingface"]
"""Who wrote the cross entropy: the key of the table of bytes per logit (M-7)."""


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """The memory facts of one framework."""

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
    """Gathered-sequence buffers kept by sequence parallelism, where what was gathered is gathered again in backward."""
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
    transformer_engine: bool = False
    """Layers are Transformer Engine's: linear layers save quantised inputs and keep quantised weights, take in the norm
    before them, and context parallelism keeps an attention output of its own."""
    torch_operators: bool = False
    """Layers are plain PyTorch operators: each saves what its own backward reads, and selective recomputation keeps the
    outputs of some operators."""
    huggingface_modules: bool = False
    """Layers are Hugging Face transformers' modules."""
    fuses_gated_activation: bool = False
    """A gated MLP's activation and product are one kernel, which saves its two inputs and its output."""
    keeps_fused_qkv: bool = False
    """The value is a view of the fused projection's output, which so stays whole beside the rotated query and key."""
    keeps_query_twice: bool = False
    """The query is saved before and after its rotation."""
    saves_rotary_tables: bool = False
    """Cosines and sines of the positions are saved in fp32 by every layer."""
    zero3_gradients_persist: bool = False
    """Gradients of zero 3 have a buffer from the first step on, whatever those of lower stages do."""
    buckets_at_first_gradient: bool = False
    """Reduction buckets appear with a backward's first gradient, so that a loss finds those alone that no reduction has freed."""
    offload_staging: bool = False
    """Gradients on their way to the host are gathered in a buffer of the largest parameter's size on the GPU (zero 1 and 2)."""
    keeps_fp32_logits: bool = False
    """The cross entropy holds 16-bit logits, their fp32 copy and the exponentials."""


@dataclass(frozen=True, slots=True)
class MemoryVariant:
    """Traits that differ under one implementation of the layers or of attention; None holds for every one."""

    traits: Mapping[str, object]
    """Values by field of `MemoryTraits`."""
    transformer_impl: str | None = None
    attention: str | None = None

    def holds(self, transformer_impl: str, attention: str) -> bool:
        """Whether layers of this implementation and attention are meant."""
        return self.transformer_impl in (None, transformer_impl) and self.attention in (None, attention)
