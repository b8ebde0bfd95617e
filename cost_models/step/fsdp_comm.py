"""Data parallelism that gathers parameters layer by layer: FSDP, and ZeRO-3 in every framework.                 [C-14] [O-2]

Every layer is a unit: its parameters are all-gathered before they are used and its gradients reduce-scattered afterwards, for
every micro-batch. The final norm and output projection form a unit of their own, and so does the embedding. What is exposed
never exceeds the link time. Data parallelism that works on whole buffers once a step is in `ddp_comm`.
Array suffixes: J layer kinds, U distinct combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cost_models.constants import STAGE3_REUSE_PARAMETERS
from cost_models.frameworks.optimizers import reduces_whole_units
from cost_models.hardware.beside import beside_s
from cost_models.hardware.groups import StrategyPlacements, groups
from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.layers.adapter_costs import adapter_tensors
from cost_models.layers.casts import layer_gather_bytes
from cost_models.layers.expert_loop import has_looped_modules
from cost_models.layers.parameters import layer_parameters
from cost_models.layers.shapes import parameter_tensors
from cost_models.layers.trained import layers_run_backward, linear_elements
from cost_models.memory.adapted import stored_base
from cost_models.operations import Op
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.step.stage_parameters import rank_parameters, trained_rank_parameters
from cost_models.step.unit_collectives import listed_calls, reduce_across, split_calls
from cost_models.step.zero_plus import (
    QUANTIZED_AXES,
    Matrices,
    exchanged,
    gathered,
    layer_matrices,
    quantizes,
    vocabulary_matrix,
)
from cost_models.strategies.fields import Recompute
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.strategies.tensors import Distinct, combinations_of, summed

FSDP_AXES = ("tp", "pp", "cp", "dp", "ep", "etp", "zero_shard_size", "zero_param_shard_size")


@dataclass(frozen=True, eq=False)
class UnitSeconds:
    """Link seconds of the collectives of one unit, whose parameters are gathered and gradients scattered as a whole."""

    gather: Floats
    """Seconds of one all-gather inside the group that keeps a copy of the parameters between uses."""
    first_gather: Floats
    """Seconds of one all-gather over all ranks that share the state. Where hpZ keeps a copy inside a smaller group, it is the
    first gather of a step; elsewhere it is the same as `gather`."""
    reduce: Floats
    """Seconds to reduce the gradients among the ranks that share a copy of the state."""
    reduce_across: Floats
    """Seconds to reduce the resulting shards across the copies of the state."""

    def of(self, cases: Distinct) -> UnitSeconds:
        """Link seconds of the unit for every strategy of the batch, shape (..., N)."""
        gather = cases.spread(self.gather)
        first = gather if self.first_gather is self.gather else cases.spread(self.first_gather)
        return UnitSeconds(gather, first, cases.spread(self.reduce), cases.spread(self.reduce_across))

    def __add__(self, other: UnitSeconds) -> UnitSeconds:
        return _combined(np.add, self, other)


@dataclass(frozen=True, eq=False)
class FsdpSeconds:
    """Link seconds of every unit's collectives in one micro-batch, over the distinct combinations of FSDP_AXES."""

    cases: Distinct
    layer_JU: UnitSeconds
    """A layer of each kind, shape (J, U)."""
    embedding: UnitSeconds
    """The embedding, shape (U,). Nothing runs beside its collectives: they are the first gather and the last scatter."""
    head: UnitSeconds
    """The final norm and the output projection, which are a unit of their own, shape (U,)."""
    tier: Codes
    """Worst tier of the layers' collectives, shape (U,)."""


def is_fsdp(job: Job, strategies: Strategies) -> Bools:
    """Whether parameters are gathered layer by layer, shape (N,): ZeRO-3 in any framework, and ZeRO-2 in FSDP frameworks.

    FSDP without resharding behind forward is called ZeRO-2 here: it keeps whole parameters from forward to backward, but
    shards them between steps. ZeRO-2 of DeepSpeed and Megatron never shards parameters.
    """
    return np.asarray(strategies.zero >= job.framework.layerwise_from_zero, np.bool_)


