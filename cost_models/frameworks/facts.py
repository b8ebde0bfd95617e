"""What each framework keeps in memory, fuses, overlaps and defaults to, as data.

A `FrameworkFacts` is chosen by framework and version (or software date). Cost models read its fields; none of them branches on a
framework's name. Sources: the frameworks' own files as listed in EQUATIONS.md under each tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cost_models.specs.training import Framework

ActivationTable = Literal["megatron-te", "megatron-local", "megatron-2021", "torchtitan", "nanotron", "huggingface"]
StateLayout = Literal["megatron", "deepspeed", "fsdp", "plain"]
LatentDown = Literal["whole", "shards", "columns"]
SplitRule = Literal["even", "torchtitan", "nanotron", "deepspeed"]


@dataclass(frozen=True, slots=True)
class FrameworkFacts:
    """The facts of one framework that the cost models need."""

    framework: Framework
    default_version: str
    versions: tuple[str, ...]
    """Known releases, oldest first."""
    activation_table: ActivationTable
    """Which tensors a layer saves for backward (memory); `training.transformer_impl` picks TE or local for Megatron."""
    state_layout: StateLayout
    split_rule: SplitRule
    """What the framework does when layers don't divide by stages: `even` refuses."""
    fused_elementwise: bool
    """Norm, activation, bias-dropout-add run as one kernel each, compiled or hand-written."""
    etp_defaults_to_tp: bool
    default_zero: int
    default_sequence_parallel: bool
    """Where tp > 1."""
    overlaps: Mapping[str, bool]
    """Default of each strategy.overlap flag."""
    overlaps_since: str
    """YYYY-MM from which these overlaps work; nothing overlaps before."""
    overlap_tp_backward: bool
    """TP all-reduce of the data gradient hidden behind the weight gradient."""
    gathers_per_tensor: bool
    """ZeRO-3 gathers one tensor a call rather than one layer."""
    gradient_accumulation_bytes: float
    """Bytes moved per held parameter and micro-batch by adding weight gradients into the buffer."""
    scatters_pipeline_messages: bool
    """Without sequence parallelism a stage's tp ranks send a slice each and gather it on arrival."""
    zero1_all_reduces: bool
    """ZeRO-1 reduces whole gradients on every rank rather than scattering them."""
    kernels_forward: float
    """Kernel launches of one dense layer's forward."""
    kernels_backward: float
    wraps_layers: bool
    """FSDP2 and DTensor, with their host time, stand around every layer that is sharded or tensor parallel."""
    copies_around_gathers: bool
    """The sequence is not the outermost dimension, so that a gather or scatter along it copies the whole tensor once more:
    torch/distributed/_functional_collectives.py (all_gather_tensor, reduce_scatter_tensor)."""
    moe_extra_kernels: tuple[float, float]
    """Forward and backward launches an MoE layer adds."""
    keeps_gathered_norms: bool
    """With sequence parallelism the gathered norm outputs stay saved rather than being gathered again in backward."""
    selective_alternates: bool
    """`recompute: selective` keeps the output of every other matrix product and of no grouped one, and repeats the rest."""
    selective_repeats_attention: float
    """Share of the attention core that it repeats."""
    selective_repeats_elementwise: float
    """Share of the norms, activations and the like that it repeats."""
    optimizer_launches: float
    """Kernel launches of one optimizer step, norm and clip included."""
    separate_gate_projection: bool
    """A gated MLP's two input projections are two matmuls, query, key and value three."""
    has_interleaving: bool
    supports_zero: tuple[int, ...]
    zero2_all_reduces: bool = False
    """ZeRO-2 all-reduces each bucket and keeps its shard rather than scattering it."""
    accumulates_unreduced: frozenset[str] = frozenset()
    """Whose modules (`training.model_impl`) usually run in a loop that leaves gradients of ZeRO 2 and 3 unreduced until the
    last micro-batch."""
    replicas_reduce_once: bool = False
    """Sharding in groups: shards are reduced across the groups once a step, whatever happens inside them."""
    param_shards_serve_forward: bool = False
    """Parameters gathered over all shards are kept in the small groups until the step ends, so that only the first forward
    needs all shards; otherwise every forward does, and the backwards alone gather inside."""
    fp8_gather_recipes: frozenset[str] = frozenset()
    """Fp8 recipes under which layers' weights are cast before they are gathered."""
    fp8_gather_source: str = ""
    """Who switches that on, for `assumed`: a recipe's habit, or a default."""
    overlaps_from_zero: int = 0
    """Lowest ZeRO stage in which `overlaps` are the defaults; below it nothing overlaps unless told."""
    reduces_in_backward_from: int = 0
    """Lowest ZeRO stage that can reduce gradients while the backward runs; DeepSpeed's has its reduction buckets ready then."""
    gathers_in_forward_from: int = 1
    """Lowest ZeRO stage that can gather parameters while the forward runs."""
    loops_experts: bool = False
    """Expert-parallel layers run a rank's experts one after another; otherwise as one grouped kernel."""
    pads_experts: bool = False
    """Every expert's input is filled up to its capacity; elsewhere a capacity only drops what exceeds it."""
    weighs_inside_experts: bool = False
    """A token's weights are applied inside the experts' activation; elsewhere a tensor before or behind stays for them."""
    latent_down: LatentDown = "whole"
    """Latent attention's down-projections under sequence parallelism: of gathered rows on every rank (`whole`), of each
    rank's own tokens (`shards`), or of gathered rows with columns split (`columns`)."""
    builds_mtp: bool = False
    """Multi-token-prediction modules of a model are built and trained; elsewhere they are left out."""
    lists_slices: bool = False
    """Stage 3 hands collectives a list with every rank's slice of one tensor, which PyTorch copies one by one between
    synchronizations of the device."""
    overlaps_in_pipelines: bool = True
    """Gradients can be reduced while a pipeline's backward runs."""
    fuses_qkv: bool = False
    """Query, key and value are one matmul although the gate's are two."""
    keeps_parameters_in_pipelines: bool = False
    """In a pipeline parameters are gathered for the whole step (zero 2) unless told otherwise, once, and gradients are
    reduced behind the last micro-batch alone."""
    wraps_tp_calls: bool = False
    """Tensor-parallel collectives stand in autograd functions with buffers and waits of their own, so that the host takes
    `constants.TP_CALL_OPS` operators for each instead of one."""
    tp_overlap_needs_split: bool = False
    """`overlap_tp_backward` holds with sequence parallelism alone."""


