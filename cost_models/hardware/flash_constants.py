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

Curve = tuple[Constant, Constant]
"""Share of dense peak over long sequences, and the tokens T by which shorter ones lose: time x (1 + T / keys)."""
Curves = Mapping[int, Curve]
"""By head width. Widths between two measured ones are interpolated; one width alone takes FLASH_NARROW_HEAD and FLASH_WIDE_HEAD."""

FLASH_SHORT_SEQUENCE = Constant(
    512.0,
    "tokens",
    256.0,
    1024.0,
    "prologue, masked tiles, tiles that do not fill the device; where lengths were not measured",
)


def _flash(forward: float, backward: float, source: str) -> tuple[Curves, Curves]:
    """Curves of a kernel of which one level is known, at heads of 128."""
    return (
        {128: (Constant(forward, "1", max(forward - 0.08, 0.05), forward + 0.15, source), FLASH_SHORT_SEQUENCE)},
        {128: (Constant(backward, "1", max(backward - 0.08, 0.04), backward + 0.15, source), FLASH_SHORT_SEQUENCE)},
    )


def _measured(widths: Mapping[int, tuple[float, float]], source: str) -> Curves:
    """Curves that were measured: share and tokens by head width."""
    return {
        width: (
            Constant(share, "1", share - 0.05, share + 0.05, source),
            Constant(short, "tokens", 0.6 * short, 1.5 * short, source),
        )
        for width, (share, short) in widths.items()
    }


_OWN = (
    "level: H100 after seconds at its power limit, 4k to 128k tokens, over the sustained clock 0.88 (data/measured_h100, "
    "sustained.jsonl); tokens and other widths: H200, 1k to 128k tokens, PyTorch 2.11, causal (data/measured_h200, attention_and_fp32.jsonl)"
)
_FA1 = _flash(0.33, 0.28, "published FA-1 speeds on A100 (2022 to mid-2023)")
_FA2 = (
    _measured(
        {64: (0.615, 630.0), 128: (0.706, 540.0)},
        "FA-2 on A100, causal, 4 x 32 heads, 1k to 16k tokens: 142 to 210 TFLOP/s 128 wide, 117 to 182 64 wide "
        "(Dao-AILab/flash-attention issue 307, 2024-09)",
    ),
    _flash(0.60, 0.50, "published FA-2 speeds on A100 (arXiv:2307.08691)")[1],
)
_FA1_HOPPER = _flash(0.33 * _MMA_SHARE, 0.28 * _MMA_SHARE, "FA-1 times the mma.sync share")
_FA2_HOPPER = (
    _measured({64: (0.353, 890.0), 128: (0.383, 550.0), 256: (0.343, 200.0)}, "FlashAttention 2; " + _OWN),
    _measured({64: (0.332, 1450.0), 128: (0.383, 1410.0), 256: (0.314, 910.0)}, "FlashAttention 2; " + _OWN),
)
# FA-3's authors' machine gives 630 and 532 TFLOP/s at 8192 causal tokens (Dao-AILab/flash-attention pull request 1791), and a burst of
# cuDNN 9.19 on ours 631 and 532.
_FA3 = (
    _measured({64: (0.539, 1270.0), 128: (0.685, 850.0), 256: (0.704, 450.0)}, "cuDNN 9.19; " + _OWN),
    _measured({64: (0.517, 1940.0), 128: (0.649, 1580.0), 256: (0.461, 790.0)}, "cuDNN 9.19; " + _OWN),
)
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

FLASH_CURVES: Mapping[tuple[Generation, AttentionKernel], tuple[Curves, Curves]] = {
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
"""What a kernel reaches in forward and in backward, by GPU generation and kernel; fa3 off Hopper falls back to fa2's."""

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

FLASH_NARROW_HEAD = (
    Constant(0.85, "1", 0.75, 0.95, "published FA-2 speeds at width 64 over width 128, forward"),
    Constant(0.80, "1", 0.70, 0.90, "the same, backward"),
)
FLASH_NARROW_HEAD_BLACKWELL = (
    Constant(
        0.65, "1", 0.58, 0.75,
        "FA-4 on B200, causal, 64 over 128 wide: 0.58, 0.62 and 0.67 at 1k, 2k and 4k tokens (Dao-AILab/flash-attention pull request "
        "2605): exponentials bind, of which a narrow head needs as many",
    ),
    Constant(0.65, "1", 0.55, 0.85, "taken to be forward's; no measurement"),
)  # fmt: skip
FLASH_WIDE_HEAD = (
    Constant(0.94, "1", 0.75, 1.0, "B200: heads of 192 over 128 wide, forward 4096 tokens (SimuMax); 0.69 at 131072"),
    Constant(0.84, "1", 0.75, 1.0, "the same, backward: 0.32 of peak against 0.38; 0.80 at 131072"),
)
FLASH_BACKWARD_FLOPS = Constant(2.5, "1", 2.5, 2.5, "five matrix products instead of two (arXiv:2307.08691)")
FLASH_HEAD_MULTIPLE = Constant(32.0, "elements", 8.0, 64.0, "head widths are padded to a multiple of this")
FP32_BATCHED = (
    Constant(0.86, "1", 0.75, 0.95, "share of fp32's peak that batched products of attention reach at large head width"),
    Constant(
        32.0, "elements", 16.0, 48.0,
        "head width at which they reach half of it: 0.70 at 128, 0.55 at 64 (H200, mean of both products; data/measured_h200, "
        "fp32_and_unfused)",
    ),
)  # fmt: skip
FP32_CHAIN_BYTES: Mapping[str, Constant] = {
    "forward": Constant(44.0, "B", 36.0, 52.0, "per score: PyTorch's unfused attention in fp32 less its products, 10.3 to 11.7 passes of 4 bytes"),
    "backward": Constant(24.0, "B", 20.0, 28.0, "the same, backward: 5.7 to 6.0 passes (H200, data/measured_h200, fp32_and_unfused)"),
}  # fmt: skip