def backward_gathers(job: Job, strategies: Strategies) -> Floats:
    """Parameter gathers in one layer's backward, shape (N,): none in ZeRO-2, one in ZeRO-3, sometimes two in DeepSpeed. [C-14]

    DeepSpeed gathers a recomputed layer twice when it has too many parameters to be kept between the repeated forward and
    the backward (stage3_max_reuse_distance).
    """
    model = job.model
    largest = max(layer_parameters(model, kind).total for kind in model.distinct_kinds)
    large = job.framework.gathers_per_tensor and largest > STAGE3_REUSE_PARAMETERS.value
    twice = large & (strategies.recompute == Recompute.FULL)
    runs = layers_run_backward(model, job.training)
    return np.where((strategies.zero == 3) & runs, 1.0 + twice, 0.0)


def expert_tensors(job: Job) -> float:
    """Number of parameter tensors of one layer's routed experts on a rank that holds all of them. [C-14]

    Every expert has tensors of its own where experts are modules of a Python loop. Grouped experts share one tensor for
    their input projections and one for their output projections.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    return moe.num_experts * (2.0 + job.model.gated_mlp) if has_looped_modules(job) else 2.0


def fsdp_links_s(job: Job, strategies: Strategies) -> FsdpSeconds:
    """Link seconds of the collectives of layers, embedding and head, per distinct combination of FSDP_AXES. [C-14]"""
    axes = (*FSDP_AXES, *QUANTIZED_AXES) if quantizes(strategies) else FSDP_AXES
    cases = combinations_of(strategies, axes)
    *seconds_4JU, tier = kept_columns(job, "units", cases.rows, axes, lambda rows: _columns(job, rows))
    one_group = not keeps_copies(cases.rows).any()
    # The embedding and the head follow the layers of each kind.
    layers, embedding, head = (
        _unit(*(part[which] for part in seconds_4JU), one_group=one_group) for which in (slice(None, -2), -2, -1)
    )
    return FsdpSeconds(cases, layers, embedding, head, tier)


def _unit(gather: Floats, first: Floats, reduce: Floats, across: Floats, *, one_group: bool) -> UnitSeconds:
    """Link seconds of a unit. Where one group serves all gathers, `first_gather` is the very array `gather`, which says so."""
    return UnitSeconds(gather, gather if one_group else first, reduce, across)


def _columns(job: Job, rows: Strategies) -> Columns:
    """The parts of `UnitSeconds` in their order for each kind of layer, the embedding and the head, and the layers' tier."""
    held = rank_parameters(job, rows)
    placements = groups(rows, job.cluster)
    per_tensor = job.framework.gathers_per_tensor
    stored, layer_weight, grad = (
        job.training.gather_bytes,
        layer_gather_bytes(job),
        BYTES_PER[job.training.grad_reduce_dtype],
    )
    ends_weight = max(stored, BYTES_PER["bf16"])  # no recipe keeps the embedding or the head in fp8
    units: list[UnitSeconds] = []
    tier = np.zeros(len(rows), np.int8)
    trained = trained_rank_parameters(job, rows)
    kinds = job.model.distinct_kinds
    for kind, dense, expert, reduced, routed_reduced in zip(
        kinds, held.dense_JN, held.expert_JN, trained.dense_JN, trained.expert_JN, strict=True
    ):
        # DeepSpeed gathers parameter by parameter and so pays the latency of a call for each; FSDP flattens a layer
        # into one call.
        calls = parameter_tensors(job, kind) + adapter_tensors(job, kind) if per_tensor else 1.0
        unit, found = _unit_s(
            job, _gathered(job, kind, rows, dense, reduced, weight=layer_weight), weight=layer_weight, grad=grad,
            calls=calls, groups_of=_dense_groups(placements), reduced=reduced, matrices=layer_matrices(job, kind, routed=False),
        )  # fmt: skip
        tier = np.maximum(tier, found)
        if expert.any():
            tensors = expert_tensors(job) if per_tensor else 1.0
            # The copies that hpZ keeps in smaller groups are modelled for dense parameters alone.
            shards = (placements.expert_shard, placements.expert_shard, placements.expert_replica, rows)
            routed, found = _unit_s(
                job, expert, weight=stored, grad=grad, calls=tensors, groups_of=shards, reduced=routed_reduced,
                matrices=layer_matrices(job, kind, routed=True),
            )  # fmt: skip
            unit += routed
            tier = np.maximum(tier, found)
        units.append(unit)
    ends = [
        _unit_s(
            job,
            elements,
            weight=ends_weight,
            grad=grad,
            calls=1.0,
            groups_of=_dense_groups(placements),
            reduced=reduced,
            matrices=vocabulary_matrix(job),
        )[0]
        for elements, reduced in ((held.embedding, trained.embedding), (held.head_unit, trained.head_unit))
    ]
    units += ends
    parts = ("gather", "first_gather", "reduce", "reduce_across")
    return (*(np.stack([getattr(unit, part) for unit in units]) for part in parts), tier)


