"""The boundary between strategies as users write them and the arrays that the cost models read.

`resolve_strategies` applies a framework's defaults, each of which is reported, and refuses what cannot be built: degrees that do not
multiply to the GPUs, a batch that they do not divide, layers that the framework does not split. Whether a strategy that can be built
is also legal is decided by `planner.rules`. `planner.strategies.told` is the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cost_models.job import Job
from cost_models.replicas.groups import sharing_ranks
from cost_models.strategies.fields import (
    CONSTANT_DEFAULTS,
    FIELD,
    WITH_CONSTANT_DEFAULT,
    CpComm,
    MoeDispatcher,
    Recompute,
    RecomputeMethod,
    Schedule,
)
from cost_models.strategies.layouts import Layout, build_layouts, folds
from cost_models.strategies.strategy import ARRAY_FIELDS, Ints, Strategies, build_strategies
from planner.rules.default_splits import default_split, legal_split
from planner.schemas.strategy import OverlapInput, StrategyInput
from planner.strategies.defaults import (
    assumed_gather_dtype,
    default_a2a_sizes,
    default_flex_backend,
    default_zero,
    overlaps_tp,
    possible_overlaps,
    reduces_each,
)
from planner.strategies.modules_apart import modules_apart

Reason = dict[str, str]
"""A code, a message and a hint, as in the contract's evaluation."""


@dataclass(frozen=True, eq=False)
class ResolvedStrategies:
    """What became of a list of strategy inputs."""

    strategies: Strategies | None
    """Those that can be built, in the order of the inputs; None where none can."""
    index: Ints
    """For each row of `strategies` its position among the inputs."""
    assumed: tuple[dict[str, Any], ...]
    """The defaults that were applied to each input, by contract field."""
    problems: tuple[list[Reason], ...]
    """Why an input could not be built; empty for those that could."""


def resolve_strategies(
    job: Job, inputs: Sequence[StrategyInput], *, all_stages: bool = False, jobs: Sequence[Job] | None = None
) -> ResolvedStrategies:
    """The batch of all inputs that can be built.

    Args:
        job: what is planned.
        inputs: the strategies as they were given.
        all_stages: whether the layouts keep every pipeline stage, which reports by stage need.
        jobs: the job of each input, where it differs from `job` in its global batch.
    """
    builders = [_Builder(own, given) for own, given in zip(jobs or [job] * len(inputs), inputs, strict=True)]
    rows = [builder.columns() for builder in builders]
    index = [position for position, builder in enumerate(builders) if not builder.problems]
    strategies = None
    if index:
        layouts = [builders[position].layout for position in index]
        table = list(dict.fromkeys(layouts))
        number = {layout: position for position, layout in enumerate(table)}
        columns = {name: [rows[position][name] for position in index] for name in ARRAY_FIELDS if name != "layout"}
        columns["layout"] = [number[layout] for layout in layouts]
        strategies = build_strategies(columns, layouts=build_layouts(table, model=job.model, all_stages=all_stages))
    return ResolvedStrategies(
        strategies=strategies,
        index=np.array(index, dtype=np.int64),
        assumed=tuple(builder.assumed for builder in builders),
        problems=tuple(builder.problems for builder in builders),
    )


