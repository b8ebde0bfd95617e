"""What whole replicas exchange at every step in place of an all-reduce of gradients: smaller numbers, or with others than all.

Each function prices one step of replicas that hold the whole model (tp, pp, cp and ep of 1). What lies between islands, and what is
synchronised only now and then, is in `step.islands`.                                                  [C-41] [C-42] [C-43] [C-44] [C-45]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.shapes import parameter_tensors
from cost_models.replicas.gossip import gossip_degree, gossip_s
from cost_models.replicas.parameter_server import byteps_ratio
from cost_models.replicas.powersgd import model_elements
from cost_models.replicas.signs import variance_updates
from cost_models.specs.method import Compression
from cost_models.specs.training import BYTES_PER
from cost_models.step.ddp_comm import DdpLinks, DdpSeconds, ddp_exposed_s
from cost_models.step.unit_collectives import split_calls
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.terms import Tier

BUCKET_BYTES = 25.0 * 2**20
"""Gradients that DistributedDataParallel hands to a hook at a time: its default bucket_cap_mb."""
POWERSGD_PASSES = 11.0
"""Reads and writes of a gradient by PowerSGD's hook: the error is added (2 reads, 1 write), the sum is copied (1 and 1), both factors are
multiplied (2 reads), their product is written, and the new error is what it misses (2 reads, 1 write)."""
ONEBIT_BYTES = 24.0
"""Memory traffic of 1-bit compression per fp32 element: momentum and error are read and added, packed, and the new error is written."""
ONEBIT_SCALES = 2.0
"""Gathers of scales beside the two exchanges of signs of a tensor."""
ENDS = 3.0
"""Parameter tensors outside the layers: embedding, last norm, output projection."""
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
    exchanges: float
    """Compressed exchanges of a step, over the whole run."""

    @property
    def mean(self) -> float:
        """Bytes of a step, over the whole run."""
        return self.warm_up * self.plain + self.exchanges * self.compressed

    @property
    def ratio(self) -> float:
        """How many times less that is than whole gradients."""
        return self.plain / self.mean


def shares_of_run(job: Job) -> tuple[float, float]:
    """Share of the run's steps that exchange whole gradients, 0...1, and compressed exchanges of a mean step.

    Where the length of the run is not stated, what is exchanged in the end stands for all of it.
    """
    tokens, training, compression = job.training.total_tokens, job.training, job.method.compression
    if tokens is None:
        return 0.0, 1.0 / compression.sync_every
    steps = tokens / training.tokens_per_step
    first = min(steps, float(compression.first_steps))
    # Before its variance is frozen 0/1 Adam sends signs too, of gradients, in the steps that do not update the variance.
    whole = float(variance_updates(int(first))) if compression.kind == "zero-one" else first
    return whole / steps, (first - whole + (steps - first) / compression.sync_every) / steps


def volume(job: Job, elements: float) -> Volume:
    """Bytes of one step's gradients with and without the job's compression. [C-43] [C-44]

    Args:
        job: its method says the compression.
        elements: trained parameters of a replica.
    """
    compression, reduced = job.method.compression, BYTES_PER[job.training.grad_reduce_dtype]
    # Rings send 2 (n - 1) / n times as much of either, which the ratio cancels.
    plain = elements * reduced
    return Volume(plain, _compressed_bytes(job, compression, elements), *shares_of_run(job))


def _compressed_bytes(job: Job, compression: Compression, elements: float) -> float:
    # A hook is given gradients in the type in which they are held: nothing has cast them before.
    held = BYTES_PER[job.training.grad_dtype]
    if compression.kind in ("fp16", "bf16"):
        return elements * HALF_BYTES
    if compression.kind == "powersgd":
        found = model_elements(job.model, compression.rank)
        return (found.sent + found.whole) * held
    if compression.kind in ("onebit", "zero-one"):
        return elements * SIGN_BYTES
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
    several, (whole, exchanges) = strategies.dp_cp > 1, shares_of_run(job)
    if method.compression.kind in ("onebit", "zero-one"):
        # The optimizer exchanges its momentum when the backward is over, so nothing hides it.
        compressed = _onebit_s(job, strategies, elements)
    else:
        link_s, work_s = _hook_s(job, strategies, elements)
        compressed = exposed(link_s) + work_s
    mean_s = whole * exposed(links.reduce) + exchanges * np.where(several, compressed, 0.0)
    return DdpSeconds(np.asarray(mean_s), nominal)


def _hook_s(job: Job, strategies: Strategies, elements: Floats) -> tuple[Floats, Floats]:
    """Link seconds of what a hook of DistributedDataParallel sends, and seconds of its own kernels, shape (N,) each. [C-43] [C-45]"""
    held, price = BYTES_PER[job.training.grad_dtype], job.calibration.collective_s
    placement, streaming = groups(strategies, job.cluster).dp_cp, job.calibration.memory_bytes_per_s_effective.value
    compression = job.method.compression
    if compression.kind in ("fp16", "bf16"):
        # Cast down, divided by the number of ranks in place, and cast up again.
        casts = (2.0 * (held + HALF_BYTES) + 2.0 * HALF_BYTES) * elements / streaming
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

    Source: DeepSpeed runtime/comm/nccl.py compressed_allreduce, which the optimizer calls for each parameter tensor by itself: an
    all-to-all of one bit per element to the rank that averages a part, then an all-gather, each with a gather of a scale per rank.
    """
    placement, n = groups(strategies, job.cluster).dp_cp, strategies.dp_cp
    tensors = ENDS - job.model.tie_word_embeddings + sum(parameter_tensors(job, kind) for kind in job.model.layer_kinds)
    bits = elements * SIGN_BYTES
    there, back = (split_calls(job, op, bits, placement, tensors).seconds for op in ("all_to_all", "all_gather"))
    scales = split_calls(job, "all_gather", BYTES_PER["fp32"] * n * tensors, placement, tensors).seconds
    packing_s = ONEBIT_BYTES * elements * (1.0 + 1.0 / n) / job.calibration.memory_bytes_per_s_effective.value
    return np.asarray(there + back + ONEBIT_SCALES * scales + packing_s)


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
