"""The strategies a request may choose from, as two nested batches.

*Base* rows fix what a lower bound needs: the degrees, the micro-batch, sequence parallelism. Each expands into the
remaining choices: virtual stages, ZeRO stage and shard size, recomputation, and whatever knob `constraints.allowed` lists.
Nothing here judges legality (rules) or cost. Degrees need not be powers of two; GPUs are used in whole nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.layouts import Layouts
from cost_models.strategy import (
    RECOMPUTE_MODULES,
    Recompute,
    RecomputeMethod,
    Schedule,
    Strategies,
    build_strategies,
)
from planner.degrees import DEGREE_AXES, Degrees
from planner.strategy_defaults import DEFAULTS, default_flex_backend, possible_overlaps

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Every (base row, option) of some base rows, cheap to enumerate: strategies are built of those that matter."""

    origin: Ints
    """Base row of each, shape (N,)."""
    option: Ints
    """Row of the option table of each, shape (N,)."""

    def take(self, index: Ints | NDArray[np.bool_]) -> Pairs:
        """The pairs at these positions, or where the mask holds."""
        return Pairs(self.origin[index], self.option[index])


@dataclass(frozen=True, eq=False)
class Expansion:
    """Strategies built from pairs."""

    rows: Strategies
    origin: Ints
    """Base row of each, shape (N,)."""
    family: Ints
    """Rows of a family differ in full recomputation alone, shape (N,)."""

    def take(self, index: Ints | NDArray[np.bool_]) -> Expansion:
        """The rows at these positions, or where the mask holds."""
        return Expansion(self.rows.take(index), self.origin[index], self.family[index])


