"""Whether computation could hide each kind of communication, as the textbooks ask it: seconds of a collective over seconds of the
computation beside it, at the dense peak of the GPU.                                                                     [O-4]

These ratios explain a plan; no term of the step is made of them. The step's own exposed times ([O-1], [O-2], [O-3]) know the speed
that products reach, what runs beside what, and latencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.hardware.bus import bus_factor
from cost_models.hardware.placement import place
from cost_models.hardware.segments import domain_gpus
from cost_models.job import Job
from cost_models.layers.parameters import count_parameters
from cost_models.layers.trained import trained_parameters
from cost_models.operations import Op
from cost_models.specs.training import BYTES_PER
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.strategies.strategy import Bools, Floats, Strategies


@dataclass(frozen=True, slots=True)
class Condition:
    """One kind of communication of N strategies, arrays of shape (N,)."""

    applies: Bools
    """Where the strategy communicates so at all."""
    ratio: Floats
    """Seconds of communication over seconds of the computation that could hide it; at most 1 where it could."""
    ranks: Floats
    element_bytes: float
    bytes_per_s: Floats
    """What one rank's link carries while its group communicates, in one direction."""
    raised: Floats
    """Value of the field that hides it at which the ratio is 1."""
    fields: tuple[str, str]
    """The field that hides it, where `second` is false and where it is true."""
    second: Bools


def dp_ratio(
    tokens: Floats | float,
    *,
    ranks: Floats | float,
    element_bytes: float,
    flops_per_s: float,
    bytes_per_s: Floats | float,
) -> Floats:
    """All-reduce of gradients over the backward that it runs beside. [O-4]

        2 (n - 1) / n · e P / B  over  4 P T / F  =  e (n - 1) / n · F / (2 T B)

    Args:
        tokens: T, tokens of one rank between two reductions.
        ranks: n, ranks that reduce together.
        element_bytes: e, bytes of a gradient as it travels.
        flops_per_s: F, dense peak of one GPU.
        bytes_per_s: B, bandwidth of one rank in one direction.
    """
    # P cancels: a group that shards or splits the model moves and computes proportionally less of it.
    share = (np.asarray(ranks) - 1.0) / ranks
    return np.asarray(element_bytes * share * flops_per_s / (2.0 * np.asarray(tokens) * bytes_per_s))


def zero3_ratio(
    tokens: Floats | float,
    *,
    ranks: Floats | float,
    element_bytes: float,
    flops_per_s: float,
    bytes_per_s: Floats | float,
) -> Floats:
    """Gather of a layer's parameters over the forward of the layer before. [O-4]

        (n - 1) / n · e P / B  over  2 P T / F  =  e (n - 1) / n · F / (2 T B)

    Arguments as of `dp_ratio`, but `tokens` are those of one micro-batch on one rank, and e is a parameter's.
    """
    return dp_ratio(tokens, ranks=ranks, element_bytes=element_bytes, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)


def tp_ratio(
    hidden_size: float, *, ranks: Floats | float, element_bytes: float, flops_per_s: float, bytes_per_s: Floats | float
) -> Floats:
    """Gather of a layer's input over the product of h x h weights, split t ways, that reads it. [O-4]

    (t - 1) / t · e T h / B  over  2 T h² / (t F)  =  e (t - 1) F / (2 h B)
    """
    return np.asarray(
        element_bytes * (np.asarray(ranks) - 1.0) * flops_per_s / (2.0 * hidden_size * np.asarray(bytes_per_s))
    )


def pp_ratio(
    hidden_size: float, *, layers: Floats | float, element_bytes: float, flops_per_s: float, bytes_per_s: Floats | float,
    copies: Floats | float = 1.0,
) -> Floats:  # fmt: skip
    """Send of a micro-batch's activations over the forward of the layers between two sends. [O-4]

        e T h / B  over  32 T h² L / F  =  e F / (32 h L B)

    A layer counts 16 h² weights: 4 h² of attention, 12 h² of a gated MLP that is 4 h wide.

    Args:
        hidden_size: h.
        layers: L, decoder layers of one virtual stage.
        element_bytes: e, bytes of an activation.
        flops_per_s: F, dense peak of one GPU.
        bytes_per_s: B, bandwidth of one rank in one direction.
        copies: tensor-parallel ranks that each send the same activations.
    """
    work = 32.0 * hidden_size * np.asarray(layers) * np.asarray(bytes_per_s)
    return np.asarray(element_bytes * flops_per_s * np.asarray(copies) / work)


