"""How many layers a stage may hold on its earlier chunks, which have more micro-batches in flight, before it does not fit.

Array suffixes: C choices of a stage.
"""

from __future__ import annotations

import numpy as np

from cost_models.memory.in_flight import chunks_in_flight
from cost_models.strategies.strategy import Ints
from planner.splits.model import SplitModel


def most_in_flight(model: SplitModel, stage: int) -> tuple[list[int], Ints]:
    """Micro-batches in flight of every chunk of a stage, and for each of its choices the largest sum of layers times these with
    which it fits, shape (C,).
    """
    in_flight = [round(count) for count in chunks_in_flight(model.row, stage=stage)]
    choices = model.choices[stage]
    totals = choices.layers
    low, high = totals * in_flight[-1], totals * in_flight[0]
    vpp, number = len(in_flight), np.arange(len(choices))
    low = low - 1  # what fits with the leanest chunks is above it; below that nothing is asked for
    while (rest := np.flatnonzero(low < high)).size:
        middle = (low[rest] + high[rest] + 1) // 2
        # Between all layers on the last chunk and all on the first, memory depends on the sum alone, so fractions will do.
        wide = max(in_flight[0] - in_flight[-1], 1)
        early = np.clip((middle - totals[rest] * in_flight[-1]) / wide, 0.0, totals[rest])
        chunks = [
            (float(first), *(0.0,) * (vpp - 2), float(total - first))
            for first, total in zip(early.tolist(), totals[rest].tolist(), strict=True)
        ]
        good = model.fits(np.full(len(rest), stage), number[rest], chunks)
        low[rest[good]] = middle[good]
        high[rest[~good]] = middle[~good] - 1
    return in_flight, low
