"""What each stage slot holds, and how many micro-batches' activations are alive when its first backward starts. [M-5]

Array suffixes: L layouts, K slots, J layer kinds, S schedules, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, Layouts
from cost_models.strategies.strategy import Bools, Floats, Strategies


@dataclass(frozen=True, eq=False)
class StageContents:
    """Layers, ends and micro-batches in flight of every slot's stage."""

    layers_JKN: list[Floats]
    """Decoder layers of each kind."""
    total_KN: Floats
    """Decoder layers of all kinds."""
    in_flight_KN: Floats
    """Micro-batches whose activations are alive, in units of the whole stage (a chunk of a stage counts as its
    share)."""
    stage_KN: NDArray[np.int64]
    first_KN: Bools
    """Whether the stage holds the embedding."""
    head_KN: Bools
    """Whether the stage holds final norm, head and loss."""
    mtp_KN: Bools
    """Whether the stage holds the modules of multi-token prediction, where the model has any."""
    folded: Bools | None
    """Where the pipeline is folded (V schedules), shape (N,): the first stage holds the head too. None if it is so
    nowhere."""

    def at_head(self, values_KN: Floats) -> Floats:
        """Values of the stage with the head, shape (N,)."""
        if values_KN.ndim < 2:
            return values_KN
        last: Floats = values_KN[-1]
        return last if self.folded is None else np.where(self.folded, values_KN[0], last)


def stage_contents(strategies: Strategies, *, mtp_layers: int = 0, mtp_kind: int = -1) -> StageContents:
    """Layers, ends and micro-batches in flight of every slot. [M-5]

    Args:
        strategies: shape (N,).
        mtp_layers: modules of multi-token prediction, which count as layers beside the head.
        mtp_kind: index of the kind that their layers are of.
    """
    layouts, layout = strategies.layouts, strategies.layout
    tables = _tables(layouts)
    layers_JKN = [np.take(table, layout, axis=-1) for table in layouts.slot_layers]
    row = strategies.schedule.astype(np.int64) * len(layouts.table) + layout
    in_flight_KN = np.take(tables.in_flight_KSL, row, axis=-1)
    odd = np.flatnonzero(_warms_up_longer(strategies))
    if len(odd):
        in_flight_KN[:, odd] = _interleaved_in_flight(strategies.take(odd))
    # A step with fewer micro-batches than the schedule would keep has all of them in flight.
    in_flight_KN = np.minimum(in_flight_KN, strategies.num_micro_batches)
    folded = (strategies.schedule == Schedule.ZB_V) | (strategies.schedule == Schedule.DUALPIPE_V)
    folded = folded if folded.any() else None
    first_KN = np.take(layouts.slot_embedding, layout, axis=-1)
    head_KN = np.take(layouts.slot_head, layout, axis=-1)
    if folded is not None:
        head_KN = np.where(folded, first_KN, head_KN)
    mtp_KN = np.take(layouts.slot_mtp, layout, axis=-1) if layouts.moves_mtp else head_KN
    if mtp_layers:
        layers_JKN[mtp_kind] = layers_JKN[mtp_kind] + mtp_layers * mtp_KN
    return StageContents(
        layers_JKN=layers_JKN,
        total_KN=sum(layers_JKN[1:], layers_JKN[0]),
        in_flight_KN=in_flight_KN,
        stage_KN=np.take(tables.stage_KL, layout, axis=-1),
        first_KN=first_KN,
        head_KN=head_KN,
        mtp_KN=mtp_KN,
        folded=folded,
    )


@dataclass(frozen=True, slots=True)
class _Tables:
    in_flight_KSL: Floats
    """Schedule-major columns: schedule * number of layouts + layout."""
    stage_KL: NDArray[np.int64]


@lru_cache(maxsize=16)
def _tables(layouts: Layouts) -> _Tables:
    """Slot tables turned so that one gather yields (K, N)."""
    warm_SLK = _in_flight_tables(layouts)
    return _Tables(
        in_flight_KSL=np.ascontiguousarray(warm_SLK.transpose(2, 0, 1).reshape(layouts.num_slots, -1)),
        stage_KL=np.ascontiguousarray(layouts.slot_stage_LK.T),
    )


def _in_flight_tables(layouts: Layouts) -> Floats:
    """Micro-batches in flight by schedule, layout and slot, shape (S, L, K)."""
    number: dict[tuple[int, int], int] = {}
    known: list[tuple[Layout, int]] = []
    index_LK = np.empty(layouts.slot_stage_LK.shape, np.int64)
    for row, (layout, stages) in enumerate(zip(layouts.table, layouts.slot_stage_LK.tolist(), strict=True)):
        for slot, stage in enumerate(stages):
            # A search's table holds one layout object many times, so the object's identity is a key that costs no
            # comparison of layers.
            key = (id(layout), stage)
            if key not in number:
                number[key] = len(known)
                known.append((layout, stage))
            index_LK[row, slot] = number[key]
    counts = np.array(
        [_by_schedule(layout.pp, layout.vpp, stage, layout.blocks_on_stage(stage)) for layout, stage in known]
    )
    return np.asarray(counts.T[:, index_LK], np.float64)


@lru_cache(maxsize=1 << 16)
def _by_schedule(pp: int, vpp: int, stage: int, layers: tuple[int, ...]) -> tuple[float, ...]:
    """Micro-batches in flight under every schedule, cached because searches ask for the same stages over and over."""
    return tuple(micro_batches_in_flight(pp, vpp, stage, layers, schedule) for schedule in Schedule)