@dataclass(frozen=True, eq=False)
class Space:
    """Everything that is searched for one job; built by `planner.axes.build_space`."""

    job: Job
    degrees: Degrees
    """What base rows have: DEGREE_AXES of every combination."""
    chosen: Mapping[str, tuple[Any, ...]]
    """Values by field where the request fixes or lists them, as the codes of `cost_models.strategy`."""
    layouts: Layouts
    layout_index: Mapping[int, tuple[tuple[int, int], ...]]
    """(vpp, layout) pairs by pp."""
    knobs: Mapping[str, tuple[Any, ...]]
    """Other strategy fields that the request fixes or lists; their product is searched."""

    @cached_property
    def mesh_sizes(self) -> Ints:
        """How many strategies each mesh of `degrees` stands for, shape (M,)."""
        return np.asarray(self.degrees.sizes * self.multiplicity(self.degrees.mesh["pp"]))

    def base(self, meshes: Ints | None = None) -> Strategies:
        """Every base row (or those of these meshes), its open choices the most favourable for time.

        Nothing is recomputed, sharded or offloaded.
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
        return self.build(columns, node_shard=np.zeros(n, np.bool_))

    def leanest(self, base: Strategies, *, zero: int, recompute: Recompute, split: Ints | None = None) -> Strategies:
        """The base rows with the fewest virtual stages, this ZeRO stage and recomputation: memory's most favourable.

        `split` says which of `different_splits` each row takes, shape (N,); the first by default.
        """
        columns = {name: getattr(base, name) for name in DEGREE_AXES}
        n, pp = len(base), base.pp.astype(np.int64)
        vpp, layout = self._splits_table[pp, np.zeros(n, np.int64) if split is None else split].T
        columns |= {"vpp": vpp, "layout": layout, "zero": np.full(n, zero)}
        columns |= {"recompute": np.full(n, recompute), "recompute_num_layers": np.zeros(n)}
        columns["recompute_method"] = np.full(n, RecomputeMethod.EVERY)
        columns |= {name: np.full(n, values[-1]) for name, values in self.knobs.items()}
        return self.build(columns, node_shard=np.zeros(n, np.bool_))

    @cached_property
    def _splits_table(self) -> Ints:
        """(vpp, layout) of every number of stages and of its `different_splits`, shape (largest pp + 1, most splits, 2)."""
        found = self.different_splits
        table = np.zeros((max(found) + 1, max(map(len, found.values())), 2), dtype=np.int64)
        for pp, pairs in found.items():
            table[pp, : len(pairs)] = pairs
        return table

    def num_splits(self, pp: NDArray[Any]) -> Ints:
        """How many `different_splits` these numbers of stages have, shape of `pp`."""
        counts = np.zeros(max(self.different_splits) + 1, dtype=np.int64)
        for stages, pairs in self.different_splits.items():
            counts[stages] = len(pairs)
        return np.asarray(counts[pp.astype(np.int64)])

    @staticmethod
    def _by_stages(pairs: Mapping[int, tuple[int, int]], pp: NDArray[Any]) -> Ints:
        """(vpp, layout) of each number of stages, shape (2, N)."""
        table = np.zeros((max(pairs) + 1, 2), dtype=np.int64)
        for stages, pair in pairs.items():
            table[stages] = pair
        return np.asarray(table[pp.astype(np.int64)].T)

    @cached_property
    def different_splits(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """(vpp, layout) pairs by pp whose stages hold different layers: of equal ones that with the fewest virtual stages."""
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
        """Most virtual stages of every number of stages, shape (largest pp + 1,)."""
        most = np.ones(max(self.layout_index) + 1)
        for pp, pairs in self.layout_index.items():
            most[pp] = max(vpp for vpp, _ in pairs)
        return most

    @cached_property
    def options(self) -> Columns:
        """The ways to choose what a base row leaves open, for all numbers of stages one after the other.

        Beside the strategy fields: `node_shard`, `family` (options that differ in full recomputation alone), and
        `again_layers` (layers that every stage recomputes at least).
        """
        parts = [self._options(vpp, layout) for pairs in self.layout_index.values() for vpp, layout in pairs]
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        table["family"] = np.cumsum(table["family"]) - 1
        return table

    @cached_property
    def _option_range(self) -> Ints:
        """First option and number of options of every number of stages, shape (largest pp + 1, 2)."""
        table = np.zeros((max(self.layout_index) + 1, 2), dtype=np.int64)
        start = 0
        for pp, pairs in self.layout_index.items():
            size = sum(self._num_options(layout) for _, layout in pairs)
            table[pp] = start, size
            start += size
        return table

    def pairs(self, base: Strategies) -> Pairs:
        """Every option of every base row, in base order."""
        first, size = self._option_range[base.pp.astype(np.int64)].T
        origin = np.repeat(np.arange(len(base)), size)
        within = np.arange(len(origin)) - np.repeat(np.cumsum(size) - size, size)
        return Pairs(origin, first[origin] + within)

    def expand(self, base: Strategies, pairs: Pairs | None = None) -> Expansion:
        """The strategies of these pairs (all of the base rows' by default), those that are the same left out."""
        pairs = pairs or self.pairs(base)
        columns = {name: getattr(base, name)[pairs.origin] for name in DEGREE_AXES}
        columns |= {name: values[pairs.option] for name, values in self.options.items()}
        del columns["again_layers"]
        family = pairs.origin * (int(self.options["family"][-1]) + 1) + columns.pop("family")
        node_shard = columns.pop("node_shard")
        rows = self.build(columns, node_shard=node_shard)
        repeated = node_shard & (rows.zero_shard_size >= rows.dp_cp)  # one node holds every replica
        expansion = Expansion(rows, pairs.origin, family)
        return expansion.take(~repeated) if repeated.any() else expansion

    def multiplicity(self, pp: NDArray[Any]) -> Ints:
        """How many strategies a base row of this many stages stands for, shape of `pp`."""
        return np.asarray(self._option_range[pp.astype(np.int64), 1])

    @property
    def zeros(self) -> tuple[int, ...]:
        """ZeRO stages searched."""
        return self.chosen.get("zero", self.job.runtime.supports_zero)

    @property
    def recompute_modes(self) -> tuple[int, ...]:
        """Codes of `Recompute` searched."""
        return self.chosen.get("recompute", DEFAULTS[self.job.training.framework].recompute_modes)

    def build(self, columns: Columns, *, node_shard: NDArray[np.bool_]) -> Strategies:
        """Strategies from the searched columns: the rest follow from them or take the framework's best legal value."""
        job, n = self.job, len(columns["tp"])
        columns = dict(columns)
        columns["num_micro_batches"] = job.training.global_batch_size / (columns["dp"] * columns["micro_batch_size"])
        columns["zero_shard_size"] = self._shard_sizes(columns, node_shard)
        defaults = DEFAULTS[job.training.framework]
        fill = {
            "zero_param_shard_size": columns["zero_shard_size"],
            "grad_sync_each": columns["zero"] >= 2,
            "recompute_modules": np.where(columns["recompute"] == Recompute.SELECTIVE, self.selective_modules, 0),
            "schedule": np.where(columns["vpp"] > 1, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B),
            "cp_comm": np.full(n, defaults.cp_comm),
            "moe_dispatcher": np.full(n, defaults.moe_dispatcher),
            "flex_backend": np.full(n, default_flex_backend(job)),
            "offload_optimizer_fraction": np.zeros(n),
            "offload_parameters": np.zeros(n, np.bool_),
            "offload_activation_layers": np.zeros(n),
        }
        possible = possible_overlaps(job.runtime, columns)
        for name, exists in possible.items():
            # What a framework overlaps in its highest stage alone can be switched on wherever it is possible.
            wanted = columns.get(f"overlap_{name}", job.overlaps_by_default(name, zero=max(job.runtime.supports_zero)))
            columns[f"overlap_{name}"] = exists & wanted
        return build_strategies({**fill, **columns}, layouts=self.layouts)

    def _shard_sizes(self, columns: Columns, node_shard: NDArray[np.bool_]) -> NDArray[Any]:
        replicas = columns["dp"] * columns["cp"]
        if "zero_shard_size" in columns:
            return columns["zero_shard_size"]
        in_node = np.maximum(self.job.cluster.gpus_per_node // columns["tp"], 1)
        fits = node_shard & (in_node < replicas) & (replicas % in_node == 0) & (in_node > 1)
        return np.where(fits, in_node, replicas)

    def _num_options(self, layout: int) -> int:
        sharding = sum(len(self._shards(zero)) for zero in self.zeros)
        return sharding * prod(map(len, self.knobs.values())) * len(self.recomputes(layout))

    def _options(self, vpp: int, layout: int) -> Columns:
        """Every ZeRO stage, shard group, recomputation and knob value of one split."""
        sharding = np.array([(zero, shard) for zero in self.zeros for shard in self._shards(zero)])
        recompute = np.array(self.recomputes(layout))
        knobs = [np.array(values) for values in self.knobs.values()]
        shape = (len(sharding), *map(len, knobs), len(recompute))
        at, *chosen, again = (index.reshape(-1) for index in np.indices(shape))
        layers = self._repeated_at_least(layout, recompute)
        columns: Columns = {
            "family": again == 0,
            "vpp": np.full(len(at), vpp),
            "layout": np.full(len(at), layout),
            "zero": sharding[at, 0],
            "node_shard": sharding[at, 1].astype(np.bool_),
            "recompute": recompute[again, 0],
            "recompute_method": recompute[again, 1],
            "recompute_num_layers": recompute[again, 2],
            "again_layers": layers[again],
        }
        columns |= {name: values[index] for name, values, index in zip(self.knobs, knobs, chosen, strict=True)}
        return columns

    def _repeated_at_least(self, layout: int, recompute: Ints) -> NDArray[Any]:
        """Layers that every stage of this split repeats in full, for each (recompute, method, layers) row."""
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
        """What Megatron's selective recomputation repeats unless told otherwise: the attention core."""
        return 1 << RECOMPUTE_MODULES.index("core_attn") if self.job.runtime.state_layout == "megatron" else 0

    @property
    def shards_in_nodes(self) -> bool:
        """Whether sharding inside a node, with replicas across nodes, is tried beside sharding over all replicas."""
        grouped = DEFAULTS[self.job.training.framework].shard_groups
        return grouped and self.job.cluster.num_nodes > 1 and "zero_shard_size" not in self.knobs

    def _shards(self, zero: int) -> tuple[bool, ...]:
        return (False, True) if zero > 0 and self.shards_in_nodes else (False,)

    def recomputes(self, layout: int) -> list[tuple[int, int, int]]:
        """(recompute, method, layers) choices for one split, full recomputation in the order of rising work."""
        found: list[tuple[int, int, int]] = []
        for mode in self.recompute_modes:
            if mode == Recompute.FULL and self.layouts.table[layout].recompute_per_stage is None:
                found += [(mode, *way) for way in self._full_recomputes(max(self.layouts.table[layout].layers))]
            else:
                found.append((mode, RecomputeMethod.EVERY, 0))
        return found

    def _full_recomputes(self, largest: int) -> list[tuple[int, int]]:
        """(method, layers) choices of full recomputation where the largest chunk holds so many layers."""
        counts, methods = self.chosen.get("recompute_num_layers"), self.chosen.get("recompute_method")
        found: list[tuple[int, int]] = []
        if methods is None:
            searched = counts is not None or DEFAULTS[self.job.training.framework].recompute_counts
            blocks = sorted(counts) if counts is not None else range(1, largest)
            found += [(RecomputeMethod.BLOCK, count) for count in blocks if searched]
            return found if counts is not None else [*found, (RecomputeMethod.EVERY, 0)]
        for method in sorted(methods):
            every = range(1, largest + 1) if method == RecomputeMethod.BLOCK else (1,)
            found += [(method, count) for count in (every if counts is None else sorted(counts))]
        return found
