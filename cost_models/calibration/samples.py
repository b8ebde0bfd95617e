"""What a calibration holds as it was measured: the machine, its data sheet, and one model for each kind of sample.

All numbers are in SI base units.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from cost_models.documented import Documented
from cost_models.operations import Op
from cost_models.specs.cluster import Generation, Interconnect
from cost_models.specs.training import AttentionKernel

Positive = Annotated[float, Field(ge=1e-15, le=1e21)]
"""Seconds, bytes or rates in SI units. The bounds are wider than any machine's, and what is computed from them
stays finite."""
Fraction = Annotated[float, Field(ge=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=10**15)]
Position = Annotated[int, Field(ge=0, le=10**15)]


class Measured(Documented):
    """A part of the document: immutable, without unknown fields, NaN or Infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Fingerprint(Measured):
    """The machine and the software that the numbers belong to."""

    gpu: Annotated[str, Field(max_length=64)]
    """Name of the GPU preset."""
    gpu_reported: str = ""
    """The GPU's name as the driver spells it."""
    driver: str = ""
    """Version of the GPU driver."""
    torch: str = ""
    """Version of PyTorch."""
    cuda: str = ""
    """Version of CUDA."""
    nccl: str = ""
    """Version of NCCL or RCCL."""
    cpu: str = ""
    """Name of the processor."""
    nvls: Literal["on", "off", "unknown"] = "unknown"
    """Whether NVLink SHARP (multicast in the switch) was used."""
    environment: dict[str, str] = {}  # noqa: RUF012 (pydantic copies it)
    """Environment variables that change speed, such as NCCL_ALGO."""
    interconnect: Interconnect = "nvswitch"
    """What connects the GPUs of a node."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of GPUs of a node."""
    num_nodes: Count = 1
    """Number of nodes that were measured."""


class Device(Measured):
    """Facts of the data sheet that turn the samples into efficiencies; peaks are dense."""

    generation: Generation
    """Architecture of the GPU."""
    peak_flops_per_s: dict[str, Positive]
    """Dense peaks by precision, operations per second."""
    memory_bytes_per_s: Positive
    """Bandwidth of the GPU's memory, bytes per second."""
    link_bytes_per_s: Annotated[float, Field(ge=0, le=1e21)]
    """Bytes per second in one direction, per GPU, of the link that the collectives ran on (PCIe where there is no faster
    one)."""
    num_sms: Count
    """Number of multiprocessors."""
    power_limit_w: Positive | None = None
    """Power limit, in watts."""

    @property
    def half_flops_per_s(self) -> float:
        """Peak that the shares of bf16 and fp16 samples refer to."""
        return self.peak_flops_per_s.get("bf16") or self.peak_flops_per_s["fp16"]

    @model_validator(mode="after")
    def _has_half_precision(self) -> Self:
        if not {"bf16", "fp16"} & set(self.peak_flops_per_s):
            raise ValueError("peak_flops_per_s needs bf16 or fp16")
        return self


class GemmSample(Measured):
    """One matrix product (m, k) x (k, n): median seconds of one call among back-to-back calls."""

    m: Count
    """Number of rows of the product."""
    n: Count
    """Number of columns of the product."""
    k: Count
    """Number of elements that are summed up for each entry."""
    time_s: Positive
    """Seconds of one call."""
    dtype: str = "bf16"
    """Type of the factors."""
    layout: Literal["forward", "dgrad", "wgrad"] = "forward"
    """Whether the factors lie as in the forward pass, the gradient of inputs or that of weights."""
    batch: Count = 1
    """Number of such products in one call."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""
    output_dtype: Literal["same", "fp32"] = "same"
    """"fp32" marks a gradient product that adds into an fp32 buffer in the same kernel."""


class CollectiveSample(Measured):
    """One collective: seconds of the slowest rank.

    `size_bytes` is nccl-tests' total array, `ranks_per_node` divides `ranks`, and `concurrent_groups` is how many such groups ran at
    once on the same nodes.
    """

    op: Op
    """The operation."""
    size_bytes: Positive
    """Size of the array as nccl-tests counts it, in bytes."""
    ranks: Count
    """Number of ranks of the group."""
    ranks_per_node: Count
    """Number of ranks of the group on each node."""
    time_s: Positive
    """Seconds of one call on the slowest rank."""
    stride: Count = 1
    """Number of ranks from one member of the group to the next."""
    concurrent_groups: Count = 1
    """Number of such groups that ran at once on the same nodes."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""

    @model_validator(mode="after")
    def _fills_its_nodes(self) -> Self:
        # A curve is fitted to the samples only when a job is priced, which would be too late to refuse them.
        if self.ranks % self.ranks_per_node:
            raise ValueError("ranks_per_node must divide ranks")
        return self


