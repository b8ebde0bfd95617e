"""Every physical constant of the time model that no curve supplies: value, unit, plausible range, source.

Nothing here is fitted to a single table unless its `source` says so. A calibration replaces what it measured; the rest stays
nominal, and `low` to `high` is the range in which a constant may reasonably lie. Where no number could be measured or found, the
source says "no measurement".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from cost_models.specs.cluster import Fabric, Generation
from cost_models.specs.training import CrossEntropy
from cost_models.units import MICRO

GENERATIONS: tuple[Generation, ...] = get_args(Generation)


@dataclass(frozen=True, slots=True)
class Constant:
    """One number with its unit, its plausible range and where it comes from."""

    value: float
    unit: str
    low: float
    high: float
    source: str

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, self


# --- matrix multiplications -------------------------------------------------------------------------------------------

KERNEL_FLOOR_S = Constant(
    2.0 * MICRO, "s", 1.5 * MICRO, 4.0 * MICRO, "back-to-back kernels on one stream; no constant of any table"
)
ELEMENTWISE_KERNEL_S = Constant(
    1.5 * MICRO, "s", 0.5 * MICRO, 3.0 * MICRO,
    "ramp-up and tail of a streaming kernel, beyond its bytes: kernels of a layer of 64 tokens last 2.5 us each beyond the weights "
    "they read, products among them (H100, data/measured_h100, megatron_host)",
)  # fmt: skip
# Public tables are short runs at a boosted clock, which a GPU at its power limit does not hold in training.
SUSTAINED_CLOCK: Mapping[Generation, Constant] = {
    "volta": Constant(1.0, "1", 0.9, 1.0, "as ampere: not power-limited in GEMMs"),
    "ampere": Constant(1.0, "1", 0.95, 1.0, "A100 training rows need no correction of the burst table"),
    "ada": Constant(0.95, "1", 0.8, 1.0, "no measurement"),
    "hopper": Constant(
        0.88, "1", 0.85, 0.95, "4xH100 profile over the burst table at the same shapes: 0.79 (m 1024) to 0.90 (m 8192)"
    ),
    "blackwell": Constant(
        0.73, "1", 0.66, 0.88, "58 products as SimuMax timed them on B200; see F-1. NVIDIA's rows want more"
    ),
    "cdna2": Constant(0.95, "1", 0.8, 1.0, "no measurement"),
    "cdna3": Constant(0.90, "1", 0.7, 1.0, "no measurement"),
    "cdna4": Constant(0.90, "1", 0.7, 1.0, "no measurement"),
    "unknown": Constant(0.90, "1", 0.7, 1.0, "no measurement"),
}
"""Clock under minutes of load with random data, over the clock of a short burst."""

NOMINAL_GEMM_EFFICIENCY: Mapping[Generation, Constant] = {
    "volta": Constant(0.75, "1", 0.6, 0.85, "share of dense peak of large fp16 GEMMs; no table here"),
    "ampere": Constant(0.78, "1", 0.7, 0.87, "median of the A100 table at n, k >= 1024"),
    "ada": Constant(0.60, "1", 0.5, 0.7, "median of the L40S table"),
    "hopper": Constant(0.78, "1", 0.7, 0.85, "median of the H100 table"),
    "blackwell": Constant(0.66, "1", 0.6, 0.78, "median of the B200 table"),
    "cdna2": Constant(0.60, "1", 0.45, 0.75, "no measurement"),
    "cdna3": Constant(0.50, "1", 0.35, 0.65, "vendors' and users' best shapes reach 0.5-0.6; gap of 44-70 % reported"),
    "cdna4": Constant(0.60, "1", 0.4, 0.7, "best shapes reach 0.68"),
    "unknown": Constant(0.60, "1", 0.4, 0.8, "no measurement"),
}
"""Share of dense peak that large shapes reach, where a GPU has no reference curve."""

GEMM_TILE = Constant(128.0, "elements", 64.0, 256.0, "output tile edge of library GEMMs, for wave counts")
GEMM_EDGE_TILE = Constant(
    64.0, "elements", 32.0, 128.0, "H100 n=k=4096: m 256->257 costs 15 %, 512->513 10 %, 4096->4097 7 %, 2048->2049 0 %"
)
GEMM_K_HALF = Constant(256.0, "elements", 128.0, 512.0, "k at which prologue and epilogue take half of the time")
GEMM_UNALIGNED = Constant(
    0.68, "1", 0.2, 0.8, "a contiguous dimension that is not a multiple of 8 (16 bytes): SwiGLU width 10922 loses 30 %"
)
GROUPED_GEMM_EFFICIENCY = Constant(
    0.88, "1", 0.8, 0.95,
    "many experts in one kernel over one product, both over this model's price, 512 and more tokens an expert: 0.865 to 0.895 of the "
    "seconds, times the 0.85 that was assumed (H200, data/measured_h200, experts)",
)  # fmt: skip
GROUPED_STREAM = Constant(
    0.65, "1", 0.6, 0.75, "of the memory's rate, where such a kernel waits for weights: 16 to 128 tokens (the same)"
)
PRECISION_EFFICIENCY: Mapping[str, Constant] = {
    "bf16": Constant(1.0, "1", 1.0, 1.0, "the tables are bf16"),
    "fp16": Constant(1.0, "1", 0.97, 1.03, "same pipes as bf16"),
    "tf32": Constant(0.95, "1", 0.8, 1.0, "no measurement"),
    "fp32": Constant(1.0, "1", 0.8, 1.2, "no measurement but Hopper's, FP32_SHARE"),
    "fp8": Constant(
        0.88, "1", 0.8, 0.95, "best fp8 over best bf16 share of peak on H100, 0.709 over 0.803; H200 0.93, GH200 0.93"
    ),
    "nvfp4": Constant(0.75, "1", 0.5, 0.9, "no measurement"),
}
"""Share of its own dense peak that a precision reaches, over bf16's share at the same shape."""
BLACKWELL_EFFICIENCY: Mapping[str, Constant] = {
    **PRECISION_EFFICIENCY,
    "fp8": Constant(
        0.98, "1", 0.9, 1.0, "best fp8 over best bf16 share of peak: B200 0.763 over 0.776, GB200 0.99, B300 0.95"
    ),
}
"""The same shares on Blackwell. Source: best shapes of a search, github.com/stas00/ml-engineering,
compute/accelerator."""
FP32_SHARE = Constant(
    0.77, "1", 0.70, 0.80,
    "fp32 products on Hopper, three layouts, 1536 and wider: 0.72 to 0.80, at 8192 0.77 and no slower after seconds: its plain "
    "multiply units wait for nothing (H200, data/measured_h200, fp32_and_unfused)",
)  # fmt: skip
TOP_SHARE = Constant(
    0.94, "1", 0.89, 0.97,
    "share of dense peak of the best shape in any reference table (H200; H100 0.92, A100 0.89), where nothing but the multiply "
    "units binds [F-1]",
)  # fmt: skip
PEAKS_OVER_HALF: Mapping[str, float] = {"fp8": 2.0, "nvfp4": 4.0, "tf32": 0.5, "fp32": 1 / 16}
"""Peak of a precision over that of bf16, where the GPU whose curves are borrowed has no such arithmetic."""

