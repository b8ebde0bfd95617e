"""Which values each axis of a search takes, and every combination of degrees that uses whole nodes.

Degrees are divisors of what they split (heads, the batch, experts), of any kind, not only powers of two. What the request
fixes or lists replaces the candidates. The combinations come out in a fixed order, so equal requests search alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import SearchBudgetError
from cost_models.job import Job
from cost_models.layouts import Layout, Layouts, build_layouts
from cost_models.strategy import NAMES, RECOMPUTE_MODULES, Recompute
from planner.rules.rule import divisors
from planner.schemas.plan_request import AllowedValues, Constraints
from planner.schemas.strategy import StrategyInput
from planner.space import Space
from planner.splits import default_split, even_split, suggested_split
from planner.strategy_defaults import DEFAULTS

Ints = NDArray[np.int64]
MOST_COMBINATIONS = 20_000_000
"""Combinations of degrees held at a time: some 2 GiB. 100,000 GPUs with a batch of 60 divisors need a quarter."""
MOST_OPTIONS = 2_000_000
"""Choices that a combination of degrees leaves open, over all numbers of stages: a table of some hundred MiB."""
MIN_TOKENS_PER_CP_RANK = 256
"""Shortest share of a sequence for which context parallelism is tried."""
DEGREE_AXES = ("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch_size", "sequence_parallel")
KNOB_FIELDS = (
    "zero_shard_size", "zero_param_shard_size", "grad_sync", "recompute_modules", "schedule", "cp_comm",
    "moe_dispatcher",
)  # fmt: skip


def build_space(job: Job, constraints: Constraints, *, worlds: Ints | None = None) -> Space:
    """The space of one job under the request's constraints.

    Args:
        job: what is planned.
        constraints: what is fixed, what is listed.
        worlds: GPU counts that a plan may use; whole nodes of the job's cluster unless given.
    """
    given = _given_values(constraints)
    splits = _splits_by_stages(job, given)
    degrees = _degrees(job, constraints, given, stages=np.array(sorted(splits), dtype=np.int64), worlds=worlds)
    used = sorted(set(degrees["pp"].tolist())) or [1]
    layouts, index = _layouts(job, given, {pp: splits.get(pp, []) for pp in used})
    knobs = {_column(name): tuple(_coded(name, v) for v in given[name]) for name in KNOB_FIELDS if name in given}
    knobs |= {name: values for name, values in given.items() if name.startswith(("overlap_", "offload_"))}
    chosen: dict[str, tuple[Any, ...]] = {
        name: tuple(_coded(name, v) for v in given[name])
        for name in ("zero", "recompute", "recompute_method")
        if name in given
    }
    full_alone = ("recompute_per_stage", "recompute_method", "recompute_num_layers")
    if any(getattr(constraints.fixed, name) is not None for name in full_alone):
        chosen["recompute"] = (Recompute.FULL,)
    if "recompute_num_layers" in given:
        chosen["recompute_num_layers"] = given["recompute_num_layers"]
    space = Space(job=job, degrees=degrees, chosen=chosen, layouts=layouts, layout_index=index, knobs=knobs)
    most = int(space.multiplicity(np.array(used)).sum())
    if most > MOST_OPTIONS:
        message = f"the values of constraints.allowed make {most:,} choices for each combination of degrees, too many to search"
        raise SearchBudgetError(message, hint="List fewer values, or fix some of these fields.")
    return space


def searched_values(space: Space) -> dict[str, list[Any]]:
    """Values that each axis takes, in the contract's names, for `search.space`."""
    degrees = {name: np.unique(space.degrees[name]).tolist() for name in DEGREE_AXES}
    table = space.layouts.table
    pairs = [pair for pairs in space.layout_index.values() for pair in pairs]
    counts = sorted({option[2] for _, layout in pairs for option in space.recomputes(layout)} - {0})
    uneven = [list(table[layout].layers) for _, layout in pairs if not table[layout].is_even]
    return {
        **degrees,
        "vpp": sorted({vpp for vpp, _ in pairs}),
        "zero": list(space.zeros),
        "zero_shard_size": ["all replicas", "one node"] if space.shards_in_nodes else ["all replicas"],
        "recompute": [NAMES["recompute"][mode] for mode in space.recompute_modes],
        "recompute_num_layers": counts,
        "layers_per_stage": ["even", *uneven] if len(uneven) < len(pairs) else uneven,
        **dict(_spelled(name, values) for name, values in space.knobs.items()),
    }


