"""State of optimizers that tell matrices from vectors: Muon's moments, and Adafactor's sums of rows and columns. [M-52] [M-51]

Array suffixes: K slots, N strategies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.frameworks.optimizers import muon_facts
from cost_models.layers.packed_matrices import BUCKET_AXES, fullest_of
from cost_models.layers.trained import head_is_trained, saved_elements
from cost_models.layers.weight_matrices import StageMatrices, stage_matrices
from cost_models.memory.batch import NOTHING, Batch
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import combinations_of

SHAPED = frozenset({"muon", "adafactor", "lion"})
"""Optimizers whose state follows from shapes."""
_ITERATION_BYTES = 4.0
"""Of the largest matrix, per element, beside the update in the gradient's type: a bf16 copy and the next iteration's result
(torch/optim/_muon.py)."""
_SQUARE_BYTES = 4.0
"""Of its shorter side squared: X X' and its polynomial in bf16."""
_GATHERED_BUCKETS = 3.0
"""Gradients, momentum, and what the second is gathered into before it is sorted (stage3.py, _partitioned_buffers_all_gather)."""
_FACTORED_BYTES = 8.0
"""Adafactor's temporaries of one tensor per element: its square and the same with epsilon, in fp32, or the latter and the update."""
_FP32_COPY = 4.0
"""Of a gradient, and of a parameter, of 16 bits each (transformers/optimization.py)."""


def shaped_states(
    batch: Batch, parts: Mapping[str, Floats], *, dense_KN: Floats, expert_KN: Floats
) -> dict[str, Floats]:
    """The parts of a stage's state that follow from the shapes of its tensors, in bytes, shape (K, N). [M-52] [M-51]

    Args:
        batch: strategies and what their stages hold.
        parts: bytes of a stage's state by part as if every tensor were a vector.
        dense_KN: dense elements of a rank before sharding.
        expert_KN: its routed-expert elements.
    """
    if batch.job.training.optimizer == "adafactor":
        return _factored(batch, parts, dense_KN, expert_KN)
    if batch.job.training.optimizer == "lion":
        return _lion(batch, parts, dense_KN, expert_KN)
    return _muon(batch, parts, dense_KN, expert_KN)


def _shards(strategies: Strategies) -> tuple[Floats, Floats]:
    sharded = strategies.zero >= 1
    return np.where(sharded, strategies.zero_shard_size, 1.0), np.where(sharded, strategies.expert_shard_size, 1.0)


def _vectors(held: StageMatrices, dense_KN: Floats) -> Floats:
    """Dense elements that stand in no matrix of a layer."""
    return np.maximum(dense_KN - held.total([np.where(each.is_expert, 0.0, each.elements) for each in held.kinds]), 0.0)


def _muon(batch: Batch, parts: Mapping[str, Floats], dense_KN: Floats, expert_KN: Floats) -> dict[str, Floats]:
    """One moment of matrices, two of the rest, and whole matrices where ranks own such. [M-52]"""
    job, strategies, training = batch.job, batch.strategies, batch.job.training
    held = stage_matrices(job, strategies)
    elements = [each.elements for each in held.kinds]
    dense, expert = _shards(strategies)
    vectors_KN = _vectors(held, dense_KN)
    even_KN = (dense_KN - vectors_KN) / dense + expert_KN / expert
    state, facts = BYTES_PER[training.optimizer_state_dtype], muon_facts(training)
    moment_KN, more = state * even_KN, dict[str, Floats]()
    if "owned" in facts.spread.values():
        extra_KN, more = _owning(batch, parts, dense_KN - vectors_KN, expert_KN)
        moment_KN = moment_KN + state * extra_KN
    repeated = [zero for zero, spread in facts.spread.items() if spread == "repeated"]
    if repeated:
        largest = held.largest(elements)
        copies = 2.0 if facts.holds(facts.staged_since, training.framework_version) else 1.0
        # The parts of a rank begin and end in the middle of matrices, whose momentum it holds whole, in the gradients' type.
        again_KN = copies * BYTES_PER[training.grad_dtype] * np.minimum(even_KN + largest, even_KN * dense)
        moment_KN = np.where(np.isin(strategies.zero, repeated), again_KN, moment_KN)
    dealt = np.isin(strategies.zero, [zero for zero, spread in facts.spread.items() if spread == "dealt"])
    # The momentum has the type in which gradients travel (stage3.py, _create_momentum_buffer).
    moment_KN = np.where(dealt, training.compute_bytes * even_KN, moment_KN)
    gathered_KN = np.where(dealt & (dense > 1), training.compute_bytes * _GATHERED_BUCKETS * _bucket(batch, held), 0.0)
    iterated = _ITERATION_BYTES + BYTES_PER[training.grad_dtype]
    largest = held.largest([iterated * each.elements + _SQUARE_BYTES * each.short**2 for each in held.kinds])
    # One matrix after another is made orthogonal, so that the temporaries of the largest alone are held.
    return {
        **more,
        "optimizer": moment_KN + 2.0 * state * vectors_KN / dense,
        "step": parts["step"] + largest + gathered_KN,
    }


def _lion(batch: Batch, parts: Mapping[str, Floats], dense_KN: Floats, expert_KN: Floats) -> dict[str, Floats]:
    """One moment of everything, as in `parts`, and whole matrices where ranks own such. [M-52]"""
    training = batch.job.training
    if "owned" not in muon_facts(training).spread.values():
        return {}
    held = stage_matrices(batch.job, batch.strategies)
    extra_KN, more = _owning(batch, parts, dense_KN - _vectors(held, dense_KN), expert_KN)
    return {**more, "optimizer": parts["optimizer"] + BYTES_PER[training.optimizer_state_dtype] * extra_KN}


