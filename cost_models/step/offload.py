"""Seconds of what lives in host memory: the optimizer's update on the processors, and the traffic between host and device.

State that the host updates costs the gradients' way down, the update, and the parameters' way up. Parameters and activations
in host memory cost their way up and down beside each pass. What a pass hides costs nothing. How each framework moves what it
offloads is one of its facts (`HostTraffic`).
"""

from __future__ import annotations

import numpy as np

from cost_models.constants import Constant
from cost_models.hardware.groups import ranks_per_node
from cost_models.job import Job
from cost_models.memory.drives import beyond_memory
from cost_models.memory.stage_activations import offloaded_activation_bytes
from cost_models.specs.training import BYTES_PER
from cost_models.step.fsdp_comm import backward_gathers
from cost_models.step.optimizer import MOMENTS, owned_parameters
from cost_models.strategies.fields import OffloadDevice, OptimizerOverlap
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.terms import Tier

ADDED_PASSES = 3.0
"""Passes over memory that adding a gradient on the host takes: it reads both and writes one."""

ZENFLOW_STALL = Constant(
    0.15, "1", 0.1, 0.4, "what is left of the waits for the host with ZenFlow: the DeepSpeed team's announcement says more than 85 % less; "
    "not measured here [C-16]",
)  # fmt: skip


def host_update_bytes(job: Job) -> float:
    """Bytes that the processors move for each parameter they update. [C-16]

    Adam reads parameter, gradient and moments and writes all but the gradient. Norm and clip pass over the gradient, and a
    parameter that is stored in another type than its main copy is cast.
    """
    t = job.training
    stored = BYTES_PER[t.param_dtype]
    main = BYTES_PER[t.main_param_dtype] or stored
    moments = MOMENTS[t.optimizer] * BYTES_PER[t.optimizer_state_dtype]
    passes = job.framework.host.norm_and_clip_passes
    cast = main + stored if main != stored else 0.0
    return 3 * main + 2 * moments + passes * main + cast


def host_shares(job: Job, strategies: Strategies) -> Floats:
    """Share of the owned parameters that the host updates, 0...1, shape (N,); FSDP's offload takes all of them."""
    fraction = strategies.offload_optimizer_fraction
    if job.framework.host.takes_whole_optimizer:
        return np.maximum(fraction, strategies.offload_parameters)
    return fraction


def is_offloaded(strategies: Strategies) -> Bools:
    """Whether a strategy keeps anything in host memory, shape (N,)."""
    away = (strategies.offload_optimizer_fraction > 0) | strategies.offload_parameters
    away = away | (strategies.offload_activation_layers > 0)
    if strategies.uses("offload_activation_modules"):
        away = away | (strategies.offload_activation_modules > 0)
    return np.asarray(away)


def offload_s(
    job: Job, strategies: Strategies, *, dense: Floats, expert: Floats, forward_s: Floats, backward_s: Floats
) -> Floats:
    """Exposed seconds of one step's traffic over the host link and of the processors' update, shape (N,). [C-16]

        update + way up after it + sum over micro-batches of max(0, D2H or H2D - forward) + max(0, H2D or D2H - backward)

    Both directions of the link run at once, as fast together as was measured. On drives the update first reads the optimizer state and
    then writes it. A pipeline's idle time could hide more; it is not counted.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of the fullest stage holds.
        expert: its routed-expert parameters.
        forward_s: seconds of the slowest stage's forward of one micro-batch.
        backward_s: seconds of its backward, recomputation included.
    """
    found = np.zeros(len(strategies))
    some = np.flatnonzero(is_offloaded(strategies))
    if len(some):
        sizes = (np.broadcast_to(size, len(strategies))[some] for size in (dense, expert, forward_s, backward_s))
        found[some] = _offload_s(job, strategies.take(some), *sizes)
    return found


