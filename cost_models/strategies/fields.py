"""The table of strategy fields: how the contract names each, which values it takes, and how a batch stores it.

Everything that spells a strategy is derived from it: the columns of `Strategies`, the schemas of a request and their
descriptions in the OpenAPI document, reading a strategy and writing one back, and the axes of a search. A new field is a
row here, a column of `Strategies`, and the formulas that read it. What a framework does where a field is left out is no
part of the table: `cost_models.frameworks` says it, and `planner.strategies.parse` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np


class Choice(IntEnum):
    """A value of a closed list: its code, and how the contract spells it."""

    label: str

    def __new__(cls, code: int, label: str = "") -> Self:
        """A member whose value is the code alone, so that arrays of codes compare with it and `Recompute(2)` finds it."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.label = label
        return member


class GradSync(Choice):
    LAST = 0, "last"
    EACH = 1, "each"


class Recompute(Choice):
    NONE = 0, "none"
    SELECTIVE = 1, "selective"
    FULL = 2, "full"


class RecomputeMethod(Choice):
    EVERY = 0, "every"
    """Every layer, a unit each: `full` without a method and a count. The contract says it by leaving the field out."""
    BLOCK = 1, "block"
    """`recompute_num_layers` layers of each model chunk."""
    UNIFORM = 2, "uniform"
    """Units of `recompute_num_layers` layers."""


class Schedule(Choice):
    ONE_F_ONE_B = 0, "1f1b"
    INTERLEAVED = 1, "interleaved"
    GPIPE = 2, "gpipe"
    ZB_H1 = 3, "zb-h1"
    ZB_V = 4, "zb-v"
    DUALPIPE_V = 5, "dualpipe-v"


V_SHAPED = frozenset({Schedule.ZB_V, Schedule.DUALPIPE_V})
"""Schedules whose second chunk runs from the last rank back to the first."""
SPLIT_BACKWARD = frozenset({Schedule.ZB_H1, *V_SHAPED})
"""Schedules that run weight gradients as tasks of their own."""


class CpComm(Choice):
    P2P = 0, "p2p"
    A2A = 1, "a2a"
    ALLGATHER = 2, "allgather"
    A2A_P2P = 3, "a2a+p2p"


class MoeDispatcher(Choice):
    ALLGATHER = 0, "allgather"
    ALLTOALL = 1, "alltoall"
    FLEX = 2, "flex"


class FlexBackend(Choice):
    """Kernels of the flex dispatcher."""

    DEEPEP = 0, "deepep"
    HYBRIDEP = 1, "hybridep"


class OffloadDevice(Choice):
    """Where offloaded state lies."""

    CPU = 0, "cpu"
    NVME = 1, "nvme"


class OptimizerOverlap(Choice):
    """What runs beside the host's update of the state that lies there."""

    NONE = 0, "none"
    PIPELINED = 1, "pipelined"
    ZENFLOW = 2, "zenflow"


OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""What Megatron's `--offload-modules` names: megatron/core/transformer/transformer_config.py, core 0.16 and later."""
RECOMPUTE_MODULES = ("core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj")
"""Megatron's selective recompute modules; bit i of `recompute_modules` stands for entry i."""
MOE_MODULE = 1 << RECOMPUTE_MODULES.index("moe")
"""The bit of whole mixture layers."""

Kind = Literal["degree", "count", "zero", "fraction", "flag", "choice", "set", "per_stage", "pools", "stage"]
"""A degree is at least 1, a count may be 0; a set is stored as one bit for each value; `per_stage` (whole numbers) and `pools`
(names) are lists with an entry for each stage, and a `stage` is the number of a virtual one, which the layout holds."""

_DTYPES: Mapping[Kind, type] = {
    "degree": np.float64, "count": np.float64, "fraction": np.float64,
    "zero": np.int8, "choice": np.int8, "set": np.int8, "flag": np.bool_,
}  # fmt: skip
"""How a column stores each kind. Whole numbers are float64: exact to 2^53, no silent wrap, no casting in the hot loop."""