def overlap_conditions(job: Job, strategies: Strategies) -> dict[str, Condition]:
    """The conditions of data parallelism, ZeRO-3, tensor and pipeline parallelism, by name: dp, zero3, tp, pp. [O-4]

    One that no strategy of the batch meets with is left out.
    """
    s, weights, tokens = strategies, weights_of(job), strategies.rank_tokens(job.training.seq_length)
    layerwise, one = is_fsdp(job, s), np.ones(len(s))
    activations = tokens * job.model.hidden_size * job.training.compute_bytes
    copies = np.where(_is_scattered(job, s), 1.0, s.tp)
    # Bytes of the largest call of each kind: bandwidth falls with size, and what cannot hide there hides nowhere.
    gradients = weights.trained / (s.tp * s.pp) * BYTES_PER[job.training.grad_reduce_dtype]
    layer = weights.largest_layer / s.tp * job.training.gather_bytes
    gathering = np.where(layerwise, s.zero_param_shard_size, 1.0)
    groups = {
        "dp": _Group(s.dp_cp, s.tp, gradients),
        "zero3": _Group(gathering, s.tp, layer),
        "tp": _Group(s.tp, one, activations),
        "pp": _Group(s.pp, s.tp * s.cp * s.dp, activations * copies / s.tp),
    }
    found = {}
    for name, rate in _bandwidths(job, s, groups).items():
        if name == "dp":
            found[name] = _dp(job, s, tokens, rate, layerwise=layerwise)
        elif name == "zero3":
            found[name] = _zero3(job, s, tokens, rate, gathering)
        else:
            found[name] = _tp(job, s, rate) if name == "tp" else _pp(job, s, copies, rate)
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of ranks and its call, arrays of shape (N,)."""

    ranks: Floats
    stride: Floats
    """Distance between neighbours, in ranks."""
    size_bytes: Floats


@dataclass(frozen=True, slots=True)
class JobWeights:
    """Counts of a job's weights."""

    trained: float
    trained_share: float
    largest_layer: float
    per_active: float
    """All weights over those that one token is multiplied with; 1 without experts."""


@lru_cache(maxsize=1024)
def weights_of(job: Job) -> JobWeights:
    """Counts of a job's weights, kept for the next question about it."""
    counts, trained = count_parameters(job.model), trained_parameters(job.model, job.training)
    return JobWeights(trained.trainable, trained.share, float(max(counts.per_layer)), counts.total / counts.active)


def _dp(job: Job, strategies: Strategies, tokens: Floats, rate: Floats, *, layerwise: Bools) -> Condition:
    ranks, weights, each = strategies.dp_cp, weights_of(job), strategies.grad_sync_each
    grad_bytes = BYTES_PER[job.training.grad_reduce_dtype]
    between = tokens * np.where(each, 1.0, strategies.num_micro_batches)
    ratio = dp_ratio(between, ranks=ranks, element_bytes=grad_bytes, flops_per_s=_peak(job), bytes_per_s=rate)
    # Experts have gradients of all their weights but compute with a few; frozen weights are computed with but have none. Where
    # parameters are gathered layer by layer, gradients are only scattered, which is half of an all-reduce.
    halved = np.where(layerwise, 0.5, 1.0)
    ratio = ratio * (weights.per_active * weights.trained_share) * halved
    # Jobs that differ in their batch may be priced together, so that it is taken from the strategies.
    batch = strategies.dp * strategies.micro_batch_size * strategies.num_micro_batches
    raised = ratio * np.where(each, strategies.micro_batch_size, batch)
    return Condition(ranks > 1, ratio, ranks, grad_bytes, rate, raised, ("global_batch_size", "micro_batch_size"), each)


