"""The values that each axis of a search takes.

A degree may be any divisor of what it splits (heads, the batch, experts), not only a power of two. Values that the request fixes or
lists replace these candidates. Everything comes in a fixed order, so that equal requests are searched alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cost_models.errors import SearchBudgetError
from cost_models.frameworks.splits import ENDS, suggested_split
from cost_models.job import Job
from cost_models.strategies.fields import COLUMNS, FIELD, FIELDS, CpComm, MoeDispatcher, Recompute, Schedule
from cost_models.strategies.layouts import Layout, Layouts, build_layouts, folds
from planner.rules.default_splits import legal_split
from planner.rules.expressible import splits_freely
from planner.rules.rule import divisors
from planner.schemas.plan_request import Constraints
from planner.strategies.degrees import DEGREE_AXES, Ints, build_degrees
from planner.strategies.parts import Part, Parts
from planner.strategies.searched_knobs import with_searched_knobs
from planner.strategies.space import Space

MOST_OPTIONS = 2_000_000
"""Most choices that a combination of degrees may leave open, over all numbers of stages: a table of a few hundred MiB."""


def build_space(
    job: Job, constraints: Constraints, *, worlds: Ints | None = None, without: Parts = frozenset()
) -> Space:
    """The space of one job under the request's constraints.

    Args:
        job: what is planned.
        constraints: what the request fixes and lists.
        worlds: numbers of GPUs that a plan may use; whole nodes of the job's cluster by default.
        without: parts of the search that are left out.

    Raises:
        SearchBudgetError: the listed values make more choices than can be searched.
    """
    given = given_values(constraints)
    splits = _splits_by_stages(job, given, without)
    degrees = build_degrees(job, constraints, given, stages=np.array(sorted(splits), dtype=np.int64), worlds=worlds)
    used = degrees.values("pp") or [1]
    schedules = (
        _codes(given, "schedule")
        if "schedule" in given
        else _searched_schedules(job, plain=worlds is not None or Part.SCHEDULES in without)
    )
    layouts, index = _layouts(job, given, {pp: splits.get(pp, []) for pp in used}, schedules=schedules)
    knobs = {
        field.column: _codes(given, field.name)
        for field in FIELDS
        if field.is_knob and field.name in given and field.name != "schedule"
    }
    # Only the exchange in two levels has an inner group.
    if "cp_a2a_size" in knobs:
        knobs.setdefault("cp_comm", (CpComm.A2A_P2P,))
    # These kernels belong to the flex dispatcher alone, so naming them implies it.
    if "flex_backend" in knobs:
        knobs.setdefault("moe_dispatcher", (MoeDispatcher.FLEX,))
    chosen: dict[str, tuple[Any, ...]] = {
        name: _codes(given, name) for name in ("zero", "recompute", "recompute_method", "schedule") if name in given
    }
    full_alone = ("recompute_per_stage", "recompute_method", "recompute_num_layers")
    # Only full recomputation has counts and methods, so fixing one of them rules the other modes out.
    if any(getattr(constraints.fixed, name) is not None for name in full_alone):
        chosen["recompute"] = (Recompute.FULL,)
    if "recompute_num_layers" in given:
        chosen["recompute_num_layers"] = given["recompute_num_layers"]
    space = Space(
        job=job,
        degrees=degrees,
        chosen=chosen,
        layouts=layouts,
        layout_index=index,
        knobs=knobs,
        schedules=schedules,
        module_sets=(FIELD["recompute_modules"].encoded(job.framework.strategy.selective_modules),),
        without=without,
    )
    if worlds is None:  # on pools these knobs keep the framework's defaults unless listed
        space = with_searched_knobs(space)
    most = int(space.num_options(np.array(used)).sum())
    if most > MOST_OPTIONS:
        message = f"the values of constraints.allowed make {most:,} choices for each combination of degrees, which is too many to search"
        raise SearchBudgetError(message, hint="List fewer values, or fix some of these fields.")
    return space


def opened(space: Space, constraints: Constraints) -> Space:
    """The same space for a search of open splits: with every number of virtual stages that the request leaves possible.

    Unless the request lists numbers, these are all with which every virtual stage can hold a layer or an end of the model. Its
    layouts only say pp and vpp.
    """
    job, listed = space.job, given_values(constraints).get("vpp")
    if listed is not None or not (job.framework.choices.vpp and splits_freely(job)):
        return space
    layers = job.model.num_layers
    # With more virtual stages than layers and ends some would always be empty, which only lengthens the pipeline.
    every = {pp: range(1, (layers + ENDS) // pp + 1 if pp > 1 else 2) for pp in space.layout_index}
    splits: Splits = {pp: [(vpp, suggested_split(layers, pp * vpp)) for vpp in vpps] for pp, vpps in every.items()}
    layouts, index = _layouts(
        job, {}, splits, schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    )  # none are folded
    return replace(space, layouts=layouts, layout_index=index)


def searched_values(space: Space) -> dict[str, list[Any]]:
    """The values that each axis takes, in the contract's names, for `search.space` of the response."""
    degrees = {name: space.degrees.values(name) for name in DEGREE_AXES}
    table = space.layouts.table
    pairs = [pair for pairs in space.layout_index.values() for pair in pairs]
    counts = sorted({option[2] for _, layout in pairs for option in space.recomputes(layout)} - {0})
    uneven = [list(table[layout].layers) for _, layout in pairs if not (table[layout].is_even or table[layout].folded)]
    return {
        **degrees,
        "vpp": sorted({vpp for vpp, _ in pairs}),
        "zero": list(space.zeros),
        "zero_shard_size": ["all replicas", *space.groups.shards],
        **({"zero_param_shard_size": ["no second copy", *space.groups.copies]} if space.groups.copies else {}),
        "recompute": [FIELD["recompute"].decoded(mode) for mode in space.recompute_modes],
        "recompute_num_layers": counts,
        "schedule": [FIELD["schedule"].decoded(value) for value in space.splits.schedules_tried],
        "layers_per_stage": ["even", *uneven] if len(uneven) < len(pairs) else uneven,
        **_modules(space),
        **_settled(space.job),
        **{
            COLUMNS[column].name: [COLUMNS[column].decoded(v) for v in values] for column, values in space.knobs.items()
        },
    }


