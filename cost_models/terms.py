"""The registry of named cost terms: what every time and memory breakdown is made of.

A term is a function of (batch, workspace) that returns seconds or bytes of shape (N,), registered with its name, the
equation tag in EQUATIONS.md, and one line of meaning. Names are a closed list: the API documents them, breakdowns sum
over them, and nothing else may appear in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Tier(IntEnum):
    """How a number came about, best first; the worst tier of a plan's terms is shown with the plan."""

    MEASURED = 0
    INTERPOLATED = 1
    EXTRAPOLATED = 2
    NOMINAL = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Term:
    """One entry of a breakdown."""

    name: str
    unit: Literal["s", "bytes"]
    tag: str
    meaning: str


TIME_TERMS: tuple[Term, ...] = (
    Term("gemm", "s", "F-1", "matrix multiplications of the layers, forward and both gradients"),
    Term("attention", "s", "F-2", "attention core (scores, softmax, values), forward and backward"),
    Term("elementwise", "s", "F-3", "norms, activations, rotary, residual, dropout: bytes over memory bandwidth"),
    Term("launch", "s", "F-4", "time the device waits because the host cannot launch kernels fast enough"),
    Term("embedding", "s", "F-5", "token (and position) look-up and its gradient"),
    Term("head", "s", "F-6", "final norm, output projection"),
    Term("loss", "s", "F-7", "cross-entropy over the vocabulary, with its reductions over TP"),
    Term("recompute", "s", "F-8", "repeated forward work of recomputed layers"),
    Term("grad_accumulation", "s", "F-9", "adding each micro-batch's weight gradients into the held buffer"),
    Term("tp_comm", "s", "C-10", "exposed tensor- and sequence-parallel collectives"),
    Term("cp_comm", "s", "C-11", "exposed context-parallel exchange of keys and values"),
    Term("ep_comm", "s", "C-12", "exposed expert dispatch and combine"),
    Term("pp_comm", "s", "C-13", "exposed stage-to-stage sends"),
    Term("pp_bubble", "s", "P-1", "idle time of the pipeline's slowest stage"),
    Term("dp_comm", "s", "C-14", "exposed gradient reduction and parameter gather"),
    Term("tied_embedding_comm", "s", "C-15", "all-reduces of tied-embedding and sequence-parallel norm gradients"),
    Term("optimizer", "s", "F-10", "gradient norm and clip, optimizer update, casts"),
    Term("offload", "s", "C-16", "exposed traffic between host and device memory"),
    Term("jitter", "s", "T-2", "waiting for the slowest rank, growing with the number of nodes"),
)
"""Time terms in the order they are printed; they sum to step_time_s."""

MEMORY_TERMS: tuple[Term, ...] = (
    Term("parameters", "bytes", "M-1", "parameters as stored on this rank"),
    Term("main_parameters", "bytes", "M-2", "higher-precision copies the optimizer updates"),
    Term("gradients", "bytes", "M-3", "held gradient buffers"),
    Term("optimizer_states", "bytes", "M-4", "optimizer moments"),
    Term("activations", "bytes", "M-5", "tensors saved for backward by the micro-batches in flight"),
    Term("layer_transient", "bytes", "M-6", "what one layer's backward (and recomputation) needs on top"),
    Term("logits_and_loss", "bytes", "M-7", "logits and the cross-entropy's temporaries"),
    Term("parameter_gather", "bytes", "M-8", "parameters gathered from their shards, prefetch included"),
    Term("gradient_reduce", "bytes", "M-9", "unsharded gradients and reduction buckets"),
    Term("comm_workspace", "bytes", "M-10", "gathered-sequence workspaces, pipeline receive buffers"),
    Term("optimizer_transient", "bytes", "M-11", "temporaries of the optimizer step"),
    Term("library_workspace", "bytes", "M-12", "GEMM workspaces and cached dummy gradients"),
)
"""Memory terms of one stage at its peak moment; they sum to peak_allocated_bytes."""

PEAK_MOMENTS = ("loss", "layer_backward", "head", "optimizer_step")
"""The moments of a step at which allocated memory can peak."""

TIME_NAMES = tuple(term.name for term in TIME_TERMS)
MEMORY_NAMES = tuple(term.name for term in MEMORY_TERMS)
