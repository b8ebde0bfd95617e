"""Layers that mix tokens through a state of fixed size instead of attending: Mamba, Mamba-2, gated delta nets, short convolutions.

One model has one sort of them. Widths are in elements; what the modules cost is in `cost_models.layers.recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

RecurrentKind = Literal["mamba", "mamba2", "gated-delta-net", "short-conv"]
RECURRENT_KINDS: Final = get_args(RecurrentKind)
GatedNorm = Literal["none", "full", "per_head"]


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The recurrent mixer of a hybrid model."""

    kind: RecurrentKind
    num_heads: int
    """Heads of the state, which are a delta net's value heads; 1 where the kind has none (Mamba, short convolution)."""
    head_dim: int
    """Width of one head."""
    num_groups: int
    """Groups of heads that share what is written to and read from their states: Mamba-2's groups of B and C, a delta net's key heads."""
    state_size: int
    """State of one channel: Mamba's N, the width of a delta net's key head; 0 for a short convolution."""
    conv_kernel: int
    """Tokens that the causal convolution in front of the recurrence spans."""
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    gated_norm: GatedNorm
    """Norm of the output, with the gate: none, as wide as all heads, or one head wide and shared by the heads."""
    dt_rank: int
    """Width of the bottleneck that Mamba's step sizes come from; 0 elsewhere."""
    inner_norms: bool
    """Whether step sizes, B and C are normalised (Jamba)."""
    chunk_size: int
    """Tokens that the chunked kernel handles as matrix products before it carries the state on."""

    @property
    def inner_size(self) -> int:
        """Elements of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of one token that all groups write to, or read from, their states."""
        return self.num_groups * self.state_size

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution."""
        if self.kind in ("mamba", "short-conv"):
            return self.inner_size
        return self.inner_size + 2 * self.group_size

    @property
    def projected_size(self) -> int:
        """Elements of one token that the input projections make."""
        if self.kind == "short-conv":
            return 3 * self.inner_size
        if self.kind == "mamba":
            return 2 * self.inner_size
        # A step size for each head; a delta net has a decay and a writing strength.
        scalars = 2 if self.kind == "gated-delta-net" else 1
        return 2 * self.inner_size + 2 * self.group_size + scalars * self.num_heads
