"""The facts that a ranking rests on and that are seldom known well, and a job in which one of them is another.

A bandwidth is scaled with everything that was measured of it: curves are carried to the other link as they are carried to
another cluster, and what a calibration measured between nodes stays a ratio to the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import Host, HostLayer
from cost_models.hardware.build_links import build_links
from cost_models.hardware.calibrated import Calibration
from cost_models.hardware.gemm import GemmSurface
from cost_models.job import Job, PooledJob
from cost_models.specs.cluster import Cluster
from cost_models.terms import Tier


@dataclass(frozen=True, slots=True)
class Fact:
    """One assumed fact, which may be `factor` times as large as assumed."""

    name: str
    low: float
    """The smallest factor that is tried."""
    high: float
    applies: Callable[[PooledJob], bool]
    """Whether the fact can matter at all."""
    scaled: Callable[[Job, float], Job]
    value: Callable[[Job], tuple[float, Tier]]
    """What is assumed, in SI units, and where it comes from."""

    def on(self, pooled: PooledJob, factor: float) -> PooledJob:
        """The job with this fact `factor` times as large on every pool."""
        return PooledJob(pooled.cluster, tuple(self.scaled(job, factor) for job in pooled.jobs))


def _with_cluster(job: Job, cluster: Cluster) -> Job:
    """The job on a cluster that differs in its network alone; measured ratios to the formula stay what they are."""
    calibration = job.calibration
    # Tables inside a node depend on no network, so that the ones that were built stay as they are.
    links = replace(calibration.links, cluster=cluster)
    return replace(job, cluster=cluster, calibration=_marked(calibration, cluster=cluster, links=links))


def _marked(calibration: Calibration, **changed: object) -> Calibration:
    """The calibration with changes, under an id of its own: prices are kept by id elsewhere."""
    return replace(calibration, id=f"{calibration.id} scaled", **changed)  # type: ignore[arg-type]


def _network(job: Job, factor: float) -> Job:
    network = job.cluster.network
    wire = network.nic_wire_bytes_per_s * factor
    return _with_cluster(job, replace(job.cluster, network=replace(network, nic_wire_bytes_per_s=wire)))


def _latency(job: Job, factor: float) -> Job:
    network = job.cluster.network
    return _with_cluster(job, replace(job.cluster, network=replace(network, latency_s=network.latency_s * factor)))


def _fast_link(job: Job, factor: float) -> Job:
    cluster = replace(job.cluster, intra_bytes_per_s=job.cluster.intra_bytes_per_s * factor)
    calibration = job.calibration
    # The tables are built anew, which carries measured curves to the other link. What was measured between nodes was compared with
    # the link as it was, so that its ratios are kept.
    links = replace(build_links(cluster, calibration.network), network=calibration.links.network)
    return replace(job, cluster=cluster, calibration=_marked(calibration, cluster=cluster, links=links))


def _products(job: Job, factor: float) -> Job:
    # The share of the peak is scaled and not the peak, which MFU divides by and attention has a rate of its own against.
    def faster(surface: GemmSurface) -> GemmSurface:
        return replace(surface, share_MNK=surface.share_MNK * factor)

    calibration = job.calibration
    others = {name: faster(surface) for name, surface in calibration.precision_surfaces.items()}
    return replace(
        job, calibration=_marked(calibration, surface=faster(calibration.surface), precision_surfaces=others)
    )


def _host(job: Job, factor: float) -> Job:
    document = job.calibration.compute
    assert document is not None
    # Copied with its cached id, so that nothing takes it for another document than the plan names.
    compute = document.model_copy(update={"host": _faster_host(job, document, factor)})
    return replace(job, calibration=_marked(job.calibration, compute=compute))


def _faster_host(job: Job, document: CalibrationDocument, factor: float) -> Host:
    """The document's host with all of its times divided by the factor; where it timed no operation, the nominal one is taken.

    Ratios of its times, such as that of a wrapped layer to a plain one, stay what they are.
    """
    host = document.host
    times = {name: value for name, value in host if isinstance(value, float)}
    if host.eager_op_s is None:
        times["eager_op_s"] = job.calibration.looped_op_s.value
    layers = {
        name: HostLayer(forward_s=each.forward_s / factor, backward_s=each.backward_s / factor, spread=each.spread)
        for name, each in host.layers.items()
    }
    return Host(**{name: value / factor for name, value in times.items()}, layers=layers)


def _has_network(pooled: PooledJob) -> bool:
    return pooled.cluster.num_nodes > 1


def _network_value(job: Job) -> tuple[float, Tier]:
    # Whether anything was measured between nodes of this cluster; without that the formula stands alone.
    tier = Tier.MEASURED if job.calibration.links.network else Tier.NOMINAL
    return job.cluster.network.node_bytes_per_s, tier


def _link_value(job: Job) -> tuple[float, Tier]:
    """Bandwidth of a GPU's fast link; its tier is that of a large all-gather over the whole domain, or over two GPUs."""
    table = job.calibration.links.domain["all_gather"]
    row = min(max(job.cluster.nvlink_domain_gpus, 2), len(table.tier_RP) - 1)
    return job.cluster.intra_bytes_per_s, Tier(int(table.tier_RP[row, -1]))


def _products_value(job: Job) -> tuple[float, Tier]:
    """The rate that no product exceeds, at the training's precision where the GPU has it."""
    # Volta has no bf16 peak of its own, and older cards no fp8: the rate of two-byte types is told where the training's is missing.
    precision = job.training.precision if job.training.precision in job.cluster.gpu.peak_flops_per_s else "bf16"
    return job.calibration.fastest_gemm_flops_per_s(precision), job.calibration.surface.inside_tier


FACTS: tuple[Fact, ...] = (
    Fact("network_bandwidth", 0.3, 2.0, _has_network, _network, _network_value),
    Fact(
        "network_latency", 0.3, 5.0, _has_network, _latency, lambda job: (job.cluster.network.latency_s, Tier.NOMINAL)
    ),
    Fact(
        "node_bandwidth",
        0.3,
        2.0,
        lambda pooled: any(job.cluster.gpus_per_node > 1 for job in pooled.jobs),
        _fast_link,
        _link_value,
    ),
    # Power limits and clocks move products by a tenth to a third; half and twice are beyond what a healthy GPU does.
    Fact("products", 0.5, 1.5, lambda _: True, _products, _products_value),
    Fact(
        "host",
        0.3,
        3.0,
        lambda pooled: all(job.calibration.compute is not None for job in pooled.jobs),
        _host,
        lambda job: (1.0 / job.calibration.looped_op_s.value, job.calibration.looped_op_s.tier),
    ),
)
"""In the order in which they are told: bytes per second and node, seconds of a hop, bytes per second and GPU, operations per second,
launches per second."""
