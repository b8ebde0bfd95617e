"""Lower bounds on step time: for a base row over all strategies for which it stands, and for each expansion by itself.

A bound counts the work and the layer communication of the slowest stage, the recomputed forward, and the bubble, under the split
and the listed values that make these the fastest. Everything that depends on ZeRO, sharding or offload is left out. Since such terms
are never negative, leaving them out keeps the bound valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.frameworks.optimizers import exchanges_matrices
from cost_models.hardware.groups import world_key
from cost_models.job import Job
from cost_models.layers.autocast import casts_by_stage
from cost_models.layers.costs import LAYER_PARTS, layer_costs
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.stage_costs import Tables, build_tables, least_ends_s, runs_ahead
from cost_models.step.total import StepTime, jitter_fraction
from cost_models.strategies.strategy import Floats, Ints, Strategies, concatenated
from cost_models.strategies.tensors import distinct
from planner.strategies.expansion import Pairs, layer_variants, least_zero
from planner.strategies.parts import Part, Parts
from planner.strategies.space import Space

BOUND_AXES = ("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel")
"""Base fields that determine the bound of one micro-batch; the number of micro-batches multiplies it."""

_COMPUTED = [LAYER_PARTS.index(part) for part in ("gemm", "attention", "elementwise")]


@dataclass(frozen=True, eq=False)
class Bounds:
    """The bounds of base rows, shape (N,). Suffixes: V combinations of the values of LAYER_KNOBS, R what may be repeated, C cases."""

    micro_batches: Floats
    once_VN: Floats
    """Seconds per micro-batch that the slowest stage of every expansion takes at least, jitter included."""
    again_RVC: Floats
    """Seconds to repeat once in the cheapest layer what full recomputation repeats, or one of the space's sets of modules."""
    slower: Floats
    """Factor for the jitter of each row, and for corrections, by which `again_RVC` is still to be multiplied."""
    others_VN: Floats
    """Seconds per micro-batch of all other stages together. The bubble takes the schedule's `waiting_share` of that at least."""
    least_wait: Floats
    most_vpp: Floats
    tables: Tables
    """The costs of layers and ends in all cases of every combination."""
    case: Ints
    """The case of each row."""
    without: Parts = frozenset()
    """Which bounds are left out; such a bound is zero."""

    @cached_property
    def once(self) -> Floats:
        """The least of `once_VN`: no combination need have all of the least parts, which leaves the bound valid."""
        return np.asarray(self.once_VN.min(axis=0))

    @cached_property
    def others(self) -> Floats:
        """The least of `others_VN`."""
        return np.asarray(self.others_VN.min(axis=0))

    @property
    def step_s(self) -> Floats:
        """Seconds per step that no expansion can beat."""
        if Part.ROW_BOUNDS in self.without:
            return np.zeros(len(self.case))
        return np.asarray((self.micro_batches * self.once_VN + self.others_VN * self.least_wait).min(axis=0))

    def open_split_s(self, pp: Floats, *, vpp: Floats) -> Floats:
        """Seconds per step that no split of the layers over this many stages can beat, listed or not, with at most so many
        virtual stages; in the shape of `pp`.
        """
        return open_split_s(self.micro_batches, self.once + self.others, pp, vpp)

    def paired_s(self, space: Space, pairs: Pairs) -> Floats:
        """Seconds per step that each pair cannot beat, given its own knobs, recomputation and virtual stages."""
        origin, options = pairs.origin, space.options
        if Part.PAIR_BOUNDS in self.without:
            return np.zeros(len(origin))
        at = options["variant"][pairs.option], origin
        again = self.again_RVC[options["repeats"][pairs.option], at[0], self.case[origin]] * self.slower[origin]
        each = again * options["again_layers"][pairs.option]
        bubble = self.others_VN[at] * options["wait"][pairs.option]
        return np.asarray(self.micro_batches[origin] * (self.once_VN[at] + each) + bubble)

    def paired_tables(self, space: Space, pairs: Pairs) -> Tables | None:
        """The costs of layers and ends of each pair; None where pairs differ in what their ZeRO stage lets layers cast."""
        if casts_by_stage(space.job):
            return None
        cases = len(self.tables.ends.cases.inverse) // len(self.once_VN)
        return self.tables.at(space.options["variant"][pairs.option] * cases + self.case[pairs.origin])

    def take(self, index: Ints | NDArray[np.bool_]) -> Bounds:
        """The bounds at these positions, or those where the mask is true."""
        return Bounds(
            self.micro_batches[index],
            self.once_VN[:, index],
            self.again_RVC,
            self.slower[index],
            self.others_VN[:, index],
            self.least_wait[index],
            self.most_vpp[index],
            self.tables,
            self.case[index],
            self.without,
        )


def open_split_s(m: Floats, work_s: Floats, pp: Floats, vpp: Floats) -> Floats:
    """Seconds of `m` micro-batches if all stages took equally long, from the seconds of all stages together."""
    # A bound for any split: the slowest stage takes at least the average, and the larger it is the more the step takes, since
    # m is at least 1 / vpp.
    average_s = work_s / pp
    return np.asarray(m * average_s + (work_s - average_s) / vpp)


def without_replicas_s(job: Job, rows: Strategies, time: StepTime) -> Floats:
    """Seconds of a step that remain if communication between replicas costs nothing, shape (N,).

    No group of fewer ranks that share the state takes less.
    """
    # What is gathered layer by layer is part of every stage's time, so of the bubble too.
    modelled = time.modelled
    saved_s = modelled.terms_s["dp_comm"] + np.where(is_fsdp(job, rows), modelled.terms_s["pp_bubble"], 0.0)
    if exchanges_matrices(job.training):  # the update itself is communication there, of host and links
        saved_s = saved_s + modelled.terms_s["optimizer"]
    left_s = modelled.total_s - saved_s * (1.0 + jitter_fraction(job, rows))
    return np.asarray(left_s * job.corrections.least_time_factor)


