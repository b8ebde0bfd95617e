"""PowerSGD: gradients of matrices are exchanged as two thin factors, everything else whole. [C-43]

The hook looks at the tensors of the model's modules as they are, so that only whole replicas (tp 1) can be priced.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.layers.linears import layer_linears, own_names
from cost_models.layers.parameters import count_parameters
from cost_models.specs.model import LayerKind, Model

MIN_COMPRESSION_RATE = 2.0
"""torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState, default of min_compression_rate."""
Matrix = tuple[int, int, int]
"""Rows, columns, and how often the model has it."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Numbers that one exchange is about, each counted once."""

    compressed: float
    """Elements of the matrices that pass as factors."""
    sent: float
    """Elements of both factors of all of these."""
    whole: float
    """Elements of what passes as it is: vectors, and matrices too small to gain."""
    column_work: float
    """Sum of rank² · (rows + columns) over the matrices, for orthogonalising both factors: the second one is that of the step before
    (warm_start)."""


def passes(rows: int, columns: int, rank: int) -> bool:
    """Whether the hook compresses a matrix: (rows + columns) r · 2 < rows · columns."""
    return (rows + columns) * rank * MIN_COMPRESSION_RATE < rows * columns


def layer_matrices(model: Model, kind: LayerKind) -> tuple[Matrix, ...]:
    """The matrices of one decoder layer, routed experts included."""
    found = [(linear.outputs, linear.inputs, 1) for linear in layer_linears(model, kind, own_names(model))]
    if kind.is_moe:
        moe = model.moe
        assert moe is not None
        width, wide = moe.expert_intermediate_size, 2 if model.gated_mlp else 1
        found += [(width, model.hidden_size, wide * moe.num_experts), (model.hidden_size, width, moe.num_experts)]
        found.append((moe.num_experts, model.hidden_size, 1))
    return tuple(found)


def layer_elements(model: Model, kind: LayerKind, rank: int) -> Elements:
    """What PowerSGD of this rank sends of one decoder layer's matrices; vectors are left out. [C-43]"""
    return _elements(layer_matrices(model, kind), rank)


def model_elements(model: Model, rank: int) -> Elements:
    """What PowerSGD of this rank sends of the whole model. [C-43]

    Embedding and output projection are matrices like others.
    """
    # Experts' matrices are tensors of three dimensions in some modules; the hook would then see fewer, larger ones.
    matrices = [matrix for kind in model.layer_kinds for matrix in layer_matrices(model, kind)]
    ends = 1 if model.tie_word_embeddings else 2
    matrices.append((model.vocab_size, model.hidden_size, ends))
    found, total = _elements(tuple(matrices), rank), float(count_parameters(model).total)
    return Elements(found.compressed, found.sent, total - found.compressed, found.column_work)


def _elements(matrices: tuple[Matrix, ...], rank: int) -> Elements:
    compressed = sent = whole = work = 0.0
    for rows, columns, count in matrices:
        # Both factors are sent whole, whatever the ranks do with them.
        if passes(rows, columns, rank):
            compressed += count * rows * columns
            sent += count * rank * (rows + columns)
            work += count * rank * rank * (rows + columns)
        else:
            whole += count * rows * columns
    return Elements(compressed, sent, whole, work)