# Batched products of attention have a short side (the head width), so that the surface of large products says little
# of them.
BMM_EFFICIENCY = Constant(
    0.475, "1", 0.4, 0.7,
    "batched GEMMs of attention at large head width; median of what the measured rows want with any one source left out, "
    "0.40 to 0.53",
)  # fmt: skip
BMM_HEAD_HALF = Constant(64.0, "elements", 32.0, 128.0, "head width at which they reach half of it")
BMM_UNALIGNED_16 = Constant(0.8, "1", 0.6, 1.0, "head width or length that is not a multiple of 16")
BMM_UNALIGNED_8 = Constant(
    0.2, "1", 0.1, 0.4, "no multiple of 8: BLOOM sweeps, 108-wide heads cost 30-50 % of the step"
)

# --- memory -----------------------------------------------------------------------------------------------------------

MEMORY_EFFICIENCY = Constant(0.80, "1", 0.65, 0.88, "share of HBM peak that streaming kernels reach")

PERMUTED_ROW_RATIO = Constant(
    1.6, "1", 1.3, 2.0,
    "time of rows gathered and scattered by index over rows streamed: 0.50 of HBM peak in Transformer Engine's permutation on "
    "B200 (SimuMax) and in PyTorch's on H100 (36 bytes an element of 4096 x 6 rows of 5120 in 2.7 ms, own), against 0.80",
)  # fmt: skip
ROUTING_KERNELS: Mapping[str, Constant] = {
    "forward": Constant(35.0, "kernels", 15.0, 45.0, "grouped top-k of scores, maps, loss, positions: 69 with backward and rows, own count"),
    "backward": Constant(20.0, "kernels", 10.0, 30.0, "their gradients"),
}  # fmt: skip
ROUTING_LOGIT_S = Constant(
    0.9e-9, "s", 0.3e-9, 1.5e-9,
    "those kernels per token and expert, both passes: 0.7 ms for 4096 x 160 scores on H100 less their starts (own)",
)  # fmt: skip

