"""Casts to fp8: bytes moved to scale and cast what the matrix products read, by recipe and by who casts.

A product reads its operands along the summed dimension, so an input is needed twice, by rows in forward and by columns for
the weight gradient, and so is a gradient. A recipe says how many passes that takes. Weights are left out: with thousands of
tokens a rank they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats

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
"""Recipes whose sequence-parallel shards are cast before they are gathered: scales by row and column need whole rows. [C-10]"""
BLOCKWISE_GATHER_SINCE = "2025-07"
"""Transformer Engine 2.5 gathers blocks in fp8; 2.3 and 2.4 hold the function, which gathers bf16. [C-10]"""
_BLOCKS = {"blockwise": 128, "mxfp8": 32, "nvfp4": 16}
"""Elements that share a scale along rows and columns; shards that do not hold whole blocks are gathered first."""
_ONE_LAYOUT_GENERATIONS = frozenset({"blackwell"})
"""GPUs whose fp8 products read operands with one scale a tensor in either layout."""
_TENSOR_SCALED = frozenset({"delayed", "tensorwise"})


@dataclass(frozen=True, slots=True)
class CastTraffic:
    """Bytes per token of one layer's pass."""

    hidden: float
    """Of hidden-wide rows."""
    sharded: float
    routed: float
    """Per routed copy of a token."""


def casts_shards(job: Job) -> bool:
    """Sequence-parallel shards travel as they are cast."""
    training = job.training
    if training.precision == "nvfp4":
        return True
    later = training.fp8_recipe == "blockwise" and training.software_date >= BLOCKWISE_GATHER_SINCE
    return training.precision == "fp8" and (training.fp8_recipe in SPLIT_BEFORE_GATHER or later)


def shard_bytes(job: Job, shard_tokens: Floats) -> tuple[Floats, Floats]:
    """Bytes per element of a gathered activation and of a gathered gradient, for shards of so many tokens. [C-10]

    Both products that read a gradient need it at once, by rows and by columns. One scale for the whole tensor lets the
    receiver transpose; blocks along either direction travel twice. Scales are left out (3 % of fp8 blocks).
    """
    training = job.training
    plain = np.full_like(shard_tokens, training.compute_bytes)
    if not casts_shards(job):
        return plain, plain
    kind = training.precision if training.precision == "nvfp4" else training.fp8_recipe
    one, block = BYTES_PER[training.precision], _BLOCKS.get(kind, 1)
    whole = (np.fmod(shard_tokens, block) == 0) & (job.model.hidden_size % block == 0)
    layouts = 1.0 if kind in _TENSOR_SCALED else 2.0
    return np.where(whole, one, plain), np.where(whole, one * layouts, plain)


def weight_copy_bytes(job: Job) -> float:
    """Bytes per parameter of a layer's quantised copies beside the stored weights, Transformer Engine. [M-1]

    A copy by rows for the forward and one by columns for the data gradient; Blackwell reads one of a single scale in both
    directions. Weights stored in fp8 are the first of them.
    """
    training = job.training
    if training.precision not in ("fp8", "nvfp4"):
        return 0.0
    one_scale = training.precision == "fp8" and training.fp8_recipe in _TENSOR_SCALED
    layouts = 1.0 if one_scale and job.cluster.gpu.generation in _ONE_LAYOUT_GENERATIONS else 2.0
    return BYTES_PER[training.precision] * (layouts - (training.param_dtype == training.precision))


def layer_gather_bytes(job: Job) -> float:
    """Bytes per parameter of a layer's weights as ZeRO gathers them: the stored ones, the compute copy, or fp8. [C-14]"""
    training = job.training
    if training.precision == "fp8" and training.fp8_recipe in job.framework.fp8_gather_recipes:
        return BYTES_PER["fp8"]
    return training.gather_bytes


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
