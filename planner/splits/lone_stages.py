"""Memory of single pipeline stages: whether a stage fits with these layers, whatever the other stages hold.

Each question becomes a layout of one slot, so the memory model answers for that stage with its own micro-batches in flight.
Array suffixes: J layer kinds; (N,) over questions has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layout, Layouts
from cost_models.strategies.strategy import Bools, Codes, Ints, Strategies
from planner.splits.chunks import leanest_chunks

Headroom = float | None
"""Share of capacity that stays free; None where a plan may be at risk of not fitting."""
Weights = tuple[float, ...]
"""Layers of every chunk of a stage; fractions ask about what lies between two ways to spread them."""


def chunk_blocks(rows: Strategies) -> Ints:
    """Layers that every chunk recomputes at most where chunks may differ, else 0; shape (N,)."""
    block = (rows.recompute == Recompute.FULL) & (rows.recompute_method == RecomputeMethod.BLOCK) & (rows.vpp > 1)
    return np.where(block, rows.recompute_num_layers, 0.0).astype(np.int64)


def fits_alone(
    job: Job,
    rows: Strategies,
    *,
    stage: Ints,
    contents_NJ: Ints,
    recomputed: Ints | None,
    headroom_fraction: Headroom,
    chunks: Sequence[Weights] | None = None,
) -> Bools:
    """Whether each stage fits, shape (N,). [M]

    Args:
        job: what is planned.
        rows: strategy of each question; its layout is ignored.
        stage: pipeline stage of each.
        contents_NJ: layers of each kind on it.
        recomputed: layers it recomputes, None or -1 for the strategy's own rule. Where that rule counts by chunk, it stands for
            the most layers that it could recompute: what then does not fit never does.
        headroom_fraction: share of capacity that stays free; with None it is enough that a stage may fit.
        chunks: layers of every chunk of each stage; by default those that need the least memory.
    """
    if not len(rows):
        return np.zeros(0, np.bool_)
    pp, vpp = rows.pp.astype(np.int64), rows.vpp.astype(np.int64)
    counts = np.full(len(stage), -1) if recomputed is None else recomputed
    held = contents_NJ.sum(axis=1)
    block = chunk_blocks(rows)
    any_count = (block > 0) & (counts < 0)
    counts = np.where(any_count, np.minimum(held, block * vpp), counts)
    block = np.where(any_count, 0, block)
    spread, number = ((), np.zeros(len(stage), np.int64)) if chunks is None else _numbered(chunks)
    # Many strategies ask about the same stage with the same layers, so each distinct question becomes one layout.
    keys = np.column_stack([pp, vpp, stage, counts, block, number, contents_NJ])
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    stages, held = distinct[:, 2], distinct[:, 6:]
    totals = held.sum(axis=1)
    table = []
    known: dict[tuple[int, ...], Layout] = {}
    for (p, v, s, count, most, index), total in zip(distinct[:, :6].tolist(), totals.tolist(), strict=True):
        # Without chunks the micro-batches in flight do not depend on the layers.
        key = (p, v, s, 0, 0, 0, 0) if v == 1 else (p, v, s, total, count if most else 0, most, index)
        if key not in known:
            own = spread[index] if spread else leanest_chunks(key[3], v, block=most, recomputed=key[4])
            known[key] = _lonely_layout(p, v, s, own)
        table.append(known[key])
    layouts = Layouts(
        table=tuple(table),
        slot_stage_LK=stages[:, None],
        layers_LKJ=held[:, None, :].astype(np.float64),
        largest_chunk_layers_LK=np.ceil(totals / distinct[:, 1])[:, None],
        has_embedding_LK=(stages == 0)[:, None],
        has_head_LK=(stages == distinct[:, 0] - 1)[:, None],
        recompute_layers_LK=distinct[:, 3:4].astype(np.float64),
        held_LS=np.where(np.arange(pp.max()) == stages[:, None], totals[:, None], 0.0),
        recompute_limit_LS=np.full((len(distinct), int(pp.max())), np.inf),
    )
    asked = replace(rows, layout=inverse.reshape(-1), layouts=layouts)
    return has_room(
        memory_verdict(job, stage_memory(job, asked), headroom_fraction=headroom_fraction or 0.0)[0], headroom_fraction
    )


def has_room(verdict: Codes, headroom_fraction: Headroom) -> Bools:
    """Whether what has these verdicts on memory fits, or may fit where that is enough, shape (N,)."""
    # The low end of the range decides what cannot fit, the high end what surely does.
    return np.asarray(verdict != Verdict.OOM if headroom_fraction is None else verdict == Verdict.FITS)


def _numbered(chunks: Sequence[Weights]) -> tuple[tuple[Weights, ...], Ints]:
    """The different chunks, and which of them each question has."""
    number = {each: index for index, each in enumerate(dict.fromkeys(chunks))}
    return tuple(number), np.array([number[each] for each in chunks], np.int64)


def _lonely_layout(pp: int, vpp: int, stage: int, chunks: Weights) -> Layout:
    """A layout that holds layers on one stage: micro-batches in flight look at no other."""
    layers: list[float] = [0] * (pp * vpp)
    layers[stage::pp] = chunks
    # Micro-batches in flight are a mean over a stage's layers, for which fractions of them are as good.
    return Layout(pp, vpp, tuple(layers))  # type: ignore[arg-type]
