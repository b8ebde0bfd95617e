"""What the virtual stages of an open split take one by one, and how long an interleaved pipeline of them runs, event by event.

A step of unequal virtual stages takes no less than the closed form of their stages (P-1), on which thresholds rest, and no less
than its events (P-2). Of these the longest path decides, and every path is a bound for all splits: it runs each virtual stage a
number of times, whatever that holds. Array suffixes: V virtual stages in model order (chunk * pp + stage), N splits, J layer kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.layers.flops import FORWARD_AND_BACKWARD
from cost_models.step.interleaving import fills_rounds, interleaved_s
from cost_models.strategies.fields import Recompute, Schedule
from cost_models.strategies.strategy import Floats, Ints
from planner.splits.model import SplitModel

# Between paths that are equally long the derivative of their maximum is none of theirs. Shifting every time by a random part of
# 1e-7 leaves one longest path, and a step a thousand times smaller stays on it.
_SHIFT = 1e-7
_STEP = 1e-10


@dataclass(frozen=True, eq=False)
class Path:
    """How often a path through the events of a step runs each virtual stage's forward and backward, shape (V,)."""

    forward: Ints
    backward: Ints


def is_played(model: SplitModel) -> bool:
    """Whether unequal virtual stages of this strategy cost what their events come to."""
    row = model.row
    fills = fills_rounds(row.num_micro_batches, pp=row.pp)[0]
    return bool(model.vpp > 1 and model.pp > 1 and row.schedule[0] == Schedule.INTERLEAVED and fills)


class VirtualStages:
    """The virtual stages of one model under any split."""

    def __init__(self, model: SplitModel) -> None:
        self.model = model
        self.pp, self.vpp = model.pp, model.vpp
        self.m = float(model.row.num_micro_batches[0])
        kinds = np.arange(model.num_kinds)
        self._before = np.concatenate(
            [np.zeros((1, len(kinds)), np.int64), np.cumsum(model.kind_of_layer[:, None] == kinds, axis=0)]
        )
        pool_V = np.tile(model.pools, self.vpp)
        numbers = [model.numbers[pool] for pool in pool_V]

        def column(name: str) -> Floats:
            return np.asarray(np.array([getattr(each, name)[:, 0] for each in numbers]).T)

        shared_JV = (column("waits_JN") + column("fsdp_JN")) / FORWARD_AND_BACKWARD
        self.forward_JV = column("forward_JN") + shared_JV
        """Seconds of one layer's forward."""
        self.layer_JV, self.again_JV = column("layer_JN"), column("again_JN")
        self.ends_V, self.forward_ends_V = np.zeros(len(pool_V)), np.zeros(len(pool_V))
        first, last = numbers[0], numbers[-1]
        self.ends_V[0] += first.first[0]
        self.ends_V[-1] += last.last[0]
        self.forward_ends_V[0] += first.first[0] / FORWARD_AND_BACKWARD
        self.forward_ends_V[-1] += (last.last[0] - last.mtp_again[0]) / FORWARD_AND_BACKWARD

    def held(self, layers_NV: Ints) -> Ints:
        """Layers of each kind on every virtual stage, shape (N, V, J)."""
        ends_NV = np.cumsum(layers_NV, axis=1)
        return np.asarray(self._before[ends_NV] - self._before[ends_NV - layers_NV])

    def passes_s(self, layers_NV: Ints, recomputed_NV: Floats) -> tuple[Floats, Floats]:
        """Seconds of every virtual stage's forward and backward, shape (V, N) each."""
        held_NVJ = self.held(layers_NV)
        share_NV = recomputed_NV / np.maximum(layers_NV, 1)
        again_NV = share_NV * np.einsum("nvj,jv->nv", held_NVJ, self.again_JV)
        forward_NV = np.einsum("nvj,jv->nv", held_NVJ, self.forward_JV) + self.forward_ends_V
        whole_NV = np.einsum("nvj,jv->nv", held_NVJ, self.layer_JV) + again_NV + self.ends_V
        return forward_NV.T, np.maximum(whole_NV - forward_NV, 0.0).T

    def even_passes_s(self) -> tuple[Floats, Floats]:
        """Seconds of every virtual stage's passes, shape (V,) each, if all held the same share of all layers."""
        held_J = self._before[-1] / len(self.ends_V)
        forward_V = held_J @ self.forward_JV + self.forward_ends_V
        whole_V = held_J @ self.layer_JV + self.ends_V
        return forward_V, np.maximum(whole_V - forward_V, 0.0)

    def recomputed(self, layers_NV: Ints, counts: Sequence[int] | Ints | None = None) -> Floats:
        """Layers that every virtual stage recomputes, shape (N, V); `counts` are those of every stage where each has its own,
        shape (S,) or (N, S).
        """
        row = self.model.row
        if counts is not None:
            stage_NS = layers_NV.reshape(len(layers_NV), self.vpp, self.pp).sum(axis=1)
            share_NS = np.minimum(np.asarray(counts) / np.maximum(stage_NS, 1), 1.0)
            return np.asarray(layers_NV * np.tile(share_NS, (1, self.vpp)))
        if row.recompute[0] != Recompute.FULL:
            return np.zeros(layers_NV.shape)
        return np.asarray(np.minimum(layers_NV, self.model.block or np.inf))

    def pipeline_s(self, forward_VN: Floats, backward_VN: Floats) -> Floats:
        """Seconds of a step's micro-batches: the longer of the closed form and the events, shape (N,). [P-1] [P-2]"""
        stage_s = (forward_VN + backward_VN).reshape(self.vpp, self.pp, -1).sum(axis=0)
        slowest_s = stage_s.max(axis=0)
        closed_s = self.model.closed_form_s(slowest_s, stage_s.sum(axis=0))
        return np.maximum(closed_s, self._events_s(forward_VN, backward_VN))

    def _events_s(self, forward_VN: Floats, backward_VN: Floats) -> Floats:
        m = np.full(forward_VN.shape[1], self.m)
        return interleaved_s(forward_VN, backward_VN, pp=self.pp, vpp=self.vpp, num_micro_batches=m)

    def longest_path(self, forward_V: Floats, backward_V: Floats, *, seed: int = 0) -> Path | None:
        """One of the longest paths through the events of these passes, by seed; None where rounding hides which."""
        count = len(forward_V)
        seconds = np.concatenate([forward_V, backward_V])
        scale = float(seconds.mean())
        seconds = seconds + scale * _SHIFT * np.random.default_rng(seed).random(2 * count)
        tried = np.repeat(seconds[:, None], 2 * count + 1, axis=1)
        tried[np.arange(2 * count), np.arange(1, 2 * count + 1)] += scale * _STEP
        ends_s = self._events_s(tried[:count], tried[count:])
        times = np.rint((ends_s[1:] - ends_s[0]) / (scale * _STEP)).astype(np.int64)
        if abs(times @ seconds - ends_s[0]) > 1e-9 * ends_s[0] or times.min() < 0:
            return None
        return Path(times[:count], times[count:])
