"""The answer about one strategy: verdict with reasons, step time and memory with their breakdowns, and the origin of every number.

All names that can appear in it (verdicts, reason codes, terms, tiers) are closed lists, which are given here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from cost_models.specs.training import Dtype
from cost_models.terms import MEMORY_NAMES, PEAK_MOMENTS, TIME_NAMES
from planner.schemas.base import ContractModel
from planner.schemas.collectives import GroupCollective, TierName
from planner.schemas.exchange import Exchange
from planner.schemas.run import Change, Communication, NodeTraffic, OverlapCondition, Run

Verdict = Literal["fits", "at-risk", "oom", "invalid"]
if TYPE_CHECKING:
    PeakMoment: TypeAlias = str
    TimeTerm: TypeAlias = str
    MemoryTerm: TypeAlias = str
else:
    PeakMoment, TimeTerm, MemoryTerm = Literal[PEAK_MOMENTS], Literal[TIME_NAMES], Literal[MEMORY_NAMES]
ReasonCode = Literal[
    "invalid-json", "invalid-field", "unknown-field", "missing-field", "invalid-input", "not-modelled", "unknown-preset", "unknown-model-type", "calibration",
    "out-of-memory", "at-risk-of-memory", "unstated-fact", "host-memory", "host-memory-unknown", "nvme-capacity", "misses-target",
    "world-exceeds-gpus", "gpus-not-divisible", "batch-not-divisible", "heads-not-divisible", "kv-heads-not-divisible",
    "mlp-not-divisible", "layers-not-divisible", "layers-per-stage-mismatch",
    "sequence-not-divisible", "sequence-parallel-needs-tp",
    "sequence-parallel-unsupported", "tensor-parallel-unsupported", "pipeline-unsupported", "split-unsupported",
    "context-parallel-unsupported", "context-parallel-needs-flash", "context-parallel-comm-unsupported", "context-parallel-levels", "context-parallel-heads",
    "virtual-stages-unsupported", "virtual-stages-need-pipeline", "interleaving-needs-micro-batches",
    "interleaving-needs-p2p-overlap", "schedule-unsupported", "schedule-mismatch", "too-few-micro-batches",
    "experts-missing", "experts-not-divisible", "expert-mlp-not-divisible", "expert-ranks-not-divisible",
    "expert-parallel-unsupported", "expert-tensor-parallel-unsupported", "moe-needs-sequence-parallel",
    "dispatcher-unsupported",
    "zero-unsupported", "zero-with-pipeline", "zero-with-tensor-parallel", "zero-shard-size-not-divisible",
    "zero-shard-size-unsupported", "zero-param-shard-size-unsupported", "zero-quantized-unsupported", "optimizer-unsupported",
    "recompute-unsupported", "recompute-modules-unsupported", "recompute-count-mismatch", "recompute-per-stage-mismatch",
    "recipe-unsupported-by-gpu", "precision-unsupported-by-framework", "attention-unsupported-by-gpu",
    "attention-unsupported-by-framework", "cross-entropy-unsupported",
    "overlap-unsupported", "offload-unsupported", "cuda-graphs-with-pipeline", "pools-not-supported", "precision-not-supported",
    "adapter-unsupported", "quantized-base-unsupported",
    "sync-unsupported", "compression-unsupported", "compression-with-zero", "sync-with-zero", "sync-needs-whole-replicas",
    "sync-needs-islands", "island-cut",
    "layers-unsupported-by-framework",
    "pool-unknown", "pool-per-stage-mismatch", "pool-exceeded", "unequal-data-parallel-shares",
]  # fmt: skip


class Reason(ContractModel):
    """Why a strategy does not simply fit, or what must hold for it to fit: what is wrong, with the value, and what to do."""

    code: ReasonCode
    """Stable name of the reason, in kebab-case."""
    message: str
    """What is wrong, with the value."""
    hint: str
    """What to do."""


class StageReport(ContractModel):
    """Memory of one pipeline stage."""

    stage: int
    """Number of the pipeline stage, from 0."""
    layers: int
    """Number of decoder layers that the stage holds."""
    peak_moment: PeakMoment
    """When in a step the stage needs most."""
    peak_allocated_bytes: float
    """Bytes that the allocator holds at most on a GPU of this stage."""
    breakdown_bytes: dict[MemoryTerm, float]
    """Bytes by term at the peak; they sum to peak_allocated_bytes."""
    pool: str | None = None
    """Pool that the stage lies on; this and what follows only where the cluster lists pools."""
    peak_device_bytes: float | None = None
    """Bytes that a GPU of this stage holds at most, context and communication buffers included."""
    capacity_bytes: float | None = None
    """Bytes that a GPU of that pool offers a process."""


class Memory(ContractModel):
    """Memory of the heaviest stage's GPUs, bytes per GPU, and of the host."""

    peak_allocated_bytes: float
    """Bytes that PyTorch's allocator holds at most, as torch.cuda.max_memory_allocated tells."""
    peak_reserved_bytes: float
    """The allocated bytes plus what the allocator caches."""
    peak_device_bytes: float
    """The reserved bytes plus the context and communication buffers."""
    peak_device_range_bytes: tuple[float, float]
    """80 % interval of them, in bytes."""
    capacity_bytes: float
    """Bytes that the driver offers a process, less reserved_memory_gib."""
    host_bytes_per_node: float
    """Bytes that all ranks of a node keep in the host's memory."""
    nvme_bytes_per_node: float | None = None
    """Bytes that all ranks of a node keep on its drives; given where there are any."""
    stages: list[StageReport] | None = None
    """Memory of every pipeline stage. Null in summaries over HTTP."""


