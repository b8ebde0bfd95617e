"""Memory of one stage over a step: what is held throughout, and what comes and goes with the played tasks.

The cost models know a stage's memory at its few moments (`cost_models.memory.moments`): the loss, the head, a layer's backward with
everything saved, the optimizer's step. Here the saved activations of a moment are handed to the micro-batches and chunks that the
schedule keeps alive, in proportion to their layers, and what a moment needs on top lies between the start and the end of the task
to which it belongs. So the peak is that of the estimate; what is between the peaks is an approximation: within a task nothing
moves, and a micro-batch's activations appear and vanish as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.memory.moments import Moments
from cost_models.memory.stage_activations import stage_activations
from cost_models.strategies.strategy import Floats
from cost_models.terms import PEAK_MOMENTS
from planner.timeline.orders import Kind
from planner.timeline.step import Timeline

STANDING = ("parameters", "main_parameters", "optimizer_states", "library_workspace")
"""Memory terms that do not change over a step."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that is taken and given back as one."""

    what: str
    """A memory term's name, or "backward", "loss" or "head" for what such a moment needs on top."""
    size_bytes: int
    micro_batch: int | None = None
    """None for what belongs to no micro-batch."""
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A block is taken or given back."""

    time_s: float
    """Seconds from the first forward of the step."""
    block: int
    """Position among the blocks."""
    taken: bool


@dataclass(frozen=True, slots=True)
class StageTrace:
    """The memory of one stage over a step."""

    stage: int
    blocks: tuple[Block, ...]
    held: tuple[int, ...]
    """Positions of the blocks that are there before the first task and after the last."""
    changes: tuple[Change, ...]
    """In the order of time."""
    peak_bytes: float
    """The estimate's peak of allocated memory on this stage, to which the trace rises but for rounding to whole bytes."""

    def highest_bytes(self) -> int:
        """The most that is allocated at any time of the trace."""
        now = most = sum(self.blocks[at].size_bytes for at in self.held)
        for change in self.changes:
            now += self.blocks[change.block].size_bytes * (1 if change.taken else -1)
            most = max(most, now)
        return most


@dataclass(frozen=True, slots=True)
class _Levels:
    """Bytes of one stage."""

    standing: dict[str, float]
    early_gradients: float
    """Those held before the step's first backward has ended."""
    gradients: float
    saved: float
    """Saved by everything in flight when most of it is."""
    layer: float
    """Saved by one layer for one micro-batch."""
    on_top: dict[str, float]
    """What a moment needs beyond these, by name."""
    grows_late: bool
    """Whether the backward peaks at its end, when gradients have replaced the activations."""
    peaks_at_head: bool
    """Whether the peak is the loss or the head's gradient."""
    peak: float

    @property
    def head(self) -> float:
        """What the larger of loss and head needs on top."""
        return max(self.on_top["loss"], self.on_top["head"])


def fullest_stage(timeline: Timeline) -> int:
    """The stage with the highest estimated peak of allocated memory."""
    return int(np.argmax([_levels(timeline, stage).peak for stage in range(timeline.ranks)]))


def stage_trace(timeline: Timeline, stage: int) -> StageTrace:
    """What one stage takes and gives back over the events of a timeline, which must be a whole step's."""
    assert timeline.is_whole
    return _Tracer(timeline, stage).trace()


