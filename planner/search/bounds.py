"""Lower bounds on step time: for a base row over all strategies for which it stands, and for each expansion by itself.

A bound counts the work and the layer communication of the slowest stage, the recomputed forward, and the bubble, under the split
and the listed values that make these the fastest. Everything that depends on ZeRO, sharding or offload is left out. Since such terms
are never negative, leaving them out keeps the bound valid.
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
"""Base fields that determine the bound of one micro-batch; the number of micro-batches multiplies it."""
LAYER_KNOBS = ("cp_comm", "moe_dispatcher", "overlap_tp_comm", "overlap_moe_all_to_all")
"""Knobs on which a layer's own time depends. The bound takes the fastest of their listed values."""
# Zero-bubble schedules fill the bubble with weight gradients, so nothing can be counted on there.
BUBBLES = frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE})
"""Schedules whose bubble takes at least the time of the other stages divided by the virtual stages."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """The bounds of base rows, shape (N,)."""

    micro_batches: Floats
    once: Floats
    """Seconds per micro-batch that the slowest stage of every expansion takes at least. Jitter is included in all fields."""
    again: Floats
    """Seconds to recompute the cheapest layer once."""
    others: Floats
    """Seconds per micro-batch of all other stages together. The bubble is that divided by the virtual stages."""
    most_vpp: Floats
    tables: Tables | None
    """The costs of layers and ends, if they are the same in every expansion; None where a listed knob changes them."""

    @property
    def step_s(self) -> Floats:
        """Seconds per step that no expansion can beat."""
        return np.asarray(self.micro_batches * self.once + self.others / self.most_vpp)

    def open_split_s(self, pp: Floats) -> Floats:
        """Seconds per step that no split of the layers over this many stages can beat, listed or not; in the shape of `pp`."""
        return open_split_s(self.micro_batches, self.once + self.others, pp, self.most_vpp)

    def paired_s(self, space: Space, pairs: Pairs) -> Floats:
        """Seconds per step that each pair cannot beat, given its own recomputation and virtual stages."""
        origin, options = pairs.origin, space.options
        each = (self.micro_batches * self.again)[origin] * options["again_layers"][pairs.option]
        bubble = self.others[origin] / options["vpp"][pairs.option]
        return np.asarray((self.micro_batches * self.once)[origin] + each + bubble)

    def take(self, index: Ints | NDArray[np.bool_]) -> Bounds:
        """The bounds at these positions, or those where the mask is true."""
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
    """Seconds of `m` micro-batches if all stages took equally long, from the seconds of all stages together."""
    # A bound for any split: the slowest stage takes at least the average, and the larger it is the more the step takes, since
    # m is at least 1 / vpp.
    average_s = work_s / pp
    return np.asarray(m * average_s + (work_s - average_s) / vpp)


def floor_s(space: Space, world: Floats) -> Floats:
    """Seconds of the layers' matrix products on this many GPUs at the fastest rate of any shape, in the shape of `world`."""
    job = space.job
    tokens = float(job.training.seq_length) * job.training.global_batch_size
    flops = FORWARD_AND_BACKWARD * model_flops(job).layer_matmul_flops_per_token * tokens
    return np.asarray(flops / (world * job.calibration.fastest_gemm_flops_per_s(job.training.precision)))


def build_bounds(space: Space, base: Strategies) -> Bounds:
    """The bounds of these base rows."""
    # The number of replicas only multiplies the work, unless groups of ranks straddle nodes; `world_key` tells which rows differ
    # in that. So few distinct cases are priced however large the batch of rows is.
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
    """The rows with every combination of listed values on which a layer's own time depends.

    For selective recomputation the default modules are taken; whether a row recomputes at all does not change the table.
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
    """`once`, `again` and `others` of each row for the fastest variant, shape (3, N)."""
    # The minimum is taken for each part by itself. No variant need have all of them at once, which makes the bound lower and so
    # leaves it valid.
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
    """Seconds per micro-batch of the slowest stage, under the split that makes that stage the fastest; shape (N,)."""
    layouts, least = space.layouts, np.full(len(rows), np.inf)
    for pp, splits in space.different_splits.items():
        here = np.flatnonzero(rows.pp == pp)
        for _, layout in splits if len(here) else ():
            stage_KN = layouts.layers_LKJ[layout] @ each_JN[:, here]
            stage_KN += np.outer(layouts.has_embedding_LK[layout], first[here])
            stage_KN += np.outer(layouts.has_head_LK[layout], last[here])
            least[here] = np.minimum(least[here], stage_KN.max(axis=0))
    return least
