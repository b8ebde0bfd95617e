"""A cluster in SI base units: GPUs, nodes, the links between them, and where each fact came from.

The boundary model (`cluster_input`) converts human units (GB/s, Gbit/s, GiB) and fills missing facts of the network with nominal
values, each of which is reported in `assumed` and `warnings`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from cost_models.specs.collectives import Collectives
from cost_models.specs.method import Islands
from cost_models.specs.run import Reliability

Interconnect = Literal["nvswitch", "nvlink-mesh", "nvlink-pairs", "pcie", "xgmi", "custom"]
Fabric = Literal["infiniband", "roce", "efa", "tcp"]
Generation = Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4", "unknown"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator; peaks are dense."""

    name: str
    generation: Generation
    memory_bytes: float
    """What the driver offers to one process (about 79.1 GiB on an 80 GB H100)."""
    peak_flops_per_s: Mapping[str, float]
    """By precision ("bf16", "fp16", "fp8", "nvfp4", "tf32", "fp32"); a missing one is not supported."""
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """NVLink or xGMI in one direction, all links of a GPU together; 0 where it has none."""
    pcie_bytes_per_s: float
    """The host link, in one direction."""
    num_sms: int
    power_limit_w: float | None = None
    reference: str | None = None
    """Name of the GPU whose measured reference curves are used where there is no calibration; its own name where it
    has curves."""
    peer_access: bool = True
    """Whether cards reach each other's memory over PCIe, without a copy in the host's."""


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between the nodes."""

    fabric: Fabric
    nic_wire_bytes_per_s: float
    """Signalling rate of one NIC in one direction; what collectives achieve is `Links.nic_achieved_bytes_per_s`."""
    nics_per_node: int
    latency_s: float
    rail_optimized: bool = True
    nodes_per_leaf: int | None = None
    oversubscription: float = 1.0

    @property
    def node_bytes_per_s(self) -> float:
        """Signalling rate of all NICs of a node in one direction."""
        return self.nic_wire_bytes_per_s * self.nics_per_node


@dataclass(frozen=True, slots=True)
class Nvme:
    """The NVMe drives of one node together."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    capacity_bytes: float | None = None
    """Room for offloaded state; None where nobody says."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs. For several kinds of node there is a `PooledCluster`, with one of these for each."""

    name: str
    gpu: Gpu
    num_nodes: int
    gpus_per_node: int
    nvlink_domain_gpus: int
    """GPUs that reach each other over the fast link: gpus_per_node, or 72 on an NVL72; 1 means PCIe only."""
    interconnect: Interconnect
    intra_bytes_per_s: float
    """Bandwidth inside the fast domain per GPU, in one direction."""
    intra_latency_s: float
    pcie_gpus_per_switch: int
    pcie_gpus_per_socket: int
    network: Network
    host_memory_bytes: float | None = None
    host_link_bytes_per_s: float = 0.0
    """Bandwidth between one GPU and host memory in one direction, while every GPU of the node copies."""
    host_adam_bytes_per_s: float = 0.0
    """Memory traffic of a node's optimizer updates on its processors, all ranks together; 0 means nominal."""
    nvme: Nvme | None = None
    """None where nobody states any: nothing is offloaded to drives that nobody names."""
    reserved_memory_bytes: float = 0.0
    price_per_gpu_hour: float | None = None
    reliability: Reliability | None = None
    power_w_per_gpu: float | None = None
    """Power that one GPU and its share of its node draw while they train."""
    pue: float | None = None
    """Power of the site over the power of its machines, 1 or more."""
    carbon_kg_per_j: float | None = None
    """Carbon dioxide for the energy that the site takes from its grid."""
    collectives: Collectives | None = None
    """The library that runs collectives, where it is stated; None prices NCCL's and RCCL's rings and trees as measured."""
    segment_nodes: int | None = None
    """Nodes that a scheduler keeps together inside one fast domain; None means as many as fit
    (`segments.segment_nodes`)."""
    islands: Islands | None = None
    """Equal parts of the cluster that a slow link joins; None where the network is one."""
    priced_like: Interconnect | None = None
    """Kind of link whose curves and topology a custom link takes; None means a switch."""
    calibration: tuple[str, ...] = ()
    """Names, ids or files in the order given; empty means the reference data of the GPU."""
    measured_memory_bytes: float | None = None
    """What the driver offered to one process where a calibration measured this GPU."""
    assumed: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def island_gpus(self) -> int:
        """GPUs of one island; all where there is one."""
        return self.num_gpus // (1 if self.islands is None else self.islands.count)

    @property
    def link_kind(self) -> Interconnect:
        """What a collective inside a node runs over: the interconnect, or for a custom one the kind that prices it."""
        return self.interconnect if self.interconnect != "custom" else self.priced_like or "nvswitch"

    @property
    def pcie_bytes_per_s(self) -> float:
        """Bytes per second that a GPU sends over PCIe to its neighbours, in one direction."""
        return self.intra_bytes_per_s if self.link_kind == "pcie" else self.gpu.pcie_bytes_per_s

    @property
    def mesh_peers(self) -> int | None:
        """Number of GPUs to each of which a GPU has links of its own; None where a switch or bridge gives any peer the
        whole link.
        """
        if self.link_kind == "xgmi":
            # MI300X and MI355X connect eight GPUs with seven links each (AMD CDNA 3 white paper). MI250X has no such
            # mesh.
            return {"cdna2": None, "cdna3": 7, "cdna4": 7}.get(self.gpu.generation, max(self.nvlink_domain_gpus - 1, 1))
        return max(self.nvlink_domain_gpus - 1, 1) if self.link_kind == "nvlink-mesh" else None

    @property
    def capacity_bytes(self) -> float:
        """Memory that a training process may use on one GPU, in bytes."""
        return (self.measured_memory_bytes or self.gpu.memory_bytes) - self.reserved_memory_bytes

    @property
    def kind_of_nodes(self) -> tuple[Hashable, ...]:
        """Equal for clusters that differ at most in their number of nodes, their name and where their facts come from.

        With the same documents they price alike every strategy for which both have the GPUs: its cost depends on the GPUs that it
        uses, and of the others only on how many a fast domain holds.
        """
        # The number of nodes cuts a fast domain short where it is larger than the whole cluster.
        domain = min(self.nvlink_domain_gpus, self.num_gpus)
        gpu = [getattr(self.gpu, name) for name in _GPU_FIELDS]
        return (domain, *self.gpu.peak_flops_per_s.items(), *gpu, *(getattr(self, name) for name in _KIND_FIELDS))


