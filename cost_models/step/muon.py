"""Seconds of Muon's update of matrices: momentum, Newton-Schulz products, and what ranks exchange for them. [F-30]

Array suffixes: K slots, N strategies.
"""

from __future__ import annotations

import numpy as np

from cost_models.constants import KERNEL_FLOOR_S
from cost_models.frameworks.optimizers import MuonSpread, muon_facts
from cost_models.hardware.groups import groups
from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.layers.packed_matrices import BUCKET_AXES, fullest_of
from cost_models.layers.weight_matrices import Matrices, StageMatrices, stage_matrices
from cost_models.specs.training import BYTES_PER
from cost_models.step.stage_parameters import dense_by_slot, trained_rank_parameters
from cost_models.strategies.kept_columns import kept_columns
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import combinations_of

NEWTON_SCHULZ_STEPS = 5.0
"""Iterations; the default of every framework."""
_AXES = (*BUCKET_AXES, "pp")
_HALF_BYTES = 2.0
_ADDED_BYTES = 6.0
"""What adding a matrix to a product moves per element: ATen copies it into the result, which the product reads (cuda/Blas.cpp, addmm)."""
_LAUNCHES = 12.0
"""Operators that momentum, norm, casts and the parameter's own update take for each matrix beside the products (torch/optim/_muon.py)."""


DTENSOR_OPERATORS, DTENSOR_COLLECTIVES, DTENSOR_LOCAL = (30.0, 28.0), (11.0, 16.0), (12.0, 32.0)
"""Operators on DTensor in a matrix's step, collectives inside them, and local operators beyond one for each: of a tall matrix, and of
any other, both split by rows (counted with a dispatch mode)."""


def matrix_flops(matrices: Matrices, *, gram: bool = False) -> Floats:
    """Operations of one matrix's Newton-Schulz iterations, 5 (4 r^2 c + 2 r^3) with r the shorter side. [F-30]

    Args:
        matrices: shapes.
        gram: DeepSpeed's iteration on X X', 8 r^2 c + 28 r^3 for matrices that are not square.
    """
    r, c = matrices.short, matrices.long
    plain = NEWTON_SCHULZ_STEPS * (4.0 * r**2 * c + 2.0 * r**3)
    return np.where(r < c, 8.0 * r**2 * c + 28.0 * r**3, plain) if gram else plain


def iterations_s(job: Job, matrices: Matrices, *, split: Floats | float = 1.0, gram: bool = False) -> Floats:
    """Device seconds of one matrix's products, in bf16 whatever the parameters' type, shape (N,). [F-30]

    Args:
        job: its calibration prices products by shape.
        matrices: shapes.
        split: ranks that divide each product (DTensor).
        gram: whether the iteration runs on X X'.
    """
    r, c, price = matrices.short, matrices.long, job.calibration.gemm_s
    wide = price(r, r, c, precision="bf16").seconds  # X X', and B X with the same sizes in another order
    back = price(r, c, r, precision="bf16").seconds
    square = price(r, r, r, precision="bf16").seconds
    floor = KERNEL_FLOOR_S.value
    along_short = (matrices.rows <= matrices.columns) if np.any(np.asarray(split) > 1) else np.ones_like(r, np.bool_)
    # Split along the longer side, as DTensor splits tall matrices, the square products run whole on every rank.
    divided = (
        square
        if np.ndim(split) == 0 and split == 1.0
        else np.where(along_short, (square - floor) / split + floor, square)
    )
    whole = np.where(along_short, r * r / split, r * r)
    added = job.calibration.elementwise_s(_ADDED_BYTES * (r * c / split + whole), kernels=2.0).seconds
    plain = NEWTON_SCHULZ_STEPS * ((wide - floor) / split + floor + (back - floor) / split + floor + divided + added)
    return np.where(r < c, 2.0 * wide + 2.0 * back + 14.0 * square, plain) if gram else plain


def muon_s(job: Job, strategies: Strategies) -> Floats:
    """Seconds of Muon's update of matrices, on the stage that takes longest, shape (N,). [F-30]

    Norm and clip are left out, and so is Adam's update of all that is no matrix.
    """
    cases = combinations_of(strategies, _AXES)
    (seconds,) = kept_columns(job, "muon", cases.rows, _AXES, lambda rows: (_of_rows(job, rows),))
    return cases.spread(seconds)


def _of_rows(job: Job, rows: Strategies) -> Floats:
    held = stage_matrices(job, rows)
    seconds = [_one(job, rows, each) for each in held.kinds]
    whole_KN, packed_KN = held.total(seconds), held.nothing_KN
    for is_expert in (False, True):
        packed_KN = packed_KN + fullest_of(
            job, held, seconds, rows, shards=_shards(rows, is_expert=is_expert), is_expert=is_expert
        )
    # Where every rank with a part of a matrix makes all of it, it makes those that its share begins and ends in, too.
    repeated_KN = np.minimum(whole_KN, packed_KN + held.largest(seconds))
    made_KN = whole_KN
    for zero, spread in muon_facts(job.training).spread.items():
        of_stage_KN = {"repeated": repeated_KN, "tensors": whole_KN}.get(spread, packed_KN)
        made_KN = np.where(rows.zero == zero, of_stage_KN, made_KN)
    return np.asarray((made_KN + _exchanged_s(job, rows, held)).max(axis=0))


def _shards(rows: Strategies, *, is_expert: bool) -> Floats:
    """Ranks that share the state of dense matrices, or of experts', shape (N,)."""
    shards = rows.expert_shard_size if is_expert else rows.zero_shard_size
    return np.where(rows.zero >= 1, shards, 1.0)


