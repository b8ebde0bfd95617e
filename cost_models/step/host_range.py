"""How much shorter or longer a step may be because its host is faster or slower than the one that was measured. [T-3]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.constants import CHECKPOINT_HOST_S, Constant
from cost_models.job import Job
from cost_models.layers.costs import LAYER_AXES
from cost_models.layers.host import launch_s
from cost_models.layers.host_classes import Around, measured_layer
from cost_models.layers.tower_parameters import tower_rows
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.stage_costs import hooked, runs_ahead, sum_over_kinds
from cost_models.strategies.recomputed_layers import recomputed_shares
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import combinations_of, summed
from cost_models.terms import BEHIND_HOST

HOST_SPREAD: Final = Constant(
    0.20, "1", 0.12, 0.35,
    "80 % half-width of a host's time between leases of one kind of machine, and between ranks and runs of one lease: layers under FSDP2, "
    "DeepSpeed and DistributedDataParallel scatter by 17 to 25 % between three leases of two H200 (data/measured_h200), plain ones of four "
    "H100 by 20 % (data/measured_h100)",
)  # fmt: skip
_ENDS = ("head", "loss")


@dataclass(frozen=True, eq=False)
class HostRange:
    """Seconds that a step gets shorter with the fastest host, and longer with the slowest, shape (N,) each."""

    shorter_s: Floats
    longer_s: Floats


def host_range(job: Job, strategies: Strategies, terms_s: Mapping[str, Floats]) -> HostRange | None:
    """What the spread of the layers' host time does to the wait for it; None where it was not measured.

    A wait is the difference of two large times, so that a fifth of the host's is more than any share of the wait, and a device
    that does not wait for the usual host may wait for a slower one. The layers are taken as spread evenly over the stages.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        terms_s: seconds of a step by term.
    """
    if not job.has_hf_modules or job.training.cuda_graphs:
        return None
    host_s, waits = _host_s(job, strategies), terms_s["launch"]
    device_s = summed(terms_s[name] for name in BEHIND_HOST)
    device_s = device_s + np.where(runs_ahead(job, strategies), summed(terms_s[name] for name in _ENDS), 0.0)
    # Where the device waits, it works as long as the host does but for that wait.
    device_s = np.where(waits > 0, host_s - waits, np.maximum(device_s, host_s))
    spread = _spread(job, strategies) * host_s
    return HostRange(
        shorter_s=np.minimum(waits, spread),
        longer_s=np.maximum(host_s + spread - device_s, 0.0) - waits,
    )


def _spread(job: Job, strategies: Strategies) -> Floats:
    """80 % half-width of the layers' host time over that time, shape (N,): what a profile saw its layers scatter by, if that is more."""

    def of(which: Around) -> float:
        layer = measured_layer(job, around=which)
        return HOST_SPREAD.value if layer is None else max(layer.spread, HOST_SPREAD.value)

    unsharded = np.where(hooked(job, strategies), of("hooked"), of("nothing"))
    return np.where(is_fsdp(job, strategies), of("sharded"), unsharded)


def _host_s(job: Job, strategies: Strategies) -> Floats:
    """Host seconds of a step's layers on an even stage, and of the towers' layers on the first, shape (N,)."""
    seconds = _layers_s(job, strategies) / strategies.pp
    for use, own in zip(job.training.tower_uses, job.tower_jobs, strict=True):
        # A frozen tower runs its forward alone.
        seconds = seconds + _layers_s(own, tower_rows(job, use, strategies), backward=use.trained)
    return seconds


def _layers_s(job: Job, strategies: Strategies, *, backward: bool = True) -> Floats:
    """Host seconds of all layers of a model in a step, shape (N,)."""
    cases = combinations_of(strategies, LAYER_AXES)
    sharded, hooks = is_fsdp(job, strategies), hooked(job, strategies).astype(np.float64)
    if job.framework.hooks_when_reducing:
        hooks = np.where(strategies.grad_sync_each, hooks, hooks / strategies.num_micro_batches)
    share = recomputed_shares(strategies)

    def layers_s(which: Around) -> Floats:
        passes = [launch_s(job, kind, cases.rows, around=which) for kind in job.model.distinct_kinds]
        forward_JN, backward_JN = (cases.spread(np.stack([each[side] for each in passes])) for side in (0, 1))
        counts_J1 = np.array([[float(job.model.layer_kinds.count(kind))] for kind in job.model.distinct_kinds])
        each_JN = forward_JN + float(backward) * backward_JN + share * (forward_JN + CHECKPOINT_HOST_S.value)
        return sum_over_kinds(counts_J1, each_JN)

    plain = layers_s("nothing")
    chosen = np.where(sharded, layers_s("sharded"), plain + hooks * (layers_s("hooked") - plain))
    return np.asarray(strategies.num_micro_batches * chosen)