@dataclass(frozen=True)
class StrategyField:
    """One field of a strategy."""

    name: str
    """In the contract; a dot reaches inside an object, as in `overlap.tp_comm`."""
    kind: Kind
    meaning: str
    """Its description in the OpenAPI document, the default included."""
    values: tuple[str, ...] = ()
    """Spellings of a choice by code, or of a set by bit."""
    unsaid: int = 0
    """How many of the first values the contract says by leaving the field out."""
    default: float | bool | None = None
    """What leaving it out means, where that depends on nothing."""
    is_assumed: bool = False
    """Whether that default is listed in `assumed`."""
    is_knob: bool = False
    """Whether it keeps its default in a search unless the request fixes it or lists values."""
    is_listed: bool = True
    """Whether `constraints.allowed` may list values for it."""
    is_rare: bool = False
    """Whether few requests name it: a strategy that leaves it at its default does not write it, and a batch of such strategies does not
    store it, so that it costs them nothing."""
    stored_as: str = ""
    """Column of `Strategies`, where it is not the name with `_` for the dot."""

    @cached_property
    def group(self) -> str:
        """The object that it is part of, "" at the top."""
        return self.name.rpartition(".")[0]

    @cached_property
    def part(self) -> str:
        """Its name inside that object."""
        return self.name.rpartition(".")[2]

    @cached_property
    def outermost(self) -> str:
        """The key of a strategy that it stands under: its own name, or that of its object."""
        return self.group or self.part

    @cached_property
    def column(self) -> str:
        """Its column of `Strategies`; "" where the layout holds it."""
        return "" if self.kind in ("per_stage", "pools", "stage") else self.stored_as or self.name.replace(".", "_")

    @property
    def dtype(self) -> type:
        """Type of that column: a choice between two is a flag where it is stored under the name of one of them."""
        return np.bool_ if self.kind == "choice" and self.stored_as else _DTYPES[self.kind]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The values that a user may write."""
        return self.values[self.unsaid :]

    def of(self, document: Any) -> Any:
        """Its value in a strategy as the contract writes it, or in an object of the same shape; None where it is left out."""
        holder = getattr(document, self.group) if self.group else document
        return None if holder is None else getattr(holder, self.part)

    def encoded(self, value: Any) -> Any:
        """A value as the contract writes it, as its column stores it."""
        if self.kind == "choice":
            code = self.values.index(value)
            return bool(code) if self.stored_as else code
        if self.kind == "set":
            return sum(1 << self.values.index(each) for each in set(value))
        return value

    def decoded(self, code: Any) -> Any:
        """A stored value as the contract writes it; None where the contract says it by leaving the field out."""
        if self.kind == "choice":
            return None if code < self.unsaid else self.values[int(code)]
        if self.kind == "set":
            return [value for bit, value in enumerate(self.values) if int(code) >> bit & 1]
        return int(code) if self.kind in ("degree", "count") else code


def _spellings(choice: type[Choice]) -> tuple[str, ...]:
    return tuple(member.label for member in choice)


FIELDS: tuple[StrategyField, ...] = (
    StrategyField("tp", "degree", "Number of tensor-parallel ranks. Default 1.", default=1, is_assumed=True),
    StrategyField("pp", "degree", "Number of pipeline stages. Default 1.", default=1, is_assumed=True),
    StrategyField("dp", "degree", "Number of data-parallel replicas. Default: as many as use all GPUs, GPUs / (tp * pp * cp)."),
    StrategyField(
        "cp", "degree", "Number of context-parallel ranks; each holds seq_length / cp tokens of a sequence. Default 1.",
        default=1, is_assumed=True,
    ),
    StrategyField(
        "ep", "degree", "Number of expert-parallel ranks, which are taken from tp * cp * dp. Default 1.", default=1, is_assumed=True
    ),
    StrategyField("etp", "degree", "Number of tensor-parallel ranks inside an expert. Default: tp in Megatron, else 1."),
    StrategyField(
        "vpp", "degree", "Number of virtual stages (model chunks) of each pipeline rank. Default 1.", default=1, is_assumed=True
    ),
    StrategyField(
        "zero", "zero",
        "What the data-parallel ranks shard (the ZeRO stage): 1 the optimizer state, 2 also gradients, 3 also parameters. Default "
        "by framework.",
    ),
    StrategyField(
        "zero_shard_size", "degree",
        "Number of ranks that share one copy of the sharded state (MiCS, hybrid sharding, one instance of Megatron's distributed "
        "optimizer), neighbours first; divides dp * cp. Default dp * cp.", is_knob=True,
    ),
    StrategyField(
        "zero_param_shard_size", "degree",
        "Number of ranks over which parameters are sharded for forward and backward (ZeRO++ hpZ, MiCS).", is_knob=True,
    ),
    StrategyField(
        "zero_quantized_weights", "flag",
        "Whether parameters are gathered in 8 bits (ZeRO++ qwZ). It rounds what is computed. Default false.",
        default=False, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "zero_quantized_gradients", "flag",
        "Whether gradients are exchanged in 4 bits (ZeRO++ qgZ). It rounds what is computed. Default false.",
        default=False, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "grad_sync", "choice",
        "Whether gradients are reduced after the last micro-batch or after each. Default: last for zero 0 and 1, each for 2 and 3. "
        "It is last, too, for several micro-batches of transformers' or Liger's modules under FSDP, whose usual loops "
        "(accelerate) wait; that is listed in `assumed`.",
        values=_spellings(GradSync), stored_as="grad_sync_each", is_knob=True,
    ),
    StrategyField(
        "sequence_parallel", "flag",
        "Whether norms and residuals are split along the sequence over the tp ranks. Default by framework where tp > 1.",
    ),
    StrategyField("micro_batch_size", "degree", "Number of sequences in one forward pass of a replica."),
    StrategyField(
        "recompute", "choice", "Which activations are computed again in the backward pass (activation checkpointing). Default by framework.",
        values=_spellings(Recompute),
    ),
    StrategyField(
        "recompute_method", "choice",
        "What full recomputation covers: a number of layers of each model chunk (block), or every layer in units (uniform).",
        values=_spellings(RecomputeMethod), unsaid=1,
    ),
    StrategyField(
        "recompute_num_layers", "degree", "Number of layers recomputed in each model chunk (block), or of layers in each recomputed unit (uniform)."
    ),
    StrategyField(
        "recompute_modules", "set", "Which modules Megatron's selective recomputation covers (--recompute-modules). Default core_attn.",
        values=RECOMPUTE_MODULES, is_knob=True,
    ),
    StrategyField("recompute_per_stage", "per_stage", "Number of layers recomputed on each of the pp stages.", is_listed=False),
    StrategyField(
        "schedule", "choice", "The pipeline's schedule. Default: interleaved where vpp > 1, else 1f1b.",
        values=_spellings(Schedule), is_knob=True,
    ),
    StrategyField(
        "layers_per_stage", "per_stage",
        "Number of decoder layers of each of the pp * vpp virtual stages, in model order; 0 is allowed.",
    ),
    StrategyField(
        "mtp_stage", "stage",
        "Number of the virtual stage, counted from 0 in model order, that holds the modules of multi-token prediction apart from the output layer, as "
        "m in Megatron's pipeline layout; needs layers_per_stage. Default: beside the output layer.",
        is_listed=False, is_rare=True,
    ),
    StrategyField("pool_per_stage", "pools", "Name of the cluster's pool that each stage runs on.", is_listed=False),
    StrategyField(
        "cp_comm", "choice", "How context-parallel ranks exchange keys and values. Default by framework.",
        values=_spellings(CpComm), is_knob=True,
    ),
    StrategyField(
        "cp_a2a_size", "degree",
        "Number of neighbouring ranks that trade heads by all-to-all under cp_comm a2a+p2p; cp / cp_a2a_size such groups form the "
        "ring. Default: the largest that divides cp and the heads and stays inside the NVLink domain.",
        default=1, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "moe_dispatcher", "choice", "How tokens reach their experts. Default by framework.",
        values=_spellings(MoeDispatcher), is_knob=True,
    ),
    StrategyField(
        "flex_backend", "choice",
        "Which kernels the flex dispatcher uses. Default: deepep, or hybridep where an NVLink domain is larger than a node of 8.",
        values=_spellings(FlexBackend), is_knob=True,
    ),
    StrategyField("overlap.grad_reduce", "flag", "Whether gradients are reduced beside the backward pass.", is_knob=True),
    StrategyField("overlap.param_gather", "flag", "Whether parameters are gathered beside the forward pass.", is_knob=True),
    StrategyField(
        "overlap.tp_comm", "flag", "Whether tensor-parallel collectives are cut up and run beside the products that need them.", is_knob=True
    ),
    StrategyField("overlap.p2p", "flag", "Whether sends between pipeline stages run beside computation.", is_knob=True),
    StrategyField(
        "overlap.moe_all_to_all", "flag", "Whether tokens travel to and from their experts beside another micro-batch's computation.",
        is_knob=True,
    ),
    StrategyField(
        "offload.optimizer_fraction", "fraction",
        "Share of the optimizer state that is kept and updated on the host. Default 0.", default=0.0, is_knob=True,
    ),
    StrategyField(
        "offload.parameters", "flag", "Whether parameters live in host memory between uses. Default false.", default=False, is_knob=True,
    ),
    StrategyField(
        "offload.activation_layers", "count",
        "Number of layers of each stage whose saved activations go to the host. Default 0.", default=0, is_knob=True,
    ),
    StrategyField(
        "offload.activation_modules", "set",
        "Modules whose saved inputs go to the host, in every layer but a stage's last (Megatron's --offload-modules). Default none.",
        values=OFFLOAD_MODULES, default=0, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "offload.activation_fraction", "fraction",
        "Share of what offload.activation_modules names that goes to the host. Default 1.", default=1.0, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "offload.optimizer_device", "choice", "Where the offloaded optimizer state lies; the host's processors update it. Default cpu.",
        values=_spellings(OffloadDevice), default=0, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "offload.parameter_device", "choice", "Where offloaded parameters lie. Default cpu.",
        values=_spellings(OffloadDevice), default=0, is_knob=True, is_rare=True,
    ),
    StrategyField(
        "offload.optimizer_overlap", "choice",
        "Whether reading, updating and writing the offloaded optimizer state run side by side (pipelined), or the update of most "
        "gradients runs beside later steps (zenflow, which changes what is computed). Default none.",
        values=_spellings(OptimizerOverlap), default=0, is_knob=True, is_rare=True,
    ),
)  # fmt: skip
"""In the order in which a strategy is written."""

GROUPS: Mapping[str, str] = {
    "overlap": "Which communication runs beside computation. Default by framework.",
    "offload": "What lives in host memory, or on the node's drives. Default: nothing.",
}
"""The objects inside a strategy, with their descriptions."""

FIELD: Mapping[str, StrategyField] = {field.name: field for field in FIELDS}
COLUMNS: Mapping[str, StrategyField] = {field.column: field for field in FIELDS if field.column}
NAMES: Mapping[str, tuple[str, ...]] = {
    field.name: field.values for field in FIELDS if field.kind == "choice" and not field.stored_as
}
"""Contract spelling of each code, by field."""
WITH_CONSTANT_DEFAULT = tuple(field for field in FIELDS if field.default is not None)
CONSTANT_DEFAULTS: Mapping[str, Any] = {field.column: field.default for field in WITH_CONSTANT_DEFAULT}
"""What the columns of these fields hold where a strategy leaves them out."""
RARE: Mapping[str, Any] = {field.column: field.default for field in FIELDS if field.is_rare and field.column}
"""Columns that a batch stores only where some strategy differs from these defaults."""