def _gathered(job: Job, kind: LayerKind, rows: Strategies, dense: Floats, trained: Floats, *, weight: float) -> Floats:
    """Elements of a layer's gather in units of `weight` bytes, shape (U,): adapters travel too, and a quantised base as it is stored."""
    adapter = job.training.adapter
    if adapter is None:
        return dense
    narrow = linear_elements(job.model, kind) / rows.tp * (1.0 - min(stored_base(job).weight / weight, 1.0))
    return np.asarray(dense + trained - narrow)


def _combined(join: Callable[..., Floats], *units: UnitSeconds) -> UnitSeconds:
    """Units joined part by part; `first_gather` stays the very array `gather` where it is so in every unit."""
    gather = join(*(unit.gather for unit in units))
    same = all(unit.first_gather is unit.gather for unit in units)
    first = gather if same else join(*(unit.first_gather for unit in units))
    return UnitSeconds(
        gather, first, join(*(unit.reduce for unit in units)), join(*(unit.reduce_across for unit in units))
    )


Groups = tuple[Placement, Placement, Placement | None, Strategies]
"""Groups of a unit: those that keep its parameters between uses, those that share its state, those across the copies of it;
and whose groups these are."""


def _dense_groups(placements: StrategyPlacements) -> Groups:
    state = placements.zero_shard
    kept = placements.param_shard if keeps_copies(placements.strategies).any() else state
    return kept, state, placements.zero_replica, placements.strategies


def keeps_copies(strategies: Strategies) -> Bools:
    """Whether hpZ keeps a copy of the parameters in a smaller group than the one that shares the state, shape (N,)."""
    return np.asarray(strategies.zero_param_shard_size < strategies.zero_shard_size)


def _unit_s(
    job: Job,
    elements: Floats,
    *,
    weight: float,
    grad: float,
    calls: float,
    groups_of: Groups,
    reduced: Floats,
    matrices: Matrices,
) -> tuple[UnitSeconds, Codes]:
    """Link seconds of one unit with this many `elements` per rank before sharding, `reduced` of them with gradients, and their tier, shape (U,). [C-14]"""
    kept, state, replica, rows = groups_of
    price = listed_calls if job.framework.lists_slices else split_calls
    gather = price(job, "all_gather", elements * weight, kept, calls)
    first = gather if kept is state else price(job, "all_gather", elements * weight, state, calls)
    if reduces_whole_units(job.training):  # in one bucket, whatever tensors it holds
        scatter = split_calls(job, "all_reduce", reduced * grad, state, 1.0)
    else:
        scatter = price(job, "reduce_scatter", reduced * grad, state, calls)
    if quantizes(rows):
        one = first is gather
        gather = gathered(job, gather, rows, elements, kept, calls)
        first = gather if one else gathered(job, first, rows, elements, state, calls)
        scatter = exchanged(job, scatter, rows, reduced, matrices, state)
    across = reduce_across(job, reduced * grad, state, replica, calls)
    tier = np.maximum(np.maximum(gather.tier, first.tier), np.maximum(scatter.tier, across.tier))
    return UnitSeconds(gather.seconds, first.seconds, scatter.seconds, across.seconds), tier


class Exposed(NamedTuple):
    """What a unit's collectives add to a micro-batch, shape (..., N) each."""

    seconds: Floats
    """Seconds in which the device waits for them, or is slowed down by them."""
    idle_s: Floats
    """Seconds of the given waits for the host in which none of them runs."""


