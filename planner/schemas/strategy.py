"""A parallel strategy in the contract's names. Every field may be left out: `planner.strategies.parse` fills the
framework's default and reports it. A strategy in a response is the same document with everything filled in: it can be
sent back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from planner.schemas.base import ContractModel, Count, Degree, Flag, Fraction

Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["block", "uniform"]
RecomputeModule = Literal["core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj"]
Schedule = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe-v"]
CpComm = Literal["p2p", "a2a", "allgather"]
MoeDispatcher = Literal["allgather", "alltoall", "flex"]
FlexBackend = Literal["deepep", "hybridep"]
GradSync = Literal["last", "each"]
ZeroStage = Annotated[Count, Field(le=3)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1, max_length=100_000)]

EXAMPLE_STRATEGY: JsonDict = {"tp": 4, "pp": 4, "dp": 8, "zero": 1, "micro_batch_size": 1, "recompute": "selective"}


class OverlapInput(ContractModel):
    """Which communication runs beside computation; what is left out takes the framework's default."""

    grad_reduce: Flag | None = None
    """Gradient reduction beside the backward pass."""
    param_gather: Flag | None = None
    """Parameter gather beside the forward pass."""
    tp_comm: Flag | None = None
    """Tensor-parallel collectives split and run beside the GEMMs that need them."""
    p2p: Flag | None = None
    """Stage-to-stage sends beside computation."""
    moe_all_to_all: Flag | None = None
    """Expert dispatch and combine beside another micro-batch's computation."""


class OffloadInput(ContractModel):
    """What lives in host memory."""

    optimizer_fraction: Fraction | None = None
    """Share of the optimizer state kept and updated on the host. Default 0."""
    parameters: Flag | None = None
    """Parameters live in host memory between uses. Default false."""
    activation_layers: Count | None = None
    """Layers of each stage whose saved activations go to the host. Default 0."""


class StrategyInput(ContractModel):
    """How a job is split over the GPUs. world = tp * pp * cp * dp."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_STRATEGY]})

    tp: Degree | None = None
    """Tensor-parallel ranks. Default 1."""
    pp: Degree | None = None
    """Pipeline stages. Default 1."""
    dp: Degree | None = None
    """Data-parallel replicas. Default: all GPUs, GPUs / (tp * pp * cp)."""
    cp: Degree | None = None
    """Context-parallel ranks; each holds seq_length / cp tokens of a sequence. Default 1."""
    ep: Degree | None = None
    """Expert-parallel ranks, taken from tp * cp * dp. Default 1."""
    etp: Degree | None = None
    """Tensor-parallel ranks inside an expert. Default: tp in megatron, else 1."""
    vpp: Degree | None = None
    """Virtual stages (model chunks) per pipeline rank. Default 1."""
    zero: ZeroStage | None = None
    """What data-parallel ranks shard: 1 optimizer state, 2 also gradients, 3 also parameters. Default by framework."""
    zero_shard_size: Degree | None = None
    """Ranks that share one copy of the sharded state, neighbours first; divides dp * cp. Default dp * cp."""
    zero_param_shard_size: Degree | None = None
    """Ranks over which parameters are sharded for forward and backward (ZeRO++ hpZ, MiCS)."""
    grad_sync: GradSync | None = None
    """Whether gradients are reduced after the last micro-batch or each. Default: last for zero 0/1, each for 2/3; last too for
    several micro-batches of transformers' or Liger's modules under fsdp, whose usual loops (accelerate) wait; listed in `assumed`."""
    sequence_parallel: Flag | None = None
    """Norms and residuals are split along the sequence over the tp ranks. Default by framework where tp > 1."""
    micro_batch_size: Degree | None = None
    """Sequences per forward of one replica."""
    recompute: Recompute | None = None
    """Which activations are computed again in backward. Default by framework."""
    recompute_method: RecomputeMethod | None = None
    """With full recompute: a number of layers of each chunk (block), or every layer in units (uniform)."""
    recompute_num_layers: Degree | None = None
    """Layers recomputed per model chunk (block), or layers per recomputed unit (uniform)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Field(max_length=7)] | None = None
    """Megatron's modules of selective recompute. Default core_attn."""
    recompute_per_stage: Counts | None = None
    """Layers recomputed on each of the pp stages."""
    schedule: Schedule | None = None
    """Pipeline schedule. Default interleaved where vpp > 1, else 1f1b."""
    layers_per_stage: Counts | None = None
    """Decoder layers of each of the pp * vpp virtual stages, in model order; 0 is allowed."""
    pool_per_stage: Annotated[tuple[str, ...], Field(min_length=1, max_length=100_000)] | None = None
    """Name of the cluster pool each stage runs on."""
    cp_comm: CpComm | None = None
    """How context-parallel ranks exchange keys and values. Default by framework."""
    moe_dispatcher: MoeDispatcher | None = None
    """How tokens reach their experts. Default by framework."""
    flex_backend: FlexBackend | None = None
    """Kernels of the flex dispatcher. Default deepep, where an NVLink domain is larger than a node of 8 hybridep."""
    overlap: OverlapInput | None = None
    """Which communication runs beside computation. Default by framework."""
    offload: OffloadInput | None = None
    """What lives in host memory. Default nothing."""
