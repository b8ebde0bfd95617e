"""Casts to fp8: bytes moved to scale and cast what the matrix products read, by recipe and by who casts. [F-11]

A product reads its operands along the summed dimension. An input is therefore needed twice, by rows in forward and by columns
for the weight gradient, and so is a gradient; the recipe decides how many passes that takes. Casts of weights are left out:
with thousands of tokens on a rank they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats

_READ, _CAST = 2.0, 1.0
"""Bytes of a bf16 element read and of an fp8 one written."""
_BOTH = _READ + 2 * _CAST
"""Bytes per element of one kernel that reads it and writes both layouts."""

CAST_BYTES: Mapping[str, float] = {
    "delayed": _BOTH,
    "blockwise": _BOTH,
    "mxfp8": _BOTH,
    "tensorwise": _READ + _BOTH,
    "rowwise": (_READ + _CAST) + (_READ + _READ + _CAST),
}
"""Bytes per element for both layouts. Scales that are known beforehand (delayed) or belong to the tile at hand
(blockwise, mxfp8) take one pass. The maximum of a whole tensor takes a pass before that. Scales by row come with
the row; those by column need a pass over it. [F-11]"""
COMPILED_TENSORWISE_BYTES = 5.0
"""Bytes per element when compiled: the producer finds the maximum, and each layout has a kernel of its own.
Measured are 5.4 bytes at 3.0 TB/s on an H100 with PyTorch 2.11 (own; by row 3.7, by column 5.5); here they are
those at the 0.80 of peak that streaming kernels are priced at. [F-11]"""
SPLIT_BEFORE_GATHER = frozenset({"delayed", "tensorwise", "mxfp8"})
"""Recipes whose sequence-parallel shards are cast before they are gathered; scales by row or column would need
whole rows. [C-10]"""
BLOCKWISE_GATHER_SINCE = "2025-07"
"""Transformer Engine 2.5 gathers blocks in fp8. Versions 2.3 and 2.4 have the function but still gather bf16. [C-10]"""
_BLOCKS = {"blockwise": 128, "mxfp8": 32, "nvfp4": 16}
"""Elements that share a scale along rows and columns. Shards that do not hold whole blocks are gathered before they
are cast."""
_ONE_LAYOUT_GENERATIONS = frozenset({"blackwell"})
"""GPU generations whose fp8 products read operands with one scale per tensor in either layout."""
_TENSOR_SCALED = frozenset({"delayed", "tensorwise"})


@dataclass(frozen=True, slots=True)
class CastTraffic:
    """Bytes per token of one layer's casts in one pass."""

    hidden: float
    """Casts of hidden-wide rows."""
    sharded: float
    """Casts of what tensor parallelism splits."""
    routed: float
    """Casts of expert rows, per routed copy of a token."""


def casts_shards(job: Job) -> bool:
    """Whether sequence-parallel shards are cast first and then gathered."""
    training = job.training
    if training.precision == "nvfp4":
        return True
    later = training.fp8_recipe == "blockwise" and training.software_date >= BLOCKWISE_GATHER_SINCE
    return training.precision == "fp8" and (training.fp8_recipe in SPLIT_BEFORE_GATHER or later)


def shard_bytes(job: Job, shard_tokens: Floats) -> tuple[Floats, Floats]:
    """Bytes per element of a gathered activation and of a gathered gradient, for shards of this many tokens. [C-10]

    Both products that read a gradient need it at once, by rows and by columns. With one scale for the whole tensor the receiver
    can transpose; blocks along either direction travel twice. Scales are left out (3 % of fp8 blocks).
    """
    training = job.training
    plain = np.full_like(shard_tokens, training.compute_bytes)
    if not casts_shards(job):
        return plain, plain
    kind = training.precision if training.precision == "nvfp4" else training.fp8_recipe
    one, block = BYTES_PER[training.precision], _BLOCKS.get(kind, 1)
    # A block that two ranks share has no scale before the gather, so such shards travel in bf16.
    whole = (np.fmod(shard_tokens, block) == 0) & (job.model.hidden_size % block == 0)
    layouts = 1.0 if kind in _TENSOR_SCALED else 2.0
    return np.where(whole, one, plain), np.where(whole, one * layouts, plain)


def weight_copy_bytes(job: Job) -> float:
    """Bytes per parameter of a layer's quantised copies beside the stored weights, in Transformer Engine. [M-1]

    There is a copy by rows for the forward and one by columns for the data gradient; Blackwell reads one copy with a single scale
    in both directions. Weights stored in fp8 are themselves the first copy.
    """
    training = job.training
    if training.precision not in ("fp8", "nvfp4"):
        return 0.0
    one_scale = training.precision == "fp8" and training.fp8_recipe in _TENSOR_SCALED
    layouts = 1.0 if one_scale and job.cluster.gpu.generation in _ONE_LAYOUT_GENERATIONS else 2.0
    return BYTES_PER[training.precision] * (layouts - (training.param_dtype == training.precision))


def layer_gather_bytes(job: Job) -> float:
    """Bytes per parameter of a layer's weights as ZeRO gathers them: as stored, in the compute type, or in fp8. [C-14]"""
    training = job.training
    if training.precision == "fp8" and training.fp8_recipe in job.framework.fp8_gather_recipes:
        return BYTES_PER["fp8"]
    return training.gather_bytes


def cast_traffic(job: Job, kind: LayerKind, *, width: float, expert_width: float) -> tuple[CastTraffic, CastTraffic]:
    """Forward and backward traffic of one layer's casts, in bytes per token. [F-11]

    Forward casts the inputs of the four products, backward the gradients of their outputs. The second layout of an input is made
    in forward, together with the first.

    Args:
        job: model and software.
        kind: kind of layer.
        width: width of the dense (or shared-expert) MLP's activation.
        expert_width: width of one routed expert's activation; 0 in a dense layer.
    """
    model, training = job.model, job.training
    if training.precision not in ("fp8", "nvfp4"):
        return CastTraffic(0.0, 0.0, 0.0), CastTraffic(0.0, 0.0, 0.0)
    each = CAST_BYTES[training.fp8_recipe if training.precision == "fp8" else "blockwise"]
    if training.compile and training.precision == "fp8" and training.fp8_recipe == "tensorwise":
        each = COMPILED_TENSORWISE_BYTES
    # Gate and up read one input and have two outputs: one cast in forward, two in backward.
    h, inputs = float(model.hidden_size), 2.0 if model.gated_mlp else 1.0
    # Transformer Engine's norms write fp8 themselves, so their outputs need no cast.
    norms = 0.0 if training.transformer_impl == "transformer-engine" else 2.0
    heads, context = float(model.q_size * (1 + model.attention_gate) + 2 * model.kv_size), float(model.q_size)
    if not kind.is_plain:
        norms = norms * kind.num_blocks / 2.0
        heads, context = heads * kind.attends, context * kind.attends
    if kind.recurs:
        assert model.recurrent is not None
        heads, context = heads + model.recurrent.projected_size, context + model.recurrent.inner_size
    forward = CastTraffic(each * norms * h, each * (context + width), each * expert_width)
    backward = CastTraffic(each * kind.num_blocks * h, each * (heads + inputs * width), each * inputs * expert_width)
    return forward, backward
