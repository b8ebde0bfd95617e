"""Copies and additions that no module of a layer asks for: autograd and tensor layouts make them. [F-12]

They are what a framework's eager or compiled graph moves beside norms and activations, which depends on who lays out query,
key and value, and on how many products read the same input.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.job import Job
from cost_models.specs.model import LayerKind


@dataclass(frozen=True, slots=True)
class Copies:
    """Traffic of one pass: bytes per token (or per element, where said), and the number of kernels."""

    moved_bytes: float
    kernels: float


def layout_copies(job: Job, e: float) -> tuple[Copies, Copies]:
    """Forward and backward copies around the attention core, in bytes per token, to be divided by tp. [F-12]

    FlashAttention 1 takes packed tokens only: query, key, value and output are copied on the way in and out, and so are their
    gradients. Unfused attention permutes its output. Where one matrix makes query, key and value, their gradients are joined into
    one tensor, which Transformer Engine writes directly. Latent attention joins the rotated part to query and key and takes the
    value out of its up-projection, each with a copy.
    """
    model, training = job.model, job.training
    if model.mla is not None:
        mla, count = model.mla, model.num_attention_heads
        joined_bytes = 2 * e * (2.0 * model.q_size + count * mla.v_head_dim)
        return Copies(joined_bytes, 3.0), Copies(joined_bytes, 3.0)
    heads = float(model.q_size + 2 * model.kv_size)
    packs = training.attention == "flash" and training.attention_kernel == "fa1"
    output = 1.0 if packs or training.attention == "math" else 0.0
    one_matrix = model.fused_qkv or job.framework.fuses_qkv or not job.framework.separate_gate_projection
    joined = 1.0 if one_matrix and training.transformer_impl == "local" else 0.0
    moved = 2 * e * (packs * heads + output * model.q_size)
    kernels = 3.0 * packs + output
    # Outputs of packed inputs are put together.
    if job.calls_attention_by_input:
        moved, kernels = moved + 2 * e * model.q_size, kernels + 1.0
    return Copies(moved, kernels), Copies(moved + 2 * e * joined * heads, kernels + joined)


def products_of_one_input(job: Job, kind: LayerKind) -> tuple[int, int]:
    """How many products read the input of attention, and how many that of a dense MLP: query, key and value, gate and up.

    Of latent attention and of experts one is counted, and where a layer has only one of the two blocks, one for the other.
    """
    attention = 1 if job.model.fused_qkv or job.framework.fuses_qkv or job.model.mla is not None else 3
    mlp = 2 if job.model.gated_mlp and kind.has_mlp and not kind.is_moe else 1
    if kind.recurs:  # transformers' delta nets have a second matrix for decay and strength
        assert job.model.recurrent is not None
        own = 2 if job.model.recurrent.kind == "gated-delta-net" else 1
        attention = attention + own if kind.attends else own
    elif not kind.attends:
        attention = 1
    return (attention, mlp) if job.framework.separate_gate_projection else (1, 1)


def gradient_sums(job: Job, kind: LayerKind, e: float) -> Copies:
    """Sums of the input gradients of projections that share their input, in bytes per hidden-wide element. [F-12]

    These are query, key and value, and gate and up, where they are separate products. A compiled sum of n reads n tensors and
    writes one; eagerly, each of n - 1 additions reads two and writes one. Under tensor parallelism the gradients are whole and
    partial, so that nothing divides them.
    """
    sums = [float(n) for n in products_of_one_input(job, kind) if n > 1]
    # The compiler fuses a sum of all n into one kernel; autograd adds each gradient as it arrives.
    if job.training.compile:
        return Copies(sum((n + 1) * e for n in sums), float(len(sums)))
    return Copies(sum((n - 1) * 3 * e for n in sums), sum(n - 1 for n in sums))