# --- collectives ------------------------------------------------------------------------------------------------------

INTRA_LATENCY_S: Mapping[str, float] = {
    "nvswitch": 2.0e-6, "nvlink-mesh": 2.0e-6, "nvlink-pairs": 2.0e-6, "pcie": 4.0e-6, "xgmi": 3.0e-6,
}  # fmt: skip
"""Nominal seconds of one hop inside a node, between NCCL's tabled latencies of LL and Simple (NCCL
src/graph/tuning.cc)."""
FASTEST_PCIE_BYTES_PER_S = 64e9
"""Rate of a PCIe 5 x16 slot (63.0e9 after encoding). A custom link of at most this on a GPU without NVLink is its
PCIe."""
NETWORK_LATENCY_S: Mapping[str, float] = {"infiniband": 2.7e-6, "roce": 3.7e-6, "efa": 75.0e-6, "tcp": 30.0e-6}
"""Nominal seconds of one hop between nodes. InfiniBand's is NCCL's tabled ring hop under LL. EFA's is what its plugin tells NCCL
("NET/OFI Internode latency set at 75.0 us", aws/aws-ofi-nccl issue 715); with it 32-rank all-reduces of B200 nodes from 256 KiB to 4 MiB
come out within 11 %. For the others there is no measurement."""

# Rings over nodes reach less than the wire carries, and less still at the few MiB of a bucket than at the GiB of a
# benchmark.
NIC_EFFICIENCY: Mapping[Fabric, Constant] = {
    "infiniband": Constant(
        0.80,
        "1",
        0.5,
        0.98,
        "no measurement in training: all-reduces over 32 ranks reach 0.85 to 0.98 of the wire from 16 MiB on, training rows want less (EQUATIONS.md)",
    ),
    "roce": Constant(0.80, "1", 0.5, 0.93, "taken to be InfiniBand's; no measurement"),
    "efa": Constant(
        0.85,
        "1",
        0.6,
        0.95,
        "beside a hop of 75 us: 32-rank all-reduces of B200 nodes, 8 MiB to 16 GiB, -21 to +14 %; 0.95 at 4 GiB",
    ),
    "tcp": Constant(0.50, "1", 0.2, 0.8, "no measurement"),
}
"""Share of the NICs' wire rate that collectives reach at training sizes."""