def _modules(space: Space) -> dict[str, list[Any]]:
    """What selective recomputation repeats, where it goes by modules."""
    if Recompute.SELECTIVE not in space.recompute_modes or not space.job.framework.choices.recompute_modules:
        return {}
    return {"recompute_modules": [FIELD["recompute_modules"].decoded(modules) for modules in space.module_sets]}


def _settled(job: Job) -> dict[str, list[Any]]:
    """Fields for which a search takes one value although the other could save memory or time; listing both tries both."""
    # They are shown so that a proof of optimality is not read as covering them.
    settled: dict[str, list[Any]] = {}
    # Waiting for the last micro-batch saves reductions, but holds whole gradients until then.
    if job.framework.accumulates_unreduced:
        settled["grad_sync"] = ["each"]
    # Without overlap there is one bucket less to hold.
    if job.framework.overlaps_from_zero > 0:
        settled["overlap.grad_reduce"] = [True]
    return settled


def _searched_schedules(job: Job, *, plain: bool) -> tuple[int, ...]:
    """The schedules that are tried where the request says nothing of them; `plain` ones alone on pools, where others are not modelled."""
    always, choices = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED), job.framework.choices
    # GPipe takes as long as 1F1B and holds no less. It is of use only where 1F1B refuses to run, with fewer micro-batches than
    # stages in PyTorch.
    useful = (value for value in choices.schedules if value != Schedule.GPIPE or choices.torch_schedules)
    return always if plain else (*always, *(value for value in useful if value not in always))


