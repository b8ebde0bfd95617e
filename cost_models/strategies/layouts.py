"""Which decoder layers each pipeline stage holds, for every split that a batch uses.

A layout is (pp, vpp, layers per virtual stage in model order). Virtual stage i = chunk * pp + rank, or on the way back of a folded
pipeline chunk * pp + (pp - 1 - rank); the first holds the embedding, the last the final norm, head and loss. Array suffixes: L
layouts, S stages, K slots, J layer kinds.

A *slot* is a stage that can be the slowest or the fullest. Stages between the ends differ only in how many layers of each kind
they hold and in how many micro-batches are in flight, and the latter is never more on a later stage. So a middle stage that
holds, kind by kind, no more than an earlier middle stage can be left out: the maximum over the slots is the maximum over all
stages. Layouts with fewer slots repeat one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.model import Model
from cost_models.strategies.fields import V_SHAPED

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


FOLDED_CHUNKS = 2
"""Virtual stages of a V-shaped pipeline."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One split: the decoder layers of each virtual stage, in model order."""

    pp: int
    vpp: int
    layers: tuple[int, ...]
    """Layers of the pp*vpp virtual stages; 0 is allowed."""
    recompute_per_stage: tuple[int, ...] | None = None
    """Layers that each of the pp stages recomputes, where the strategy fixes them."""
    pool_per_stage: tuple[str, ...] | None = None
    """Pool that each of the pp stages lies on."""
    mtp: tuple[int, int] | None = None
    """The virtual stage that holds the modules of multi-token prediction apart from the head, and their number; None: beside the head."""
    folded: bool = False
    """Whether the second chunk runs from the last stage back to the first, as V-shaped schedules have it."""

    def __post_init__(self) -> None:
        assert len(self.layers) == self.pp * self.vpp
        assert not self.folded or self.vpp == FOLDED_CHUNKS

    @property
    def is_even(self) -> bool:
        """Whether all virtual stages hold equally many layers."""
        return len(set(self.layers)) == 1

    def layers_on_stage(self, stage: int) -> int:
        """Decoder layers that one pipeline rank holds over all its chunks."""
        return sum(self.chunks_on_stage(stage))

    def chunks_on_stage(self, stage: int) -> tuple[int, ...]:
        """Decoder layers of each of its chunks."""
        if self.folded:
            return self.layers[stage], self.layers[-1 - stage]
        return self.layers[stage :: self.pp]

    @property
    def head_stage(self) -> int:
        """The stage that holds the model's end."""
        return 0 if self.folded else self.pp - 1

    @property
    def mtp_rank(self) -> int:
        """The stage that holds the modules of multi-token prediction, where the model has any."""
        return self.head_stage if self.mtp is None else self.mtp[0] % self.pp

    def blocks_on_stage(self, stage: int) -> tuple[int, ...]:
        """Decoder layers of each chunk of a stage, with the modules that lie there apart from the head."""
        chunks = self.chunks_on_stage(stage)
        # Only the last chunk can hold them (Megatron's validate_layer_layout), and it holds them behind its decoder layers.
        if self.mtp is None or stage != self.mtp_rank:
            return chunks
        return (*chunks[:-1], chunks[-1] + self.mtp[1])


