"""What fused attention kernels reach by kernel and GPU generation, and what changes it: the time model's constants of F-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from cost_models.constants import GENERATIONS, Constant
from cost_models.specs.cluster import Generation
from cost_models.specs.training import AttentionKernel

KERNELS: tuple[AttentionKernel, ...] = get_args(AttentionKernel)

_MMA_SHARE = 0.62
"""Share of wgmma's peak that mma.sync, the instruction of FA-1 and FA-2, reaches on Hopper (from both instructions'
throughput)."""


def _flash(forward: float, backward: float, source: str) -> tuple[Constant, Constant]:
    return (
        Constant(forward, "1", max(forward - 0.08, 0.05), forward + 0.15, source),
        Constant(backward, "1", max(backward - 0.08, 0.04), backward + 0.15, source),
    )


_FA1 = _flash(0.33, 0.28, "published FA-1 speeds on A100 (2022 to mid-2023)")
_FA2 = _flash(0.60, 0.50, "published FA-2 speeds on A100 (arXiv:2307.08691)")
_FA1_HOPPER = _flash(0.33 * _MMA_SHARE, 0.28 * _MMA_SHARE, "FA-1 times the mma.sync share")
_FA2_HOPPER = _flash(
    0.60 * _MMA_SHARE, 0.50 * _MMA_SHARE, "FA-2 times the mma.sync share (arXiv:2407.08608, section 1)"
)
_FA3 = _flash(0.55, 0.45, "published FA-3 and cuDNN speeds on H100 (arXiv:2407.08608)")
_MMA_BLACKWELL = _flash(0.60 * 0.35, 0.50 * 0.35, "no measurement: mma.sync against tcgen05 on B200")
_CUDNN_BLACKWELL = _flash(
    0.71, 0.59,
    "B200: burst of FlashAttention-4 and newer cuDNN 0.72 forward (FlashAttention-4, 2026); x the sustained clock this is what "
    "SimuMax measured of Transformer Engine's kernels on B200: forward 0.44 (4k tokens) to 0.50 (131k), backward 0.37 to 0.41",
)  # fmt: skip
_FLEX_AMPERE = _flash(
    0.54,
    0.425,
    "FlexAttention's announcement (pytorch.org/blog/flexattention, 2024): 0.90 of FA-2 forward, 0.85 backward",
)
_FLEX_HOPPER = _flash(
    0.46, 0.39,
    "FlexAttention of PyTorch 2.11 on H100 with TorchTitan's options and a causal document mask, 4k to 32k tokens: 415-433 TFLOP/s "
    "forward and 345-385 backward, where FA-2 has 332-346 and 250-313, cuDNN 568-641 and 473-546 (data/measured_h100/kernels.md)",
)  # fmt: skip
_FLEX_BLACKWELL = _flash(
    0.26,
    0.22,
    "no measurement: Triton's attention on B200 is 2.7 times slower than 0.71 of peak (FlashAttention-4, 2026)",
)
_OTHER = _flash(0.35, 0.28, "no measurement")

FLASH_EFFICIENCY: Mapping[tuple[Generation, AttentionKernel], tuple[Constant, Constant]] = {
    **{(generation, kernel): _OTHER for generation in GENERATIONS for kernel in KERNELS},
    ("ampere", "fa1"): _FA1, ("ampere", "fa2"): _FA2, ("ampere", "sdpa"): _FA2, ("ampere", "fa3"): _FA2,
    ("ampere", "cudnn"): _FA2,
    ("ada", "fa1"): _FA1, ("ada", "fa2"): _FA2, ("ada", "sdpa"): _FA2, ("ada", "fa3"): _FA2, ("ada", "cudnn"): _FA2,
    ("hopper", "fa1"): _FA1_HOPPER, ("hopper", "fa2"): _FA2_HOPPER, ("hopper", "sdpa"): _FA2_HOPPER,
    ("hopper", "fa3"): _FA3, ("hopper", "cudnn"): _FA3,
    ("ampere", "flex"): _FLEX_AMPERE, ("ada", "flex"): _FLEX_AMPERE, ("hopper", "flex"): _FLEX_HOPPER,
    ("blackwell", "flex"): _FLEX_BLACKWELL,
    ("blackwell", "fa1"): _MMA_BLACKWELL, ("blackwell", "fa2"): _MMA_BLACKWELL, ("blackwell", "sdpa"): _CUDNN_BLACKWELL,
    ("blackwell", "fa3"): _MMA_BLACKWELL, ("blackwell", "cudnn"): _CUDNN_BLACKWELL,
}  # fmt: skip
"""Share of dense peak in forward and in backward, by GPU generation and kernel; fa3 off Hopper falls back to fa2's."""

FLASH_REFERENCE_FLOPS_PER_S: Mapping[Generation, float] = {
    "ampere": 312e12, "ada": 312e12, "hopper": 989.4e12, "blackwell": 2250e12,
}  # fmt: skip
"""Dense bf16 peak of the GPU for which those shares were published: A100 (Ada's shares are A100's), H100, B200.
[F-2]"""
FLASH_INSTRUCTION_SHARE: Mapping[tuple[Generation, AttentionKernel], float] = {
    ("hopper", "fa1"): _MMA_SHARE, ("hopper", "fa2"): _MMA_SHARE, ("hopper", "sdpa"): _MMA_SHARE,
    ("blackwell", "fa1"): 0.35, ("blackwell", "fa2"): 0.35, ("blackwell", "fa3"): 0.35,
}  # fmt: skip
"""Share of the peak that a kernel's instruction can issue at all; 1 elsewhere."""

FLASH_SHORT_SEQUENCE = Constant(512.0, "tokens", 256.0, 1024.0, "time x (1 + this / length): prologue, masked tiles")
FLASH_NARROW_HEAD = (
    Constant(0.85, "1", 0.75, 0.95, "published FA-2 speeds at width 64 over width 128, forward"),
    Constant(0.80, "1", 0.70, 0.90, "the same, backward"),
)
FLASH_WIDE_HEAD = (
    Constant(0.94, "1", 0.75, 1.0, "B200: heads of 192 over 128 wide, forward 4096 tokens (SimuMax); 0.69 at 131072"),
    Constant(0.84, "1", 0.75, 1.0, "the same, backward: 0.32 of peak against 0.38; 0.80 at 131072"),
)
FLASH_BACKWARD_FLOPS = Constant(2.5, "1", 2.5, 2.5, "five matrix products instead of two (arXiv:2307.08691)")
FLASH_HEAD_MULTIPLE = Constant(32.0, "elements", 8.0, 64.0, "head widths are padded to a multiple of this")