FUSED_ACCUMULATION_BYTES = 3.0
"""What adding into the buffer costs a weight gradient whose own kernel adds it, bytes per parameter. [F-9]"""
_OVERLAP_NONE = {"grad_reduce": False, "param_gather": False, "tp_comm": False, "p2p": False, "moe_all_to_all": False}
_OVERLAP_MEGATRON = {**_OVERLAP_NONE, "grad_reduce": True, "param_gather": True, "p2p": True}
_OVERLAP_FSDP = {**_OVERLAP_NONE, "grad_reduce": True, "param_gather": True}

RUNTIMES: Mapping[Framework, FrameworkFacts] = {
    "megatron": FrameworkFacts(
        framework="megatron", default_version="0.16",
        versions=("0.8", "0.9", "0.10", "0.11", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19"),
        activation_table="megatron-te", state_layout="megatron", split_rule="even", fused_elementwise=True,
        etp_defaults_to_tp=True, default_zero=1, default_sequence_parallel=True, overlaps=_OVERLAP_MEGATRON, overlaps_since="2023-07",
        overlap_tp_backward=True, gathers_per_tensor=False, gradient_accumulation_bytes=FUSED_ACCUMULATION_BYTES,
        kernels_forward=34.0, kernels_backward=45.0, wraps_layers=False, copies_around_gathers=False,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=False, selective_repeats_attention=1.0, selective_repeats_elementwise=0.0,
        optimizer_launches=150.0, separate_gate_projection=False,
        keeps_gathered_norms=False, scatters_pipeline_messages=False, zero1_all_reduces=False,
        has_interleaving=True, supports_zero=(0, 1, 2, 3), builds_mtp=True, latent_down="shards", weighs_inside_experts=True,
        wraps_tp_calls=True,
    ),
    "megatron-deepspeed": FrameworkFacts(
        framework="megatron-deepspeed", default_version="2022", versions=("2022", "2023", "2024"),
        activation_table="megatron-2021", state_layout="deepspeed", split_rule="deepspeed", fused_elementwise=True,
        etp_defaults_to_tp=False, default_zero=0, default_sequence_parallel=False, overlaps=_OVERLAP_FSDP, overlaps_since="2022-03",
        overlap_tp_backward=False, gathers_per_tensor=True, gradient_accumulation_bytes=6.0,
        kernels_forward=34.0, kernels_backward=45.0, wraps_layers=False, copies_around_gathers=False,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=False, selective_repeats_attention=1.0, selective_repeats_elementwise=0.0,
        optimizer_launches=150.0, separate_gate_projection=False,
        keeps_gathered_norms=False, scatters_pipeline_messages=True, zero1_all_reduces=True,
        has_interleaving=False, supports_zero=(0, 1, 2, 3),
        pads_experts=True, loops_experts=True, zero2_all_reduces=True, replicas_reduce_once=True, param_shards_serve_forward=True, overlaps_from_zero=3,
        reduces_in_backward_from=1, gathers_in_forward_from=3, overlaps_in_pipelines=False,
    ),
    "deepspeed": FrameworkFacts(
        framework="deepspeed", default_version="0.19",
        versions=("0.5", "0.9", "0.12", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19"),
        activation_table="huggingface", state_layout="deepspeed", split_rule="deepspeed", fused_elementwise=False,
        etp_defaults_to_tp=False, default_zero=3, default_sequence_parallel=False, overlaps=_OVERLAP_FSDP, overlaps_since="2022-03",
        overlap_tp_backward=False, gathers_per_tensor=True, gradient_accumulation_bytes=6.0,
        kernels_forward=45.0, kernels_backward=67.5, wraps_layers=False, copies_around_gathers=False,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=False, selective_repeats_attention=1.0, selective_repeats_elementwise=0.0,
        optimizer_launches=150.0, separate_gate_projection=True,
        keeps_gathered_norms=False, scatters_pipeline_messages=False, zero1_all_reduces=True,
        has_interleaving=False, supports_zero=(0, 1, 2, 3),
        zero2_all_reduces=True, replicas_reduce_once=True, param_shards_serve_forward=True, overlaps_from_zero=3,
        reduces_in_backward_from=1, gathers_in_forward_from=3, overlaps_in_pipelines=False,
    ),
    "torchtitan": FrameworkFacts(
        framework="torchtitan", default_version="0.3", versions=("0.1", "0.2", "0.3"),
        activation_table="torchtitan", state_layout="fsdp", split_rule="torchtitan", fused_elementwise=False,
        etp_defaults_to_tp=False, default_zero=3, default_sequence_parallel=True, overlaps=_OVERLAP_FSDP, overlaps_since="",
        overlap_tp_backward=False, gathers_per_tensor=False, gradient_accumulation_bytes=10.0,
        kernels_forward=45.0, kernels_backward=67.5, wraps_layers=True, copies_around_gathers=True,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=True, selective_repeats_attention=0.0, selective_repeats_elementwise=1.0,
        optimizer_launches=150.0, separate_gate_projection=True,
        keeps_gathered_norms=True, scatters_pipeline_messages=False, zero1_all_reduces=False,
        has_interleaving=True, supports_zero=(0, 2, 3), fuses_qkv=True, keeps_parameters_in_pipelines=True,
        fp8_gather_recipes=frozenset({"tensorwise"}),
        fp8_gather_source="habit of torchtitan's float8 benchmarks (enable_fsdp_float8_all_gather); the parser's default is bf16",
    ),
    "fsdp": FrameworkFacts(
        framework="fsdp", default_version="2.8", versions=("1.12", "2.0", "2.1", "2.4", "2.6", "2.8", "2.11", "2.13"),
        activation_table="huggingface", state_layout="fsdp", split_rule="even", fused_elementwise=False,
        etp_defaults_to_tp=False, default_zero=3, default_sequence_parallel=True, overlaps=_OVERLAP_FSDP, overlaps_since="",
        overlap_tp_backward=False, gathers_per_tensor=False, gradient_accumulation_bytes=10.0,
        kernels_forward=45.0, kernels_backward=67.5, wraps_layers=True, copies_around_gathers=True,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=True, selective_repeats_attention=0.0, selective_repeats_elementwise=1.0,
        optimizer_launches=150.0, separate_gate_projection=True,
        keeps_gathered_norms=True, scatters_pipeline_messages=False, zero1_all_reduces=False,
        has_interleaving=False, supports_zero=(0, 2, 3),
        # accelerate/accelerator.py (accumulate, no_sync) unless sync_each_batch, and transformers' Trainer through it.
        accumulates_unreduced=frozenset({"transformers", "liger"}),
        fp8_gather_recipes=frozenset({"tensorwise"}),
        fp8_gather_source="accelerate's default for torchao (AORecipeKwargs.enable_fsdp_float8_all_gather)",
    ),
    "nanotron": FrameworkFacts(
        framework="nanotron", default_version="2025", versions=("0.4", "0.5", "2025"),
        activation_table="nanotron", state_layout="megatron", split_rule="nanotron", fused_elementwise=True,
        etp_defaults_to_tp=False, default_zero=1, default_sequence_parallel=False, overlaps=_OVERLAP_NONE, overlaps_since="",
        overlap_tp_backward=True, gathers_per_tensor=False, gradient_accumulation_bytes=10.0,
        kernels_forward=40.0, kernels_backward=60.0, wraps_layers=False, copies_around_gathers=False,
        moe_extra_kernels=(25.0, 40.0),
        selective_alternates=False, selective_repeats_attention=1.0, selective_repeats_elementwise=0.0,
        optimizer_launches=150.0, separate_gate_projection=False,
        keeps_gathered_norms=False, scatters_pipeline_messages=False, zero1_all_reduces=False,
        has_interleaving=False, supports_zero=(0, 1), tp_overlap_needs_split=True,
    ),
}  # fmt: skip