def offload_tier(job: Job, strategies: Strategies) -> Codes:
    """Tier of the offload term, shape (N,); at best interpolated, since a formula over measured rates is not a
    measurement. [C-16]
    """
    link, adam = job.calibration.host_link_bytes_per_s.tier, job.calibration.host_adam_bytes_per_s.tier
    updates = host_shares(job, strategies) > 0
    worst = np.maximum(np.where(updates, max(link, adam), link), Tier.INTERPOLATED)
    on_drives = lies_on_drives(strategies)
    if on_drives.any():
        worst = np.where(
            on_drives,
            np.maximum(worst, Tier.NOMINAL if (drives := job.calibration.nvme) is None else drives.tier),
            worst,
        )
    if strategies.uses("offload_optimizer_overlap"):
        worst = np.where(strategies.offload_optimizer_overlap == OptimizerOverlap.ZENFLOW, Tier.NOMINAL, worst)
    return np.where(is_offloaded(strategies), worst, 0).astype(np.int8)


def lies_on_drives(strategies: Strategies) -> Bools:
    """Whether a strategy keeps anything on a node's NVMe drives, shape (N,)."""
    found = np.zeros(len(strategies), np.bool_)
    if strategies.uses("offload_optimizer_device"):
        found |= (strategies.offload_optimizer_device == OffloadDevice.NVME) & (
            strategies.offload_optimizer_fraction > 0
        )
    if strategies.uses("offload_parameter_device"):
        found |= (strategies.offload_parameter_device == OffloadDevice.NVME) & strategies.offload_parameters
    return found


def _offload_s(
    job: Job, strategies: Strategies, dense: Floats, expert: Floats, forward_s: Floats, backward_s: Floats
) -> Floats:
    """Exposed seconds of strategies that all offload something, shape (N,). [C-16]"""
    t, traffic = job.training, job.framework.host
    owned = owned_parameters(strategies, dense=dense, expert=expert)
    moved = owned * host_shares(job, strategies)
    stored = BYTES_PER[t.param_dtype]
    main = BYTES_PER[t.main_param_dtype] or stored
    link = job.calibration.host_link_bytes_per_s.value
    # All ranks of a node update at once and share its memory bandwidth, which is what the Adam rate of a node
    # measures.
    rate = job.calibration.host_adam_bytes_per_s.value / ranks_per_node(job.cluster, strategies)

    update_s = moved * host_update_bytes(job) / rate
    up_s = np.where(strategies.offload_parameters, 0.0, moved * stored / link) if traffic.parameters_go_up else None
    down_s = None if traffic.gradients_in_backward else moved * main / link
    once = _once_s(job, strategies, moved, update_s, up_s, down_s)
    if traffic.host_adds_gradients:
        syncs = np.where(strategies.grad_sync_each, strategies.num_micro_batches, 1.0)
        once += (syncs - 1.0) * moved * ADDED_PASSES * main / rate

    fetched = owned * np.where(strategies.offload_parameters, stored, 0.0) / link
    if strategies.uses("offload_parameter_device"):
        beyond_bytes = beyond_memory(strategies, owned) * stored * ranks_per_node(job.cluster, strategies)
        # Both are rates of the node, which its ranks share.
        read_bytes_per_s, write_bytes_per_s = _drives(job)
        # A drive's pages come through host memory, one after another, while earlier ones go up.
        fetched = np.maximum(fetched, beyond_bytes / read_bytes_per_s)
        once += beyond_bytes / write_bytes_per_s
    activations = offloaded_activation_bytes(job, strategies) / link
    both = job.calibration.host_link_both_ways.value / link
    # Activations go down while parameters come up: the directions run side by side, so the longer one counts.
    forward = np.maximum(_beside(activations, fetched, both=both) - forward_s, 0.0)
    # In backward the activations come back up, the same way as gathered parameters, so here the two add up.
    up = activations + fetched * backward_gathers(job, strategies)
    exposed = strategies.num_micro_batches * forward
    for times, gradients_up, gradients_down in _gradients(job, strategies, moved / link):
        stall = np.maximum(_beside(up + gradients_up, gradients_down, both=both) - backward_s, 0.0)
        exposed += times * stall
    total = once + exposed
    if strategies.uses("offload_optimizer_overlap"):
        zenflow = strategies.offload_optimizer_overlap == OptimizerOverlap.ZENFLOW
        total = np.where(zenflow, ZENFLOW_STALL.value * total, total)
    return np.asarray(total)