SEND_S = Constant(7.0 * MICRO, "s", 4.0 * MICRO, 30.0 * MICRO, "posting and progressing one inter-node message")
PEER_S = Constant(1.0 * MICRO, "s", 0.3 * MICRO, 3.0 * MICRO, "per remote peer of an all-to-all; no measurement")
EFA_DIRECT_BYTES_PER_S = Constant(
    30e9, "B/s", 25e9, 35e9,
    "fitted: what NCCL's all-to-all takes out of a node for each GPU over EFA. DeepSeek-V3 on 256 B300 is 3.5 s a step slower with it than "
    "with DeepEP at 55 GB/s, which makes 28; Qwen3-30B on 64 H100 loses 2.1 ms a layer from 16 to 32 ranks, which makes 32 "
    "(awslabs/awsome-distributed-ai, megatron-bridge, RESULTS.md of dsv3 and qwen3-30b) [C-3]",
)  # fmt: skip
LIST_SLICE_S = Constant(
    4.0 * MICRO, "s", 2.0 * MICRO, 8.0 * MICRO,
    "copy of one rank's slice that PyTorch starts from C++ around a collective on a list: half of a bare operation's 7.1 to 8.6 us "
    "from Python (data/measured_h100), the other half being Python's [C-14]",
)  # fmt: skip
LIST_CALL_S = Constant(
    0.38e-3, "s", 0.2e-3, 0.5e-3,
    "host time of one such call, none of it hidden: 130 us before and 250 us of launching (A100, 8 ranks; DeepSpeed issue 1069) [C-14]",
)  # fmt: skip
LIST_TRAFFIC: Mapping[str, float] = {"all_gather": 3.0, "reduce_scatter": 2.0}
"""Bytes moved in memory around a call on a list, over those of the tensor. A gather zeroes its output, then reads
and writes it; a scatter reads and writes gradients. Source: DeepSpeed 0.3 partition_parameters.py, PyTorch 1.8
ProcessGroupNCCL.cpp. [C-14]"""
NOMINAL_LINK_EFFICIENCY = Constant(0.75, "1", 0.5, 0.85, "NVLink bus bandwidth over link rate at large sizes, H100 n=8")
NOMINAL_HOP_S = Constant(
    0.75 * MICRO, "s", 0.4 * MICRO, 2.0 * MICRO, "growth of the small-message time per NVLink rank"
)
NOMINAL_CALL_S = Constant(6.0 * MICRO, "s", 4.0 * MICRO, 20.0 * MICRO, "small-message time of two NVLink ranks")

# --- host -------------------------------------------------------------------------------------------------------------