def floors_s(space: Space) -> Floats:
    """Seconds of a step that nothing of each mesh of `space.degrees` undercuts, shape (M,).

    They count the computation of the layers alone, in the shapes that its tp and cp leave it and at the micro-batch that suits it
    best, as if it were spread evenly over all GPUs.
    """
    job, mesh = space.job, space.degrees.mesh
    if Part.MESH_FLOORS in space.without:
        return np.zeros(len(space.degrees))
    rows = least_zero(space.zeros, space.base_of(space.degrees.different_layers()))
    tables = [layer_costs(job, each) for each in layer_variants(job, space.layer_knobs, rows)]
    each_JN = np.min([t.cases.spread(t.parts_JPU[:, _COMPUTED].sum(axis=1)) for t in tables], axis=0)
    # The GPU-seconds of one sequence.
    work_s = _counts(space) @ each_JN * rows.tp * rows.cp / rows.micro_batch_size
    _, pair = np.unique(
        np.stack([np.append(mesh[n], getattr(rows, n)) for n in ("tp", "cp")]), axis=1, return_inverse=True
    )
    of_mesh, of_row = np.split(pair.reshape(-1), [len(space.degrees)])
    least_s = np.full(int(pair.max()) + 1, np.inf)
    np.minimum.at(least_s, of_row, work_s)
    least_factor = job.corrections.least_time_factor
    return np.asarray(least_factor * job.training.global_batch_size * least_s[of_mesh] / space.degrees.worlds)


def build_bounds(space: Space, base: Strategies) -> Bounds:
    """The bounds of these base rows."""
    # The number of replicas only multiplies the work, unless groups of ranks straddle nodes; `world_key` tells which rows differ
    # in that. So few distinct cases are priced however large the batch of rows is.
    cases = distinct(base, BOUND_AXES, also=world_key(base, space.job.cluster))
    # All combinations of knobs in one table, one after the other, so that a batch may hold rows of several.
    variants = layer_variants(space.job, space.layer_knobs, cases.rows)
    rows = concatenated(variants)
    tables = build_tables(space.job, least_zero(space.zeros, rows))
    # Every bound is a sum of these, and no corrected step is shorter than this share of the uncorrected one.
    slower = (1.0 + jitter_fraction(space.job, base)) * space.job.corrections.least_time_factor
    parts_PVC = _parts(space, rows, tables).reshape(2, len(variants), -1)
    once, others = cases.spread(parts_PVC) * slower
    return Bounds(
        micro_batches=base.num_micro_batches,
        once_VN=once,
        again_RVC=_repeated_s(space, rows, tables).reshape(1 + len(space.module_sets), len(variants), -1),
        slower=slower,
        others_VN=others,
        least_wait=space.splits.least_wait[base.pp.astype(np.int64)],
        most_vpp=space.splits.most_vpp[base.pp.astype(np.int64)],
        tables=tables,
        case=cases.inverse,
        without=space.without,
    )


def _parts(space: Space, rows: Strategies, tables: Tables) -> Floats:
    """`once` and `others` of each row, shape (2, N)."""
    layers = tables.layers
    each_JN = layers.cases.spread(layers.whole)
    first, last = least_ends_s(space.job, rows, tables)
    once = _slowest_stage_s(space, rows, each_JN, first=first, last=last)
    others = np.maximum(_counts(space) @ each_JN + first + last - once, 0.0)
    return np.stack([once, others])


def _repeated_s(space: Space, rows: Strategies, tables: Tables) -> Floats:
    """Seconds of the forward of the cheapest layer, and of what each set of modules repeats in it, shape (R, N)."""
    layers = tables.layers
    found = []
    for modules in space.module_sets:
        bits = [bit for bit in range(layers.modules_JMU.shape[1]) if modules >> bit & 1]
        found.append(layers.modules_JMU[:, bits].sum(axis=1) if bits else layers.selective_JU)
    # The host's lead over the model's end may cover all that a repeated layer waits longer than a plain one.
    full_JN, forward_JN = layers.cases.spread(layers.again_JU), layers.cases.spread(layers.forward_JU)
    full_JN = np.where(runs_ahead(space.job, rows), np.minimum(full_JN, forward_JN), full_JN)
    return np.stack([full_JN.min(axis=0), *(layers.cases.spread(each_JU.min(axis=0)) for each_JU in found)])


def _slowest_stage_s(space: Space, rows: Strategies, each_JN: Floats, *, first: Floats, last: Floats) -> Floats:
    """Seconds per micro-batch of the slowest stage, under the split that makes that stage the fastest; shape (N,)."""
    layouts, least = space.layouts, np.full(len(rows), np.inf)
    for pp, splits in space.splits.different.items():
        here = np.flatnonzero(rows.pp == pp)
        for _, layout in splits if len(here) else ():
            stage_KN = layouts.layers_LKJ[layout] @ each_JN[:, here]
            stage_KN += np.outer(layouts.has_embedding_LK[layout], first[here])
            stage_KN += np.outer(layouts.has_head_LK[layout], last[here])
            least[here] = np.minimum(least[here], stage_KN.max(axis=0))
    return least


def _counts(space: Space) -> Floats:
    """Layers of each kind."""
    model = space.job.model
    return np.array([float(model.layer_kinds.count(kind)) for kind in model.distinct_kinds])
