"""The answer about one strategy: verdict with reasons, step time and memory with their breakdowns, and the origin of every number.

All names that can appear in it (verdicts, reason codes, terms, tiers) are closed lists, which are given here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from cost_models.terms import MEMORY_NAMES, PEAK_MOMENTS, TIME_NAMES, Tier
from planner.schemas.base import ContractModel

Verdict = Literal["fits", "at-risk", "oom", "invalid"]
if TYPE_CHECKING:
    TierName: TypeAlias = str
    PeakMoment: TypeAlias = str
    TimeTerm: TypeAlias = str
    MemoryTerm: TypeAlias = str
else:
    TierName = Literal[tuple(tier.label for tier in Tier)]
    PeakMoment, TimeTerm, MemoryTerm = Literal[PEAK_MOMENTS], Literal[TIME_NAMES], Literal[MEMORY_NAMES]
ReasonCode = Literal[
    "invalid-json", "invalid-field", "unknown-field", "missing-field", "invalid-input", "not-modelled", "unknown-preset", "unknown-model-type", "calibration",
    "out-of-memory", "at-risk-of-memory", "unstated-fact", "host-memory", "host-memory-unknown", "misses-target",
    "world-exceeds-gpus", "gpus-not-divisible", "batch-not-divisible", "heads-not-divisible", "kv-heads-not-divisible",
    "mlp-not-divisible", "layers-not-divisible", "layers-per-stage-mismatch",
    "sequence-not-divisible", "sequence-parallel-needs-tp",
    "sequence-parallel-unsupported", "tensor-parallel-unsupported", "pipeline-unsupported", "split-unsupported",
    "context-parallel-unsupported", "context-parallel-needs-flash", "context-parallel-comm-unsupported", "context-parallel-heads",
    "virtual-stages-unsupported", "virtual-stages-need-pipeline", "interleaving-needs-micro-batches",
    "interleaving-needs-p2p-overlap", "schedule-unsupported", "schedule-mismatch", "too-few-micro-batches",
    "experts-missing", "experts-not-divisible", "expert-mlp-not-divisible", "expert-ranks-not-divisible",
    "expert-parallel-unsupported", "expert-tensor-parallel-unsupported", "moe-needs-sequence-parallel",
    "dispatcher-unsupported",
    "zero-unsupported", "zero-with-pipeline", "zero-with-tensor-parallel", "zero-shard-size-not-divisible",
    "zero-shard-size-unsupported", "zero-param-shard-size-unsupported", "optimizer-unsupported",
    "recompute-unsupported", "recompute-modules-unsupported", "recompute-count-mismatch", "recompute-per-stage-mismatch",
    "recipe-unsupported-by-gpu", "precision-unsupported-by-framework", "attention-unsupported-by-gpu",
    "attention-unsupported-by-framework", "cross-entropy-unsupported",
    "overlap-unsupported", "offload-unsupported", "cuda-graphs-with-pipeline", "pools-not-supported", "precision-not-supported",
    "adapter-unsupported", "quantized-base-unsupported",
    "pool-unknown", "pool-per-stage-mismatch", "pool-exceeded", "unequal-data-parallel-shares",
]  # fmt: skip


class Reason(ContractModel):
    """Why a strategy does not simply fit, or what must hold for it to fit: what is wrong, with the value, and what to do."""

    code: ReasonCode
    message: str
    hint: str


class StageReport(ContractModel):
    """Memory of one pipeline stage."""

    stage: int
    layers: int
    """Decoder layers that the stage holds."""
    peak_moment: PeakMoment
    peak_allocated_bytes: float
    breakdown_bytes: dict[MemoryTerm, float]
    """Sums to peak_allocated_bytes."""
    pool: str | None = None
    """Pool that the stage lies on; this and what follows only where the cluster lists pools."""
    peak_device_bytes: float | None = None
    capacity_bytes: float | None = None
    """Of that pool's GPU."""


class Memory(ContractModel):
    """Memory of the heaviest stage's GPUs, bytes per GPU, and of the host."""

    peak_allocated_bytes: float
    peak_reserved_bytes: float
    """The allocated bytes plus what the allocator caches."""
    peak_device_bytes: float
    """The reserved bytes plus the context and communication buffers."""
    peak_device_range_bytes: tuple[float, float]
    """80 % interval."""
    capacity_bytes: float
    """What the driver offers a process, less reserved_memory_gib."""
    host_bytes_per_node: float
    stages: list[StageReport] | None = None


class Provenance(ContractModel):
    """Where the numbers came from."""

    calibration: str | None
    terms: dict[TimeTerm, TierName]


class Evaluation(ContractModel):
    """The cost of one strategy. All numbers are null if the verdict is `invalid`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | int | None = None
    verdict: Verdict
    reasons: list[Reason]
    num_gpus_used: int | None = None
    num_micro_batches: int | None = None
    num_parameters: int | None = None
    """Parameters as Hugging Face counts them, without multi-token prediction."""
    trainable_parameters: int | None = None
    """Parameters that are trained, adapters and the copies of saved modules included; given where that is not the whole model."""
    stored_parameters: int | None = None
    """Parameters of the model with its adapters and copies; given with trainable_parameters."""
    padded_vocab_size: int | None = None
    step_time_s: float | None = None
    """The median time between optimizer steps in steady state."""
    step_time_range_s: tuple[float, float] | None = None
    """80 % interval."""
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    """Model operations per second with full S x S attention and without recomputation; weight gradients of frozen weights are not counted."""
    model_tflops_per_gpu_causal: float | None = None
    hardware_tflops_per_gpu: float | None = None
    """Operations per second including recomputation."""
    mfu: float | None = None
    """Model operations per second divided by the dense peak of training.precision."""
    mfu_bf16: float | None = None
    """The same divided by the dense bf16 peak; given for fp8 and nvfp4."""
    time_breakdown_s: dict[TimeTerm, float] | None = None
    """Sums to step_time_s."""
    memory: Memory | None = None
    assumed: dict[str, Any] = Field(default_factory=dict)
    """Every default that was applied, by contract field."""
    provenance: Provenance | None = None
    warnings: list[str] = Field(default_factory=list)
    """Facts that qualify the answer, such as a vision tower that is not planned."""