# Seconds of one operation: hardware/host_constants.py. The same host varies by 20 % between leases (EQUATIONS.md F-4).
HOST_STEP_RATIO = Constant(
    1.4, "1", 1.15, 1.6,
    "host time of an operator in a step over that in a loop: plain layers in steps of twelve, the slowest of four ranks, against "
    "the agent's loop of four 1.31; Megatron's in another lease 1.47 (data/measured_h100, megatron_host) [F-4]",
)  # fmt: skip
COMPILED_HOST_RATIO = Constant(
    0.82, "1", 0.35, 1.05,
    "host time of a compiled Llama layer over the eager one in steps: slope between 12 and 28 layers 0.80 and 0.83 on one H100, 0.93 in a loop of "
    "few layers on four; guards and wrappers stay (PyTorch 2.11, data/measured_h100, compiled_host.md)",
)  # fmt: skip
GRAPH_HOST_RATIO = Constant(0.05, "1", 0.0, 0.2, "replay of a captured graph; no measurement")
SHARDED_HOST_RATIO = Constant(
    2.6, "1", 2.0, 3.2,
    "host time of a plain eager Llama layer under FSDP2 over that layer's alone: 2.8 on two, 2.4 on four H100 with PyTorch 2.11 "
    "(data/measured_h100); compiled it adds as much",
)  # fmt: skip
DTENSOR_HOST_RATIO = Constant(
    5.4, "1", 3.0, 6.0,
    "the same layer, tensor parallel through DTensor: 4.6 to 5.4 on the same machines, with the sequence split 4.9 and 5.6",
)  # fmt: skip
COMPILED_DTENSOR_HOST_RATIO = Constant(
    2.4, "1", 1.5, 3.5,
    "one, and what DTensor adds to the compiled layer over the plain eager one: parameters are unwrapped and checked at every "
    "call (data/measured_h100)",
)  # fmt: skip
MEGATRON_LOCAL_OPS: Mapping[str, Constant] = {
    "forward": Constant(65.0, "ops", 58.0, 80.0, "as backward, split as its dispatched operators, 59 and 75"),
    "backward": Constant(
        82.0, "ops", 74.0, 100.0,
        "host time of a layer of Megatron Core's own modules, unfused: 1.31 of a plain Llama layer's 112.5 operators; GPT and "
        "Llama kinds 1.24 to 1.38 on four H100, Megatron Core 0.16.1 (data/measured_h100, megatron_host)",
    ),
}  # fmt: skip
"""Operators of one layer made of Megatron Core's "local" modules, without Apex or Transformer Engine. [F-4]"""
TP_CALL_OPS = Constant(
    7.0, "ops", 3.0, 12.0,
    "host time of one collective call of Megatron's tensor parallelism (autograd function, buffer, launch, wait) in "
    "operators: ten add 1.6 to 2.4 ms to a layer of 4.7 ms (data/measured_h100, megatron_host)",
)  # fmt: skip
EAGER_LAYER_OPS = Constant(
    100.0, "ops", 88.0, 114.0,
    "host time of torch.nn.TransformerEncoderLayer, forward and backward, in operators of the step model: against a plain "
    "Llama layer of 112.5 of them 97, 88 and 114 on one, two and four H100 with PyTorch 2.11 (data/measured_h100)",
)  # fmt: skip
CHECKPOINT_HOST_S = Constant(
    0.3e-3, "s", 0.1e-3, 0.5e-3, "saving and restoring random states around one recomputed layer; no measurement [F-8]"
)

# --- overlap and scale ------------------------------------------------------------------------------------------------