def fsdp_exposed_s(
    job: Job,
    strategies: Strategies,
    unit: UnitSeconds,
    *,
    forward_s: Floats,
    backward_s: Floats,
    regathers: Floats,
    waits_s: Floats | float = 0.0,
) -> Exposed:
    """Exposed seconds of one unit per micro-batch, averaged over the micro-batches of a step, and the waits that are left. [O-2]

        forward:  what an all-gather costs beside the forward
        backward: what an all-gather and a reduce-scatter cost beside the backward; the scatter alone where parameters stay
                  gathered

    Micro-batches differ. With hpZ only the first forward gathers over all ranks. Gradients that are reduced once a step, among
    all ranks or across copies of the state, burden only the last backward.

    Args:
        job: whose framework says when parameters are gathered and shards reduced.
        strategies: say whether gathers and reductions overlap.
        unit: link seconds of the unit's collectives.
        forward_s: seconds of the device's own forward.
        backward_s: seconds of its backward.
        regathers: how often parameters are gathered again in backward.
        waits_s: seconds that the host takes longer than the device to launch both passes.
    """
    m, framework = strategies.num_micro_batches, job.framework
    gathers, overlaps = strategies.overlap_param_gather, strategies.overlap_grad_reduce

    def forward(gather: Floats) -> Floats:
        return _beside(job, forward_s, {"all_gather": gather}, hides=gathers)

    def backward(gather: Floats, scatter: Floats, across: Floats) -> Floats:
        parts: dict[Op, Floats] = {"all_gather": gather, "reduce_scatter": scatter, "all_reduce": across}
        return _beside(job, backward_s, parts, hides=overlaps)

    # Averaging is done on exposed seconds rather than on link seconds: exposing is not linear, so a micro-batch that
    # hides its gather completely cannot pay for one that does not.
    ahead = forward(unit.first_gather)
    if framework.param_shards_serve_forward and unit.first_gather is not unit.gather:
        later = ahead / m + forward(unit.gather) * (1.0 - 1.0 / m)
        ahead = np.where(keeps_copies(strategies), later, ahead)
    # Parameters that a pipeline keeps gathered cost one gather a step, spread here over its m micro-batches.
    ahead = np.where(gathered_for_step(job, strategies), ahead / m, ahead)
    regather = regathers * unit.gather
    behind = backward(regather, unit.reduce, unit.reduce_across)
    across_once = (unit.reduce_across > 0) & framework.replicas_reduce_once
    once = ~strategies.grad_sync_each | across_once
    if once.any():
        across_each = np.where(across_once, 0.0, unit.reduce_across)
        scatter, across = (np.where(strategies.grad_sync_each, each, 0.0) for each in (unit.reduce, across_each))
        behind = np.where(once, backward(regather, scatter, across) * (1.0 - 1.0 / m) + behind / m, behind)
    # The part that sticks out of a pass runs while the device waits for the host anyway, and that wait is charged as
    # launch time [F-4]. It hides the part once, whether it falls into forward or backward. The slowdown of the passes
    # stays.
    taken, out = ahead + behind
    return Exposed(np.asarray(taken + np.maximum(out - waits_s, 0.0)), np.asarray(np.maximum(waits_s - out, 0.0)))


def root_exposed_s(job: Job, strategies: Strategies, unit: UnitSeconds) -> Floats:
    """Seconds per micro-batch of the embedding's collectives, all of them exposed, since nothing runs beside them. [C-14]"""
    m, framework, gather = strategies.num_micro_batches, job.framework, unit.first_gather
    if framework.param_shards_serve_forward and gather is not unit.gather:
        gather = np.where(keeps_copies(strategies), gather / m + unit.gather * (1.0 - 1.0 / m), gather)
    gather = np.where(gathered_for_step(job, strategies), gather / m, gather)
    times = np.where(strategies.grad_sync_each, 1.0, 1.0 / m)
    across = 1.0 / m if framework.replicas_reduce_once else times
    return np.asarray(gather + unit.reduce * times + unit.reduce_across * across)


def gathered_for_step(job: Job, strategies: Strategies) -> Bools:
    """Whether a pipeline's first micro-batch gathers parameters for the whole step, shape (N,).

    PyTorch's pipeline stages reshard only behind the last backward (torch/distributed/pipelining/stage.py,
    backward_maybe_with_nosync), and TorchTitan's layers do not reshard behind a pipeline's forward.
    """
    return np.asarray((strategies.zero == 2) & (strategies.pp > 1) & job.framework.keeps_parameters_in_pipelines)


def _beside(job: Job, compute_s: Floats, parts: dict[Op, Floats], *, hides: Bools) -> Floats:
    """Seconds that communication adds to `compute_s`, two rows: what it always costs, and what sticks out beyond that.

    The first row is the interference of overlapped collectives, or all of their time where they do not overlap.
    """
    alone = summed(parts.values())
    return np.where(
        hides, beside_s(compute_s, parts, each=job.calibration.beside), np.stack([alone, np.zeros_like(alone)])
    )
