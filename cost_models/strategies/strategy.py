"""A batch of strategies as one structure of arrays: the only form in which strategies reach a cost model.

A single strategy is a batch of length 1. The columns are those of `cost_models.strategies.fields`, which says how the
contract spells them and how each is stored, with two that follow from them: `num_micro_batches` and `layout`. Every field
has shape (N,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.fields import COLUMNS, RARE
from cost_models.strategies.layouts import Layouts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
Bools = NDArray[np.bool_]


class _Batch:
    """What every batch knows beside its columns."""

    _rare: tuple[str, ...] = ()
    """Columns of `RARE` that some strategy may differ in. Batches that have any set it for themselves."""


@dataclass(frozen=True)
class Strategies(_Batch):
    """N strategies. Semantics are the contract's; codes are those of `cost_models.strategies.fields`."""

    tp: Floats
    pp: Floats
    dp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    vpp: Floats
    zero: Codes
    """0-3: nothing, optimizer state, also gradients, also parameters sharded."""
    zero_shard_size: Floats
    """Ranks that share one copy of the sharded state; divides dp*cp."""
    zero_param_shard_size: Floats
    """Ranks over which forward/backward parameters are sharded (hpZ, MiCS); zero_shard_size unless given."""
    grad_sync_each: Bools
    """Gradients are reduced for every micro-batch rather than once a step."""
    sequence_parallel: Bools
    micro_batch_size: Floats
    num_micro_batches: Floats
    recompute: Codes
    recompute_method: Codes
    recompute_num_layers: Floats
    recompute_modules: Codes
    """Bit set over RECOMPUTE_MODULES (Megatron selective); 0 elsewhere."""
    schedule: Codes
    layout: Ints
    """Index into `layouts`: which decoder layers each (stage, chunk) holds."""
    cp_comm: Codes
    moe_dispatcher: Codes
    flex_backend: Codes
    """Read only where the dispatcher is flex."""
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    overlap_tp_comm: Bools
    overlap_p2p: Bools
    overlap_moe_all_to_all: Bools
    offload_optimizer_fraction: Floats
    offload_parameters: Bools
    offload_activation_layers: Floats
    zero_quantized_weights: Bools
    """This column and those after it are `RARE`: a batch without any of them reads their defaults and stores nothing."""
    zero_quantized_gradients: Bools
    cp_a2a_size: Floats
    """Ranks that trade heads where the exchange is a2a+p2p, and 1 elsewhere."""
    offload_activation_modules: Codes
    """Bit set over OFFLOAD_MODULES."""
    offload_activation_fraction: Floats
    offload_optimizer_device: Codes
    offload_parameter_device: Codes
    offload_optimizer_overlap: Codes
    layouts: Layouts
    """Shared by the whole batch; not an array over strategies."""

    def __post_init__(self) -> None:
        # `dataclasses.replace` hands over every column, also those that it was only lent (`__getattr__`).
        held = self.__dict__
        for name, default in RARE.items():
            column = held[name]
            if column.strides == (0,) and (not len(column) or column[0] == default):
                del held[name]
        held["_rare"] = tuple(name for name in RARE if name in held)

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def uses_rare(self) -> bool:
        """Whether any strategy may differ from the default of any column of `RARE`."""
        return bool(self._rare)

    def uses(self, name: str) -> bool:
        """Whether any strategy of the batch may differ from the default of this column of `RARE`."""
        return name in self._rare

    def differs(self, name: str, index: int) -> bool:
        """Whether strategy `index` differs from the default of this column of `RARE`."""
        return self.uses(name) and bool(getattr(self, name)[index] != RARE[name])

    @cached_property
    def digits(self) -> dict[str, tuple[NDArray[Any], int]]:
        """What `tensors.distinct` has found of each column: small numbers that stand for its values, and how many there are."""
        return {}

    @property
    def world(self) -> Floats:
        """GPUs used."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def dp_cp(self) -> Floats:
        """Ranks that hold the same dense parameters: the group gradients are reduced over."""
        return self.dp * self.cp

    @property
    def expert_dp(self) -> Floats:
        """Ranks that hold the same experts: edp = tp*cp*dp / (ep*etp)."""
        return self.tp * self.cp * self.dp / (self.ep * self.etp)

    @property
    def expert_shard_size(self) -> Floats:
        """Ranks that share one copy of sharded expert state: edp by the copies that zero_shard_size leaves."""
        # Experts have as many copies of their state as the rest: groups of edp ranks are cut into that many parts.
        copies = self.dp_cp / self.zero_shard_size
        return np.asarray(np.maximum(np.floor(self.expert_dp / copies), 1.0))

    def rank_tokens(self, seq_length: int) -> Floats:
        """Tokens of one micro-batch on one rank: context parallelism alone splits a sequence of `seq_length` tokens."""
        return self.micro_batch_size * seq_length / self.cp

    def take(self, index: Ints | Bools) -> Strategies:
        """The strategies at these positions, or where the mask holds."""
        # A mask would be searched through once for each of the thirty columns.
        at = index.nonzero()[0] if index.dtype == np.bool_ else index
        columns = {name: getattr(self, name).take(at) for name in self._stored}
        return _unchecked(columns | {"layouts": self.layouts, "_rare": self._rare})

    def picked(self, index: Ints) -> Strategies:
        """The same as `take` for a short time: each column is taken when it is first read, and all of this batch lives on until then.

        A formula that is computed for distinct combinations reads a few of the columns, and where its table is known, none.
        """
        return _unchecked({"_picked": (self, index), "layouts": self.layouts, "_rare": self._rare})

    if not TYPE_CHECKING:  # to a type checker every other name would then be an attribute too

        def __getattr__(self, name: str) -> Any:
            """A column of a picked batch that nobody has read before, or one that is at its default everywhere."""
            # One number repeated without memory of its own, which `__post_init__` and `take` know by its stride and by its absence.
            if name in RARE and not self.uses(name):
                return np.ndarray(len(self), DTYPES[name], _REPEATED[name], strides=(0,))
            if name not in DTYPES or "_picked" not in self.__dict__:
                raise AttributeError(f"Strategies has no attribute {name!r}")
            # Two threads may both take a column; they find the same numbers, and either may keep its own.
            batch, index = self.__dict__["_picked"]
            column = self.__dict__[name] = getattr(batch, name).take(index)
            return column

    def slice(self, start: int, end: int) -> Strategies:
        """The strategies from `start` on and before `end`, as views of these columns."""
        columns = {name: getattr(self, name)[start:end] for name in self._stored}
        return _unchecked(columns | {"layouts": self.layouts, "_rare": self._rare})

    @property
    def _stored(self) -> tuple[str, ...]:
        """Columns that some strategy's cost may depend on."""
        # Nearly all batches use no rare one, and seven more columns would make taking rows a fifth slower.
        return USUAL_FIELDS + self._rare if self._rare else USUAL_FIELDS