@dataclass(frozen=True, eq=False)
class Layouts:
    """The splits of a batch and, per slot, what the stage holds."""

    table: tuple[Layout, ...]
    slot_stage_LK: Ints
    """Stage of each slot; slot 0 is stage 0, the last slot is the last stage."""
    layers_LKJ: Floats
    """Decoder layers of each kind that the slot's stage holds, all chunks together."""
    largest_chunk_layers_LK: Floats
    """Layers of that stage's largest chunk; all of them without virtual stages."""
    has_embedding_LK: NDArray[np.bool_]
    has_head_LK: NDArray[np.bool_]
    recompute_layers_LK: Floats
    """Layers of the stage that `recompute_per_stage` fixes; -1 where the strategy's own rule applies."""
    held_LS: Floats
    """Decoder layers of every stage, 0 beyond the last; S is the largest number of stages."""
    recompute_limit_LS: Floats
    """Most layers of every stage that may be recomputed: what `recompute_per_stage` fixes, else no limit."""
    has_mtp_LK: NDArray[np.bool_] | None = None
    """Whether the slot's stage would hold modules of multi-token prediction; None: the head's does in every layout."""
    kind_of_layer: Sequence[int] | None = None
    """Kind of every decoder layer, in model order; None where only the layers of stages are known."""

    @property
    def num_slots(self) -> int:
        """Slots of every layout, K."""
        return int(self.slot_stage_LK.shape[1])

    def held(self, layout: int) -> bytes:
        """What the slots of a layout hold, however it is cut into chunks: equal for layouts whose stages hold the same layers and ends."""
        # A folded pipeline's first stage holds the head too, so that it may be equal to a plain one in its layers alone.
        parts = (
            self.layers_LKJ,
            self.slot_stage_LK,
            self.has_head_LK,
            *(() if self.has_mtp_LK is None else (self.has_mtp_LK,)),
        )
        return b"".join(part[layout].tobytes() for part in parts)

    @cached_property
    def slot_layers(self) -> Floats:
        """`layers_LKJ` as (J, K, L), so that one gather yields (K, N) of a kind; the next three are (K, L) for the same reason."""
        return np.ascontiguousarray(self.layers_LKJ.transpose(2, 1, 0))

    @cached_property
    def slot_totals(self) -> Floats:
        """Decoder layers of all kinds."""
        return np.asarray(self.slot_layers.sum(axis=0))

    @cached_property
    def slot_embedding(self) -> NDArray[np.bool_]:
        """Whether the slot's stage holds the embedding."""
        return np.ascontiguousarray(self.has_embedding_LK.T)

    @cached_property
    def slot_head(self) -> NDArray[np.bool_]:
        """Whether the slot's stage holds the head."""
        return np.ascontiguousarray(self.has_head_LK.T)

    @cached_property
    def slot_mtp(self) -> NDArray[np.bool_]:
        """Whether the slot's stage holds the modules of multi-token prediction."""
        return self.slot_head if self.has_mtp_LK is None else np.ascontiguousarray(self.has_mtp_LK.T)

    @property
    def moves_mtp(self) -> bool:
        """Whether any layout holds these modules apart from the head."""
        return self.has_mtp_LK is not None

    @cached_property
    def mtp_chunk(self) -> Ints:
        """The virtual stage that holds them, counted from the end of the model: -1 is the last, shape (L,)."""
        return np.array([-1 if each.mtp is None else each.mtp[0] - each.pp * each.vpp for each in self.table])

    @cached_property
    def fixes_recomputation(self) -> bool:
        """Whether any layout says how many layers its stages recompute."""
        return bool((self.recompute_layers_LK >= 0).any())

    @cached_property
    def has_uneven_chunks(self) -> NDArray[np.bool_]:
        """Whether virtual stages differ, so that a block of each is not the same number of layers on every stage, shape
        (L,).
        """
        return np.array([layout.vpp > 1 and not layout.is_even for layout in self.table])

    def chunks(self, layout: int) -> Ints:
        """Layers of every chunk of every stage of one layout, shape (its vpp, its pp)."""
        return _chunks(self.table[layout])

    @cached_property
    def first_chunk(self) -> Ints:
        """Where each layout begins in `layers_before`, shape (L,)."""
        return np.cumsum([0, *(layout.vpp + 1 for layout in self.table[:-1])])

    @cached_property
    def layers_before(self) -> Floats:
        """Layers of each slot's stage before each of its chunks and behind the last one, layout by layout."""
        # One row a chunk: a table of all layouts with as many chunks as any of them has would take gigabytes for 1,000 layers.
        blocks = [
            np.array([each.blocks_on_stage(stage) for stage in range(each.pp)]).T if each.mtp else None
            for each in self.table
        ]
        whole = [self.chunks(at) if each is None else each for at, each in enumerate(blocks)]
        parts = [each[:, stages] for each, stages in zip(whole, self.slot_stage_LK, strict=True)]
        return np.concatenate([np.cumsum(np.pad(part, ((1, 0), (0, 0))), axis=0) for part in parts]).astype(np.float64)

    @cached_property
    def has_unlike_chunks(self) -> NDArray[np.bool_]:
        """Whether virtual stages take different times: other layers, layers of other kinds, or other stages' recomputation
        than their neighbours', shape (L,).
        """
        unlike = self.has_uneven_chunks.copy()
        several_kinds = self.kind_of_layer is not None and any(self.kind_of_layer)
        for index, layout in enumerate(self.table):
            if layout.vpp > 1 and not unlike[index]:
                unlike[index] = len(set(layout.recompute_per_stage or ())) > 1
                if several_kinds and not unlike[index]:
                    contents = self.chunk_contents(index)
                    unlike[index] = (contents != contents[0]).any()
        return unlike

    def chunk_contents(self, index: int) -> Floats:
        """Decoder layers of each kind on every virtual stage of this layout, shape (pp * vpp, J)."""
        if index not in self._contents:
            layers = np.array(self.table[index].layers)
            ends = np.cumsum(layers)
            self._contents[index] = self._layers_before[ends] - self._layers_before[ends - layers]
        return self._contents[index]

    @cached_property
    def _contents(self) -> dict[int, Floats]:
        """What `chunk_contents` has found; a search prices the same layouts in many batches."""
        return {}

    @cached_property
    def _layers_before(self) -> Floats:
        """Layers of each kind before every position in the model, shape (layers + 1, J)."""
        assert self.kind_of_layer is not None
        kinds = np.arange(self.layers_LKJ.shape[2])
        return np.concatenate(
            [np.zeros((1, len(kinds))), np.cumsum(np.array(self.kind_of_layer)[:, None] == kinds, axis=0)]
        )


