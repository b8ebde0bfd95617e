"""The strategies from which a request may choose, as two nested batches.

*Base* rows fix what a lower bound needs: the degrees, the micro-batch and sequence parallelism. Each of them expands into the
remaining choices: virtual stages, ZeRO stage, recomputation, and every knob that `constraints.allowed` lists. Strategies that
shard their state do so over all replicas or over any smaller group.
Legality and cost are not judged here. Degrees need not be powers of two, and GPUs are used in whole nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.fields import FIELD, FIELDS, MoeDispatcher, Recompute, RecomputeMethod, Schedule
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Strategies, build_strategies
from planner.strategies.defaults import default_flex_backend, possible_overlaps, reduces_each
from planner.strategies.degrees import DEGREE_AXES, Degrees
from planner.strategies.group_sizes import GroupSizes, build_group_sizes
from planner.strategies.shard_groups import shard_group_stages

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a base row and an option. They are cheap to enumerate, and strategies are built only from those that matter."""

    origin: Ints
    """The base row of each pair, shape (N,)."""
    option: Ints
    """The row of each pair in the table of options, shape (N,)."""
    group: NDArray[np.float64]
    """How many ranks share one copy of the sharded state; 0 stands for all replicas. Shape (N,)."""

    def take(self, index: Ints | NDArray[np.bool_]) -> Pairs:
        """The pairs at these positions, or those where the mask is true."""
        return Pairs(self.origin[index], self.option[index], self.group[index])

    def followed_by(self, others: Pairs) -> Pairs:
        """These pairs, followed by the others."""
        columns = ((getattr(self, name), getattr(others, name)) for name in ("origin", "option", "group"))
        return Pairs(*(np.concatenate(both) for both in columns))


@dataclass(frozen=True, eq=False)
class Expansion:
    """Strategies built from pairs."""

    rows: Strategies
    pairs: Pairs
    """The pair from which each row was built."""
    family: Ints
    """Number of the family of each row, shape (N,). The rows of a family differ only in full recomputation."""

    @property
    def origin(self) -> Ints:
        """The base row of each row, shape (N,)."""
        return self.pairs.origin

    def take(self, index: Ints | NDArray[np.bool_]) -> Expansion:
        """The rows at these positions, or those where the mask is true."""
        return Expansion(self.rows.take(index), self.pairs.take(index), self.family[index])


