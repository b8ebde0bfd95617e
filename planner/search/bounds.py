"""Lower bounds on step time: of a base row, over all that it stands for, and of each expansion by itself.

The work and the layer communication of the slowest stage, the forward that is recomputed, and the bubble, under the split
and the listed values that make it the fastest. Nothing that depends on ZeRO, sharding or offload is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.groups import world_key
from cost_models.layers.flops import FORWARD_AND_BACKWARD, model_flops
from cost_models.step.stage_costs import Tables, build_tables
from cost_models.step.total import jitter_fraction
from cost_models.strategies.fields import Schedule
from cost_models.strategies.strategy import DTYPES, Floats, Ints, Strategies
from cost_models.strategies.tensors import distinct
from planner.strategies.space import Pairs, Space

BOUND_AXES = ("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel")
"""Base fields that the bound follows from; the number of micro-batches multiplies it."""
LAYER_KNOBS = ("cp_comm", "moe_dispatcher", "overlap_tp_comm", "overlap_moe_all_to_all")
"""Knobs that a layer's own time depends on: the fastest of their listed values counts."""
BUBBLES = frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE})
"""Schedules whose bubble is at least the other stages' time over the virtual stages."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of base rows, shape (N,)."""

    micro_batches: Floats
    once: Floats
    """Seconds per micro-batch of the slowest stage that every expansion has; all seconds with the jitter of its GPUs."""
    again: Floats
    """Seconds to recompute the cheapest layer once."""
    others: Floats
    """Seconds per micro-batch of all other stages together: the bubble is that over the virtual stages."""
    most_vpp: Floats
    tables: Tables | None
    """What layers and ends cost in every expansion; None where a listed knob changes it."""

    @property
    def step_s(self) -> Floats:
        """Seconds that no expansion can beat."""
        return np.asarray(self.micro_batches * self.once + self.others / self.most_vpp)

    def open_split_s(self, pp: Floats) -> Floats:
        """Seconds that no split of the layers over so many stages can beat, listed or not; shape of `pp`."""
        return open_split_s(self.micro_batches, self.once + self.others, pp, self.most_vpp)

    def paired_s(self, space: Space, pairs: Pairs) -> Floats:
        """Seconds that each pair itself cannot beat: its own recomputation and virtual stages count."""
        origin, options = pairs.origin, space.options
        each = (self.micro_batches * self.again)[origin] * options["again_layers"][pairs.option]
        bubble = self.others[origin] / options["vpp"][pairs.option]
        return np.asarray((self.micro_batches * self.once)[origin] + each + bubble)

    def take(self, index: Ints | NDArray[np.bool_]) -> Bounds:
        """The bounds at these positions, or where the mask holds."""
        tables = None if self.tables is None else self.tables.at(index)
        return Bounds(
            self.micro_batches[index],
            self.once[index],
            self.again[index],
            self.others[index],
            self.most_vpp[index],
            tables,
        )


def open_split_s(m: Floats, work_s: Floats, pp: Floats, vpp: Floats) -> Floats:
    """Seconds of `m` micro-batches where all stages take as long, from the seconds of all of them together."""
    average_s = work_s / pp
    return np.asarray(m * average_s + (work_s - average_s) / vpp)


def floor_s(space: Space, world: Floats) -> Floats:
    """Seconds that the layers' matmuls take on this many GPUs at the fastest rate of any shape, shape of `world`."""
    job = space.job
    tokens = float(job.training.seq_length) * job.training.global_batch_size
    flops = FORWARD_AND_BACKWARD * model_flops(job).layer_matmul_flops_per_token * tokens
    return np.asarray(flops / (world * job.calibration.fastest_gemm_flops_per_s(job.training.precision)))


def build_bounds(space: Space, base: Strategies) -> Bounds:
    """Bounds of these base rows; the number of replicas only multiplies the work, unless groups straddle nodes."""
    cases = distinct(base, BOUND_AXES, also=world_key(base, space.job.cluster))
    variants = [build_tables(space.job, rows) for rows in layer_variants(space, cases.rows)]
    slower = 1.0 + jitter_fraction(space.job, base)
    once, again, others = cases.spread(_parts(space, cases.rows, variants)) * slower
    alone = len(variants) == 1 and "recompute_modules" not in space.knobs
    return Bounds(
        micro_batches=base.num_micro_batches,
        once=once,
        again=again,
        others=others,
        most_vpp=space.most_vpp[base.pp.astype(np.int64)],
        tables=variants[0].at(cases.inverse) if alone else None,
    )


def layer_variants(space: Space, rows: Strategies) -> list[Strategies]:
    """The rows with every combination of the listed values that a layer's own time depends on.

    Selective recomputation takes its default modules: whether a row recomputes at all is not the table's business.
    """
    knobs = {name: values for name, values in space.knobs.items() if name in LAYER_KNOBS}
    modules: dict[str, Any] = {
        "recompute_modules": np.full(len(rows), space.selective_modules, DTYPES["recompute_modules"])
    }
    variants = []
    for values in product(*knobs.values()):
        chosen = dict(zip(knobs, values, strict=True))
        columns: dict[str, Any] = {name: np.full(len(rows), value, DTYPES[name]) for name, value in chosen.items()}
        variants.append(replace(rows, **{**modules, **columns}))
    return variants


def _parts(space: Space, rows: Strategies, variants: list[Tables]) -> Floats:
    """`once`, `again` and `others` of each row, the fastest of the variants, shape (3, N)."""
    counts_J = np.array([float(space.job.model.layer_kinds.count(kind)) for kind in space.job.model.distinct_kinds])
    each_JN = np.min([v.layers.cases.spread(v.layers.whole) for v in variants], axis=0)
    again_JN = np.min([v.layers.cases.spread(v.layers.again_JU) for v in variants], axis=0)
    ends = variants[0].ends
    first = ends.cases.spread(ends.embedding + ends.embedding_comm)
    last = ends.cases.spread(ends.head + ends.loss + ends.head_comm)
    once = _slowest_stage_s(space, rows, each_JN, first=first, last=last)
    others = np.zeros(len(rows))
    if BUBBLES.issuperset(space.knobs.get("schedule", ())):
        others = np.maximum(counts_J @ each_JN + first + last - once, 0.0)
    return np.stack([once, again_JN.min(axis=0), others])


def _slowest_stage_s(space: Space, rows: Strategies, each_JN: Floats, *, first: Floats, last: Floats) -> Floats:
    """The slowest stage's seconds per micro-batch under the split that makes it the fastest, shape (N,)."""
    layouts, least = space.layouts, np.full(len(rows), np.inf)
    for pp, splits in space.different_splits.items():
        here = np.flatnonzero(rows.pp == pp)
        for _, layout in splits if len(here) else ():
            stage_KN = layouts.layers_LKJ[layout] @ each_JN[:, here]
            stage_KN += np.outer(layouts.has_embedding_LK[layout], first[here])
            stage_KN += np.outer(layouts.has_head_LK[layout], last[here])
            least[here] = np.minimum(least[here], stage_KN.max(axis=0))
    return least
