"""What a framework does where a strategy says nothing, what a user of it can ask for, and what its recipes do instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.specs.training import Precision, Recipe
from cost_models.strategies.fields import CpComm, MoeDispatcher, Recompute, Schedule


@dataclass(frozen=True, slots=True)
class StrategyDefaults:
    """What a framework does where a strategy says nothing, and what a search tries. These are choices of a strategy; each is
    reported in `assumed` when it is applied.
    """

    recompute: Recompute
    cp_comm: CpComm
    moe_dispatcher: MoeDispatcher = MoeDispatcher.ALLTOALL
    """Every framework's recipes use all-to-all, also Megatron's, whose parser defaults to allgather."""
    recompute_modes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    """Modes a search tries."""
    recompute_counts: bool = False
    """`full` can be limited to some layers of each chunk (block)."""
    selective_modules: tuple[str, ...] = ()
    """What selective recomputation repeats unless told otherwise, where it goes by modules."""
    sequence_parallel_optional: bool = True
    """Tensor parallelism without sequence parallelism is worth trying."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a user of the framework can ask for at all. What a release or a combination excludes is a row of the rules."""

    zero: tuple[int, ...]
    schedules: tuple[Schedule, ...]
    cp_comms: tuple[CpComm, ...]
    """Transports of context parallelism; PyTorch's "alltoall" rotation is a ring exchange, p2p here."""
    dispatchers: tuple[MoeDispatcher, ...]
    """None where there is no expert parallelism."""
    vpp: bool = False
    pipelines: bool = True
    without_precisions: frozenset[Precision] = frozenset()
    chunked_loss: bool = False
    eight_bit_adam: bool = False
    selective_recompute: bool = True
    """In some release."""
    recompute_counts: bool = True
    """Full recomputation of some layers alone, in some release."""
    recompute_modules: bool = False
    tp_overlap: bool = True
    expert_overlap: bool = False
    offload: bool = True
    param_shard_groups: bool = False
    """Parameters for forward and backward in smaller groups than the optimizer's state."""
    recipes: frozenset[Recipe] = frozenset()
    """Recipes whose habits `training.recipe` can ask for."""


@dataclass(frozen=True, slots=True)
class Habit:
    """A default that a framework's recipes make, where its own parser has another: most people run the recipe."""

    value: Any
    """The default for which this is said."""
    sentence: str
    """What recipes say, and what the parser would have done."""
    until: str = ""
    """The first release whose parser has the default too."""