def _given_values(constraints: Constraints) -> dict[str, tuple[Any, ...]]:
    """What the request fixes or lists, flattened: nested overlap and offload fields become `overlap_tp_comm` and so on."""
    given: dict[str, tuple[Any, ...]] = {}
    for source, many in ((constraints.fixed, False), (constraints.allowed, True)):
        for name, value in _flat(source):
            given[name] = tuple(dict.fromkeys(value)) if many else (value,)
    return given


def _flat(source: StrategyInput | AllowedValues) -> Iterable[tuple[str, Any]]:
    for name in type(source).model_fields:
        value = getattr(source, name)
        if value is None:
            continue
        if name in ("overlap", "offload"):
            yield from ((f"{name}_{part}", getattr(value, part)) for part in type(value).model_fields
                        if getattr(value, part) is not None)  # fmt: skip
        else:
            yield name, value


def _column(name: str) -> str:
    return "grad_sync_each" if name == "grad_sync" else name


def _coded(name: str, value: Any) -> Any:
    """A contract value as the code that `Strategies` stores."""
    if name == "grad_sync":
        return value == "each"
    if name == "recompute_modules":
        return sum(1 << RECOMPUTE_MODULES.index(module) for module in value)
    return NAMES[name].index(value) if name in NAMES else value


def _spelled(column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """A knob in the contract's names."""
    if column == "grad_sync_each":
        return "grad_sync", ["each" if each else "last" for each in values]
    if column == "recompute_modules":
        return column, [[name for bit, name in enumerate(RECOMPUTE_MODULES) if bits >> bit & 1] for bits in values]
    for group in ("overlap", "offload"):
        if column.startswith(f"{group}_"):
            return f"{group}.{column.removeprefix(f'{group}_')}", list(values)
    return column, [NAMES[column][value] if column in NAMES else value for value in values]


Splits = dict[int, list[tuple[int, Sequence[int]]]]
"""(vpp, layers of each virtual stage) by number of stages, fewest virtual stages first."""


def _splits_by_stages(job: Job, given: Mapping[str, tuple[Any, ...]]) -> Splits:
    """The splits of every number of stages that has one."""
    largest = min(job.model.num_layers, job.cluster.num_gpus)
    tried: Sequence[int] = given.get("pp", range(1, largest + 1))
    if "recompute_per_stage" in given:
        tried = [pp for pp in tried if pp == len(given["recompute_per_stage"][0])]
    found = {pp: _splits(job, pp, given) for pp in tried}
    return {pp: splits for pp, splits in found.items() if splits}


def _layouts(
    job: Job, given: Mapping[str, tuple[Any, ...]], splits: Splits
) -> tuple[Layouts, dict[int, tuple[tuple[int, int], ...]]]:
    """The table of these splits, and (vpp, layout) pairs by pp."""
    table: list[Layout] = []
    index: dict[int, tuple[tuple[int, int], ...]] = {}
    per_stage = given["recompute_per_stage"][0] if "recompute_per_stage" in given else None
    for pp, choices in splits.items():
        index[pp] = tuple((vpp, len(table) + position) for position, (vpp, _) in enumerate(choices))
        table += [Layout(pp, vpp, tuple(split), recompute_per_stage=per_stage) for vpp, split in choices]
    if not table:
        table = [Layout(pp=1, vpp=1, layers=(job.model.num_layers,))]
    return build_layouts(table, model=job.model), index


def _splits(job: Job, pp: int, given: Mapping[str, tuple[Any, ...]]) -> list[tuple[int, Sequence[int]]]:
    """(vpp, layers of each virtual stage) of one number of stages."""
    listed_vpp = given.get("vpp")
    if "layers_per_stage" in given:
        splits = [split for split in given["layers_per_stage"] if len(split) % pp == 0]
        return [(len(split) // pp, split) for split in splits if listed_vpp is None or len(split) // pp in listed_vpp]
    layers = job.model.num_layers
    if listed_vpp is None:
        interleaved = job.runtime.has_interleaving and pp > 1 and layers % pp == 0
        listed_vpp = tuple(divisors(layers // pp)) if interleaved else (1,)
    found: list[tuple[int, Sequence[int]]] = []
    for vpp in sorted(listed_vpp):
        split = even_split(layers, pp * vpp) or default_split(job, pp=pp, vpp=vpp)
        if split is None and DEFAULTS[job.training.framework].any_split and pp * vpp <= layers:
            split = suggested_split(layers, pp * vpp)
        if split is not None:
            found.append((vpp, split))
    return found


def _degrees(
    job: Job, constraints: Constraints, given: Mapping[str, Any], *, stages: Ints, worlds: Ints | None
) -> dict[str, NDArray[Any]]:
    """Every combination of degrees on whole nodes, one array per DEGREE_AXES."""
    cluster, batch = job.cluster, job.training.global_batch_size
    allowed_gpus = _allowed_gpus(job, constraints) if worlds is None else worlds
    tp = np.array([t for t in given.get("tp", divisors(job.model.num_attention_heads)) if t <= cluster.num_gpus])
    cp = np.array(given.get("cp", _context_degrees(job)))
    grid = [axis.reshape(-1) for axis in np.meshgrid(tp, stages, cp, indexing="ij")]
    rows = _Rows({"tp": grid[0], "pp": grid[1], "cp": grid[2]})
    rows.keep(rows["tp"] * rows["pp"] * rows["cp"] <= cluster.num_gpus)
    rows.cross("dp", given.get("dp", divisors(batch)))
    world = rows["tp"] * rows["pp"] * rows["cp"] * rows["dp"]
    rows.keep(np.isin(world, allowed_gpus) & (batch % rows["dp"] == 0))
    rows.cross("micro_batch_size", given.get("micro_batch_size", divisors(batch)))
    rows.keep((batch // rows["dp"]) % rows["micro_batch_size"] == 0)
    _cross_experts(job, given, rows)
    if "sequence_parallel" in given:
        rows.cross("sequence_parallel", given["sequence_parallel"])
        rows.keep((rows["tp"] > 1) | ~rows["sequence_parallel"].astype(bool))
    else:
        both = DEFAULTS[job.training.framework].sequence_parallel_optional and job.model.moe is None
        rows.cross("sequence_parallel", (True, False) if both else (job.runtime.default_sequence_parallel,))
        rows.keep((rows["tp"] > 1) | ~rows["sequence_parallel"].astype(bool) | (not both))
        rows.columns["sequence_parallel"] = rows["sequence_parallel"].astype(bool) & (rows["tp"] > 1)
    return rows.columns


def _allowed_gpus(job: Job, constraints: Constraints) -> Ints:
    """GPU counts a plan may use: whole nodes within the requested range, all of them where none may idle."""
    cluster, limits = job.cluster, constraints.num_nodes
    most = min(limits.max or cluster.num_nodes, cluster.num_nodes)
    least = limits.min or 1
    nodes = np.arange(least if constraints.allow_idle_gpus else most, most + 1, dtype=np.int64)
    return nodes * cluster.gpus_per_node


def _context_degrees(job: Job) -> list[int]:
    if not DEFAULTS[job.training.framework].context_parallel:
        return [1]
    longest = job.training.seq_length // MIN_TOKENS_PER_CP_RANK
    found = [c for c in divisors(job.training.seq_length) if c <= min(longest, job.cluster.num_gpus)]
    return [1, *(c for c in found if c > 1 and job.training.seq_length % (2 * c) == 0)]


def _cross_experts(job: Job, given: Mapping[str, Any], rows: _Rows) -> None:
    moe, defaults = job.model.moe, DEFAULTS[job.training.framework]
    if moe is None:
        rows.cross("ep", given.get("ep", (1,)))
        rows.cross("etp", given.get("etp", (1,)))
        return
    rows.cross("ep", given.get("ep", divisors(moe.num_experts) if defaults.expert_parallel else (1,)))
    rows.keep((rows["tp"] * rows["cp"] * rows["dp"]) % rows["ep"] == 0)
    if "etp" in given:
        rows.cross("etp", given["etp"])
    else:
        rows.cross("etp", (0, 1) if job.runtime.etp_defaults_to_tp else (1,))
        rows.keep((rows["etp"] != 0) | (rows["tp"] > 1))  # tp 1 is the other choice already
        rows.columns["etp"] = np.where(rows["etp"] == 0, rows["tp"], rows["etp"])
    rows.keep((rows["tp"] * rows["cp"] * rows["dp"]) % (rows["ep"] * rows["etp"]) == 0)


class _Rows:
    """Columns of equal length that grow by crossing with new values and shrink by masks."""

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def cross(self, name: str, values: Iterable[Any]) -> None:
        """Every row with every value."""
        listed = np.array(list(values))
        length = len(next(iter(self.columns.values())))
        if length * len(listed) > MOST_COMBINATIONS:
            message = f"{length:,} combinations of {', '.join(self.columns)} with {len(listed)} values of {name} are too many to search"
            raise SearchBudgetError(message, hint="Fix or list tp, pp, dp, cp, ep or micro_batch_size in constraints.")
        self.columns = {key: np.repeat(column, len(listed)) for key, column in self.columns.items()}
        self.columns[name] = np.tile(listed, length)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self.columns = {key: column[mask] for key, column in self.columns.items()}
