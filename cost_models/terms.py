"""The named terms that every time and memory breakdown is made of, one record each.

The names are a closed list: the API documents them, breakdowns sum over them, and nothing else may appear in one. Whatever
else is known of a term as such (its equation, whether it is communication, what its uncertainty rests on, how a sentence
names it) is read from its record.
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


Family = Literal["gemm", "attention", "elementwise", "collective", "network", "host", "optimizer", "overlap", "jitter"]
"""What the uncertainty of a term rests on: the residuals of a calibration are kept by family and tier."""


@dataclass(frozen=True, slots=True)
class Term:
    """One entry of a breakdown: of memory in bytes, of time (`TimeTerm`) in seconds."""

    name: str
    tag: str
    """Its equation in EQUATIONS.md."""
    meaning: str


@dataclass(frozen=True, slots=True)
class TimeTerm(Term):
    """One entry of a time breakdown, with what is known of it whatever the plan."""

    family: Family
    """The family whose residual it takes. Where a collective's group leaves its node, `network` takes its place; where the
    term is what overlapping leaves, `overlap` is added."""
    phrase: str
    """How a sentence about a plan names it, as in "spends 2 % more of the step on ..."."""
    is_communication: bool = False
    """Whether it is exposed communication between ranks."""


TIME_TERMS: tuple[TimeTerm, ...] = (
    TimeTerm("gemm", "F-1", "matrix multiplications of the layers, forward and both gradients", "gemm", "matrix products"),
    TimeTerm("attention", "F-2", "attention core (scores, softmax, values), forward and backward", "attention", "attention"),
    TimeTerm("elementwise", "F-3", "norms, activations, rotary, residual, dropout: bytes over memory bandwidth",
             "elementwise", "elementwise kernels"),
    TimeTerm("launch", "F-4", "time the device waits because the host cannot launch kernels fast enough",
             "host", "kernel launches"),
    TimeTerm("embedding", "F-5", "token (and position) look-up and its gradient", "elementwise", "the embedding"),
    TimeTerm("head", "F-6", "final norm, output projection", "gemm", "the output layer"),
    TimeTerm("loss", "F-7", "cross-entropy over the vocabulary, with its reductions over TP", "elementwise", "the loss"),
    TimeTerm("recompute", "F-8", "repeated forward work of recomputed layers", "gemm", "recomputation"),
    TimeTerm("grad_accumulation", "F-9", "adding each micro-batch's weight gradients into the held buffer",
             "elementwise", "adding up gradients"),
    TimeTerm("tp_comm", "C-10", "exposed tensor- and sequence-parallel collectives",
             "collective", "exposed tensor-parallel communication", is_communication=True),
    TimeTerm("cp_comm", "C-11", "exposed context-parallel exchange of keys and values",
             "collective", "exposed context-parallel communication", is_communication=True),
    TimeTerm("ep_comm", "C-12", "exposed expert dispatch and combine",
             "collective", "exposed expert-parallel communication", is_communication=True),
    TimeTerm("pp_comm", "C-13", "exposed stage-to-stage sends", "collective", "pipeline sends", is_communication=True),
    TimeTerm("pp_bubble", "P-1", "idle time of the pipeline's slowest stage", "gemm", "the pipeline bubble"),
    TimeTerm("dp_comm", "C-14", "exposed gradient reduction and parameter gather",
             "collective", "exposed data-parallel communication", is_communication=True),
    TimeTerm("tied_embedding_comm", "C-15", "all-reduces of tied-embedding and sequence-parallel norm gradients",
             "collective", "reducing the tied embedding", is_communication=True),
    TimeTerm("optimizer", "F-10", "gradient norm and clip, optimizer update, casts, the weights' moving average", "optimizer", "the optimizer"),
    TimeTerm("offload", "C-16", "exposed traffic between host and device memory", "host", "traffic with host memory"),
    TimeTerm("jitter", "T-2", "waiting for the slowest rank, growing with the number of nodes",
             "jitter", "waiting for the slowest rank"),
)  # fmt: skip
"""In the order in which they are printed; they sum to step_time_s."""

MEMORY_TERMS: tuple[Term, ...] = (
    Term("parameters", "M-1", "parameters as stored on this rank"),
    Term("main_parameters", "M-2", "higher-precision copies the optimizer updates"),
    Term("gradients", "M-3", "held gradient buffers"),
    Term("optimizer_states", "M-4", "optimizer moments, and the moving average of the weights where one is kept"),
    Term("activations", "M-5", "tensors saved for backward by the micro-batches in flight"),
    Term("layer_transient", "M-6", "what one layer's backward (and recomputation) needs on top"),
    Term("logits_and_loss", "M-7", "logits and the cross-entropy's temporaries"),
    Term("parameter_gather", "M-8", "parameters gathered from their shards, prefetch included"),
    Term("gradient_reduce", "M-9", "unsharded gradients and reduction buckets"),
    Term("comm_workspace", "M-10", "gathered-sequence workspaces, pipeline receive buffers"),
    Term("optimizer_transient", "M-11", "temporaries of the optimizer step"),
    Term("library_workspace", "M-12", "GEMM workspaces and cached dummy gradients"),
)
"""Memory terms of one stage at its peak moment; they sum to peak_allocated_bytes."""

PEAK_MOMENTS = ("loss", "layer_backward", "head", "optimizer_step")
"""The moments of a step at which allocated memory can peak."""

TIME_NAMES = tuple(term.name for term in TIME_TERMS)
COMMUNICATION = tuple(term.name for term in TIME_TERMS if term.is_communication)
"""Names of the time terms that are exposed communication."""
BEHIND_HOST = ("gemm", "attention", "elementwise", "tp_comm", "cp_comm", "ep_comm", "recompute")
"""Time terms of a layer whose kernels run behind their launches: what they take less, the device waits longer for a busy host."""
HOST_BOUND = 0.10
"""Share of the step in which the device waits for its host, from which on the host decides how wrong a prediction is."""
MEMORY_NAMES = tuple(term.name for term in MEMORY_TERMS)