class Provenance(ContractModel):
    """Where the numbers came from."""

    calibration: str | None
    """Id of the calibration; null for the reference data of the GPU."""
    terms: dict[TimeTerm, TierName]
    """How each term of time came about: measured, interpolated between measurements, extrapolated beyond them, or
    nominal."""
    corrections: dict[TimeTerm | MemoryTerm, float] | None = None
    """Factors learnt from measured runs that were applied, by term of time or memory; given where there are any."""
    range_factor: float | None = None
    """Number by which measured runs narrowed (below 1) or widened the range of the step time, and of differences to other plans;
    given where they did."""
    collectives: list[GroupCollective] | None = None
    """The largest collectives of each group of ranks, with the algorithm and protocol that are assumed; not given on a cluster that lists
    pools."""


class TowerCost(ContractModel):
    """What one vision or audio tower is and takes."""

    tower: Literal["vision", "audio"]
    """Which tower it is."""
    state: Literal["frozen", "trained"]
    """Whether the encoder is trained; its projector may be trained either way."""
    parameters: int
    """Number of parameters of the encoder, without its projector."""
    projector_parameters: int
    """Number of parameters between the encoder and the text model."""
    trainable_parameters: int
    """Number of parameters of both that are trained."""
    tokens_per_sequence: float
    """Tokens of a sequence that the tower yields, on average."""
    forward_tflops_per_image: float | None = None
    """1e12 operations of the forward pass for one image; given for vision."""
    forward_tflops_per_second: float | None = None
    """1e12 operations of the forward pass for one second of sound; given for audio."""
    placement: Literal["first-stage"]
    """Which ranks run it: those of the first pipeline stage."""
    split_over_tp: bool
    """Whether tensor-parallel ranks share it; otherwise each of them runs all of it."""
    step_s: float
    """Seconds of a step that a rank spends on it."""
    activations_gib: float
    """GiB that a micro-batch saves for its backward on a rank."""


class AverageCost(ContractModel):
    """The moving average of the weights that a plan keeps."""

    device: Literal["gpu", "cpu"]
    """Where it lies: on the GPUs, or in host memory."""
    dtype: Dtype
    """Its type, which is that of the parameters."""
    sharded: bool
    """Whether every rank averages its own shard of the parameters; otherwise every replica keeps a whole copy."""
    gib_per_rank: float
    """GiB that a rank of the fullest stage averages."""
    step_s: float
    """Seconds of a step that the update takes; part of the term optimizer."""