@dataclass(frozen=True, eq=False)
class Space:
    """Everything that is searched for one job; `planner.strategies.axes.build_space` builds it."""

    job: Job
    degrees: Degrees
    """The DEGREE_AXES of every combination, which are what base rows have."""
    chosen: Mapping[str, tuple[Any, ...]]
    """Values by field where the request fixes or lists them, in the codes of `cost_models.strategies.strategy`."""
    layouts: Layouts
    layout_index: Mapping[int, tuple[tuple[int, int], ...]]
    """The (vpp, layout) pairs of every number of stages."""
    knobs: Mapping[str, tuple[Any, ...]]
    """Other strategy fields that the request fixes or lists. The search takes every combination of their values."""

    @cached_property
    def mesh_sizes(self) -> Ints:
        """How many strategies each mesh of `degrees` stands for, shape (M,)."""
        mesh = self.degrees.mesh
        return np.asarray(self.degrees.sizes * self._multiplicity(mesh["pp"], mesh["dp"] * mesh["cp"], mesh["cp"]))

    @cached_property
    def group_stages(self) -> frozenset[int]:
        """ZeRO stages at which smaller groups are searched too; none where the request says how large the groups are."""
        return frozenset() if "zero_shard_size" in self.knobs else shard_group_stages(self.job) & set(self.zeros)

    @cached_property
    def _groups(self) -> GroupSizes:
        mesh = self.degrees.mesh
        some = slice(None) if self.group_stages else slice(0)
        return build_group_sizes(self.job, dp=mesh["dp"][some], cp=mesh["cp"][some])

    @property
    def group_sizes(self) -> list[int]:
        """All sizes of smaller groups in rising order."""
        return [int(size) for size in np.unique(self._groups.sizes_S)]

    def base(self, meshes: Ints | None = None) -> Strategies:
        """The base rows of these meshes, or all of them, with the open choices at their fastest.

        Nothing is recomputed, sharded or offloaded. The bounds of `planner.search.bounds` start from these rows.
        """
        degrees = self.degrees.rows(np.arange(len(self.degrees)) if meshes is None else meshes)
        n = len(degrees["tp"])
        plain = {pp: pairs[-1] for pp, pairs in self.layout_index.items()}
        vpp, layout = self._by_stages(plain, degrees["pp"])
        columns = {
            **degrees,
            "vpp": vpp,
            "layout": layout,
            "zero": np.full(n, min(self.zeros)),
            "recompute": np.full(n, Recompute.NONE),
            "recompute_method": np.full(n, RecomputeMethod.EVERY),
            "recompute_num_layers": np.zeros(n),
        }
        columns |= {name: np.full(n, values[0]) for name, values in self.knobs.items()}
        return self.build(columns)

    def leanest(
        self, base: Strategies, *, zero: int | Ints, recompute: int | Ints, split: Ints | None = None
    ) -> Strategies:
        """The base rows with the open choices at their leanest: the fewest virtual stages, this ZeRO stage and recomputation.

        `split` says which of `different_splits` each row takes, shape (N,); by default the first. A row that needs too much
        memory even so can be dropped with all its expansions.
        """
        columns = {name: getattr(base, name) for name in DEGREE_AXES}
        n, pp = len(base), base.pp.astype(np.int64)
        vpp, layout = self._splits_table[pp, np.zeros(n, np.int64) if split is None else split].T
        columns |= {"vpp": vpp, "layout": layout, "zero": np.full(n, zero)}
        columns |= {"recompute": np.full(n, recompute), "recompute_num_layers": np.zeros(n)}
        columns["recompute_method"] = np.full(n, RecomputeMethod.EVERY)
        # The search drops rows by their leanest expansion only where every knob has a single value, since a second value might
        # need less memory (`Exhaustive._enough_memory`); so first and last are the same there.
        columns |= {name: np.full(n, values[-1]) for name, values in self.knobs.items()}
        return self.build(columns)

    @cached_property
    def _splits_table(self) -> Ints:
        """(vpp, layout) of every split in `different_splits`, by number of stages; shape (largest pp + 1, most splits, 2)."""
        found = self.different_splits
        table = np.zeros((max(found) + 1, max(map(len, found.values())), 2), dtype=np.int64)
        for pp, pairs in found.items():
            table[pp, : len(pairs)] = pairs
        return table

    def num_splits(self, pp: NDArray[Any]) -> Ints:
        """How many `different_splits` there are for these numbers of stages, in the shape of `pp`."""
        counts = np.zeros(max(self.different_splits) + 1, dtype=np.int64)
        for stages, pairs in self.different_splits.items():
            counts[stages] = len(pairs)
        return np.asarray(counts[pp.astype(np.int64)])

    @staticmethod
    def _by_stages(pairs: Mapping[int, tuple[int, int]], pp: NDArray[Any]) -> Ints:
        """The (vpp, layout) of these numbers of stages, shape (2, N)."""
        table = np.zeros((max(pairs) + 1, 2), dtype=np.int64)
        for stages, pair in pairs.items():
            table[stages] = pair
        return np.asarray(table[pp.astype(np.int64)].T)

    @cached_property
    def different_splits(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """The (vpp, layout) pairs by pp whose stages hold different layers."""
        # Splits whose ranks hold the same layers need the same memory for states and differ only in what is in flight, of
        # which fewer virtual stages need less; so one split stands for them when memory is bounded.
        layouts = self.layouts
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for pp, pairs in self.layout_index.items():
            unequal: dict[bytes, tuple[int, int]] = {}
            for vpp, layout in sorted(pairs):
                held = layouts.layers_LKJ[layout].tobytes() + layouts.slot_stage_LK[layout].tobytes()
                unequal.setdefault(held, (vpp, layout))
            found[pp] = tuple(unequal.values())
        return found

    @cached_property
    def most_vpp(self) -> NDArray[np.float64]:
        """The largest number of virtual stages for every number of stages, shape (largest pp + 1,)."""
        most = np.ones(max(self.layout_index) + 1)
        for pp, pairs in self.layout_index.items():
            most[pp] = max(vpp for vpp, _ in pairs)
        return most

    @cached_property
    def options(self) -> Columns:
        """All ways to choose what a base row leaves open, for every number of stages one after the other.

        Three columns stand beside the strategy fields: `family` (the same for options that differ only in full recomputation),
        `again_layers` (the least number of layers that every stage recomputes), and `grouped` (whether the state may be
        sharded over smaller groups).
        """
        made: dict[tuple[tuple[int, int, int], ...], tuple[Columns, Ints]] = {}
        parts: list[Columns] = []
        for vpp, layout in (pair for pairs in self.layout_index.values() for pair in pairs):
            recompute = tuple(self.recomputes(layout))
            if recompute not in made:  # splits whose largest chunks are equal leave the same choices open
                made[recompute] = self._options(np.array(recompute))
            columns, again = made[recompute]
            layers = self._repeated_at_least(layout, np.array(recompute))
            split = {"vpp": np.full_like(again, vpp), "layout": np.full_like(again, layout)}
            parts.append({**columns, **split, "again_layers": layers[again]})
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        table["family"] = np.cumsum(table["family"]) - 1
        return table

    @cached_property
    def _option_range(self) -> Ints:
        """By number of stages: the first option, how many there are, and how many are grouped; shape (largest pp + 1, 3)."""
        table = np.zeros((max(self.layout_index) + 1, 3), dtype=np.int64)
        start = 0
        for pp, pairs in self.layout_index.items():
            size = sum(self._num_options(layout) for _, layout in pairs)
            table[pp] = start, size, size // len(self.zeros) * len(self.group_stages)
            start += size
        return table

    def pairs(self, base: Strategies) -> Pairs:
        """Every option of every base row, in the order of the rows, with the state sharded over all replicas."""
        first, size, _ = self._option_range[base.pp.astype(np.int64)].T
        origin = np.repeat(np.arange(len(base)), size)
        within = np.arange(len(origin)) - np.repeat(np.cumsum(size) - size, size)
        return Pairs(origin, first[origin] + within, np.zeros(len(origin)))

    def distinct_pairs(self, base: Strategies) -> Pairs:
        """`pairs` without those that repeat another one.

        Where a listed knob has no effect, such as the dispatcher of a strategy without expert parallelism, only its first value
        is kept. A ranking would otherwise show one strategy several times.
        """
        pairs, listed = self.pairs(base), [name for name, values in self.knobs.items() if len(values) > 1]
        row = {name: getattr(base, name)[pairs.origin] for name in DEGREE_AXES}
        row |= {name: values[pairs.option] for name, values in self.options.items()}
        possible = possible_overlaps(self.job.framework, row)
        matters = {f"overlap_{name}": exists for name, exists in possible.items()}
        matters |= {"cp_comm": row["cp"] > 1, "moe_dispatcher": row["ep"] * row["etp"] > 1}
        if "flex_backend" in listed:
            matters["flex_backend"] = matters["moe_dispatcher"] & (row["moe_dispatcher"] == MoeDispatcher.FLEX)
        repeats = [~matters[name] & (row[name] != self.knobs[name][0]) for name in listed if name in matters]
        return pairs.take(~np.any(repeats, axis=0)) if repeats else pairs

    def grouped(self, base: Strategies, pairs: Pairs) -> Pairs:
        """The pairs among these whose state can be sharded over smaller groups, once for every size of such a group."""
        which = np.flatnonzero(self.options["grouped"][pairs.option])
        origin = pairs.origin[which]
        row, sizes = self._groups.each(base.dp_cp[origin], base.cp[origin])
        return replace(pairs.take(which[row]), group=sizes)

    def num_groups(self, base: Strategies, pairs: Pairs) -> Ints:
        """How many pairs `grouped` makes of each of these, shape (N,)."""
        counts = self._groups.counts(base.dp_cp, base.cp)
        return np.asarray(counts[pairs.origin] * self.options["grouped"][pairs.option])

    def every_pair(self, base: Strategies) -> Pairs:
        """All pairs for which these base rows stand: first sharded over all replicas, then over every smaller group."""
        whole = self.pairs(base)
        return whole.followed_by(self.grouped(base, whole))

    def expand(self, base: Strategies, pairs: Pairs | None = None) -> Expansion:
        """The strategies of these pairs; by default, of all pairs for which the base rows stand."""
        pairs = self.every_pair(base) if pairs is None else pairs
        columns = {name: getattr(base, name)[pairs.origin] for name in DEGREE_AXES}
        columns |= {name: values[pairs.option] for name, values in self.options.items()}
        del columns["again_layers"], columns["grouped"]
        family = pairs.origin * (int(self.options["family"][-1]) + 1) + columns.pop("family")
        if pairs.group.any():
            whole = family * (int(pairs.group.max()) + 1) + pairs.group.astype(np.int64)
            family = np.unique(whole, return_inverse=True)[1].reshape(-1)
        return Expansion(self.build(columns, group=pairs.group), pairs, family)

    def num_options(self, pp: NDArray[Any]) -> Ints:
        """How many options a base row with this many stages has, in the shape of `pp`."""
        return np.asarray(self._option_range[pp.astype(np.int64), 1])

    def multiplicity(self, base: Strategies) -> Ints:
        """For how many strategies each base row stands, shape (N,)."""
        return self._multiplicity(base.pp, base.dp_cp, base.cp)

    def _multiplicity(self, pp: NDArray[Any], replicas: NDArray[Any], cp: NDArray[Any]) -> Ints:
        _, options, grouped = self._option_range[pp.astype(np.int64)].T
        return np.asarray(options + grouped * self._groups.counts(replicas, cp))

    @property
    def zeros(self) -> tuple[int, ...]:
        """The ZeRO stages that are searched."""
        return self.chosen.get("zero", self.job.framework.choices.zero)

    @property
    def recompute_modes(self) -> tuple[int, ...]:
        """The codes of `Recompute` that are searched."""
        return self.chosen.get("recompute", self.job.framework.strategy.recompute_modes)

    def build(self, columns: Columns, *, group: NDArray[np.float64] | None = None) -> Strategies:
        """Strategies from the searched columns; every other field follows from these or takes the framework's fastest value.

        `group` says how many ranks share one copy of the sharded state; 0, the default, stands for all replicas.
        """
        job, n = self.job, len(columns["tp"])
        columns = dict(columns)
        columns["num_micro_batches"] = job.training.global_batch_size / (columns["dp"] * columns["micro_batch_size"])
        if "zero_shard_size" not in columns:
            replicas = columns["dp"] * columns["cp"]
            columns["zero_shard_size"] = replicas if group is None else np.where(group > 0, group, replicas)
        defaults = job.framework.strategy
        fill = {
            "zero_param_shard_size": columns["zero_shard_size"],
            "grad_sync_each": reduces_each(job.framework, zero=columns["zero"], pp=columns["pp"]),
            "recompute_modules": np.where(columns["recompute"] == Recompute.SELECTIVE, self.selective_modules, 0),
            "schedule": np.where(columns["vpp"] > 1, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B),
            "cp_comm": np.full(n, defaults.cp_comm),
            "moe_dispatcher": np.full(n, defaults.moe_dispatcher),
            "flex_backend": np.full(n, default_flex_backend(job)),
            **{
                field.column: np.full(n, field.default, field.dtype)
                for field in FIELDS
                if field.is_knob and field.default is not None
            },
        }
        possible = possible_overlaps(job.framework, columns)
        for name, exists in possible.items():
            # Some defaults overlap only in the highest ZeRO stage, but the flag can be set wherever the overlap is possible; so
            # the search takes the default of that stage.
            wanted = columns.get(f"overlap_{name}", job.overlaps_by_default(name, zero=max(job.framework.choices.zero)))
            columns[f"overlap_{name}"] = exists & wanted
        return build_strategies({**fill, **columns}, layouts=self.layouts)

    def _num_options(self, layout: int) -> int:
        return len(self.zeros) * prod(map(len, self.knobs.values())) * len(self.recomputes(layout))

    def _options(self, recompute: Ints) -> tuple[Columns, Ints]:
        """Every combination of ZeRO stage, knob values and these (recompute, method, layers) choices, and which choice each takes."""
        zeros = np.array(self.zeros)
        knobs = [np.array(values) for values in self.knobs.values()]
        shape = (len(zeros), *map(len, knobs), len(recompute))
        at, *chosen, again = (index.reshape(-1) for index in np.indices(shape))
        columns: Columns = {
            "family": again == 0,
            "zero": zeros[at],
            "grouped": np.isin(zeros, list(self.group_stages))[at],
            "recompute": recompute[again, 0],
            "recompute_method": recompute[again, 1],
            "recompute_num_layers": recompute[again, 2],
        }
        columns |= {name: values[index] for name, values, index in zip(self.knobs, knobs, chosen, strict=True)}
        return columns, again

    def _repeated_at_least(self, layout: int, recompute: Ints) -> NDArray[Any]:
        """The least number of layers that any stage of this split repeats in full, for each (recompute, method, layers) row."""
        split, held = self.layouts.table[layout], self.layouts.held_LS[layout]
        if split.recompute_per_stage is not None:
            least: NDArray[Any] = np.minimum(held, self.layouts.recompute_limit_LS[layout])[: split.pp].min()
        else:
            chunks = self.layouts.chunk_layers[layout, : split.vpp, : split.pp]
            limit = np.where(recompute[:, 1] == RecomputeMethod.BLOCK, recompute[:, 2], max(split.layers))
            least = np.minimum(chunks, limit[:, None, None]).sum(axis=1).min(axis=1)
        return np.asarray(least * (recompute[:, 0] == Recompute.FULL))

    @property
    def selective_modules(self) -> int:
        """What selective recomputation repeats unless told otherwise, as `recompute_modules` holds it."""
        return int(FIELD["recompute_modules"].encoded(self.job.framework.strategy.selective_modules))

    def recomputes(self, layout: int) -> list[tuple[int, int, int]]:
        """The (recompute, method, layers) choices for one split."""
        # Full recomputation comes in the order of rising work. Recomputing more is never faster (unless activations are
        # offloaded), so once the first choice of a family that fits has lost, the others need not be timed.
        found: list[tuple[int, int, int]] = []
        for mode in self.recompute_modes:
            if mode == Recompute.FULL and self.layouts.table[layout].recompute_per_stage is None:
                found += [(mode, *way) for way in self._full_recomputes(max(self.layouts.table[layout].layers))]
            else:
                found.append((mode, RecomputeMethod.EVERY, 0))
        return found

    def _full_recomputes(self, largest: int) -> list[tuple[int, int]]:
        """The (method, layers) choices of full recomputation for a split whose largest chunk holds this many layers."""
        counts, methods = self.chosen.get("recompute_num_layers"), self.chosen.get("recompute_method")
        found: list[tuple[int, int]] = []
        if methods is None:
            searched = counts is not None or self.job.framework.strategy.recompute_counts
            blocks = sorted(counts) if counts is not None else range(1, largest)
            found += [(RecomputeMethod.BLOCK, count) for count in blocks if searched]
            return found if counts is not None else [*found, (RecomputeMethod.EVERY, 0)]
        for method in sorted(methods):
            every = range(1, largest + 1) if method == RecomputeMethod.BLOCK else (1,)
            found += [(method, count) for count in (every if counts is None else sorted(counts))]
        return found
