"""The calibration document, schema 1: what one machine was measured to do, immutable, named by the digest of its content.

Samples are kept as measured. Fits are what the cost models read, with their residual and the range that they hold in. The
digest is computed over the canonical JSON (sorted keys, defaults left out), so that fields added later do not change old ids.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cost_models.operations import Op
from cost_models.specs.cluster import Generation, Interconnect
from cost_models.specs.training import AttentionKernel

SCHEMA_VERSION = 1
Positive = Annotated[float, Field(ge=1e-15, le=1e21)]
"""Seconds, bytes or rates in SI units. The bounds are wider than any machine's, and what is computed from them
stays finite."""
Fraction = Annotated[float, Field(ge=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=10**15)]
Position = Annotated[int, Field(ge=0, le=10**15)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Fingerprint(_Strict):
    """The machine and the software that the numbers belong to."""

    gpu: str
    """Name of the GPU preset."""
    gpu_reported: str = ""
    """The GPU's name as the driver spells it."""
    driver: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    cpu: str = ""
    nvls: Literal["on", "off", "unknown"] = "unknown"
    environment: dict[str, str] = {}
    """Environment variables that change speed, such as NCCL_ALGO."""
    interconnect: Interconnect = "nvswitch"
    gpus_per_node: Count = 1
    num_nodes: Count = 1


class Device(_Strict):
    """Facts of the data sheet that turn the samples into efficiencies; peaks are dense."""

    generation: Generation
    peak_flops_per_s: dict[str, Positive]
    memory_bytes_per_s: Positive
    link_bytes_per_s: Annotated[float, Field(ge=0, le=1e21)]
    """One direction, per GPU, of the link that the collectives ran on (PCIe where there is no faster one)."""
    num_sms: Count
    power_limit_w: Positive | None = None

    @property
    def half_flops_per_s(self) -> float:
        """Peak that the shares of bf16 and fp16 samples refer to."""
        return self.peak_flops_per_s.get("bf16") or self.peak_flops_per_s["fp16"]

    @model_validator(mode="after")
    def _has_half_precision(self) -> Self:
        if not {"bf16", "fp16"} & set(self.peak_flops_per_s):
            raise ValueError("peak_flops_per_s needs bf16 or fp16")
        return self


class GemmSample(_Strict):
    """One matrix product (m, k) x (k, n): median seconds of one call among back-to-back calls."""

    m: Count
    n: Count
    k: Count
    time_s: Positive
    dtype: str = "bf16"
    layout: Literal["forward", "dgrad", "wgrad"] = "forward"
    batch: Count = 1
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, over their median."""
    output_dtype: Literal["same", "fp32"] = "same"
    """"fp32" marks a gradient product that adds into an fp32 buffer in the same kernel."""


class CollectiveSample(_Strict):
    """One collective: seconds of the slowest rank.

    `size_bytes` is nccl-tests' total array, `ranks_per_node` divides `ranks`, and `concurrent_groups` is how many such groups ran at
    once on the same nodes.
    """

    op: Op
    size_bytes: Positive
    ranks: Count
    ranks_per_node: Count
    time_s: Positive
    stride: Count = 1
    concurrent_groups: Count = 1
    spread_fraction: Fraction = 0.0

    @model_validator(mode="after")
    def _fills_its_nodes(self) -> Self:
        # A curve is fitted to the samples only when a job is priced, which would be too late to refuse them.
        if self.ranks % self.ranks_per_node:
            raise ValueError("ranks_per_node must divide ranks")
        return self


class AttentionSample(_Strict):
    """One causal attention call of a fused kernel."""

    kernel: AttentionKernel
    direction: Literal["forward", "backward"]
    sequences: Count
    heads: Count
    kv_heads: Count
    q_length: Count
    kv_length: Count
    d_qk: Count
    d_v: Count
    time_s: Positive
    window: Count | None = None
    dtype: str = "bf16"
    spread_fraction: Fraction = 0.0


class MathAttentionSample(_Strict):
    """One causal attention call that writes its scores: the unfused chain of operators."""

    direction: Literal["forward", "backward"]
    sequences: Count
    heads: Count
    kv_heads: Count
    q_length: Count
    kv_length: Count
    d: Count
    time_s: Positive
    dtype: str = "bf16"
    spread_fraction: Fraction = 0.0


class OverlapSample(_Strict):
    """A matrix product and a collective side by side: how much longer each takes than alone."""

    op: Op
    ranks: Count
    size_bytes: Positive
    m: Count
    n: Count
    k: Count
    compute_slowdown_fraction: Fraction
    communication_slowdown_fraction: Fraction


class PairSample(_Strict):
    """Two ranks that send to each other at once: bytes per second of one direction."""

    first: Position
    second: Position
    bytes_per_s: Positive
    link: str = ""
    """What the driver says lies between them: nvlink, pcie or network."""


class DeviceState(_Strict):
    """One rank's device as its driver described it before, during and after the measurement."""

    rank: Position
    sm_clock_hz: tuple[float, float] | None = None
    """Lowest and highest clock seen under load."""
    power_w: tuple[float, float] | None = None
    power_limit_w: Positive | None = None
    temperature_celsius: tuple[float, float] | None = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    numa_node: int | None = None
    host: str = ""


class MemorySample(_Strict):
    """Bandwidth of one access pattern; `size_bytes` counts reads and writes."""

    kind: Literal["copy", "elementwise", "optimizer", "host_to_device", "device_to_host"]
    size_bytes: Positive
    bytes_per_s: Positive
    spread_fraction: Fraction = 0.0