class Evaluation(ContractModel):
    """The cost of one strategy. All numbers are null if the verdict is `invalid`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | int | None = None
    """The row's own id, a text or number."""
    verdict: Verdict
    """Whether the strategy runs: it fits, its memory is at risk, it runs out of memory, or no framework could run it."""
    reasons: list[Reason]
    """Why it does not simply fit."""
    num_gpus_used: int | None = None
    """Number of GPUs, tp * pp * cp * dp."""
    num_micro_batches: int | None = None
    """Number of micro-batches of one step: global_batch_size / (dp * micro_batch_size)."""
    num_parameters: int | None = None
    """Number of parameters as Hugging Face counts them, without multi-token prediction."""
    trainable_parameters: int | None = None
    """Number of parameters that are trained, adapters and the copies of saved modules included; given where that is not the
    whole model."""
    stored_parameters: int | None = None
    """Number of parameters of the model with its adapters and copies; given with trainable_parameters."""
    padded_vocab_size: int | None = None
    """Number of tokens of the vocabulary after the framework's padding."""
    step_time_s: float | None = None
    """Seconds between optimizer steps, the median in steady state."""
    step_time_range_s: tuple[float, float] | None = None
    """80 % interval of it, in seconds."""
    tokens_per_s_per_gpu: float | None = None
    """Tokens per second of training, divided by the GPUs used; padding does not count."""
    model_tflops_per_gpu: float | None = None
    """1e12 model operations per second and GPU, with full S x S attention and without recomputation; weight gradients of
    frozen weights are not counted."""
    model_tflops_per_gpu_causal: float | None = None
    """The same with half of attention's operations, since a causal mask hides the other half; 1e12 operations per second
    and GPU."""
    hardware_tflops_per_gpu: float | None = None
    """1e12 operations per second and GPU, recomputation and padding included."""
    mfu: float | None = None
    """Share of the dense peak of training.precision that the model's operations reach, from 0 to 1."""
    mfu_bf16: float | None = None
    """The same share of the dense bf16 peak; given for fp8 and nvfp4."""
    time_breakdown_s: dict[TimeTerm, float] | None = None
    """Seconds by term; they sum to step_time_s."""
    memory: Memory | None = None
    """Memory of the heaviest stage, with every stage where it is asked for."""
    assumed: dict[str, Any] = Field(default_factory=dict)
    """Every default that was applied, by contract field."""
    provenance: Provenance | None = None
    """Where the numbers came from."""
    mathematics: Literal["exact", "rounded", "changed"] | None = None
    """Whether a step computes what the framework's plain step computes: the same (exact; the precision that the request names is),
    with fewer digits on the way (rounded), or something else (changed)."""
    changes: list[Change] = Field(default_factory=list)
    """What is done otherwise, where it is not exact."""
    exchange: Exchange | None = None
    """What replicas exchange; given with strategy.sync, strategy.compression and cluster.islands."""
    node_traffic: NodeTraffic | None = None
    """What nodes receive of each other in ZeRO-3; given where zero_param_shard_size or quantisation lowers it."""
    towers: list[TowerCost] | None = None
    """The vision and audio towers that training.towers counts; their time and memory are part of the terms of the first stage."""
    ema: AverageCost | None = None
    """The moving average of the weights; given with training.ema."""
    padding_share: float | None = None
    """Share of the tokens of all sequences that is padding, from 0 to 1; given with training.packing "padded"."""
    overlap_conditions: dict[Communication, OverlapCondition] | None = None
    """Whether computation could hide each kind of communication of the strategy; null on a cluster that lists pools."""
    run: Run | None = None
    """The whole run; null where the training has neither total_tokens nor tokens_per_parameter."""
    warnings: list[str] = Field(default_factory=list)
    """Facts that qualify the answer, such as a vision tower that is not planned."""