class _Tracer:
    """Walks over the tasks of one stage."""

    def __init__(self, timeline: Timeline, stage: int) -> None:
        self.timeline, self.stage = timeline, stage
        self.levels = _levels(timeline, stage)
        self.blocks: list[Block] = []
        self.changes: list[Change] = []
        self.saved: dict[tuple[int, int], list[int]] = {}
        self.size_C = self._sizes()

    def trace(self) -> StageTrace:
        levels, events = self.levels, self.timeline.events
        held = [self._block(name, size) for name, size in levels.standing.items() if size >= 1]
        if levels.early_gradients >= 1:
            held.append(self._block("gradients", levels.early_gradients))
        last_V = len(self.timeline.seconds.rank_V) - 1
        grown: list[int] = []
        mine = np.flatnonzero(events.rank_E == self.stage)
        backwards = np.isin(events.kind_E[mine], (Kind.BACKWARD, Kind.DATA_GRADIENT))
        last = int(mine[backwards][-1])
        for at in mine.tolist():
            kind, key = Kind(int(events.kind_E[at])), (int(events.chunk_E[at]), int(events.micro_batch_E[at]))
            start, end = float(events.start_E[at]), float(events.end_E[at])
            is_head = int(events.stage_E[at]) == last_V
            if kind == Kind.FORWARD:
                self._forward(key, start)
            elif kind == Kind.WEIGHT_GRADIENT:
                self._give_back(self.saved.pop(key), end)
            else:
                if is_head:
                    self._loss(key, start)
                # A data gradient leaves the activations to the weight gradient.
                blocks = self.saved.pop(key) if kind == Kind.BACKWARD else []
                grown += self._backward(key, start, end, blocks=blocks, is_last=at == last)
        # Jitter is told at the end but lies everywhere, so that the optimizer is taken to end the step.
        over = self.timeline.played_s - self.timeline.ends_s["jitter"]
        begin = over - self.timeline.ends_s["optimizer"]
        self._give_back(self._take("optimizer_transient", levels.on_top["optimizer_step"], begin), over)
        self._give_back(grown, over)
        return StageTrace(self.stage, tuple(self.blocks), tuple(held), tuple(self.changes), levels.peak)

    def _forward(self, key: tuple[int, int], start: float) -> None:
        size = self.size_C[key[0]]
        layer = min(self.levels.layer, size) if self.levels.grows_late else 0.0
        self.saved[key] = self._take("activations", size - layer, start, key)
        self.saved[key] += self._take("activations", layer, start, key)

    def _loss(self, key: tuple[int, int], time_s: float) -> None:
        """What the loss and the head need on top, between a forward and its backward."""
        name = max(("loss", "head"), key=lambda moment: self.levels.on_top[moment])
        self._give_back(self._take(name, self.levels.on_top[name], time_s, key), time_s)

    def _backward(
        self, key: tuple[int, int], start: float, end: float, *, blocks: list[int], is_last: bool
    ) -> list[int]:
        """The gradients that are there from this backward on: those that only the step's last one leaves."""
        levels = self.levels
        working = self._take("backward", levels.on_top["backward"], start, key)
        late = levels.gradients - levels.early_gradients if is_last else 0.0
        if not levels.grows_late:
            self._give_back(blocks + working, end)
            return self._take("gradients", late, end)
        self._give_back(blocks[:1], end)
        grown = self._take("gradients", late, end)
        self._give_back(blocks[1:] + working, end)
        return grown

    def _block(self, what: str, size: float, key: tuple[int, int] | None = None) -> int:
        chunk, micro_batch = key or (None, None)
        self.blocks.append(Block(what, round(size), micro_batch, chunk))
        return len(self.blocks) - 1

    def _take(self, what: str, size: float, time_s: float, key: tuple[int, int] | None = None) -> list[int]:
        if size < 1:
            return []
        block = self._block(what, size, key)
        self.changes.append(Change(time_s, block, taken=True))
        return [block]

    def _give_back(self, blocks: list[int], time_s: float) -> None:
        self.changes += [Change(time_s, block, taken=False) for block in blocks]

    def _sizes(self) -> list[float]:
        """Bytes that one micro-batch of each chunk saves, in proportion to its layers."""
        levels = self.levels
        layout = self.timeline.strategies.layouts.table[int(self.timeline.strategies.layout[0])]
        layers = layout.chunks_on_stage(self.stage)
        # A stage without layers keeps its inputs for the ends alone, so that its chunks count alike.
        weight_C = [float(held) for held in layers] if sum(layers) else [1.0] * len(layers)
        alive = self._alive(weight_C)
        # The estimate's activations are those of its peak; where chunks differ, the loss may meet fewer of them than are ever alive.
        per = levels.saved / (alive["loss"] if levels.peaks_at_head else alive["any"])
        if not levels.grows_late:
            held = sum(levels.standing.values()) + levels.early_gradients
            on_top = {"any": 0.0, "backward": levels.on_top["backward"], "loss": levels.head}
            per = min([per, *((levels.peak - held - on_top[at]) / alive[at] for at in on_top if alive[at] > 0)])
        return [weight * per for weight in weight_C]

    def _alive(self, weight_C: Sequence[float]) -> dict[str, float]:
        """The most that chunks of these weights weigh: ever, at the start of a backward, and at a loss."""
        events, last_V = self.timeline.events, len(self.timeline.seconds.rank_V) - 1
        most, now = {"any": 0.0, "backward": 0.0, "loss": 0.0}, 0.0
        for at in np.flatnonzero(events.rank_E == self.stage).tolist():
            kind = Kind(int(events.kind_E[at]))
            if kind in (Kind.BACKWARD, Kind.DATA_GRADIENT):
                most["backward"] = max(most["backward"], now)
                if events.stage_E[at] == last_V:
                    most["loss"] = max(most["loss"], now)
            # The inputs of products are needed until their weight gradients are made.
            if kind != Kind.DATA_GRADIENT:
                now += weight_C[int(events.chunk_E[at])] * (1 if kind == Kind.FORWARD else -1)
                most["any"] = max(most["any"], now)
        return most


