"""Parameters and model operations of recurrent mixers: Mamba, Mamba-2, gated delta nets and short convolutions.

They are the modules of transformers 5 (models/nemotron_h, models/jamba, models/qwen3_next, models/lfm2), to which
tests/oracle/test_hf_hybrids.py holds the counts. Megatron's mixers split heads and groups over tensor-parallel ranks, and with
them everything but the output's bias and a norm that all heads share (megatron/core/ssm/mamba_mixer.py, gated_delta_net.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.specs.recurrent import Recurrent


@dataclass(frozen=True, slots=True)
class RecurrentParameters:
    """Elements of one mixer."""

    matrices: int
    """Projections, the convolution's filters, and Mamba's matrix A; split by tp."""
    vectors: int
    """Biases, step sizes, decays and the norm of all heads; split by tp."""
    replicated: int
    """Whole on every rank."""
    multiplied: int
    """Weights of the projections, with which one token is multiplied."""
    tensors: int
    """Number of parameter tensors."""


def recurrent_parameters(r: Recurrent, hidden: int) -> RecurrentParameters:
    """Elements of a mixer in a model of this hidden size. [F-20]"""
    inner, filters = r.inner_size, r.conv_channels * r.conv_kernel
    projections = hidden * r.projected_size + inner * hidden
    # Biases of what tp splits by columns lie on its ranks in parts; that of the output is added after the sum, on each.
    vectors = r.in_bias * r.projected_size + r.conv_bias * r.conv_channels
    replicated = r.out_bias * hidden
    tensors = 3 + r.in_bias + r.out_bias + r.conv_bias  # both projections and the filters
    if r.kind == "short-conv":
        return RecurrentParameters(projections + filters, vectors, replicated, projections, tensors)
    if r.kind == "mamba":
        narrow = r.dt_rank + 2 * r.state_size
        projections += inner * narrow + r.dt_rank * inner
        norms = narrow * r.inner_norms
        # The step sizes' bias and the skip D have one element a channel, and A a row.
        return RecurrentParameters(
            projections + filters + inner * r.state_size, vectors + 2 * inner, replicated + norms, projections,
            tensors + 5 + 3 * r.inner_norms,
        )  # fmt: skip
    # Mamba-2 has A, D and a bias of the step sizes for each head, a delta net no D.
    scalars = 2 if r.kind == "gated-delta-net" else 3
    vectors += scalars * r.num_heads + inner * (r.gated_norm == "full")
    replicated += r.head_dim * (r.gated_norm == "per_head")
    tensors += scalars + (r.gated_norm != "none")
    return RecurrentParameters(projections + filters, vectors, replicated, projections, tensors)


def recurrence_flops_per_token(r: Recurrent) -> float:
    """Forward operations of one token that the model itself asks for: convolution and recurrence, whatever the chunk. [F-20]

    They are Megatron's (megatron/training/training.py, mamba_layer_flops and gdn_layer_flops): 7 d N for Mamba, four products with
    the state of each head for a delta net.
    """
    convolution = 2.0 * r.conv_kernel * r.conv_channels
    if r.kind == "gated-delta-net":
        return convolution + 8.0 * r.inner_size * r.state_size
    return convolution + 7.0 * r.inner_size * r.state_size
