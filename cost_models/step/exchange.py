"""What whole replicas exchange at every step in place of an all-reduce of gradients: smaller numbers, or with others than all.

Each function prices one step of replicas that hold the whole model (tp, pp, cp and ep of 1). What lies between islands, and what is
synchronised only now and then, is in `step.islands`.                                                  [C-41] [C-42] [C-43] [C-44] [C-45]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.replicas.gossip import gossip_degree, gossip_s
from cost_models.replicas.parameter_server import byteps_ratio
from cost_models.replicas.powersgd import model_elements
from cost_models.specs.method import Compression
from cost_models.specs.training import BYTES_PER
from cost_models.step.ddp_comm import DdpLinks, DdpSeconds, ddp_exposed_s
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.terms import Tier

BUCKET_BYTES = 25.0 * 2**20
"""Gradients that DistributedDataParallel hands to a hook at a time: its default bucket_cap_mb."""
POWERSGD_PASSES = 10.0
"""Reads and writes of a gradient by PowerSGD's hook: the error is added (2 reads, 1 write), both factors are multiplied (2 reads), the
product is written, and the new error is what it misses (2 reads, 2 writes)."""
ONEBIT_BYTES = 24.0
"""Memory traffic of 1-bit compression per fp32 element: momentum and error are read and added, packed, and the new error is written."""
HALF_BYTES = 2.0
SIGN_BYTES = 1.0 / 8.0


@dataclass(frozen=True, slots=True)
class Volume:
    """What one rank hands to collectives in a step, bytes; a ring carries about twice as much for either."""

    plain: float
    """Gradients whole, in the type in which the framework reduces them."""
    compressed: float
    warm_up: float
    """Share of the run's steps that exchange whole gradients, 0...1."""

    @property
    def mean(self) -> float:
        """Bytes of a step, over the whole run."""
        return self.warm_up * self.plain + (1.0 - self.warm_up) * self.compressed

    @property
    def ratio(self) -> float:
        """How many times less that is than whole gradients."""
        return self.plain / self.mean


def warm_up_share(job: Job) -> float:
    """Share of the run's steps before compression begins, 0...1; 0 where the length of the run is not stated."""
    tokens, training = job.training.total_tokens, job.training
    if tokens is None:
        return 0.0
    steps = tokens / (training.seq_length * training.global_batch_size)
    return min(1.0, job.method.compression.first_steps / steps)


def volume(job: Job, elements: float) -> Volume:
    """Bytes of one step's gradients with and without the job's compression. [C-43] [C-44]

    Args:
        job: its method says the compression.
        elements: trained parameters of a replica.
    """
    compression, reduced = job.method.compression, BYTES_PER[job.training.grad_reduce_dtype]
    # Rings send 2 (n - 1) / n times as much of either, which the ratio cancels.
    plain = elements * reduced
    return Volume(plain, _compressed_bytes(job, compression, elements), warm_up_share(job))


def _compressed_bytes(job: Job, compression: Compression, elements: float) -> float:
    # A hook is given gradients in the type in which they are held: nothing has cast them before.
    held = BYTES_PER[job.training.grad_dtype]
    if compression.kind in ("fp16", "bf16"):
        return elements * HALF_BYTES
    if compression.kind == "powersgd":
        found = model_elements(job.model, compression.rank)
        return (found.sent + found.whole) * held
    if compression.kind in ("onebit", "zero-one"):
        return elements * SIGN_BYTES / compression.sync_every
    return elements * BYTES_PER[job.training.grad_reduce_dtype]


def exchange_s(
    job: Job, strategies: Strategies, *, elements: Floats, links: DdpLinks, forward_s: Floats, backward_s: Floats
) -> DdpSeconds:
    """Exposed seconds of a step's exchange, its mean over the run, shape (N,), in place of `ddp_s`.

    Args:
        job: its method says what is exchanged.
        strategies: shape (N,), whole replicas.
        elements: trained parameters of one rank.
        links: link seconds of the plain reduction.
        forward_s: seconds of the forward of one micro-batch.
        backward_s: seconds of its backward.
    """

    def exposed(reduce_s: Floats) -> Floats:
        own = DdpLinks(reduce_s, np.zeros_like(reduce_s), links.tier)
        return ddp_exposed_s(
            strategies, own, forward_s=forward_s, backward_s=backward_s, num_layers=job.model.num_layers
        )

    # No calibration has measured any of these exchanges, whatever it says of the collectives that they are made of.
    nominal = np.full(len(strategies), Tier.NOMINAL, np.int8)
    method = job.method
    if method.sync.method == "gossip":
        return DdpSeconds(exposed(_gossip_link_s(job, strategies, elements)), nominal)
    if method.sync.method == "parameter-server":
        return DdpSeconds(exposed(_server_link_s(job, strategies, elements)), nominal)
    several, share = strategies.dp_cp > 1, warm_up_share(job)
    if method.compression.kind in ("onebit", "zero-one"):
        # The optimizer exchanges its momentum when the backward is over, so nothing hides it.
        compressed = _onebit_s(job, strategies, elements) / method.compression.sync_every
    else:
        link_s, work_s = _hook_s(job, strategies, elements)
        compressed = exposed(link_s) + work_s
    mean_s = share * exposed(links.reduce) + (1.0 - share) * np.where(several, compressed, 0.0)
    return DdpSeconds(np.asarray(mean_s), nominal)


