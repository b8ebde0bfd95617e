"""Memory of single pipeline stages: whether a stage fits with these layers, whatever the other stages hold.

Each question becomes a layout of one slot, so the memory model answers for that stage with its own micro-batches in flight.
Array suffixes: J layer kinds; (N,) over questions has none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.strategies.layouts import Layout, Layouts
from cost_models.strategies.strategy import Bools, Ints, Strategies


def chunk_layers(total: int, vpp: int, *, is_last: bool) -> tuple[int, ...]:
    """How a stage's layers spread over its chunks: nearly even, since the interleaved bubble is that of equal chunks.

    The chunk with the embedding is the first of its stage, that with the head the last: they get the smaller share.
    """
    base, extra = divmod(total, vpp)
    larger = range(extra) if is_last else range(vpp - extra, vpp)
    return tuple(base + (chunk in larger) for chunk in range(vpp))


def fits_alone(
    job: Job,
    rows: Strategies,
    *,
    stage: Ints,
    contents_NJ: Ints,
    recomputed: Ints | None,
    headroom_fraction: float,
) -> Bools:
    """Whether each stage fits, shape (N,). [M]

    Args:
        job: what is planned.
        rows: strategy of each question; its layout is ignored.
        stage: pipeline stage of each.
        contents_NJ: layers of each kind on it.
        recomputed: layers it recomputes, None for the strategy's own rule.
        headroom_fraction: share of capacity that stays free.
    """
    if not len(rows):
        return np.zeros(0, np.bool_)
    pp, vpp = rows.pp.astype(np.int64), rows.vpp.astype(np.int64)
    # Many strategies ask about the same stage with the same layers, so each distinct question becomes one layout.
    counts = np.full(len(stage), -1) if recomputed is None else recomputed
    keys = np.column_stack([pp, vpp, stage, counts, contents_NJ])
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    stages, held = distinct[:, 2], distinct[:, 4:]
    totals = held.sum(axis=1)
    shapes = list(zip(*distinct[:, :3].T.tolist(), np.where(distinct[:, 1] > 1, totals, 0).tolist(), strict=True))
    lonely = {shape: _lonely_layout(*shape) for shape in dict.fromkeys(shapes)}
    layouts = Layouts(
        table=tuple(lonely[shape] for shape in shapes),
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
    verdict, _ = memory_verdict(job, stage_memory(job, asked), headroom_fraction=headroom_fraction)
    return np.asarray(verdict == Verdict.FITS)


def _lonely_layout(pp: int, vpp: int, stage: int, total: int) -> Layout:
    """A layout that holds layers on one stage: micro-batches in flight look at no other."""
    layers = [0] * (pp * vpp)
    layers[stage::pp] = chunk_layers(total, vpp, is_last=stage == pp - 1)
    return Layout(pp, vpp, tuple(layers))