INTERFERENCE = Constant(
    0.15, "1", 0.05, 0.45,
    "SMs and HBM taken by a collective behind compute, where no profile measured it: gathers and scatters beside an 8192^3 product "
    "0.14 to 0.16 on two H200, 0.31 to 0.41 on two and four H100 [O-2]",
)  # fmt: skip
GPU_SPREAD = Constant(
    0.012, "1", 0.005, 0.03,
    "standard deviation of the speed of GPUs of one kind under load: Sinha et al. 2022 (SC22, 'Not All GPUs Are Created "
    "Equal') measure 8 % between the fast and slow ends of A100 and V100 systems in compute-bound work [T-2]",
)  # fmt: skip
STRAGGLING = Constant(
    0.004, "1", 0.002, 0.01,
    "per doubling of nodes beside the GPUs' own spread; weak-scaling pairs of four sources [T-2]",
)  # fmt: skip
TP_BACKWARD_HIDDEN = Constant(
    0.55, "1", 0.3, 0.75,
    "most of a backward collective that the product beside it hides: on two and four H100 with CUDA_DEVICE_MAX_CONNECTIONS=1 "
    "medians of 0.7 (reduce-scatter), 0.6 (all-gather) and 0.6 (all-reduce) over seven shapes, scattered widely at the power "
    "limit; 0.1 with 8 connections (own) [O-1]",
)  # fmt: skip
WGRAD_OVERLAP = Constant(0.6, "1", 0.4, 0.8, "no measurement: progress of communication beside a GEMM [O-1]")
PIPELINED_TP_EXPOSED: Mapping[str, Constant] = {
    "userbuffers": Constant(0.35, "1", 0.2, 0.6, "Transformer Engine's ring exchange beside the product; no measurement"),
    "symmetric_memory": Constant(
        0.85, "1", 0.7, 1.0,
        "PyTorch 2.11 on four H100: three compiled Llama 8B MLPs, 17.8 to 16.5 ms each, of which 0.7 ms of copies and 3.9 ms of "
        "collectives fall away and products take 1.9 ms longer (own); TorchTitan's published pairs save 9 % of a step",
    ),
}  # fmt: skip
"""Share of a tensor-parallel collective that stays exposed where it is cut up and run beside its product. [O-1]"""
BACKWARD_USABLE = Constant(
    0.9, "1", 0.7, 1.0, "share of the last backward that gradient reduction can hide behind [O-3]"
)
SENDS_ON_STAGE = Constant(
    0.5, "1", 0.25, 1.0,
    "share of a stage's sends that its stream waits for: a send and a receive are posted together [C-13]",
)  # fmt: skip
# Repeats of one configuration differ by about as much, so no range may be narrower.
UNMODELLED_RANGE = Constant(
    0.05, "1", 0.03, 0.10, "half-width of what no term holds; repeats of one BLOOM configuration differ by 4.6 % [T-3]"
)
SHAPE_RANGE = Constant(
    0.03, "1", 0.02, 0.05,
    "half-width of a layer's matmuls of other shapes against each other: a grid value left out is found within 7-8 % (80th "
    "percentile, F-1), and a layer has some six products [T-4]",
)  # fmt: skip
ELEMENTWISE_SHARE: Mapping[tuple[str, bool], Constant] = {
    ("norms", True): Constant(0.5, "1", 0.3, 0.6, "both norms where norms are single kernels; estimated, no measurement"),
    ("norms", False): Constant(0.4, "1", 0.3, 0.6, "both norms where they are chains of operators; estimated, no measurement"),
    ("activation", True): Constant(0.3, "1", 0.2, 0.5, "the MLP's activation, norms single kernels; estimated, no measurement"),
    ("activation", False): Constant(0.4, "1", 0.2, 0.5, "the MLP's activation, norms chains; estimated, no measurement"),
}  # fmt: skip
"""Share of a layer's elementwise forward that Megatron's recomputed modules repeat, by part and by whether norms are fused. [F-8]"""
LATENT_UP_SHARE = Constant(
    0.3, "1", 0.2, 0.6, "up-projections over all of latent attention's products; estimated, no measurement [F-8]"
)
WGRAD_SHARE = Constant(0.333, "1", 0.3, 0.35, "weight gradient over all three matmul passes of a layer [P-1]")

# --- launches, traffic ------------------------------------------------------------------------------------------------