def given_values(constraints: Constraints) -> dict[str, tuple[Any, ...]]:
    """The values that the request fixes or lists, by field."""
    given: dict[str, tuple[Any, ...]] = {}
    for field in FIELDS:
        value = field.of(constraints.fixed)
        if value is not None:
            given[field.name] = (value,)
    for field in FIELDS:
        values = field.of(constraints.allowed) if field.is_listed else None
        if values is not None:
            given[field.name] = tuple(dict.fromkeys(values))
    return given


def _codes(given: Mapping[str, tuple[Any, ...]], name: str) -> tuple[Any, ...]:
    """The values of a field as `Strategies` stores them."""
    return tuple(FIELD[name].encoded(value) for value in given[name])


Splits = dict[int, list[tuple[int, Sequence[int]]]]
"""Pairs of vpp and the layers of each virtual stage, by number of stages; the fewest virtual stages come first."""


def _splits_by_stages(job: Job, given: Mapping[str, tuple[Any, ...]], without: Parts) -> Splits:
    """The splits of every number of stages that has one."""
    # With virtual stages the two ends need no layer, so there may be two more stages than layers.
    largest = min(job.model.num_layers + ENDS, job.cluster.num_gpus)
    tried: Sequence[int] = given.get("pp", range(1, largest + 1))
    if "recompute_per_stage" in given:
        tried = [pp for pp in tried if pp == len(given["recompute_per_stage"][0])]
    found = {pp: _splits(job, pp, given, without) for pp in tried}
    return {pp: splits for pp, splits in found.items() if splits}


def _layouts(
    job: Job, given: Mapping[str, tuple[Any, ...]], splits: Splits, *, schedules: tuple[int, ...]
) -> tuple[Layouts, dict[int, tuple[tuple[int, int], ...]]]:
    """The table of these splits, folded ones too where a schedule asks for it, and the (vpp, layout) pairs of every number of
    stages.
    """
    table: list[Layout] = []
    index: dict[int, tuple[tuple[int, int], ...]] = {}
    per_stage = given["recompute_per_stage"][0] if "recompute_per_stage" in given else None
    for pp, choices in splits.items():
        here = [
            Layout(pp, vpp, tuple(split), recompute_per_stage=per_stage, folded=folded)
            for vpp, split in choices
            for folded in sorted({folds(schedule, pp=pp, vpp=vpp) for schedule in schedules})
        ]
        index[pp] = tuple((layout.vpp, len(table) + position) for position, layout in enumerate(here))
        table += here
    # A space without any split still needs a table to build its (empty) batches on.
    if not table:
        table = [Layout(pp=1, vpp=1, layers=(job.model.num_layers,))]
    return build_layouts(table, model=job.model), index


def _splits(job: Job, pp: int, given: Mapping[str, tuple[Any, ...]], without: Parts) -> list[tuple[int, Sequence[int]]]:
    """Pairs of vpp and the layers of each virtual stage, for one number of stages."""
    listed_vpp = given.get("vpp")
    if "layers_per_stage" in given:
        splits = [split for split in given["layers_per_stage"] if len(split) % pp == 0]
        return [(len(split) // pp, split) for split in splits if listed_vpp is None or len(split) // pp in listed_vpp]
    layers = job.model.num_layers
    if listed_vpp is None:
        unevenly = splits_freely(job) and Part.UNEVEN_VPP not in without
        interleaved = job.framework.choices.vpp and pp > 1 and (layers % pp == 0 or unevenly)
        # Chunks of equal size: vpp divides the layers of a stage. Where these differ by one, both numbers are tried.
        about = {layers // pp, -(-layers // pp)} if interleaved else {1}
        listed_vpp = tuple({vpp for chunks in about for vpp in divisors(chunks)})
    found: list[tuple[int, Sequence[int]]] = []
    for vpp in sorted(listed_vpp):
        split = legal_split(job, pp=pp, vpp=vpp)
        if split is None and "vpp" in given and splits_freely(job) and vpp > 1 < pp:
            split = suggested_split(layers, pp * vpp)  # some virtual stages are then without layers
        if split is not None:
            found.append((vpp, split))
    return found
