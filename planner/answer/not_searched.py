"""The knobs that a search leaves alone, and why: what the contract's `search.not_searched` says.

A proof of optimality covers what `search.space` lists. So that nobody reads more into it, each further knob that the framework has is
named here, with the reason why it cannot gain or with how to have it searched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from cost_models.frameworks.splits import ENDS
from cost_models.strategies.fields import COLUMNS, FIELD, Recompute, Schedule
from planner.rules.expressible import splits_freely
from planner.strategies.degrees import MIN_TOKENS_PER_CP_RANK
from planner.strategies.expansion import MOST_COUNTED_LAYERS
from planner.strategies.module_sets import tries_every_set
from planner.strategies.shard_groups import searched_stages
from planner.strategies.space import Space

_LIST = "List values in constraints.allowed to search them."
_ON_POOLS = f"On pools it keeps the framework's default. {_LIST}"
_VPP = f"On pools only numbers that divide the layers of a stage of equal stages are tried. {_LIST}"
_UNEVEN = f"Tried are divisors of the layers of a stage, both where these differ by one; with other numbers virtual stages differ in size. {_LIST}"
_COUNTS = f"On pools, models of more than {MOST_COUNTED_LAYERS} layers recompute all layers or fewer than an even split's largest chunk holds. {_LIST}"
_ON = f"It is on wherever the framework can overlap. {_LIST}"

_SETS = f"Single modules are tried, and sets that grow from them by the memory saved for each second repeated; other sets may be better. {_LIST}"


def not_searched(space: Space, *, on_pools: bool, splits_are_open: bool, given: Collection[str] = ()) -> dict[str, str]:
    """A reason for every knob that is not searched, by the contract's name of the field; `given` are those whose values the request
    gives.
    """
    asked = {COLUMNS[column].name for column in space.knobs} | set(space.chosen) | set(given)
    parts = (_of_overlaps(space), _of_framework(space), _of_experts(space, on_pools=on_pools), _of_degrees(space))
    reasons = dict(chain.from_iterable((*parts, _of_rounding(space))))
    if (
        "recompute_modules" not in asked
        and len(space.degrees)
        and _chooses_modules(space)
        and not tries_every_set(space)
    ):
        reasons["recompute_modules"] = _SETS
    if on_pools:
        reasons |= {"schedule": "On pools only 1f1b and interleaved are modelled.", "recompute_modules": _ON_POOLS}
        if not space.job.framework.choices.recompute_modules:
            del reasons["recompute_modules"]
        if space.job.framework.choices.vpp:
            reasons["vpp"] = _VPP
        if space.job.framework.strategy.recompute_counts and space.job.model.num_layers > MOST_COUNTED_LAYERS:
            reasons["recompute_num_layers"] = _COUNTS
    elif not splits_are_open and _leaves_out_vpp(space):
        reasons["vpp"] = _UNEVEN
    if not splits_are_open and len(space.degrees.values("pp")) > 0 and max(space.degrees.values("pp")) > 1:
        reasons["layers_per_stage"] = (
            "Beyond the framework's own splits none are tried. Add 'open_splits' to include to have the best split found."
        )
    return {name: reason for name, reason in sorted(reasons.items()) if name not in asked}


def _chooses_modules(space: Space) -> bool:
    """Whether the search chooses what selective recomputation repeats."""
    return Recompute.SELECTIVE in space.recompute_modes and space.job.framework.choices.recompute_modules


def _of_rounding(space: Space) -> Iterator[tuple[str, str]]:
    # Both are options of the optimizer that has hpZ.
    if space.job.framework.param_shard_group_stages:
        for name in ("zero_quantized_weights", "zero_quantized_gradients"):
            yield name, f"It rounds what is computed, so that only requests that list it get it. {_LIST}"


def _of_overlaps(space: Space) -> Iterator[tuple[str, str]]:
    facts = space.job.framework
    for name in ("grad_reduce", "param_gather", "p2p"):
        if facts.overlaps.get(name):
            yield f"overlap.{name}", _ON
    # Without overlap there is one bucket less to hold.
    if facts.overlaps_from_zero > 0:
        yield "overlap.grad_reduce", f"It is on, which is faster but holds one more bucket. {_LIST}"
    if facts.choices.tp_overlap:
        best = "It is on inside a node wherever the framework can overlap, which is never slower and needs no memory."
        yield "overlap.tp_comm", best if facts.strategy.tp_overlap_needs else f"It stays off. {_LIST}"


def _of_degrees(space: Space) -> Iterator[tuple[str, str]]:
    job, choices = space.job, space.job.framework.choices
    longest = job.training.seq_length // MIN_TOKENS_PER_CP_RANK
    if longest < job.cluster.num_gpus:
        yield "cp", f"Degrees that leave a rank fewer than {MIN_TOKENS_PER_CP_RANK} tokens are not tried. {_LIST}"
    if job.model.moe is not None:
        tried = "1 and tp" if job.framework.etp_defaults_to_tp else "1"
        yield "etp", f"No degrees but {tried} are tried. {_LIST}"
    shards, _ = searched_stages(job, zeros=space.zeros, given=space.knobs, without=space.without)
    if shards and (space.degrees.mesh["dp"] * space.degrees.mesh["cp"]).max(initial=1) > 1:
        yield "zero_shard_size", f"A group of one rank shards nothing, as zero 0 does, and is not tried. {_LIST}"
    if choices.selective_recompute and Recompute.SELECTIVE not in space.recompute_modes:
        yield "recompute", f"Selective recomputation is not tried. {_LIST}"


def _leaves_out_vpp(space: Space) -> bool:
    """Whether a number of virtual stages that could be told to the framework is not tried."""
    job = space.job
    if not (job.framework.choices.vpp and splits_freely(job)):
        return False
    most = {pp: (job.model.num_layers + ENDS) // pp for pp in space.layout_index if pp > 1}
    return any(len({vpp for vpp, _ in space.layout_index[pp]}) < count for pp, count in most.items())


def _of_framework(space: Space) -> Iterator[tuple[str, str]]:
    facts, choices = space.job.framework, space.job.framework.choices
    if facts.accumulates_unreduced:
        yield (
            "grad_sync",
            f"Gradients of ZeRO 2 and 3 are reduced in each micro-batch, which saves memory but costs time. {_LIST}",
        )
    if facts.param_shard_group_stages and not space.groups.copies:
        yield "zero_param_shard_size", f"Parameters are sharded like the other state. {_LIST}"
    elif space.groups.copies and space.groups.shards:
        yield "zero_param_shard_size", f"A second copy is tried only beside state that all replicas share. {_LIST}"
    if len(choices.cp_comms) > 1 and max(space.degrees.values("cp"), default=1) > 1:
        own = FIELD["cp_comm"].decoded(space.job.default_cp_comm)
        yield "cp_comm", f"Context parallelism exchanges keys and values by the framework's default, {own}. {_LIST}"
    if choices.recompute_counts:
        yield "recompute_method", f"Uniform units of several layers are not tried. {_LIST}"
        if not facts.strategy.recompute_counts:
            yield "recompute_num_layers", f"Full recomputation covers all layers. {_LIST}"
    if Schedule.GPIPE in choices.schedules and Schedule.GPIPE not in space.splits.schedules_tried:
        yield "schedule", "gpipe takes as long as 1f1b and holds no less."
    if choices.offload and not space.falls_back:
        yield "offload", f"It costs time on the host link and is tried where nothing fits without. {_LIST}"


def _of_experts(space: Space, *, on_pools: bool) -> Iterator[tuple[str, str]]:
    job, choices = space.job, space.job.framework.choices
    if job.model.moe is None:
        return
    if len(choices.dispatchers) > 1:
        yield "flex_backend", f"The flex dispatcher runs the kernels that suit the NVLink domain. {_LIST}"
        if on_pools:
            yield "moe_dispatcher", _ON_POOLS
    if choices.expert_overlap and "overlap_moe_all_to_all" not in space.knobs:
        why = _ON_POOLS if on_pools else f"It stays off. {_LIST}"
        yield "overlap.moe_all_to_all", why