TP_CALLS: Mapping[str, Constant] = {
    "forward": Constant(2.0, "calls", 2.0, 2.0, "all-reduces of a layer's forward, one a block, and of its backward"),
    "forward_sp": Constant(4.0, "calls", 4.0, 4.0, "all-gather and reduce-scatter of each block"),
    "backward_sp": Constant(6.0, "calls", 4.0, 6.0, "the same, and the saved inputs gathered again"),
}
"""Collective calls that tensor parallelism adds to a layer's pass; each is launched like an operator. [F-4]"""
EXPERT_LOOP_OPS: Mapping[tuple[str, str], Constant] = {
    ("picked", "forward"): Constant(
        12.0, "operators", 10.0, 15.0,
        "an expert of transformers 4.57: its tokens found and taken, five of its MLP, weights, sum; counted (aten, views left out)",
    ),
    ("picked", "backward"): Constant(20.0, "operators", 16.0, 26.0, "the same in backward; counted"),
    ("picked", "syncs"): Constant(2.0, "waits", 2.0, 5.0, "its number and its tokens are read by the host; counted"),
    ("chunked", "forward"): Constant(5.0, "operators", 5.0, 7.0, "an expert of DeepSpeed's moe/experts.py: three products, SiLU, gate"),
    ("chunked", "backward"): Constant(10.0, "operators", 9.0, 14.0, "six products, three elementwise, a sum"),
}  # fmt: skip
"""Operators and waits that one expert of a Python loop adds to a layer. [F-4]"""
HOST_SYNC_S = Constant(
    20.0 * MICRO, "s", 8.0 * MICRO, 50.0 * MICRO,
    "the host waits for the device and reads a number of it; no measurement [F-4]",
)  # fmt: skip
EMBEDDING_PASSES = Constant(3.0, "1", 3.0, 5.0, "passes over the embedded tokens: write, gradient read, scatter [F-5]")
FINAL_NORM_PASSES = Constant(10.0, "1", 6.0, 14.0, "passes of the final norm, forward and backward [F-6]")
LOSS_BYTES_PER_LOGIT: Mapping[CrossEntropy, Constant] = {
    "unfused": Constant(36.0, "B", 28.0, 44.0, "cast to fp32, then one pass per operator [F-7]"),
    "fused": Constant(22.0, "B", 14.0, 28.0, "Megatron's compiled pieces on fp32 logits [F-7]"),
    "compiled": Constant(22.0, "B", 14.0, 28.0, "torch.compile of the loss [F-7]"),
    "te": Constant(12.0, "B", 8.0, 16.0, "bf16 logits read twice, gradient written in place [F-7]"),
    "linear": Constant(22.0, "B", 12.0, 28.0, "chunked logits, recomputed [F-7]"),
}
EAGER_LOSS_BYTES = Constant(
    48.0, "B", 36.0, 52.0,
    "bytes moved per logit by PyTorch's own cross entropy, operator by operator: to fp32 6, log-softmax 16 and its backward 16 (rows "
    "longer than a multiprocessor's memory are read again in each of their passes; 4.7 and 4.9 ms for 1.2e9 logits on an H200), filled "
    "gradient 4, to bf16 6 [F-7]",
)  # fmt: skip
LOSS_CHUNKS = Constant(
    8.0, "1", 8.0, 8.0,
    "TorchTitan 0.3, components/loss.py, ChunkedLossWrapper.Config.num_chunks; no recipe changes it [M-7]",
)  # fmt: skip
TE_LOSS_LOGITS_PER_SM_S = Constant(
    2.0e9, "logits/s", 1.5e9, 3.0e9,
    "Transformer Engine's Triton kernels, both passes, per multiprocessor: 8 bytes a logit at 0.28 of 8 TB/s on the 148 of B200, seven "
    "sizes (SimuMax); memory bounds them before Blackwell [F-7]",
)  # fmt: skip
LOSS_REDUCTIONS = Constant(
    3.0, "calls", 2.0, 3.0, "all-reduces of one fp32 per token over TP: maximum, target, sum [F-7]"
)
HOST_CORE_STREAM_BYTES_PER_S = Constant(
    13e9, "B/s", 7e9, 30e9,
    "memory traffic of one processor core that updates parameters: 512 tensors of 1 Mi elements, 12 passes of 4 bytes, in 1.93 s "
    "on one thread of an 8xH100 node (ISEEKYAN/Megatron-LM issue 188); eight such processes at once 13.5, one alone 22 "
    "(benchmarks/host_adam.py). torchrun gives each of several ranks one thread "
    "(torch/distributed/run.py: OMP_NUM_THREADS=1) [C-16]",
)  # fmt: skip
RING_MERGE_BYTES = Constant(
    12.0, "B", 8.0, 20.0, "per output element and ring step: fp32 partial output read, rescaled, written [C-11]"
)
STAGE3_REUSE_PARAMETERS = Constant(
    1e9,
    "parameters",
    1e9,
    1e9,
    "DeepSpeed stage3_max_reuse_distance default: a larger layer is gathered once more [C-14]",
)  # fmt: skip
