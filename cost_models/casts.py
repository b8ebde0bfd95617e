"""Casts to fp8: bytes moved to scale and cast what the matrix products read, by recipe and by who casts.

A product reads its operands along the summed dimension, so an input is needed twice, by rows in forward and by columns for
the weight gradient, and so is a gradient. A recipe says how many passes that takes. Weights are left out: with thousands of
tokens a rank they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.job import Job

_READ, _CAST = 2.0, 1.0
"""Bytes of a bf16 element read and of an fp8 one written."""
_BOTH = _READ + 2 * _CAST
"""One kernel reads an element and writes both layouts."""

CAST_BYTES: Mapping[str, float] = {
    "delayed": _BOTH,
    "blockwise": _BOTH,
    "mxfp8": _BOTH,
    "tensorwise": _READ + _BOTH,
    "rowwise": (_READ + _CAST) + (_READ + _READ + _CAST),
}
"""Bytes per element for both layouts: scales known before (delayed) or of the tile at hand (blockwise, mxfp8) take one pass;
the maximum of the whole tensor is a pass before it; scales by row come with the row, those by column need a pass over it. [F-11]
"""
COMPILED_TENSORWISE_BYTES = 5.0
"""The producer finds the maximum, and each layout has a kernel of its own: 5.4 bytes at 3.0 TB/s on H100 with PyTorch 2.11
(own; by row 3.7, by column 5.5), here at the 0.80 of peak that streaming kernels are priced at. [F-11]"""
SPLIT_BEFORE_GATHER = frozenset({"delayed", "tensorwise", "mxfp8"})
"""Recipes whose sequence-parallel shards are cast before they are gathered: scales by row and column need whole rows."""


@dataclass(frozen=True, slots=True)
class CastTraffic:
    """Bytes per token of one layer's pass."""

    hidden: float
    """Of hidden-wide rows."""
    sharded: float
    routed: float
    """Per routed copy of a token."""


def casts_shards(job: Job) -> bool:
    """Sequence-parallel shards travel in fp8."""
    return job.training.precision == "fp8" and job.training.fp8_recipe in SPLIT_BEFORE_GATHER


def cast_traffic(job: Job, *, width: float, expert_width: float) -> tuple[CastTraffic, CastTraffic]:
    """Forward and backward traffic of a layer's casts. [F-11]

    Forward casts the inputs of the four products, backward the gradients of their outputs; the second layout of an input is
    made in forward, where its first is. Transformer Engine's norms write fp8 at once.
    """
    model, training = job.model, job.training
    if training.precision not in ("fp8", "nvfp4"):
        return CastTraffic(0.0, 0.0, 0.0), CastTraffic(0.0, 0.0, 0.0)
    each = CAST_BYTES[training.fp8_recipe if training.precision == "fp8" else "blockwise"]
    if training.compile and training.precision == "fp8" and training.fp8_recipe == "tensorwise":
        each = COMPILED_TENSORWISE_BYTES
    h, inputs = float(model.hidden_size), 2.0 if model.gated_mlp else 1.0
    norms = 0.0 if training.transformer_impl == "transformer-engine" else 2.0
    heads = float(model.q_size * (1 + model.attention_gate) + 2 * model.kv_size)
    forward = CastTraffic(each * norms * h, each * (model.q_size + width), each * expert_width)
    backward = CastTraffic(each * 2.0 * h, each * (heads + inputs * width), each * inputs * expert_width)
    return forward, backward