def _one(job: Job, rows: Strategies, each: Matrices) -> Floats:
    """Seconds of one matrix's update, the slower of device and host, shape (N,)."""
    training, facts = job.training, muon_facts(job.training)
    gram = facts.holds(facts.gram_since, training.framework_version)
    tensors = [zero for zero, spread in facts.spread.items() if spread == "tensors"]
    split = np.where(np.isin(rows.zero, tensors), _shards(rows, is_expert=each.is_expert), 1.0) if tensors else 1.0
    moved = BYTES_PER[training.grad_dtype] + 4.0 * BYTES_PER[training.optimizer_state_dtype] + 8.0 * _HALF_BYTES
    stored = BYTES_PER[training.main_param_dtype] or BYTES_PER[training.param_dtype]
    moved = moved + 2.0 * stored + (BYTES_PER[training.param_dtype] if BYTES_PER[training.main_param_dtype] else 0.0)
    device = iterations_s(job, each, split=split, gram=gram)
    device = device + moved * each.elements / split / job.calibration.memory_bytes_per_s_effective.value
    products = 18.0 if gram else 3.0 * NEWTON_SCHULZ_STEPS
    batched = each.is_expert and facts.batches_experts
    operators = (products + _LAUNCHES) / (each.count if batched else 1.0)
    host = operators * job.calibration.bare_op_s.value
    if tensors:
        host = np.where(split > 1, _sharded_host_s(job, each), host)
    return np.maximum(device, host)


def _sharded_host_s(job: Job, each: Matrices) -> Floats:
    """Host seconds of one matrix's operators on DTensor, by what torch 2.13 dispatches in a step of its Muon, shape (N,). [F-30]"""
    calibration, tall = job.calibration, each.rows > each.columns
    dispatched = calibration.host_op_s().value * calibration.wrapped_layer_ratio("tensor_parallel").value
    return np.where(tall, DTENSOR_OPERATORS[0], DTENSOR_OPERATORS[1]) * dispatched + (
        np.where(tall, DTENSOR_COLLECTIVES[0], DTENSOR_COLLECTIVES[1]) * calibration.collective_call_s().value
        + np.where(tall, DTENSOR_LOCAL[0], DTENSOR_LOCAL[1]) * calibration.bare_op_s.value
    )


def _exchanged_s(job: Job, rows: Strategies, held: StageMatrices) -> Floats:
    """Seconds of what ranks exchange so that matrices are whole where they are made, none of it hidden, shape (K, N). [C-60]"""
    total = held.nothing_KN
    if not ((rows.zero_shard_size > 1) | (rows.expert_shard_size > 1)).any():
        return total
    placements = groups(rows, job.cluster)
    # Who owns a matrix exchanges its gradients and parameters like those of the distributed optimizer; who repeats it, nothing.
    for spread in set(muon_facts(job.training).spread.values()) - {"owned", "repeated"}:
        stages = [zero for zero, each in muon_facts(job.training).spread.items() if each == spread]
        for matrix, count_KN in zip(held.kinds, held.counts, strict=True):
            placement = placements.expert_shard if matrix.is_expert else placements.zero_shard
            shared = (_shards(rows, is_expert=matrix.is_expert) > 1) & np.isin(rows.zero, stages)
            each_s = _exchange_of_one_s(job, rows, matrix, placement, spread)
            total = total + count_KN * np.where(shared, each_s, 0.0)
    return total


def _exchange_of_one_s(job: Job, rows: Strategies, each: Matrices, placement: Placement, spread: MuonSpread) -> Floats:
    """Seconds of one matrix's exchanges, shape (N,). [C-60]"""
    price, state = job.calibration.collective_s, BYTES_PER[job.training.optimizer_state_dtype]
    if spread == "sent":
        # An update goes from its shards to the matrix's owner and back; experts lie whole on a rank.
        size = each.elements * state / _shards(rows, is_expert=each.is_expert)
        return np.where(each.is_expert, 0.0, 2.0 * price("all_to_all", size, placement=placement).seconds)
    if spread == "dealt":
        # Gradient and momentum are gathered before, update and momentum after (stage3.py, _apply_muon_to_accumulated_grads), all in the
        # type in which gradients travel.
        return 4.0 * price("all_gather", each.elements * job.training.compute_bytes, placement=placement).seconds
    r = each.short
    square = price("all_reduce", r * r * _HALF_BYTES, placement=placement).seconds
    whole = price("all_gather", each.elements * _HALF_BYTES, placement=placement).seconds
    corner = price("all_gather", r * r * _HALF_BYTES, placement=placement).seconds
    # Seen with CommDebugMode at PyTorch 2.13: a tall matrix sums its square twice, a wide one is gathered twice.
    return NEWTON_SCHULZ_STEPS * np.where(each.rows > each.columns, 2.0 * square, 2.0 * whole + corner)


def vectors_owned(job: Job, strategies: Strategies) -> Floats:
    """Elements that Adam updates on the rank with most of them: embedding, head, norms and biases, shape (N,). [F-30]"""
    held, others = stage_matrices(job, strategies), trained_rank_parameters(job, strategies)
    matrices_KN = held.total([np.where(each.is_expert, 0.0, each.elements) for each in held.kinds])
    vectors_KN = np.maximum(dense_by_slot(others, strategies) - matrices_KN, 0.0)
    return np.asarray((vectors_KN / _shards(strategies, is_expert=False)).max(axis=0))
