"""Peak memory per pipeline stage in three numbers: allocated, reserved, device, with an 80 % range of the last. [M]

The range has two parts with residuals of their own: what the allocator holds, and what context and communicators take
(`stage_memory`, [M-15]). Array suffixes: K stage slots (see `strategies.layouts`), N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.groups import ranks_per_node
from cost_models.job import Job
from cost_models.memory.batch import NOTHING
from cost_models.memory.constants import HOST_PROCESS_BYTES, PROCESS_SPREAD
from cost_models.memory.moments import Moments, moments
from cost_models.memory.reserved import largest_hole_bytes, process_bytes, reserved_bytes, slack_bytes
from cost_models.replicas.groups import within_group
from cost_models.strategies.strategy import Floats, Ints, Strategies
from cost_models.terms import MEMORY_NAMES, PEAK_MOMENTS

_MOST_KEPT = 4096
"""Largest batch whose terms are kept; those of a search's batches would take much memory, and nobody asks for them."""
_BLOCK_CELLS = 1 << 15
"""Slots times strategies that are priced at a time. The terms of so many (a quarter of a MiB each) stay in the processor's cache, and the
allocator hands the same pages out again, where larger ones would be mapped and filled with zeros anew for every term."""
_BY_STRATEGY = (
    "allocated",
    "reserved",
    "device",
    "device_low",
    "device_high",
    "hole",
    "host_bytes_per_node",
    "nvme_bytes_per_node",
)
_BY_SLOT = ("allocated_KN", "device_KN", "peak_moment_KN")


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Memory of N strategies over K stage slots, bytes per GPU."""

    allocated_KN: Floats
    device_KN: Floats
    peak_moment_KN: Ints
    """Index into terms.PEAK_MOMENTS."""
    allocated: Floats
    """Allocated bytes of the stage where they are largest, shape (N,); `reserved` and `device` likewise."""
    reserved: Floats
    device: Floats
    device_low: Floats
    """Low end of the 80 % interval of `device`."""
    device_high: Floats
    hole: Floats
    """The most that more state could lower these numbers by: the hole that logits leave counts only while the loss
    is the peak."""
    host_bytes_per_node: Floats
    """Host memory that offloaded state, parameters and activations of a node's ranks need, 0 where nothing is
    offloaded. [M-16]"""
    nvme_bytes_per_node: Floats
    """What a node's ranks keep on its drives, 0 where nothing lies there. [M-24]"""
    job: Job
    strategies: Strategies
    kept: Moments | None
    """Every term of every moment where the batch is small enough to keep them, since breakdowns are asked for many
    of its rows; else None."""

    def breakdown(self, slot: int, index: int) -> dict[str, float]:
        """Bytes by name of terms.MEMORY_NAMES at the slot's peak moment; they sum to its allocated bytes.

        Args:
            slot: stage slot, 0...K-1.
            index: row of the batch.
        """
        found, at = self.kept, index
        if found is None:
            found, at = moments(self.job, self.strategies.take(np.array([index]))), 0
        terms = found.terms[PEAK_MOMENTS[int(self.peak_moment_KN[slot, index])]]
        return {name: _at(terms[name], slot, at) if name in terms else 0.0 for name in MEMORY_NAMES}


def _at(term: Floats, slot: int, index: int) -> float:
    row = term[slot] if term.ndim == 2 else term
    return float(row[index] if row.size > 1 else row.item())


def stage_memory(job: Job, strategies: Strategies) -> StageMemory:
    """Peak memory of every stage slot of these strategies, in bytes, with its 80 % range. [M-13] [M-14] [M-15]"""
    if job.method.is_local:  # nothing is sharded over groups that train by themselves
        strategies = within_group(job, strategies)
    num = len(strategies)
    block = max(_BLOCK_CELLS // strategies.layouts.num_slots, _MOST_KEPT)
    parts = -(-num // block)
    if parts <= 1:
        return _of_block(job, strategies)
    size = -(-num // parts)
    blocks = [_of_block(job, strategies.slice(start, start + size)) for start in range(0, num, size)]

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(each, name) for each in blocks], axis=-1)

    arrays: dict[str, Any] = {name: joined(name) for name in (*_BY_SLOT, *_BY_STRATEGY)}
    return StageMemory(**arrays, job=job, strategies=strategies, kept=None)


def _of_block(job: Job, strategies: Strategies) -> StageMemory:
    """The memory of strategies that are few enough to be priced at once."""
    found = moments(job, strategies)
    traits = found.batch.traits
    allocated_KN, peak_KN = _peak(found)
    kept_KN = reserved_bytes(found, allocated_KN=allocated_KN, at_loss_KN=peak_KN == PEAK_MOMENTS.index("loss"))
    process_KN = process_bytes(found)
    device_KN = kept_KN + process_KN
    spread = PROCESS_SPREAD.value
    # The two parts are taken to err together: their half-widths add up and are not combined in quadrature. Low and
    # high end differ as the residuals of M-15 do.
    low_KN = (1.0 - traits.spread_low) * kept_KN + (1.0 - spread) * process_KN
    # Slack of changing sizes may or may not be there, so it widens the upper end only.
    high_KN = (1.0 + traits.spread_high) * kept_KN + slack_bytes(found) + (1.0 + spread) * process_KN
    # Which stages share a node is not looked up: every rank of a node counts like one of the fullest stage.
    host = found.host_KN.max(axis=0)
    host = host + np.where(host > 0, HOST_PROCESS_BYTES.value, 0.0)
    return StageMemory(
        allocated_KN=allocated_KN,
        device_KN=device_KN,
        peak_moment_KN=peak_KN,
        allocated=allocated_KN.max(axis=0),
        reserved=kept_KN.max(axis=0),
        device=device_KN.max(axis=0),
        device_low=low_KN.max(axis=0),
        device_high=high_KN.max(axis=0),
        hole=(1.0 + traits.spread_high) * largest_hole_bytes(found),
        host_bytes_per_node=host * ranks_per_node(job.cluster, strategies),
        nvme_bytes_per_node=_on_drives(job, strategies, found),
        job=job,
        strategies=strategies,
        kept=found if len(strategies) <= _MOST_KEPT else None,
    )


def _on_drives(job: Job, strategies: Strategies, found: Moments) -> Floats:
    drives_KN = found.states.drives_KN
    if drives_KN is NOTHING:
        return np.zeros(len(strategies))
    return np.asarray(drives_KN.max(axis=0) * ranks_per_node(job.cluster, strategies))


def _peak(found: Moments) -> tuple[Floats, Ints]:
    """Bytes of the largest moment of each slot and its index, shape (K, N) each; moments of the head count where the head
    is.
    """
    totals, head_KN = found.totals, found.batch.stages.head_KN
    best_KN = totals["layer_backward"]
    which_KN = np.full(best_KN.shape, PEAK_MOMENTS.index("layer_backward"))
    # Ties go to the moment that comes first in this order: a later one must be strictly larger to be named as the
    # peak.
    for name in ("optimizer_step", "head", "loss"):
        value = totals[name]
        larger_KN = value > best_KN if value.ndim == 2 else (value > best_KN) & head_KN
        which_KN[larger_KN] = PEAK_MOMENTS.index(name)
        best_KN = np.where(larger_KN, value, best_KN)
    return best_KN, which_KN