class HostAdamSample(_Strict):
    """Adam on the processors, all ranks of a node at once.

    Parameters, gradients and two moments in fp32 are read, and all but the gradients are written.
    """

    ranks: Count
    """Ranks of the node."""
    parameters: Count
    """Parameters of each rank."""
    threads: Count
    """Threads of each rank."""
    bytes_per_s: Positive
    """Memory traffic of all ranks together."""
    spread_fraction: Fraction = 0.0


class HostLayer(_Strict):
    """Host seconds of one layer in training steps that the host decides, on the slowest rank."""

    forward_s: Positive
    backward_s: Positive
    """Recomputation included, where the class has it."""
    spread: Fraction = 0.0
    """80 % half-width of one round of steps, over forward and backward together."""


class Host(_Strict):
    """CPU seconds of issuing work, none of it hidden."""

    eager_op_s: Positive | None = None
    """One operation of an eager training step, framework layers included."""
    raw_op_s: Positive | None = None
    """One bare tensor operation in a loop."""
    compiled_op_s: Positive | None = None
    graph_op_s: Positive | None = None
    collective_call_s: Positive | None = None
    eager_layer_s: Positive | None = None
    """Forward and backward of a whole small eager layer (torch.nn.TransformerEncoderLayer)."""
    plain_layer_s: Positive | None = None
    """Forward and backward of a Llama layer written in plain PyTorch."""
    sharded_layer_s: Positive | None = None
    """The plain layer under FSDP2."""
    tensor_parallel_layer_s: Positive | None = None
    """The plain layer with DTensor tensor parallelism, the sequence kept whole."""
    sequence_parallel_layer_s: Positive | None = None
    """The plain layer with DTensor tensor parallelism and the sequence split between the projections."""
    compiled_layer_s: Positive | None = None
    """The plain layer compiled."""
    compiled_sharded_layer_s: Positive | None = None
    """The plain layer compiled, under FSDP2."""
    compiled_sequence_parallel_layer_s: Positive | None = None
    """The plain layer with DTensor tensor and sequence parallelism, compiled."""
    layers: dict[str, HostLayer] = {}
    """By class: whose modules, the runtime around them, and `recompute` where they are, such as `transformers-fsdp2-recompute`."""


class MemoryFacts(_Strict):
    """What the device holds beside the allocator's memory."""

    capacity_bytes: Positive | None = None
    context_bytes: Positive | None = None
    communicator_bytes: Positive | None = None
    p2p_neighbour_bytes: Positive | None = None
    allocator_slack_fraction: Fraction | None = None
    """Reserved over allocated peak of a few training steps of changing length, minus 1."""


class CollectiveFit(_Strict):
    """Seconds against size for one operation and group, cleaned: medians that never fall with size."""

    op: Op
    ranks: Count
    ranks_per_node: Count
    size_bytes: tuple[Positive, ...]
    time_s: tuple[Positive, ...]
    residual_fraction: Fraction
    """80th percentile of the errors of leaving one size out and interpolating it."""
    stride: Count = 1
    concurrent_groups: Count = 1

    @model_validator(mode="after")
    def _is_a_curve(self) -> Self:
        if not self.size_bytes or len(self.size_bytes) != len(self.time_s):
            raise ValueError("size_bytes and time_s must be equally long and not empty")
        if any(b <= a for a, b in pairwise(self.size_bytes)) or any(b < a for a, b in pairwise(self.time_s)):
            raise ValueError("size_bytes must rise and time_s never fall")
        if self.ranks % self.ranks_per_node:
            raise ValueError("ranks_per_node must divide ranks")
        return self


class GemmFit(_Strict):
    """How well the interpolated efficiency predicts a shape that was left out, and where the measured shapes lie."""

    dtype: str
    residual_fraction: Fraction
    m_range: tuple[Position, Position]
    n_range: tuple[Position, Position]
    k_range: tuple[Position, Position]


class CalibrationDocument(_Strict):
    """One machine's measurements with their fits. It is never edited: a new measurement is a new document."""

    schema_version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=120)]
    kind: Literal["reference", "measured"]
    """"reference" means public curves of this GPU, not of the user's machine."""
    fingerprint: Fingerprint
    device: Device
    created_at: str
    """RFC 3339 date or time of the measurement, or of the compilation of public data."""
    source: str = ""
    licence: str = ""
    load: Literal["burst", "sustained"] = "sustained"
    """"burst" means short runs at a boosted clock, to which the sustained-clock constant applies."""
    gemm: tuple[GemmSample, ...] = ()
    collectives: tuple[CollectiveSample, ...] = ()
    attention: tuple[AttentionSample, ...] = ()
    math_attention: tuple[MathAttentionSample, ...] = ()
    overlap: tuple[OverlapSample, ...] = ()
    pairs: tuple[PairSample, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    memory_bandwidth: tuple[MemorySample, ...] = ()
    host_adam: tuple[HostAdamSample, ...] = ()
    host: Host = Host()
    memory: MemoryFacts = MemoryFacts()
    collective_fits: tuple[CollectiveFit, ...] = ()
    gemm_fits: tuple[GemmFit, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def canonical_json(self) -> str:
        """The content that the digest is computed over."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def file_text(self) -> str:
        """The text that is stored: the canonical content with its id in front."""
        return f'{{"id":"{self.id}",{self.canonical_json()[1:]}\n'