def _levels(timeline: Timeline, stage: int) -> _Levels:
    evaluated, strategies = timeline.evaluated, timeline.strategies
    slot = strategies.layouts.slot_stage_LK[int(strategies.layout[0])].tolist().index(stage)
    pool = evaluated.pools.pool_of(slot, 0)
    memory, at = evaluated.pools.by_pool[pool].memory, evaluated.pools.positions(0)[pool]
    found = memory.kept
    assert found is not None, "a batch of one keeps its terms"

    def value(term: Floats) -> float:
        return _at(term, slot, at)

    terms = found.terms["layer_backward"]
    standing = {name: value(terms[name]) for name in STANDING}
    early, gradients = value(found.states.early_gradients_KN), value(found.states.bytes_KN.gradients)
    activations = stage_activations(found.batch, elements_KN=found.states.trained_KN)
    saved, layer = value(activations.saved_KN), value(activations.layer_KN)
    # Where gradients appear in the backward, the moment is told with the activations of one layer and all gradients.
    grows_late = value(terms["gradients"]) > early
    base = sum(standing.values())
    held = base + (gradients + layer if grows_late else early + saved)
    on_top = {"backward": value(found.totals["layer_backward"]) - held}
    on_top["optimizer_step"] = value(found.totals["optimizer_step"]) - base - gradients
    for name, total in _of_head(found, slot, at).items():
        on_top[name] = total - base - early - saved
    return _Levels(
        standing=standing,
        early_gradients=early,
        gradients=gradients,
        saved=saved,
        layer=layer,
        on_top={name: on_top.get(name, 0.0) for name in ("backward", "loss", "head", "optimizer_step")},
        grows_late=grows_late,
        peaks_at_head=PEAK_MOMENTS[int(memory.peak_moment_KN[slot, at])] in ("loss", "head"),
        peak=float(memory.allocated_KN[slot, at]),
    )


def _of_head(found: Moments, slot: int, at: int) -> dict[str, float]:
    """Bytes of the moments that only the stage with the model's head has."""
    if not bool(found.batch.stages.head_KN[slot, at]):
        return {}
    return {name: _at(found.totals[name], slot, at) for name in ("loss", "head")}


def _at(term: Floats, slot: int, at: int) -> float:
    row = term[slot] if term.ndim == 2 else term
    return float(row[at] if row.size > 1 else row.item())