def folds(schedule: int, *, pp: int, vpp: int) -> bool:
    """Whether a schedule runs the second chunk of its stages from the last one back to the first."""
    return pp > 1 and vpp == FOLDED_CHUNKS and schedule in V_SHAPED


def build_layouts(table: Sequence[Layout], *, model: Model, all_stages: bool = False) -> Layouts:
    """Slot tables of these layouts.

    Args:
        table: the layouts.
        model: whose layer kinds are counted.
        all_stages: make every stage a slot, for reports per stage and for pools.
    """
    kinds = model.distinct_kinds
    number = {kind: position for position, kind in enumerate(kinds)}
    kind_of_layer = tuple(number[kind] for kind in model.layer_kinds)
    build = _few_layouts if len(table) <= _FEW else _layouts
    return build(tuple(table), kind_of_layer, all_stages=all_stages)


def _layouts(table: tuple[Layout, ...], kind_of_layer: tuple[int, ...], *, all_stages: bool) -> Layouts:
    contents = [_slots(layout, kind_of_layer, all_stages=all_stages) for layout in table]
    counts, largest, chosen = zip(*contents, strict=True)
    width = max(len(stages) for stages in chosen)
    # Rows are filled up with their last stage: repeating a stage changes no maximum, and the head stays in the last
    # slot (in the first one of a folded pipeline).
    slots = np.array([stages[:-1] + [stages[-1]] * (width - len(stages) + 1) for stages in chosen], dtype=np.int64)
    head = np.array([layout.head_stage for layout in table])[:, None]
    fixed = [layout.recompute_per_stage for layout in table]
    return Layouts(
        table=table,
        slot_stage_LK=slots,
        layers_LKJ=np.stack([c[s] for c, s in zip(counts, slots, strict=True)]),
        largest_chunk_layers_LK=np.stack([c[s] for c, s in zip(largest, slots, strict=True)]),
        has_embedding_LK=slots == 0,
        has_head_LK=slots == head,
        recompute_layers_LK=np.stack(
            [np.full(width, -1.0) if f is None else np.array(f, float)[s] for f, s in zip(fixed, slots, strict=True)]
        ),
        held_LS=_padded([per_stage.sum(axis=1) for per_stage in counts], fill=0.0),
        recompute_limit_LS=_padded(
            [[np.inf] * x.pp if f is None else f for x, f in zip(table, fixed, strict=True)], fill=np.inf
        ),
        has_mtp_LK=slots == np.array([each.mtp_rank for each in table])[:, None] if any(x.mtp for x in table) else None,
        kind_of_layer=kind_of_layer,
    )