class AttentionSample(Measured):
    """One causal attention call of a fused kernel."""

    kernel: AttentionKernel
    """The kernel."""
    direction: Literal["forward", "backward"]
    """Forward or backward pass."""
    sequences: Count
    """Number of sequences."""
    heads: Count
    """Number of query heads."""
    kv_heads: Count
    """Number of key and value heads."""
    q_length: Count
    """Length of the queries, in tokens."""
    kv_length: Count
    """Length of the keys and values, in tokens."""
    d_qk: Count
    """Width of a head's query and key: number of elements."""
    d_v: Count
    """Width of a head's value: number of elements."""
    time_s: Positive
    """Seconds of one call."""
    window: Count | None = None
    """Number of tokens that a query sees; null for full causal attention."""
    dtype: str = "bf16"
    """Type of the inputs."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""


class MathAttentionSample(Measured):
    """One causal attention call that writes its scores: the unfused chain of operators."""

    direction: Literal["forward", "backward"]
    """Forward or backward pass."""
    sequences: Count
    """Number of sequences."""
    heads: Count
    """Number of query heads."""
    kv_heads: Count
    """Number of key and value heads."""
    q_length: Count
    """Length of the queries, in tokens."""
    kv_length: Count
    """Length of the keys and values, in tokens."""
    d: Count
    """Width of a head: number of elements."""
    time_s: Positive
    """Seconds of one call."""
    dtype: str = "bf16"
    """Type of the inputs."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""


class OverlapSample(Measured):
    """A matrix product and a collective side by side: how much longer each takes than alone."""

    op: Op
    """The collective."""
    ranks: Count
    """Number of ranks of its group."""
    size_bytes: Positive
    """Size of its array, in bytes."""
    m: Count
    """Number of rows of the product."""
    n: Count
    """Number of columns of the product."""
    k: Count
    """Number of elements that are summed up for each entry."""
    compute_slowdown_fraction: Fraction
    """Share by which the product took longer than alone."""
    communication_slowdown_fraction: Fraction
    """Share by which the collective took longer than alone."""


class PairSample(Measured):
    """Two ranks that send to each other at once: bytes per second of one direction."""

    first: Position
    """Number of one rank."""
    second: Position
    """Number of the other rank."""
    bytes_per_s: Positive
    """Bandwidth of one direction, bytes per second."""
    link: str = ""
    """What the driver says lies between them: nvlink, pcie or network."""


class DeviceState(Measured):
    """One rank's device as its driver described it before, during and after the measurement."""

    rank: Position
    """Number of the rank."""
    sm_clock_hz: tuple[float, float] | None = None
    """Lowest and highest clock seen under load, in hertz."""
    power_w: tuple[float, float] | None = None
    """Lowest and highest power under load, in watts."""
    power_limit_w: Positive | None = None
    """Power limit, in watts."""
    temperature_celsius: tuple[float, float] | None = None
    """Lowest and highest temperature under load, in degrees Celsius."""
    throttle: tuple[str, ...] = ()
    """Reasons that the driver gave for a lowered clock."""
    ecc_uncorrected: int | None = None
    """Number of memory errors that were not corrected."""
    numa_node: int | None = None
    """Number of the NUMA node that the GPU hangs on."""
    host: str = ""
    """Name of the host."""


