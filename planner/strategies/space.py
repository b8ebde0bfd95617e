"""The strategies from which a request may choose, as two nested batches.

*Base* rows fix what a lower bound needs: the degrees, the micro-batch and sequence parallelism. Each of them expands into the
remaining choices: virtual stages, ZeRO stage, recomputation, and every knob that `constraints.allowed` lists. Strategies that
shard their state do so over all replicas or over any smaller group.
Legality and cost are not judged here. Degrees need not be powers of two, and GPUs are used in whole nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.fields import FIELDS, V_SHAPED, CpComm, MoeDispatcher, Recompute, RecomputeMethod, Schedule
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Strategies, build_strategies
from planner.strategies.defaults import (
    default_flex_backend,
    expert_overlap_runs,
    inner_sizes,
    overlaps_tp,
    possible_overlaps,
    reduces_each,
)
from planner.strategies.degrees import DEGREE_AXES, Degrees
from planner.strategies.expansion import (
    LAYER_KNOBS,
    LEAN_KNOBS,
    OFFLOADED,
    Expansion,
    Pairs,
    leanest_value,
)
from planner.strategies.group_sizes import GroupSizes, build_group_sizes
from planner.strategies.listed_splits import ListedSplits, waiting_share
from planner.strategies.parts import Part, Parts
from planner.strategies.repetitions import LeanMode, full_recomputes, repeated_at_least

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
BESIDE = frozenset({"family", "repeats", "again_layers", "grouped", "variant", "wait"})
"""Columns of the table of options that are no strategy fields."""


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
    schedules: tuple[int, ...] = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    """Codes of `Schedule` that are searched where the request says nothing of them."""
    module_sets: tuple[int, ...] = (0,)
    """What selective recomputation repeats, as `recompute_modules` holds it; the framework's default first."""
    searched_knobs: frozenset[str] = frozenset()
    """Those among `knobs` that are searched although the request says nothing of them (`planner.strategies.searched_knobs`)."""
    without: Parts = frozenset()
    """Parts of the search that are left out; none, but to see what each is worth."""

    @cached_property
    def splits(self) -> ListedSplits:
        """The listed splits, with the schedules that each can run."""
        return ListedSplits(self.layouts, self.layout_index, self.chosen.get("schedule"), self.schedules)

    @property
    def asks_knobs(self) -> bool:
        """Whether some knob's values are given or searched, so that a rule may refuse them."""
        return bool(self.knobs) or "schedule" in self.chosen

    @property
    def falls_back(self) -> bool:
        """Whether only strategies that keep something in host memory are searched, because nothing fits without."""
        return "offload_optimizer_fraction" in self.searched_knobs

    @cached_property
    def mesh_sizes(self) -> Ints:
        """How many strategies each mesh of `degrees` stands for, shape (M,)."""
        mesh = self.degrees.mesh
        return np.asarray(self.degrees.sizes * self._multiplicity(mesh["pp"], mesh["dp"] * mesh["cp"], mesh["cp"]))

    @cached_property
    def groups(self) -> GroupSizes:
        """The smaller groups of ranks that are searched too; none where the request says how large they are."""
        mesh, given = self.degrees.mesh, self.knobs
        return build_group_sizes(
            self.job, dp=mesh["dp"], cp=mesh["cp"], zeros=self.zeros, given=given, without=self.without
        )

    def base(self, meshes: Ints | None = None) -> Strategies:
        """The base rows of these meshes, or all of them: nothing is recomputed, sharded or offloaded. Bounds start from them."""
        return self.base_of(self.degrees.rows(np.arange(len(self.degrees)) if meshes is None else meshes))

    def base_of(self, degrees: Columns) -> Strategies:
        """The base rows with these DEGREE_AXES."""
        n = len(degrees["tp"])
        vpp, layout = self.splits.last[degrees["pp"].astype(np.int64)].T
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
        self, base: Strategies, *, zero: int | Ints, modes: Sequence[LeanMode], mode: Ints | None = None, split: Ints | None = None
    ) -> Strategies:  # fmt: skip
        """The base rows with the open choices at their leanest: the fewest virtual stages, this ZeRO stage and recomputation.

        `mode` says which of the `modes` each row takes, and `split` which of `splits.different`, shape (N,); by default the first.
        A row that needs too much memory even so can be dropped with all its expansions.
        """
        columns = {name: getattr(base, name) for name in DEGREE_AXES}
        n, pp = len(base), base.pp.astype(np.int64)
        vpp, layout = self.splits.table[pp, np.zeros(n, np.int64) if split is None else split].T
        chosen = np.zeros(n, np.int64) if mode is None else mode
        columns |= {"vpp": vpp, "layout": layout, "zero": np.full(n, zero), "recompute_num_layers": np.zeros(n)}
        columns |= {"recompute": np.array([each.recompute for each in modes])[chosen]}
        columns |= {"recompute_modules": np.array([each.modules for each in modes])[chosen]}
        columns["recompute_method"] = np.full(n, RecomputeMethod.EVERY)
        # The search drops rows by their leanest expansion only where every other knob has a single value, since a second value
        # might need less memory (`Exhaustive._enough_memory`); so first and last are the same there.
        columns |= {name: np.full(n, leanest_value(name, values)) for name, values in self.knobs.items()}
        return self.build(columns)

    @cached_property
    def leanest_is_known(self) -> bool:
        """Whether `leanest` needs no more memory than any value of the knobs."""
        known = (*LEAN_KNOBS, *OFFLOADED) if self.falls_back else LEAN_KNOBS
        # Units of several layers keep fewer inputs than layers that are recomputed one by one.
        units = RecomputeMethod.UNIFORM in self.chosen.get("recompute_method", ())
        return not units and all(len(values) == 1 or name in known for name, values in self.knobs.items())

    @cached_property
    def options(self) -> Columns:
        """All ways to choose what a base row leaves open, for every number of stages one after the other.

        BESIDE stand beside the strategy fields: `family` (the same for options that differ only in full recomputation),
        `repeats` (0 for what full recomputation repeats, else the number of the set of modules), `again_layers` (the least number
        of layers in which every stage repeats that), `grouped` (whether the state may be sharded over
        smaller groups), `variant` (the combination of LAYER_KNOBS), and `wait` (the schedule's `waiting_share`).
        """
        made: dict[Any, tuple[Columns, Ints, Ints, Ints]] = {}
        parts: list[Columns] = []
        sets_are_given = "recompute_modules" in self.knobs
        for vpp, layout in (pair for pairs in self.layout_index.values() for pair in pairs):
            schedules, repetitions = self.splits.schedules(layout), tuple(self.repetitions(layout))
            key = schedules, repetitions
            if key not in made:  # splits whose largest chunks are equal leave the same choices open
                ways = np.array(repetitions)
                made[key] = *self._options(schedules, ways), ways
            columns, order, again, ways = made[key]
            layers = repeated_at_least(self.layouts, layout, ways, sets_are_given=sets_are_given)
            wait = np.array([waiting_share(schedule, vpp) for schedule in schedules], np.float64)
            split = {"vpp": np.full_like(again, vpp), "layout": np.full_like(again, layout), "wait": wait[order]}
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
            table[pp] = start, size, size // len(self.zeros) * len(self.groups.stages)
            start += size
        return table

    def pairs(self, base: Strategies) -> Pairs:
        """Every option of every base row, in the order of the rows, with the state sharded over all replicas."""
        first, size, _ = self._option_range[base.pp.astype(np.int64)].T
        origin = np.repeat(np.arange(len(base)), size)
        within = np.arange(len(origin)) - np.repeat(np.cumsum(size) - size, size)
        return Pairs(origin, first[origin] + within, np.zeros(len(origin)), np.zeros(len(origin)))

    def useful_pairs(self, base: Strategies) -> Pairs:
        """`pairs` without schedules, tried of the search's own accord, that cannot run or that another one stands for."""
        pairs = self.pairs(base)
        if "schedule" in self.chosen or not V_SHAPED.union({Schedule.GPIPE}).intersection(self.schedules):
            return pairs
        schedule, m, pp = self.options["schedule"][pairs.option], base.num_micro_batches, base.pp
        # GPipe takes as long as 1F1B and holds no less; only 1F1B needs a micro-batch for each stage. DualPipe-V needs two.
        repeats = (schedule == Schedule.GPIPE) & (m >= pp)[pairs.origin]
        return pairs.take(~(repeats | ((schedule == Schedule.DUALPIPE_V) & (m < 2 * pp)[pairs.origin])))

    def distinct_pairs(self, base: Strategies) -> Pairs:
        """`pairs` without those that repeat another one.

        Where a listed knob has no effect, such as the dispatcher of a strategy without expert parallelism, only its first value
        is kept. A ranking would otherwise show one strategy several times.
        """
        pairs, listed = self.useful_pairs(base), [name for name, values in self.knobs.items() if len(values) > 1]
        row = {name: getattr(base, name)[pairs.origin] for name in DEGREE_AXES}
        row |= {name: values[pairs.option] for name, values in self.options.items()}
        possible = possible_overlaps(self.job.framework, row)
        m = base.num_micro_batches[pairs.origin]
        matters = {f"overlap_{name}": exists for name, exists in possible.items()}
        matters |= {"cp_comm": row["cp"] > 1, "moe_dispatcher": row["ep"] * row["etp"] > 1}
        if "cp_a2a_size" in listed:
            matters["cp_a2a_size"] = (row["cp"] > 1) & (row.get("cp_comm", CpComm.A2A_P2P) == CpComm.A2A_P2P)
        if "flex_backend" in listed:
            matters["flex_backend"] = matters["moe_dispatcher"] & (row["moe_dispatcher"] == MoeDispatcher.FLEX)
        repeats = [~matters[name] & (row[name] != self.knobs[name][0]) for name in listed if name in matters]
        if "overlap_moe_all_to_all" in self.searched_knobs:
            own = np.int8(self.job.framework.strategy.moe_dispatcher)
            runs = expert_overlap_runs(row, dispatcher=row.get("moe_dispatcher", own), several=m > 1)
            repeats.append(~runs)
        return pairs.take(~np.any(repeats, axis=0)) if repeats else pairs

    def grouped(self, base: Strategies, pairs: Pairs) -> Pairs:
        """The pairs among these whose state can be sharded over smaller groups, once for every size of such a group."""
        which = np.flatnonzero(self.options["grouped"][pairs.option])
        origin = pairs.origin[which]
        row, sizes, copies = self.groups.each(base.dp_cp[origin], base.cp[origin])
        return replace(pairs.take(which[row]), group=sizes, copies=copies)

    def num_groups(self, base: Strategies, pairs: Pairs) -> Ints:
        """How many pairs `grouped` makes of each of these, shape (N,)."""
        counts = self.groups.counts(base.dp_cp, base.cp)
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
        family = pairs.origin * (int(self.options["family"][-1]) + 1) + columns["family"]
        columns = {name: values for name, values in columns.items() if name not in BESIDE}
        for sizes in (pairs.group, pairs.copies):
            if sizes.any():
                whole = family * (int(sizes.max()) + 1) + sizes.astype(np.int64)
                family = np.unique(whole, return_inverse=True)[1].reshape(-1)
        return Expansion(self.build(columns, group=pairs.group, copies=pairs.copies), pairs, family)

    def num_options(self, pp: NDArray[Any]) -> Ints:
        """How many options a base row with this many stages has, in the shape of `pp`."""
        return np.asarray(self._option_range[pp.astype(np.int64), 1])

    def multiplicity(self, base: Strategies) -> Ints:
        """For how many strategies each base row stands, shape (N,)."""
        return self._multiplicity(base.pp, base.dp_cp, base.cp)

    def _multiplicity(self, pp: NDArray[Any], replicas: NDArray[Any], cp: NDArray[Any]) -> Ints:
        _, options, grouped = self._option_range[pp.astype(np.int64)].T
        return np.asarray(options + grouped * self.groups.counts(replicas, cp))

    @property
    def zeros(self) -> tuple[int, ...]:
        """The ZeRO stages that are searched."""
        return self.chosen.get("zero", self.job.framework.choices.zero)

    @property
    def recompute_modes(self) -> tuple[int, ...]:
        """The codes of `Recompute` that are searched."""
        return self.chosen.get("recompute", self.job.framework.strategy.recompute_modes)

    def build(
        self, columns: Columns, *, group: NDArray[np.float64] | None = None, copies: NDArray[np.float64] | None = None
    ) -> Strategies:
        """Strategies from the searched columns; every other field follows from these or takes the framework's fastest value.

        `group` says how many ranks share one copy of the sharded state; 0, the default, stands for all replicas. `copies` says how
        many share a second copy of the parameters; 0, the default, stands for none.
        """
        job, n = self.job, len(columns["tp"])
        columns = dict(columns)
        columns["num_micro_batches"] = job.training.global_batch_size / (columns["dp"] * columns["micro_batch_size"])
        if "zero_shard_size" not in columns:
            replicas = columns["dp"] * columns["cp"]
            columns["zero_shard_size"] = replicas if group is None else np.where(group > 0, group, replicas)
        defaults, shard = job.framework.strategy, columns["zero_shard_size"]
        fill = {
            "zero_param_shard_size": shard if copies is None else np.where(copies > 0, copies, shard),
            "grad_sync_each": reduces_each(job.framework, zero=columns["zero"], pp=columns["pp"]),
            "recompute_modules": np.where(columns["recompute"] == Recompute.SELECTIVE, self.module_sets[0], 0),
            "schedule": self.splits.leanest_schedule[columns["layout"].astype(np.int64)],
            "cp_comm": np.full(n, job.default_cp_comm),
            "moe_dispatcher": np.full(n, defaults.moe_dispatcher),
            "flex_backend": np.full(n, default_flex_backend(job)),
            **{
                field.column: np.full(n, field.default, field.dtype)
                for field in FIELDS
                if field.is_knob and field.default is not None and not field.is_rare
            },
        }
        if "cp_comm" in columns and (columns["cp_comm"] == CpComm.A2A_P2P).any():
            each = {name: columns[name] for name in ("cp_comm", "tp", "cp")}
            columns["cp_a2a_size"] = inner_sizes(job, **each, given=columns.get("cp_a2a_size"))
        if self.falls_back and "offload_activation_layers" in columns:  # any number stands for all but the last layer
            most = self.layouts.held_LS[columns["layout"].astype(np.int64)].max(axis=1) - 1
            columns["offload_activation_layers"] = np.where(columns["offload_activation_layers"] > 0, most, 0)
        possible, reduces = possible_overlaps(job.framework, columns), columns.get("overlap_grad_reduce", True)
        for name, exists in possible.items():
            # Some defaults overlap only in the highest ZeRO stage, but the flag can be set wherever the overlap is possible; so
            # the search takes the default of that stage.
            wanted = job.overlaps_by_default(name, zero=max(job.framework.choices.zero))
            wanted = wanted & job.can_overlap(name, zero=columns["zero"])
            if name == "param_gather":
                wanted = wanted & reduces  # as `planner.strategies.parse` has it
            if name == "tp_comm":
                tries = Part.TP_OVERLAP not in self.without
                wanted = tries & overlaps_tp(job, tp=columns["tp"], sequence_parallel=columns["sequence_parallel"])
            wanted = columns.get(f"overlap_{name}", wanted)
            columns[f"overlap_{name}"] = exists & wanted
        return build_strategies({**fill, **columns}, layouts=self.layouts)

    def _num_options(self, layout: int) -> int:
        knobs = prod(map(len, self.knobs.values()))
        if self.falls_back:  # what keeps nothing in host memory has been searched before
            kept = {name: [v for v in values if not (name in OFFLOADED and v)] for name, values in self.knobs.items()}
            knobs -= prod(map(len, kept.values()))
        return len(self.zeros) * knobs * len(self.splits.schedules(layout)) * len(self.repetitions(layout))

    def _options(self, schedules: tuple[int, ...], recompute: Ints) -> tuple[Columns, Ints, Ints]:
        """Every combination of ZeRO stage, knob values, these schedules and `repetitions`, and which of the latter two each takes."""
        zeros = np.array(self.zeros)
        knobs, sets = [np.array(values) for values in self.knobs.values()], np.array((0, *self.module_sets))
        shape = (len(zeros), len(schedules), *map(len, knobs), len(recompute))
        at, order, *chosen, again = (index.reshape(-1) for index in np.indices(shape))
        columns: Columns = {
            "family": again == 0,
            "variant": self._variant(dict(zip(self.knobs, chosen, strict=True)), len(at)),
            "schedule": np.array(schedules, np.int8)[order],
            "zero": zeros[at],
            "grouped": np.isin(zeros, list(self.groups.stages))[at],
            "recompute": recompute[again, 0],
            "recompute_method": recompute[again, 1],
            "recompute_num_layers": recompute[again, 2],
            "recompute_modules": sets[recompute[again, 3]],
            "repeats": recompute[again, 3],
        }
        columns |= {name: values[index] for name, values, index in zip(self.knobs, knobs, chosen, strict=True)}
        if self.falls_back:
            moved = np.any([columns[name] > 0 for name in OFFLOADED if name in columns], axis=0)
            columns = {name: values[moved] for name, values in columns.items()}
            order, again = order[moved], again[moved]
        return columns, order, again

    @property
    def layer_knobs(self) -> dict[str, tuple[Any, ...]]:
        """The knobs on which a layer's own time depends, with their values."""
        return {name: values for name, values in self.knobs.items() if name in LAYER_KNOBS}

    def _variant(self, chosen: Mapping[str, Ints], length: int) -> Ints:
        """Number of the combination of LAYER_KNOBS, in the order of their product, from the position of every knob's value."""
        number = np.zeros(length, np.int64)
        for name, values in self.layer_knobs.items():
            number = number * len(values) + chosen[name]
        return number

    def repetitions(self, layout: int) -> list[tuple[int, int, int, int]]:
        """The (recompute, method, layers, set of modules) choices for one split; set 0 stands for none, the others count from 1."""
        found: list[tuple[int, int, int, int]] = []
        for way in self.recomputes(layout):
            several = way[0] == Recompute.SELECTIVE and "recompute_modules" not in self.knobs
            found += [(*way, number + 1) for number in range(len(self.module_sets))] if several else [(*way, 0)]
        return found

    def recomputes(self, layout: int) -> list[tuple[int, int, int]]:
        """The (recompute, method, layers) choices for one split."""
        # Full recomputation comes in the order of rising work. Recomputing more is never faster (unless activations are
        # offloaded), so once the first choice of a family that fits has lost, the others need not be timed.
        found: list[tuple[int, int, int]] = []
        for mode in self.recompute_modes:
            if mode == Recompute.FULL and self.layouts.table[layout].recompute_per_stage is None:
                found += [(mode, *way) for way in full_recomputes(self, max(self.layouts.table[layout].layers))]
            else:
                found.append((mode, RecomputeMethod.EVERY, 0))
        return found