def micro_batches_in_flight(pp: int, vpp: int, stage: int, layers: tuple[int, ...], schedule: Schedule) -> float:
    """Micro-batches alive on a stage, in units of the whole stage, where a step has enough of them. [M-5]

        1F1B: p - s;  GPipe: all;  ZB-H1, ZB-V: p;  DualPipe-V: p + 1/2
        interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunks, each weighted with its own number of layers, in rounds of p
        micro-batches; `_interleaved_in_flight` covers longer rounds

    Args:
        pp: stages.
        vpp: chunks of a stage.
        stage: which stage, 0...pp-1.
        layers: layers of each of its chunks.
        schedule: the order of passes.

    Source: Narayanan et al. 2021 (1F1B, interleaved), Qi et al. 2024 (ZB-H1, ZB-V), DeepSeek's DualPipe repository.
    """
    match schedule:
        case Schedule.GPIPE:
            return np.inf if pp > 1 else 1.0
        case Schedule.ZB_H1 | Schedule.ZB_V:
            return float(pp)
        case Schedule.DUALPIPE_V:
            return pp + 0.5 if pp > 1 else 1.0
        case Schedule.INTERLEAVED if vpp > 1:
            return _interleaved(pp, vpp, stage, layers)
    return float(pp - stage)


def _interleaved(pp: int, vpp: int, stage: int, layers: tuple[int, ...]) -> float:
    """Micro-batches in flight of an interleaved stage, in units of the whole stage.

    Chunks run for groups of pp micro-batches at a time, so in a round of c runs chunk i has run clip(c - i pp, 0, pp) times.
    """
    chunks = 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
    rounds, rest = divmod(chunks, pp * vpp)
    counts = [rounds * pp + min(max(rest - chunk * pp, 0), pp) for chunk in range(vpp)]
    total = sum(layers)
    if not total:
        return sum(counts) / vpp
    return sum(count * held for count, held in zip(counts, layers, strict=True)) / total


def chunks_in_flight(strategies: Strategies, *, stage: int) -> list[float]:
    """Micro-batches in flight of every chunk of a stage of an interleaved pipeline (a batch of one), before the step's own
    number of micro-batches limits them. [M-5]
    """
    pp, vpp = int(strategies.pp[0]), int(strategies.vpp[0])
    each, chunks = float(pp), 2.0 * (pp - stage - 1) + (vpp - 1) * pp + 1
    if _warms_up_longer(strategies)[0]:
        each = float(_micro_batches_per_round(strategies)[0])
        chunks = min(2.0 * (pp - stage - 1) + (vpp - 1) * each + 1, vpp * float(strategies.num_micro_batches[0]))
    rounds, rest = divmod(chunks, each * vpp)
    return [rounds * each + min(max(rest - chunk * each, 0.0), each) for chunk in range(vpp)]


def _micro_batches_per_round(strategies: Strategies) -> Floats:
    """Micro-batches that pass one chunk before the next chunk's turn, shape (N,). [M-5]

    pp where it divides their number; PyTorch makes rounds longer elsewhere.
    """
    m = strategies.num_micro_batches
    return np.asarray(np.floor(m / np.maximum(np.floor(m / strategies.pp), 1.0)))


def _warms_up_longer(strategies: Strategies) -> Bools:
    """Whether an interleaved pipeline runs more forwards before its first backward than the tables count, shape (N,)."""
    interleaved = np.asarray(
        (strategies.schedule == Schedule.INTERLEAVED) & (strategies.vpp > 1) & (strategies.pp > 1), np.bool_
    )
    if not interleaved.any():
        return interleaved
    return np.asarray(interleaved & (_micro_batches_per_round(strategies) != strategies.pp))


def _interleaved_in_flight(strategies: Strategies) -> Floats:
    """Micro-batches in flight of interleaved pipelines, in units of the whole stage, shape (K, N). [M-5]

        2 (p - s - 1) + (v - 1) r + 1 chunks, in rounds of r micro-batches

    PyTorch divides m micro-batches into floor(m / p) rounds.

    Source: torch/distributed/pipelining/schedules.py (ScheduleInterleaved1F1B, _get_warmup_ops).
    """
    layouts, layout = strategies.layouts, strategies.layout
    stage_KN = layouts.slot_stage_LK[layout].T
    each, v = _micro_batches_per_round(strategies), strategies.vpp
    warm_up_KN = 2.0 * (strategies.pp - stage_KN - 1.0) + (v - 1.0) * each
    chunks_KN = np.minimum(warm_up_KN + 1.0, v * strategies.num_micro_batches)
    rounds_KN = np.floor(chunks_KN / (each * v))
    rest_KN = chunks_KN - rounds_KN * each * v
    # A round that is not complete has run whole micro-batches of its first chunks, and a part of those of the next one.
    first, whole_KN = layouts.first_chunk[layout], np.floor(rest_KN / each).astype(np.int64)
    slot_K1, before_CK = np.arange(len(stage_KN))[:, None], layouts.layers_before
    before_KN, last = before_CK[first + whole_KN, slot_K1], first + v.astype(np.int64)
    next_KN = before_CK[np.minimum(first + whole_KN + 1, last), slot_K1] - before_KN
    layers_KN = before_CK[last, slot_K1]
    weighed_KN = rounds_KN * each * layers_KN + each * before_KN + next_KN * (rest_KN - whole_KN * each)
    # A stage without layers has nothing to weight by; its chunks count alike.
    plain_KN = chunks_KN / v
    return np.where(layers_KN > 0, weighed_KN / np.maximum(layers_KN, 1.0), plain_KN)