class MemorySample(Measured):
    """Bandwidth of one access pattern; `size_bytes` counts reads and writes."""

    kind: Literal[
        "copy",
        "elementwise",
        "optimizer",
        "host_to_device",
        "device_to_host",
        "host_both_ways",
        "nvme_read",
        "nvme_write",
    ]
    """The access pattern. `host_both_ways` counts what goes up and what comes down together; drives are those of the node, all of its
    ranks together."""
    size_bytes: Positive
    """Size of what was read and written, in bytes."""
    bytes_per_s: Positive
    """Bandwidth, bytes per second."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""


class HostAdamSample(Measured):
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
    """Bytes per second of memory traffic, of all ranks together."""
    spread_fraction: Fraction = 0.0
    """Half of the interquartile range of the repeats, as a share of their median."""


class HostLayer(Measured):
    """Host seconds of one layer in training steps that the host decides, on the slowest rank."""

    forward_s: Positive
    """Seconds of the forward pass."""
    backward_s: Positive
    """Seconds of the backward pass, recomputation included where the class has it."""
    spread: Fraction = 0.0
    """80 % half-width of one round of steps, over forward and backward together, as a share."""


class Host(Measured):
    """CPU seconds of issuing work, none of it hidden."""

    eager_op_s: Positive | None = None
    """Seconds of one operation of an eager training step, framework layers included."""
    raw_op_s: Positive | None = None
    """Seconds of one bare tensor operation in a loop."""
    compiled_op_s: Positive | None = None
    """Seconds of one operation of a compiled layer."""
    graph_op_s: Positive | None = None
    """Seconds of one kernel that is replayed from a CUDA graph."""
    collective_call_s: Positive | None = None
    """Seconds of issuing one collective."""
    eager_layer_s: Positive | None = None
    """Seconds of forward and backward of a whole small eager layer (torch.nn.TransformerEncoderLayer)."""
    plain_layer_s: Positive | None = None
    """Seconds of forward and backward of a Llama layer written in plain PyTorch."""
    sharded_layer_s: Positive | None = None
    """Seconds of the plain layer under FSDP2."""
    tensor_parallel_layer_s: Positive | None = None
    """Seconds of the plain layer with DTensor tensor parallelism, the sequence kept whole."""
    sequence_parallel_layer_s: Positive | None = None
    """Seconds of the plain layer with DTensor tensor parallelism and the sequence split between the projections."""
    compiled_layer_s: Positive | None = None
    """Seconds of the plain layer compiled."""
    compiled_sharded_layer_s: Positive | None = None
    """Seconds of the plain layer compiled, under FSDP2."""
    compiled_sequence_parallel_layer_s: Positive | None = None
    """Seconds of the plain layer with DTensor tensor and sequence parallelism, compiled."""
    layers: dict[str, HostLayer] = {}  # noqa: RUF012 (pydantic copies it)
    """By class: whose modules, the runtime around them, and `recompute` where they are, such as `transformers-fsdp2-recompute`."""


class MemoryFacts(Measured):
    """What the device holds beside the allocator's memory."""

    capacity_bytes: Positive | None = None
    """What the driver offers to one process, in bytes."""
    context_bytes: Positive | None = None
    """Bytes that the process holds before it allocates anything."""
    communicator_bytes: Positive | None = None
    """Bytes that one communicator of a collective takes."""
    p2p_neighbour_bytes: Positive | None = None
    """Bytes that each neighbour takes that a rank exchanges with directly."""
    allocator_slack_fraction: Fraction | None = None
    """Reserved over allocated peak of a few training steps of changing length, minus 1: a share of the allocated peak."""