def _hook_s(job: Job, strategies: Strategies, elements: Floats) -> tuple[Floats, Floats]:
    """Link seconds of what a hook of DistributedDataParallel sends, and seconds of its own kernels, shape (N,) each. [C-43] [C-45]"""
    held, price = BYTES_PER[job.training.grad_dtype], job.calibration.collective_s
    placement, streaming = groups(strategies, job.cluster).dp_cp, job.calibration.memory_bytes_per_s_effective.value
    compression = job.method.compression
    if compression.kind in ("fp16", "bf16"):
        casts = 2.0 * (held + HALF_BYTES) * elements / streaming
        return price("all_reduce", elements * HALF_BYTES, placement=placement).seconds, casts
    found = model_elements(job.model, compression.rank)
    # Every bucket makes three calls, one after the other: what passes whole, and both factors.
    buckets = np.ceil(elements * held / BUCKET_BYTES)
    factor = price("all_reduce", found.sent / 2.0 * held / buckets, placement=placement).seconds
    rest = price("all_reduce", found.whole * held / buckets, placement=placement).seconds
    work = 6.0 * compression.rank * found.compressed + 4.0 * found.column_work
    kernels = max(
        POWERSGD_PASSES * found.compressed * held / streaming,
        work / job.calibration.peak_flops_per_s(job.training.compute_dtype),
    )
    return buckets * (2.0 * factor + rest), np.full(len(strategies), kernels)


def _onebit_s(job: Job, strategies: Strategies, elements: Floats) -> Floats:
    """Seconds of one exchange of signs and of packing them, shape (N,). [C-44]

    Source: DeepSpeed runtime/comm/nccl.py compressed_allreduce: an all-to-all of one bit per element to the rank that averages a
    part, then an all-gather, each with a scale per rank.
    """
    placement, price = groups(strategies, job.cluster).dp_cp, job.calibration.collective_s
    bits = elements * SIGN_BYTES + BYTES_PER["fp32"] * strategies.dp_cp
    packing = ONEBIT_BYTES * elements * (1.0 + 1.0 / strategies.dp_cp)
    there, back = (price(op, bits, placement=placement).seconds for op in ("all_to_all", "all_gather"))
    return np.asarray(there + back + packing / job.calibration.memory_bytes_per_s_effective.value)


def _gossip_link_s(job: Job, strategies: Strategies, elements: Floats) -> Floats:
    """Link seconds of exchanging parameters with the neighbours of one step, shape (N,). [C-42]"""
    cluster = job.cluster
    # Distances beyond a domain come up as soon as there are two domains, and then all GPUs of a node use its cards at once.
    inside = strategies.world <= cluster.nvlink_domain_gpus
    rate = np.where(inside, cluster.intra_bytes_per_s, job.calibration.links.gpu_network_bytes_per_s)
    latency = np.where(inside, cluster.intra_latency_s, cluster.network.latency_s)
    degree = gossip_degree(job.method.sync.topology, strategies.dp)
    size = elements * BYTES_PER[job.training.param_dtype]
    return gossip_s(size, degree=degree, bytes_per_s=rate, latency_s=latency)


def _server_link_s(job: Job, strategies: Strategies, elements: Floats) -> Floats:
    """Link seconds of a push and a pull of all gradients, shape (N,). [C-41]

    GPUs of one machine first reduce among themselves; what leaves the machine is one copy, over all its cards.
    """
    cluster, size = job.cluster, elements * BYTES_PER[job.training.grad_reduce_dtype]
    # Part of a node is priced as a whole machine: its cards are all there.
    machines = np.maximum(strategies.world / cluster.gpus_per_node, 1.0)
    local = np.minimum(strategies.world, float(cluster.gpus_per_node))
    inside = 2.0 * (local - 1.0) / local * size / cluster.intra_bytes_per_s
    wire = job.calibration.links.gpu_network_bytes_per_s * cluster.gpus_per_node
    across = byteps_ratio(machines, float(job.method.sync.servers)) * size / wire
    return np.asarray(inside + across)