def _owning(
    batch: Batch, parts: Mapping[str, Floats], dense_KN: Floats, expert_KN: Floats
) -> tuple[Floats, dict[str, Floats]]:
    """Elements of matrices that the fullest rank owns beyond an even share, shape (K, N), and the parts that grow with them. [M-52]

    Args:
        batch: strategies and what their stages hold.
        parts: bytes of a stage's state by part without that.
        dense_KN: elements of the dense matrices of a rank before sharding.
        expert_KN: of experts'.
    """
    strategies, training, facts = batch.strategies, batch.job.training, muon_facts(batch.job.training)
    (dense, expert), (owned_KN, owned_expert_KN) = _shards(strategies), _owned(batch)
    extra_KN, extra_expert_KN = owned_KN - dense_KN / dense, owned_expert_KN - expert_KN / expert
    more: dict[str, Floats] = {}
    if facts.holds(facts.padded_since, training.framework_version):
        more = _padded(batch, parts, np.where(strategies.zero == 1, extra_KN * dense + extra_expert_KN * expert, 0.0))
    if BYTES_PER[training.main_param_dtype]:
        more["main"] = parts["main"] + BYTES_PER[training.main_param_dtype] * (extra_KN + extra_expert_KN)
    return extra_KN + extra_expert_KN, more


def _owned(batch: Batch) -> tuple[Floats, Floats]:
    """Elements of the matrices that the fullest rank owns, dense ones and experts', shape (K, N) each."""
    cases = combinations_of(batch.strategies, BUCKET_AXES)
    held = stage_matrices(batch.job, cases.rows)
    elements = [each.elements for each in held.kinds]
    dense, expert = (
        cases.spread(fullest_of(batch.job, held, elements, cases.rows, shards=shards, is_expert=is_expert))
        for shards, is_expert in zip(_shards(cases.rows), (False, True), strict=True)
    )
    return dense, expert


def _bucket(batch: Batch, held: StageMatrices) -> Floats:
    """Elements of the matrices that DeepSpeed's stage 3 gathers at once: one of its buckets, or a single larger one, shape (K, N)."""
    elements = [each.elements for each in held.kinds]
    return np.minimum(held.total(elements), np.maximum(batch.traits.reduce_bucket_elements, held.largest(elements)))


def _padded(batch: Batch, parts: Mapping[str, Floats], padding_KN: Floats) -> dict[str, Floats]:
    """Gradients and parameters in buffers of as many equal parts as ranks, each as long as the fullest one's matrices. [M-52]"""
    training = batch.job.training
    return {
        "gradients": parts["gradients"] + BYTES_PER[training.grad_dtype] * padding_KN,
        "parameters": parts["parameters"] + BYTES_PER[training.param_dtype] * padding_KN,
    }


def _trained_words(batch: Batch) -> tuple[Floats, Floats]:
    """Trained elements of a rank's parts of embedding and output projection, shape (K, N) each."""
    job, stages = batch.job, batch.stages
    if job.training.adapter is not None:  # copies of what peft trains in full beside the adapters
        embedding, head = saved_elements(job.model, job.training.adapter)
        tp = batch.strategies.tp
        return stages.first_KN * embedding / tp, stages.head_KN * head / tp
    embedding_KN, head_KN = batch.end_words
    embedding_KN = embedding_KN * ("embedding" not in job.training.frozen)
    return embedding_KN, head_KN * head_is_trained(job.model, job.training)


def _factored(batch: Batch, parts: Mapping[str, Floats], dense_KN: Floats, expert_KN: Floats) -> dict[str, Floats]:
    """Sums of rows and columns of matrices, one moment of vectors; flat shards of matrices are vectors. [M-51]"""
    job, strategies, training = batch.job, batch.strategies, batch.job.training
    held, state = stage_matrices(job, strategies), BYTES_PER[training.optimizer_state_dtype]
    dense, expert = _shards(strategies)
    flat_KN = state * (dense_KN / dense + expert_KN / expert)
    h = float(job.model.hidden_size)
    embedding_KN, head_KN = _trained_words(batch)
    words_KN = embedding_KN + head_KN
    sums_KN = (
        held.total([each.rows + each.columns for each in held.kinds])
        + words_KN / h
        + h * ((embedding_KN > 0) * 1.0 + (head_KN > 0))
    )
    vectors_KN = np.maximum(_vectors(held, dense_KN) - words_KN, 0.0)
    largest = np.maximum(held.largest([each.elements for each in held.kinds]), np.maximum(embedding_KN, head_KN))
    # Where there is a main parameter, the optimizer sees it with a gradient of its type.
    narrow = (
        0
        if BYTES_PER[training.main_param_dtype]
        else (BYTES_PER[training.grad_dtype] == 2) + (BYTES_PER[training.param_dtype] == 2)
    )
    temporary = np.where(strategies.zero == 0, (_FACTORED_BYTES + _FP32_COPY * narrow) * largest, NOTHING)
    return {
        "optimizer": np.where(strategies.zero == 0, state * (sums_KN + vectors_KN), flat_KN),
        "step": parts["step"] + temporary,
    }