def _zero3(job: Job, strategies: Strategies, tokens: Floats, rate: Floats, ranks: Floats) -> Condition:
    element_bytes = job.training.gather_bytes
    ratio = zero3_ratio(tokens, ranks=ranks, element_bytes=element_bytes, flops_per_s=_peak(job), bytes_per_s=rate)
    ratio = ratio * weights_of(job).per_active
    return _condition(ratio, ranks, element_bytes, rate, strategies.micro_batch_size, "micro_batch_size")


def _tp(job: Job, strategies: Strategies, rate: Floats) -> Condition:
    ranks, hidden, element_bytes = strategies.tp, float(job.model.hidden_size), job.training.compute_bytes
    ratio = tp_ratio(hidden, ranks=ranks, element_bytes=element_bytes, flops_per_s=_peak(job), bytes_per_s=rate)
    return _condition(ratio, ranks, element_bytes, rate, np.full_like(ranks, hidden), "hidden_size")


def _pp(job: Job, strategies: Strategies, copies: Floats, rate: Floats) -> Condition:
    ranks, hidden, element_bytes = strategies.pp, float(job.model.hidden_size), job.training.compute_bytes
    layers = job.model.num_layers / (ranks * strategies.vpp)
    ratio = pp_ratio(
        hidden, layers=layers, element_bytes=element_bytes, flops_per_s=_peak(job), bytes_per_s=rate, copies=copies
    )
    return _condition(ratio, ranks, element_bytes, rate, layers, "layers_per_stage")


def _is_scattered(job: Job, strategies: Strategies) -> Bools:
    """Whether each tensor-parallel rank sends its own slice of the activations to the next stage, shape (N,)."""
    return strategies.sequence_parallel | (job.framework.scatters_pipeline_messages & (strategies.tp > 1))


def _condition(ratio: Floats, ranks: Floats, element_bytes: float, rate: Floats, now: Floats, field: str) -> Condition:
    """A condition whose ratio falls as one field rises, which is `now`."""
    never = np.zeros(len(ratio), np.bool_)
    return Condition(ranks > 1, ratio, ranks, element_bytes, rate, ratio * now, (field, field), never)


def _peak(job: Job) -> float:
    return job.calibration.peak_flops_per_s(job.training.precision)


def _bandwidths(job: Job, strategies: Strategies, groups: Mapping[str, _Group]) -> dict[str, Floats]:
    """Bytes per second of one rank's link in each kind of group that any strategy has, shape (N,).

    It is what nccl-tests call bus bandwidth: of an all-gather, and between stages of a send; infinite without a call.
    """
    used = {name: group for name, group in groups.items() if (group.ranks > 1).any()}
    if not used:
        return {}
    # All groups in one batch: a row alone would wait longer for four small ones than for everything else that is said of it.
    count, kinds = len(strategies), len(used)
    ranks = np.concatenate([group.ranks for group in used.values()])
    stride = np.concatenate([group.stride for group in used.values()])
    size = np.concatenate([group.size_bytes for group in used.values()])
    world, domain = np.tile(strategies.world, kinds), np.tile(domain_gpus(job.cluster, strategies), kinds)
    placement = place(ranks, stride=stride, cluster=job.cluster, world=world, domain=domain)
    # An all-reduce is priced as the reduce-scatter and all-gather that it is made of, as ZeRO runs it; inside a switch that adds up
    # by itself it would be faster. Sends between stages come last.
    ops: dict[Op, int] = {"all_gather": (kinds - ("pp" in used)) * count, "send_recv": ("pp" in used) * count}
    rates, start = np.full(kinds * count, np.inf), 0
    for op, length in ops.items():
        rows = np.arange(start, start + length)
        if length:
            seconds = job.calibration.collective_s(op, size[rows], placement=placement.take(rows)).seconds
            np.divide(
                bus_factor(op, ranks[rows]) * size[rows], seconds, out=rates[start : start + length], where=seconds > 0
            )
        start += length
    return dict(zip(used, rates.reshape(kinds, count), strict=True))