@dataclass(slots=True)
class _Builder:
    """One input on its way to a row: it fills in defaults and collects what is wrong."""

    job: Job
    given: StrategyInput
    assumed: dict[str, Any] = field(default_factory=dict)
    problems: list[Reason] = field(default_factory=list)
    layout: Layout = field(init=False)

    def columns(self) -> dict[str, Any]:
        """One value for each field of `Strategies`; meaningless if `problems` is not empty."""
        row = self._degrees()
        if self.problems:  # the later steps would only repeat that the degrees are wrong
            return row
        self._batch(row)
        self._states(row)
        self._recompute(row)
        self._pipeline(row)
        self._communication(row)
        return row

    def refuse(self, code: str, message: str, hint: str) -> None:
        """Records one reason why this input cannot be built."""
        self.problems.append({"code": code, "message": message, "hint": hint})

    def fill(self, name: str, value: Any, default: Any, *, shown: Any = None) -> Any:
        """The value that was given, or else the default, which is noted in `assumed` (as `shown`, if that is given)."""
        if value is not None:
            return value
        self.assumed[name] = default if shown is None else shown
        return default

    def _constant_defaults(self) -> dict[str, Any]:
        """The columns of all fields whose default depends on nothing else."""
        row = dict(CONSTANT_DEFAULTS)
        written = self.given.model_fields_set
        for entry in WITH_CONSTANT_DEFAULT:
            value = entry.of(self.given) if entry.outermost in written else None
            if value is not None:
                row[entry.column] = entry.encoded(value)
            elif entry.is_assumed:
                self.assumed[entry.name] = entry.default
        return row

    def _degrees(self) -> dict[str, Any]:
        given, gpus = self.given, self.job.cluster.num_gpus
        row = self._constant_defaults()
        each = row["tp"] * row["pp"] * row["cp"]
        if given.dp is None and gpus % each:
            larger = each > gpus
            self.refuse(
                "world-exceeds-gpus" if larger else "gpus-not-divisible",
                f"tp {row['tp']} x pp {row['pp']} x cp {row['cp']} = {each} {'exceeds' if larger else 'does not divide'} "
                f"the {gpus} GPUs of the cluster",
                "Lower one of these degrees."
                if larger
                else "Choose degrees whose product divides the GPUs, or give dp.",
            )
        row["dp"] = self.fill("dp", given.dp, max(gpus // each, 1))
        # Megatron splits experts like the dense layers unless told otherwise; a dense model has none to split.
        default_etp = row["tp"] if self.job.framework.etp_defaults_to_tp and self.job.model.moe else 1
        row["etp"] = self.fill("etp", given.etp, default_etp)
        return row

    def _batch(self, row: dict[str, Any]) -> None:
        batch, micro = self.job.training.global_batch_size, self.given.micro_batch_size
        row["micro_batch_size"], row["num_micro_batches"] = micro or 1, 1
        if micro is None:
            self.refuse(
                "missing-field", "strategy.micro_batch_size is required", "Add 'micro_batch_size' to the strategy."
            )
            return
        at_once = row["dp"] * micro
        if batch % at_once:
            self.refuse(
                "batch-not-divisible",
                f"global_batch_size {batch} is not a multiple of dp {row['dp']} x micro_batch_size {micro} = {at_once}",
                "Choose dp and micro_batch_size whose product divides the global batch.",
            )
        row["num_micro_batches"] = batch // at_once

    def _states(self, row: dict[str, Any]) -> None:
        given, framework = self.given, self.job.framework
        shard = sharing_ranks(self.job, dp_cp=row["dp"] * row["cp"], split=row["tp"] * row["pp"])
        row["zero"] = self.fill("zero", given.zero, default_zero(framework, row["pp"]))
        row["zero_shard_size"] = self.fill("zero_shard_size", given.zero_shard_size, shard)
        row["zero_param_shard_size"] = given.zero_param_shard_size or row["zero_shard_size"]
        row["grad_sync_each"] = FIELD["grad_sync"].encoded(self._grad_sync(row))
        self.assumed |= assumed_gather_dtype(self.job, row["zero"])

    def _grad_sync(self, row: dict[str, Any]) -> str:
        """Whether gradients are reduced after the last micro-batch or after each one."""
        # Usual loops around some models (accelerate's) wait for the last micro-batch although the framework would reduce each.
        default = "each" if reduces_each(self.job.framework, zero=row["zero"], pp=row["pp"]) else "last"
        loops = self.job.framework.accumulates_unreduced
        if default == "each" and row["num_micro_batches"] > 1 and self.job.training.model_impl in loops:
            return str(self.fill("grad_sync", self.given.grad_sync, "last"))
        return str(self.given.grad_sync or default)

    def _recompute(self, row: dict[str, Any]) -> None:
        given, default = self.given, self.job.framework.strategy.recompute
        name = self.fill("recompute", given.recompute, default.label)
        kind = FIELD["recompute"].encoded(name)
        count = given.recompute_num_layers
        row["recompute"], row["recompute_method"], row["recompute_num_layers"] = kind, RecomputeMethod.EVERY, 0
        row["recompute_modules"] = 0
        if given.recompute_modules is not None:
            row["recompute_modules"] = FIELD["recompute_modules"].encoded(given.recompute_modules)
        elif kind == Recompute.SELECTIVE and self.job.framework.choices.recompute_modules:
            row["recompute_modules"] = FIELD["recompute_modules"].encoded(self.job.framework.strategy.selective_modules)
        if kind != Recompute.FULL:
            self._refuse_counts_without_full(name)
            return
        if given.recompute_method == "block" and count is None:
            message = "recompute_method is 'block', but recompute_num_layers is not given"
            self.refuse(
                "recompute-count-mismatch",
                message,
                "Add 'recompute_num_layers', the number of layers to recompute per model chunk.",
            )
        if given.recompute_method == "uniform":
            row["recompute_method"], row["recompute_num_layers"] = RecomputeMethod.UNIFORM, count or 1
        elif count is not None:
            row["recompute_method"], row["recompute_num_layers"] = RecomputeMethod.BLOCK, count

    def _refuse_counts_without_full(self, name: str) -> None:
        for field_name in ("recompute_method", "recompute_num_layers", "recompute_per_stage"):
            if getattr(self.given, field_name) is not None:
                message = f"{field_name} is given, but recompute is {name!r}"
                hint = f"Set recompute to 'full', or leave {field_name} out."
                self.refuse("recompute-count-mismatch", message, hint)

    def _pipeline(self, row: dict[str, Any]) -> None:
        given, stages = self.given, row["pp"] * row["vpp"]
        row["schedule"] = _code(
            "schedule", given.schedule, Schedule.INTERLEAVED if row["vpp"] > 1 else Schedule.ONE_F_ONE_B
        )
        if given.pool_per_stage is not None:
            self.refuse(
                "pools-not-supported",
                "pool_per_stage is given, but the cluster has only one kind of node",
                "Leave pool_per_stage out.",
            )
        per_stage = given.recompute_per_stage
        if per_stage is not None and len(per_stage) != row["pp"]:
            message = f"recompute_per_stage lists {len(per_stage)} stages, but pp is {row['pp']}"
            self.refuse("recompute-per-stage-mismatch", message, "Give one count for each pipeline stage.")
            per_stage = None
        split = (
            self._given_split(row, stages) if given.layers_per_stage is not None else self._default_split(row, stages)
        )
        if split is not None:
            folded = folds(row["schedule"], pp=row["pp"], vpp=row["vpp"])
            mtp, wrong = modules_apart(self.job, given, pp=row["pp"], split=split)
            if wrong:
                self.refuse("split-unsupported", *wrong)
            self.layout = Layout(
                pp=row["pp"], vpp=row["vpp"], layers=split, recompute_per_stage=per_stage, folded=folded, mtp=mtp
            )

    def _given_split(self, row: dict[str, Any], stages: int) -> tuple[int, ...] | None:
        split: tuple[int, ...] = self.given.layers_per_stage
        layers = self.job.model.num_layers
        if len(split) == stages and sum(split) == layers:
            return split
        legal = legal_split(self.job, pp=row["pp"], vpp=row["vpp"])
        what = f"lists {len(split)} stages, but pp x vpp is {stages}"
        if len(split) == stages:
            what = f"sums to {sum(split)} layers, but the model has {layers}"
        self.refuse(
            "layers-per-stage-mismatch",
            f"layers_per_stage {what}",
            f"Use a split such as {list(legal)}." if legal else "Lower pp or vpp.",
        )
        return None

    def _default_split(self, row: dict[str, Any], stages: int) -> tuple[int, ...] | None:
        layers, framework = self.job.model.num_layers, self.job.training.framework
        split = default_split(self.job, pp=row["pp"], vpp=row["vpp"])
        if split is not None:
            # An even split is what everybody expects; another one is a choice of the framework and worth a note.
            if len(set(split)) > 1:
                self.assumed["layers_per_stage"] = list(split)
            return split
        chunks = f"pp {row['pp']}" + (f" x vpp {row['vpp']}" if row["vpp"] > 1 else "")
        message = f"{chunks} does not divide the model's {layers} layers, and {framework} splits evenly unless told how"
        hint = f"Lower pp: {layers} layers cannot fill {stages} stages."
        if self.job.framework.splits.can_leave_stages_empty:
            message = f"{framework} splits the {layers} layers by its own rule, which leaves one of the stages of {chunks} without a layer"
            hint = "Choose another pp."
        elif stages <= layers:
            told = legal_split(self.job, pp=row["pp"], vpp=row["vpp"])
            hint = f"Choose a pp x vpp that divides {layers}"
            hint += "." if told is None else f", or give layers_per_stage {list(told)}."
        self.refuse("layers-not-divisible", message, hint)
        return None

    def _communication(self, row: dict[str, Any]) -> None:
        given, job = self.given, self.job
        framework = job.framework
        # Without tensor parallelism every framework switches sequence parallelism off, most of them with a warning.
        if row["tp"] == 1:
            row["sequence_parallel"] = False
            if given.sequence_parallel:
                self.assumed["sequence_parallel"] = False
        else:
            row["sequence_parallel"] = self.fill(
                "sequence_parallel", given.sequence_parallel, framework.default_sequence_parallel
            )
        row["cp_comm"] = _code("cp_comm", given.cp_comm, self.job.default_cp_comm)
        if row["cp_comm"] == CpComm.A2A_P2P and row["cp"] > 1 and given.cp_a2a_size is None:
            (size,) = default_a2a_sizes(job, *np.array([[row["tp"]], [row["cp"]]], np.float64))
            row["cp_a2a_size"] = self.fill("cp_a2a_size", None, int(size))
        # The backends are kernels of the flex dispatcher alone, so whoever names one means that dispatcher.
        flex_meant = given.flex_backend is not None
        dispatcher = MoeDispatcher.FLEX if flex_meant else framework.strategy.moe_dispatcher
        row["moe_dispatcher"] = _code("moe_dispatcher", given.moe_dispatcher, dispatcher)
        if flex_meant and row["moe_dispatcher"] != MoeDispatcher.FLEX:
            message = f"flex_backend is {given.flex_backend!r}, but moe_dispatcher is {given.moe_dispatcher!r}"
            hint = "Set moe_dispatcher to 'flex', or leave flex_backend out."
            self.refuse("dispatcher-unsupported", message, hint)
        row["flex_backend"] = _code("flex_backend", given.flex_backend, default_flex_backend(job))
        if row["moe_dispatcher"] == MoeDispatcher.FLEX and given.flex_backend is None:
            self.assumed["flex_backend"] = FIELD["flex_backend"].decoded(row["flex_backend"])
        if row["cp"] > 1 and given.cp_comm is None:
            self.assumed["cp_comm"] = FIELD["cp_comm"].decoded(row["cp_comm"])
        if row["ep"] > 1 and given.moe_dispatcher is None:
            self.assumed["moe_dispatcher"] = FIELD["moe_dispatcher"].decoded(row["moe_dispatcher"])
        self._overlaps(row)

    def _overlaps(self, row: dict[str, Any]) -> None:
        """Applies the default overlaps where they can exist. What a framework switches off silently is off here too."""
        given = self.given.overlap or OverlapInput()
        possible = possible_overlaps(self.job.framework, row)
        values = {name: getattr(given, name) for name in possible}
        # Gathering beside forward needs reducing beside backward (Megatron asserts it), so switching one off means both.
        if values["param_gather"] is None and values["grad_reduce"] is False:
            values["param_gather"] = False
        for name, exists in possible.items():
            value = values[name]
            if value is None:
                value = bool(self.job.overlaps_by_default(name, zero=row["zero"])) and exists
                if name == "tp_comm" and self.job.recipe is not None and self.job.recipe.overlaps_tp:
                    value = bool(overlaps_tp(self.job, tp=row["tp"], sequence_parallel=row["sequence_parallel"]))
                if exists:
                    self.assumed[f"overlap.{name}"] = value
            row[f"overlap_{name}"] = value and exists


def _code(name: str, value: str | None, default: int) -> int:
    return int(default) if value is None else int(FIELD[name].encoded(value))
