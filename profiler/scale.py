"""What is measured at which size: one table for GPUs, and a small one for processors, where the agent is only tried out.

Matrix shapes are those of public models split over 1 to 8 tensor-parallel ranks, in the layouts of forward, data gradient and
weight gradient. Squares stand for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.units import GIB, MIB
from profiler.timing import FULL, QUICK, TINY, Effort

KIB = float(2**10)

Weight = tuple[int, int]
"""Output and input features (n, k) of one rank's share of a linear layer."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One causal attention call."""

    sequences: int
    heads: int
    kv_heads: int
    length: int
    width: int


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of everything that is measured."""

    effort: Effort
    tokens: tuple[int, ...]
    """Rows of forward products, the most important first."""
    weights: tuple[Weight, ...]
    more_weights: tuple[Weight, ...]
    gradient_tokens: tuple[int, ...]
    gradient_weights: tuple[Weight, ...]
    batched: tuple[tuple[int, int, int, int], ...]
    """(batch, m, n, k) of the two products of math attention."""
    experts: tuple[tuple[int, int, int, int], ...]
    """(experts, tokens of each expert, n, k)."""
    attention: tuple[AttentionShape, ...]
    math_attention: tuple[AttentionShape, ...]
    stream_bytes: tuple[float, ...]
    optimizer_parameters: int
    host_adam_parameters: int
    """Parameters of each rank, which take 16 bytes each in host memory."""
    collective_bytes: tuple[float, ...]
    pair_bytes: float
    overlap_bytes: float
    overlap_size: int
    host_bytes: float
    """Memory that benchmarks on a processor may take."""
    layer_width: int
    heat_s: float


def _powers(first: float, last: float) -> tuple[float, ...]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)


_MAIN_WEIGHTS = (
    (4096, 4096), (6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (12288, 12288),
    (2048, 2048), (8192, 2048), (2048, 8192), (128256, 4096), (7168, 4096), (4096, 7168), (3072, 3072),
)  # fmt: skip
"""Layers like Llama's, whole and split in two, the output layer, and a square of the 175B class."""
_MORE_WEIGHTS = (
    (8192, 3072), (4096, 11008), (22016, 4096), (12288, 4096), (13824, 5120), (6144, 12288), (12288, 6144), (32000, 4096),
    (64128, 4096), (1024, 4096), (4096, 1024), (2048, 4096), (3584, 4096), (4096, 3584), (10240, 8192), (8192, 8192),
    (57344, 8192), (8192, 28672), (2560, 8192), (14336, 8192), (8192, 7168), (1024, 2048), (2048, 1024),
    (512, 2048), (4096, 2048), (2048, 512),
)  # fmt: skip
"""Layers of 13B, 70B and 1B models, split over up to four ranks."""


def gpu_scale(*, budget_s: float) -> Scale:
    """Sizes for GPUs; a short budget measures each of them for a shorter time."""
    # Within two minutes it is worth more to see every shape for a shorter time than half of them precisely, because the cost
    # models interpolate between shapes.
    return Scale(
        effort=QUICK if budget_s < 120 else FULL,
        tokens=(8192, 4096, 2048, 1024, 16384, 512),
        weights=_MAIN_WEIGHTS,
        more_weights=_MORE_WEIGHTS,
        gradient_tokens=(8192, 2048),
        gradient_weights=_MAIN_WEIGHTS,
        batched=tuple(
            (batch, length, n, k)
            for width in (64, 80, 96, 128)
            for batch, length in ((128, 1024), (64, 2048), (32, 4096))
            for n, k in ((length, width), (width, length))
        ),
        experts=((8, 2048, 14336, 4096), (8, 2048, 4096, 14336), (64, 256, 1408, 2048), (64, 256, 2048, 1408)),
        attention=(
            AttentionShape(2, 32, 8, 8192, 128), AttentionShape(4, 32, 8, 2048, 64), AttentionShape(4, 32, 8, 4096, 128),
            AttentionShape(8, 32, 8, 2048, 128), AttentionShape(1, 32, 8, 16384, 128), AttentionShape(8, 32, 32, 2048, 128),
            AttentionShape(8, 32, 32, 1024, 128), AttentionShape(8, 32, 32, 2048, 64), AttentionShape(4, 16, 2, 4096, 128),
            AttentionShape(4, 8, 8, 4096, 128),
        ),
        math_attention=(
            AttentionShape(4, 16, 16, 2048, 128), AttentionShape(4, 16, 16, 2048, 64), AttentionShape(1, 32, 32, 4096, 128),
        ),
        # From just above the L2 cache of an H100 (50 MiB) to where bandwidth no longer grows.
        stream_bytes=(64 * MIB, 256 * MIB, 1 * GIB),
        optimizer_parameters=2**27,
        host_adam_parameters=2**26,
        # From where latency is everything to beyond the largest gradient bucket.
        collective_bytes=_powers(1 * KIB, 2 * GIB),
        pair_bytes=256 * MIB,
        overlap_bytes=64 * MIB,
        overlap_size=8192,
        host_bytes=0.0,
        # So narrow that the device waits for the host, whose cost per operation is what layers are timed for.
        layer_width=512,
        # A cold H100 runs some seconds above the clock that its power limit allows in the long run.
        heat_s=2.0,
    )  # fmt: skip


def cpu_scale() -> Scale:
    """Sizes that two processor cores get through in seconds."""
    return Scale(
        effort=TINY,
        tokens=(256, 64),
        weights=((256, 256), (512, 256), (256, 512)),
        more_weights=((128, 256),),
        gradient_tokens=(256,),
        gradient_weights=((256, 256), (512, 256)),
        batched=((4, 128, 128, 64), (4, 128, 64, 128)),
        experts=((4, 64, 128, 64),),
        attention=(AttentionShape(1, 4, 2, 256, 64), AttentionShape(1, 4, 4, 128, 64)),
        math_attention=(AttentionShape(1, 4, 4, 128, 64),),
        stream_bytes=(4 * MIB, 16 * MIB),
        optimizer_parameters=2**20,
        host_adam_parameters=2**18,
        collective_bytes=_powers(1 * KIB, 4 * MIB),
        pair_bytes=1 * MIB,
        overlap_bytes=1 * MIB,
        overlap_size=256,
        host_bytes=256 * MIB,
        layer_width=128,
        heat_s=0.0,
    )