_FEW = 8
"""Layouts of a table that is kept. Rows that are evaluated one by one, and readings of a row, have the same few again and again; tables of
searches are large."""
_few_layouts = lru_cache(maxsize=1024)(_layouts)


def _padded(rows: Sequence[Sequence[float] | Floats], *, fill: float) -> Floats:
    padded = np.full((len(rows), max(len(row) for row in rows)), fill)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


@lru_cache(maxsize=1024)
def _slots(layout: Layout, kind_of_layer: tuple[int, ...], *, all_stages: bool) -> tuple[Floats, Floats, list[int]]:
    """Layers of each kind per stage, those of its largest chunk, and the stages that are slots.

    It is cached, because every request about a model asks for much the same splits.
    """
    per_stage, chunks = _stage_contents(layout, np.array(kind_of_layer), max(kind_of_layer) + 1)
    stages = list(range(layout.pp)) if all_stages else _representatives(per_stage, chunks, layout)
    return per_stage, chunks[:, 0].copy(), stages


def _stage_contents(layout: Layout, kind_of_layer: Ints, num_kinds: int) -> tuple[Floats, Floats]:
    """Layers of each kind per stage, shape (pp, J), and layers of each chunk of a stage, largest first, shape (pp, vpp)."""
    assert sum(layout.layers) == len(kind_of_layer), (layout, len(kind_of_layer))
    stage = np.arange(len(layout.layers)) % layout.pp
    if layout.folded:
        stage[layout.pp :] = stage[: layout.pp][::-1]
    owner = np.repeat(stage, layout.layers)
    flat = np.bincount(owner * num_kinds + kind_of_layer, minlength=layout.pp * num_kinds)
    # Sorted, so that two stages with the same chunks in another order count as alike.
    chunks = -np.sort(-_chunks(layout).T.astype(np.float64), axis=1)
    return flat.reshape(layout.pp, num_kinds).astype(np.float64), chunks


def _chunks(layout: Layout) -> Ints:
    """Layers of every chunk of every stage, shape (vpp, pp)."""
    chunks = np.reshape(np.array(layout.layers), (layout.vpp, layout.pp))
    return np.stack([chunks[0], chunks[1, ::-1]]) if layout.folded else chunks


def _representatives(per_stage: Floats, chunks: Floats, layout: Layout) -> list[int]:
    """The stages that no earlier middle stage dominates; the ends are always among them."""
    size = np.column_stack([per_stage, chunks])
    if layout.recompute_per_stage is not None:  # fewer recomputed layers hold more: part of the comparison
        size = np.column_stack([size, -np.array(layout.recompute_per_stage, float), layout.recompute_per_stage])
    if layout.mtp is not None:
        # No stage without the modules is as large as the one that holds them, and none stands for it.
        size = np.column_stack([size, np.arange(layout.pp) == layout.mtp_rank])
    if layout.pp == 1:
        return [0]
    different: dict[tuple[float, ...], int] = {}
    if layout.pp > 2:
        middle = size[1:-1]
        # Most splits are even, and comparing whole arrays is quicker than hashing rows.
        for stage, row in enumerate(middle[:1].tolist() if (middle == middle[0]).all() else middle.tolist(), start=1):
            different.setdefault(tuple(row), stage)
    kept: list[int] = []
    # In the order of the pipeline, since only an earlier stage, which has no fewer micro-batches in flight, can
    # dominate.
    for stage in different.values():
        if not (size[stage] <= size[kept]).all(axis=1).any():
            kept.append(stage)
    return [0, *kept, layout.pp - 1]
