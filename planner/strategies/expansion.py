"""Strategies as pairs of a base row and an option, and what is known of the knobs in which options differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.fields import CpComm, MoeDispatcher
from cost_models.strategies.strategy import DTYPES, Strategies
from planner.strategies.defaults import inner_sizes

Ints = NDArray[np.int64]
LAYER_KNOBS = ("cp_comm", "cp_a2a_size", "moe_dispatcher", "overlap_tp_comm", "overlap_moe_all_to_all")
"""Knobs on which a layer's own time depends."""
DISPATCHER_CODES = frozenset({"dispatcher-unsupported"})
OFFLOAD_CODES = frozenset({"offload-unsupported"})
SCHEDULE_CODES = frozenset({"schedule-unsupported"})
MOST_COUNTED_LAYERS = 16
"""Layers of a model up to which recomputing every number of them is searched on pools."""
OFFLOADED = ("offload_optimizer_fraction", "offload_parameters", "offload_activation_layers")
LEAN_KNOBS = ("moe_dispatcher", "overlap_moe_all_to_all", "overlap_tp_comm", "overlap_p2p")
"""Knobs whose leanest value is known: flex has buffers of its own, overlapped experts hold a layer more; the others hold nothing."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a base row and an option. They are cheap to enumerate, and strategies are built only from those that matter."""

    origin: Ints
    """The base row of each pair, shape (N,)."""
    option: Ints
    """The row of each pair in the table of options, shape (N,)."""
    group: NDArray[np.float64]
    """How many ranks share one copy of the sharded state; 0 stands for all replicas. Shape (N,)."""
    copies: NDArray[np.float64]
    """How many ranks share a second copy of the parameters (hpZ); 0 where there is none. Shape (N,)."""

    @property
    def in_groups(self) -> NDArray[np.bool_]:
        """Which pairs keep something in groups of fewer ranks than all replicas, shape (N,)."""
        return np.asarray((self.group > 0) | (self.copies > 0))

    def take(self, index: Ints | NDArray[np.bool_]) -> Pairs:
        """The pairs at these positions, or those where the mask is true."""
        return Pairs(self.origin[index], self.option[index], self.group[index], self.copies[index])

    def followed_by(self, others: Pairs) -> Pairs:
        """These pairs, followed by the others."""
        columns = ((getattr(self, name), getattr(others, name)) for name in ("origin", "option", "group", "copies"))
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


def leanest_value(name: str, values: tuple[Any, ...]) -> Any:
    """The value of a knob that needs the least memory, or the last one where that is not known."""
    if name == "moe_dispatcher":
        return next((value for value in values if value != MoeDispatcher.FLEX), values[-1])
    return min(values) if name in LEAN_KNOBS else max(values) if name in OFFLOADED else values[-1]


def least_zero(zeros: Sequence[int], rows: Strategies) -> Strategies:
    """The rows at the ZeRO stage, of those that a search tries, whose layers take least: the highest one, which leaves no casts to autocast."""
    return replace(rows, zero=np.full(len(rows), max(zeros), DTYPES["zero"]))


def layer_variants(job: Job, knobs: Mapping[str, tuple[Any, ...]], rows: Strategies) -> list[Strategies]:
    """The rows with every combination of the values of these knobs, on which a layer's own time depends."""
    variants = []
    for values in product(*knobs.values()):
        chosen = dict(zip(knobs, values, strict=True))
        columns: dict[str, Any] = {name: np.full(len(rows), value, DTYPES[name]) for name, value in chosen.items()}
        if CpComm.A2A_P2P in knobs.get("cp_comm", ()):
            # The rows have the inner groups of the first transport listed, which are not those of another one.
            given = columns.get("cp_a2a_size")
            columns["cp_a2a_size"] = inner_sizes(job, cp_comm=columns["cp_comm"], tp=rows.tp, cp=rows.cp, given=given)
        variants.append(replace(rows, **columns))
    return variants