def _beside(one_s: Floats, other_s: Floats, *, both: float) -> Floats:
    """Seconds of two transfers in opposite directions that begin together, from what each takes alone.

    `both` is what the link carries both ways together, over what it carries one way alone; 2 where neither slows the other down.
    """
    longer = np.maximum(one_s, other_s)
    return longer if both >= 2.0 else np.maximum(longer, (one_s + other_s) / both)


def _drives(job: Job) -> tuple[float, float]:
    """Bytes per second that a node reads from its drives, and writes; the rules refuse to use drives that nobody states."""
    drives = job.calibration.nvme
    return (np.inf, np.inf) if drives is None else (drives.read_bytes_per_s, drives.write_bytes_per_s)


def _once_s(
    job: Job, strategies: Strategies, moved: Floats, update_s: Floats, up_s: Floats | None, down_s: Floats | None
) -> Floats:
    """Seconds of the update, and of what goes over the link and to the drives around it, shape (N,). [C-16]

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,), as all that follows.
        moved: parameters of a rank that the host updates.
        update_s: seconds of the processors.
        up_s: seconds of the new parameters' way up, where they go up once a step.
        down_s: seconds of the gradients' way down, where they go down once a step.
    """
    # The update of one group can run beside reading the next and writing the last one only where the swapper is told to.
    once = np.array(update_s)
    piped = None
    if strategies.uses("offload_optimizer_overlap"):
        piped = strategies.offload_optimizer_overlap == OptimizerOverlap.PIPELINED
    if strategies.uses("offload_optimizer_device"):
        t, ranks = job.training, ranks_per_node(job.cluster, strategies)
        main = BYTES_PER[t.main_param_dtype] or BYTES_PER[t.param_dtype]
        state = moved * (main + MOMENTS[t.optimizer] * BYTES_PER[t.optimizer_state_dtype]) * ranks
        state = np.where(strategies.offload_optimizer_device == OffloadDevice.NVME, state, 0.0)
        read_s, write_s = (state / rate for rate in _drives(job))
        serial = read_s + update_s + write_s
        once = serial if piped is None else np.where(piped, np.maximum(np.maximum(read_s, update_s), write_s), serial)
    for link_s in (up_s, down_s):
        if link_s is not None:
            # Megatron's hybrid optimizer copies parameter by parameter, beside the update of others.
            hides = None if piped is None or job.framework.host.gradients_in_backward else piped
            once = once + link_s if hides is None else np.where(hides, np.maximum(once, link_s), once + link_s)
    return once


def _gradients(job: Job, strategies: Strategies, unit: Floats) -> tuple[tuple[Floats, Floats, Floats], ...]:
    """How often each kind of backward occurs in a step, with its seconds of gradients on their way up and down.

    DeepSpeed's stages 2 and 3 keep the accumulated gradients on the host in the compute type; stages 1 and 2 send the last ones
    in the main type. FSDP sends whatever it has reduced.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        unit: seconds on the link of one byte for each offloaded parameter, shape (N,).
    """
    t, m, none = job.training, strategies.num_micro_batches, np.zeros(len(strategies))
    traffic = job.framework.host
    if not traffic.gradients_in_backward:
        return ((m, none, none),)
    main = BYTES_PER[t.main_param_dtype] or BYTES_PER[t.param_dtype]
    several = (m > 1).astype(np.float64)
    if not traffic.gradients_return:
        every = np.where(strategies.grad_sync_each, main, 0.0) * unit
        return ((m - 1.0, none, every), (none + 1.0, none, main * unit))
    kept = np.where(strategies.zero >= 2, t.compute_bytes, 0.0) * unit
    last = np.where(strategies.zero == 3, kept, main * unit + several * kept)
    return (
        (several, none, kept),
        (np.maximum(m - 2.0, 0.0), kept, kept),
        (none + 1.0, several * kept, last),
    )