def _unchecked(attributes: dict[str, Any]) -> Strategies:
    """A batch with these attributes. Setting thirty fields of a frozen dataclass one by one takes longer than filling them."""
    made = object.__new__(Strategies)
    made.__dict__.update(attributes)
    return made


ARRAY_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Strategies) if f.name != "layouts")
USUAL_FIELDS: tuple[str, ...] = tuple(name for name in ARRAY_FIELDS if name not in RARE)
DTYPES: Mapping[str, type] = {
    **{column: field.dtype for column, field in COLUMNS.items()},
    "num_micro_batches": np.float64,
    "layout": np.int64,
}
"""Type of each column; the last two follow from the fields."""
assert set(DTYPES) == set(ARRAY_FIELDS), set(DTYPES) ^ set(ARRAY_FIELDS)


_REPEATED = {name: np.array([default], DTYPES[name]).tobytes() for name, default in RARE.items()}
"""The default of each column of `RARE` in memory that nobody can write to."""


def build_strategies(columns: Mapping[str, Sequence[Any] | NDArray[Any]], *, layouts: Layouts) -> Strategies:
    """A batch from one column per field of ARRAY_FIELDS, broadcast to a common length and cast to the field's type.

    Columns of `RARE` may be left out.
    """
    # A listed value that is the default changes nothing, so that such batches are stored like those that do not name the field.
    rare = [name for name, default in RARE.items() if name in columns and np.any(np.asarray(columns[name]) != default)]
    cast: dict[str, Any] = {name: np.asarray(columns[name], DTYPES[name], order="C") for name in (*USUAL_FIELDS, *rare)}
    lengths = {len(column) if column.ndim else 1 for column in cast.values()}
    for name, column in cast.items():
        if column.shape != (max(lengths),):
            cast[name] = np.ascontiguousarray(np.broadcast_to(column, max(lengths)))
    return _unchecked({**cast, "layouts": layouts, "_rare": tuple(rare)})


def concatenated(batches: Sequence[Strategies]) -> Strategies:
    """One batch of all rows, in order; every batch must share the same `layouts`."""
    # `layout` is an index into `layouts`, and means nothing in another table.
    assert all(batch.layouts is batches[0].layouts for batch in batches)
    rare = tuple(name for name in RARE if any(batch.uses(name) for batch in batches))
    columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in (*USUAL_FIELDS, *rare)}
    return _unchecked({**columns, "layouts": batches[0].layouts, "_rare": rare})