_GPU_FIELDS = tuple(f.name for f in fields(Gpu) if f.name != "peak_flops_per_s")
_KIND_FIELDS = tuple(
    f.name
    for f in fields(Cluster)
    if f.name not in ("name", "gpu", "num_nodes", "nvlink_domain_gpus", "calibration", "assumed", "warnings")
)


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes of one kind in a cluster of several kinds of node."""

    name: str
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class PooledCluster:
    """Pools of nodes on one network, each of one kind; a cluster of one kind of node is a single pool."""

    name: str
    pools: tuple[Pool, ...]
    assumed: Mapping[str, object] = field(default_factory=dict)
    """Fields of a listed pool as `pools.NAME.field`."""
    warnings: tuple[str, ...] = ()
    lists_pools: bool = True
    """Whether the user listed `pools`: strategies then name the pool of every stage, and answers speak of pools."""

    @classmethod
    def of_one_kind(cls, cluster: Cluster) -> PooledCluster:
        """A cluster of one kind of node as its only pool."""
        pool = Pool(cluster.name, cluster)
        return cls(cluster.name, (pool,), cluster.assumed, cluster.warnings, lists_pools=False)

    @property
    def num_nodes(self) -> int:
        return sum(pool.cluster.num_nodes for pool in self.pools)

    @property
    def num_gpus(self) -> int:
        return sum(pool.cluster.num_gpus for pool in self.pools)
