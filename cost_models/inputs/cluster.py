"""The cluster as a user writes it, in GB/s, Gbit/s and GiB: a preset with overrides, or nodes of a GPU.

`resolve_cluster` converts to SI base units and fills what is missing with nominal values of the GPU's reference server. Each of
these is listed in `assumed`; a missing network between nodes is also a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag

from cost_models import presets
from cost_models.constants import (
    FASTEST_PCIE_BYTES_PER_S,
    INTRA_LATENCY_S,
    NETWORK_LATENCY_S,
)
from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child
from cost_models.inputs.collectives import CollectivesInput, resolve_collectives
from cost_models.inputs.fields import STRICT, Count, Name, Quantity, QuantityOrZero, resolved_once, validated
from cost_models.inputs.gpu import GpuInput, filled, resolve_gpu
from cost_models.inputs.host import NvmeInput, host_adam_gb_per_s, host_link_gb_per_s
from cost_models.inputs.links import LinkInput, NetworkInput, PcieInput
from cost_models.inputs.run import IslandsInput, ReliabilityInput, resolved_islands, site_facts
from cost_models.specs.cluster import Cluster, Gpu, Interconnect, Network
from cost_models.units import BITS_PER_BYTE, GB, GIB, MICRO

MAX_GPUS = 2**18
"""Most GPUs of a cluster: more than any that exists, and more than the exact search is meant for."""


def _is_text(value: object) -> str:
    return "text" if isinstance(value, str) else "object"


def _is_name(value: object) -> str:
    return "list" if isinstance(value, (list, tuple)) else "text"


class NodesInput(Documented):
    """Equal nodes of one GPU: what a cluster of one kind says of itself, and one of several kinds of each of its pools."""

    model_config = STRICT

    preset: Name | None = None
    """Name of a cluster preset, as `GET /v1/presets/clusters` lists them. Other fields are laid over it."""
    name: Name | None = None
    """What the cluster, or the pool, is called in answers."""
    gpu: (
        Annotated[Annotated[Name, Tag("text")] | Annotated[GpuInput, Tag("object")], Discriminator(_is_text)] | None
    ) = None
    """Name of a GPU preset, or an object that states a GPU's own peaks, memory and links."""
    num_nodes: Count | None = None
    """Number of nodes."""
    gpus_per_node: Annotated[Count, Field(le=1024)] | None = None
    """Number of GPUs of a node."""
    nvlink_domain_gpus: Count | None = None
    """Number of GPUs that reach each other over the fast link. Default: a node's; 72 on an NVL72, whose nodes have 4."""
    segment_nodes: Count | None = None
    """Number of nodes of one scheduler segment, each segment whole inside an NVLink domain; by default the most that
    fit."""
    intra_node: (
        Annotated[
            Annotated[Literal["nvswitch", "nvlink-mesh", "nvlink-pairs", "pcie", "xgmi"], Tag("text")]
            | Annotated[LinkInput, Tag("object")],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    """What connects the GPUs of a node, by name or by its numbers. Default: as in the vendor's reference server."""
    pcie: PcieInput | None = None
    """How the GPUs hang on PCIe switches and sockets; it matters where they have no faster link."""
    nics_per_node: Annotated[Count, Field(le=1024)] | None = None
    """Number of network cards of a node."""
    nic_gbit_per_s: Annotated[Quantity, Field(le=1e6)] | None = None
    """Signalling rate of one network card in one direction, Gbit/s."""
    host_memory_gib: Annotated[Quantity, Field(le=1e9)] | None = None
    """Memory of a node's host, GiB. Without it, plans that offload to the host carry a warning."""
    host_link_gb_per_s: Annotated[Quantity, Field(le=1e9)] | None = None
    """Bandwidth between one GPU and its host in one direction while all GPUs of the node copy, GB/s."""
    host_adam_gb_per_s: Annotated[Quantity, Field(le=1e9)] | None = None
    """Memory traffic of the optimizer on a node's processors, shared by its ranks, GB/s."""
    nvme: NvmeInput | None = None
    """Drives of a node that offloaded state may lie on. Without them nothing is offloaded to drives."""
    reserved_memory_gib: Annotated[QuantityOrZero, Field(le=1e6)] | None = None
    """Memory of each GPU that training must not use, GiB. Default 0."""
    price_per_gpu_hour: Annotated[QuantityOrZero, Field(le=1e6)] | None = None
    """Price of one GPU for one hour, in any currency."""
    reliability: ReliabilityInput | None = None
    """How often GPUs fail and how long a run then stands, for the goodput of a whole run."""
    power_w_per_gpu: Annotated[Quantity, Field(le=1e6)] | None = None
    """Power that one GPU and its share of its node draw while they train, in watts. Default: the power limit of the GPU alone."""
    pue: Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)] | None = None
    """Power of the whole site over that of its machines (power usage effectiveness), as a ratio of 1 or more. Default 1."""
    carbon_g_per_kwh: Annotated[QuantityOrZero, Field(le=1e6)] | None = None
    """Carbon dioxide of the site's electricity, in grams per kilowatt-hour. Without it no answer tells of carbon dioxide."""
    calibration: (
        Annotated[
            Annotated[Name, Tag("text")] | Annotated[list[Name], Field(max_length=16), Tag("list")],
            Discriminator(_is_name),
        ]
        | None
    ) = None
    """Measurements to price with: the id of an uploaded calibration, the name of a shipped one, "auto" for the newest of
    this kind of node, or a list (compute from one, network from another). Default: the reference data of the GPU."""


class ClusterInput(NodesInput):
    """A cluster: `preset` with overrides, equal nodes of one GPU, or `pools` of different nodes."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        json_schema_extra={
            "examples": [
                {"preset": "dgx-h100", "num_nodes": 16},
                {
                    "gpu": "H100-SXM-80GB",
                    "num_nodes": 16,
                    "gpus_per_node": 8,
                    "nics_per_node": 8,
                    "nic_gbit_per_s": 400,
                },
                {
                    "pools": [
                        {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8},
                        {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8},
                    ]
                },
            ]
        },
    )

    network: NetworkInput | None = None
    """What lies between the nodes. What is missing takes nominal values and a warning."""
    islands: IslandsInput | None = None
    """Equal parts of the cluster that a slow link joins, such as two sites. Only replicas lie on several of them. Default: none."""
    collectives: CollectivesInput | None = None
    """The library that runs collectives, and what it is forced to take. Default: NCCL's or RCCL's rings and trees, at measured bandwidth."""
    pools: list[NodesInput] | None = None
    """Several kinds of node, in place of `gpu`, `num_nodes` and `gpus_per_node`. They share one `network`."""


def resolve_cluster(document: Mapping[str, Any], *, pointer: str = "/cluster") -> Cluster:
    """The cluster that a document describes, in SI units, missing facts filled and reported.

    Raises:
        InvalidInputError: with one Problem per broken rule; NotModelledError for `pools`, which `resolve_pools` reads.
    """
    return resolved_once(lambda key: _from_json(key, pointer), lambda d: _resolved(d, pointer), document, pointer)


@lru_cache(maxsize=4096)
def _from_json(key: str, pointer: str) -> Cluster:
    return _resolved(json.loads(key), pointer)


def _resolved(document: Mapping[str, Any], pointer: str) -> Cluster:
    if document.get("pools") is not None:
        message = "cluster.pools lists several kinds of node, but a cluster of one kind is needed here"
        hint = "Give 'gpu', 'num_nodes' and 'gpus_per_node' of one kind of node."
        raise NotModelledError([Problem(child(pointer, "pools"), message, hint, "pools-not-supported")])
    assumed: dict[str, object] = {}
    if document.get("preset") is not None:
        document = _with_preset(document, assumed, pointer)
    given = validated(ClusterInput, document, pointer=pointer)
    _check_sizes(given, pointer)
    cluster = _cluster(given, assumed, pointer)
    if given.collectives is None:
        return cluster
    stated = resolve_collectives(given.collectives, cluster, pointer=child(pointer, "collectives"))
    return replace(cluster, collectives=stated)


def _with_preset(document: Mapping[str, Any], assumed: dict[str, object], pointer: str) -> dict[str, Any]:
    """The preset's fields with the document's on top; `network` and `pcie` are overridden field by field."""
    name = validated(ClusterInput, {"preset": document["preset"]}, pointer=pointer).preset
    assert name is not None
    merged: dict[str, Any] = {"name": name, **presets.load("clusters", name, pointer=child(pointer, "preset")).spec}
    # A preset describes a kind of node; how many of them the user has is the one thing it cannot know, so it is
    # reported.
    if document.get("num_nodes") is None:
        assumed["num_nodes"] = merged["num_nodes"]
    for field, value in document.items():
        if field == "preset" or (field == "num_nodes" and value is None):
            continue
        nested = isinstance(value, Mapping) and field in ("network", "pcie") and isinstance(merged.get(field), Mapping)
        merged[field] = {**merged[field], **value} if nested else value
    return merged


def _check_sizes(spec: ClusterInput, pointer: str) -> None:
    problems = [
        Problem(child(pointer, name), f"{name} is required", f"Add {name!r}, or name a preset.", "missing-field")
        for name in ("gpu", "num_nodes", "gpus_per_node")
        if getattr(spec, name) is None
    ]
    if problems:
        raise InvalidInputError(problems)
    assert spec.num_nodes
    assert spec.gpus_per_node
    if (gpus := spec.num_nodes * spec.gpus_per_node) > MAX_GPUS:
        counts = f"num_nodes {spec.num_nodes} x gpus_per_node {spec.gpus_per_node}"
        message = f"{counts} is {gpus} GPUs; the most is {MAX_GPUS}"
        raise InvalidInputError([Problem(child(pointer, "num_nodes"), message, "Lower num_nodes.")])
    if spec.nvlink_domain_gpus is not None and spec.nvlink_domain_gpus > MAX_GPUS:
        message = f"nvlink_domain_gpus is {spec.nvlink_domain_gpus}; the most is {MAX_GPUS}"
        raise InvalidInputError([Problem(child(pointer, "nvlink_domain_gpus"), message, "An NVL72 has 72.")])


def _cluster(spec: ClusterInput, assumed: dict[str, object], pointer: str) -> Cluster:
    assert spec.num_nodes
    assert spec.gpus_per_node
    gpu, nominal, warnings = resolve_gpu(spec.gpu, assumed, child(pointer, "gpu"))
    interconnect, priced_like, intra_bytes_per_s, intra_latency_s = _intra_node(spec, gpu, nominal, assumed, pointer)
    domain = _domain(spec, priced_like, nominal, assumed, pointer)
    network, network_warnings = _network(spec, nominal, assumed)
    pcie = spec.pcie or PcieInput()
    # GPUs that are not known to hang on one switch are taken to have its uplink to themselves.
    sharing = min(pcie.gpus_per_switch or 1, spec.gpus_per_node)
    reserved_bytes = (spec.reserved_memory_gib or 0.0) * GIB
    if reserved_bytes >= gpu.memory_bytes:
        message = f"reserved_memory_gib is {spec.reserved_memory_gib}; the GPU has {gpu.memory_bytes / GIB:.1f} GiB"
        raise InvalidInputError([Problem(child(pointer, "reserved_memory_gib"), message, "Reserve less.")])
    calibration = (spec.calibration,) if isinstance(spec.calibration, str) else tuple(spec.calibration or ())
    return Cluster(
        name=spec.name or f"{spec.num_nodes}x{spec.gpus_per_node} {gpu.name}",
        gpu=gpu,
        num_nodes=spec.num_nodes,
        gpus_per_node=spec.gpus_per_node,
        nvlink_domain_gpus=domain,
        interconnect=interconnect,
        intra_bytes_per_s=intra_bytes_per_s,
        intra_latency_s=intra_latency_s,
        pcie_gpus_per_switch=min(pcie.gpus_per_switch or 2, spec.gpus_per_node),
        pcie_gpus_per_socket=min(pcie.gpus_per_socket or max(1, spec.gpus_per_node // 2), spec.gpus_per_node),
        network=network,
        host_memory_bytes=None if spec.host_memory_gib is None else spec.host_memory_gib * GIB,
        host_link_bytes_per_s=GB
        * (spec.host_link_gb_per_s or host_link_gb_per_s(gpu, nominal, assumed, sharing=sharing)),
        host_adam_bytes_per_s=GB
        * (spec.host_adam_gb_per_s or filled(assumed, "host_adam_gb_per_s", host_adam_gb_per_s(spec.gpus_per_node))),
        nvme=None if spec.nvme is None else spec.nvme.resolved(),
        reserved_memory_bytes=reserved_bytes,
        price_per_gpu_hour=spec.price_per_gpu_hour,
        **site_facts(spec.reliability, spec.power_w_per_gpu, spec.pue, spec.carbon_g_per_kwh),
        segment_nodes=_segment(spec, domain, pointer),
        islands=resolved_islands(spec.islands, num_nodes=spec.num_nodes, pointer=pointer),
        priced_like=priced_like if interconnect == "custom" else None,
        calibration=calibration,
        assumed=assumed,
        warnings=(*warnings, *network_warnings),
    )


def _intra_node(
    spec: ClusterInput, gpu: Gpu, nominal: Mapping[str, Any], assumed: dict[str, object], pointer: str
) -> tuple[Interconnect, Interconnect, float, float]:
    """The link inside a node: its kind, the kind that prices it, bytes/s per GPU in one direction, and seconds per hop."""
    link = spec.intra_node if spec.intra_node is not None else filled(assumed, "intra_node", nominal["intra_node"])
    if isinstance(link, LinkInput):
        bytes_per_s = link.bandwidth_gb_per_s * GB
        like = _custom_kind(nominal["intra_node"], bytes_per_s)
        latency_s = INTRA_LATENCY_S[like] if link.latency_us is None else link.latency_us * MICRO
        return "custom", like, bytes_per_s, latency_s
    kind: Interconnect = next(k for k in get_args(Interconnect) if k == link)
    if kind == "pcie":
        return kind, kind, gpu.pcie_bytes_per_s, INTRA_LATENCY_S[kind]
    at = child(pointer, "intra_node")
    if gpu.link_bytes_per_s == 0:
        message = f"intra_node is {kind!r} but {gpu.name} has no such link (nvlink_gb_per_s 0)"
        raise InvalidInputError([Problem(at, message, "Use 'pcie'.")])
    if nominal["intra_node"] in ("pcie", "nvlink-pairs") and kind != "nvlink-pairs":
        message = f"intra_node is {kind!r} but {gpu.name} is a PCIe card, whose NVLink bridge joins two cards"
        raise InvalidInputError([Problem(at, message, "Use 'nvlink-pairs', or 'pcie' without bridges.")])
    return kind, kind, gpu.link_bytes_per_s, INTRA_LATENCY_S[kind]


def _custom_kind(native: str, bytes_per_s: float) -> Interconnect:
    """The kind of link that prices a custom one: the GPU's own; on a card PCIe, or a switch where it is faster than PCIe."""
    if native in ("pcie", "nvlink-pairs"):
        return "pcie" if bytes_per_s <= FASTEST_PCIE_BYTES_PER_S else "nvswitch"
    return next(kind for kind in get_args(Interconnect) if kind == native)


def _domain(
    spec: ClusterInput, interconnect: Interconnect, nominal: Mapping[str, Any], assumed: dict[str, object], pointer: str
) -> int:
    """Number of GPUs that share the fast link."""
    assert spec.num_nodes
    assert spec.gpus_per_node
    if spec.nvlink_domain_gpus is not None:
        domain, per_node = spec.nvlink_domain_gpus, spec.gpus_per_node
        if max(domain, per_node) % min(domain, per_node):
            message = f"of nvlink_domain_gpus {domain} and gpus_per_node {per_node} neither divides the other"
            hint = "A fast domain must be a whole number of nodes, or a node a whole number of domains."
            raise InvalidInputError([Problem(child(pointer, "nvlink_domain_gpus"), message, hint)])
        return domain
    if interconnect == "pcie":
        return 1
    # An NVLink bridge joins two cards.
    if interconnect == "nvlink-pairs":
        return min(2, spec.gpus_per_node)
    if spec.num_nodes > 1 and "nvlink_domain_gpus" in nominal:
        whole_nodes = max(1, nominal["nvlink_domain_gpus"] // spec.gpus_per_node)
        return int(filled(assumed, "nvlink_domain_gpus", whole_nodes * spec.gpus_per_node))
    return spec.gpus_per_node


def _segment(spec: ClusterInput, domain: int, pointer: str) -> int | None:
    """The stated segment, in nodes; it must fit a domain that spans nodes."""
    assert spec.gpus_per_node
    whole = domain // spec.gpus_per_node
    if spec.segment_nodes is not None and 1 < whole < spec.segment_nodes:
        message = f"segment_nodes is {spec.segment_nodes}; an NVLink domain of {domain} GPUs holds {whole} nodes"
        raise InvalidInputError([Problem(child(pointer, "segment_nodes"), message, f"Use at most {whole}.")])
    return spec.segment_nodes


def _network(
    spec: ClusterInput, nominal: Mapping[str, Any], assumed: dict[str, object]
) -> tuple[Network, tuple[str, ...]]:
    """The network between nodes; what is missing is nominal, and reported only where there is a second node."""
    assert spec.num_nodes
    assert spec.gpus_per_node
    # With one node nothing crosses the network, and assumptions about it would only be noise.
    told: dict[str, object] = assumed if spec.num_nodes > 1 else {}
    given = spec.network or NetworkInput()
    missing = [name for name in ("nics_per_node", "nic_gbit_per_s") if getattr(spec, name) is None]
    nics = spec.nics_per_node or filled(
        told, "nics_per_node", max(1, round(nominal["nics_per_gpu"] * spec.gpus_per_node))
    )
    gbit = spec.nic_gbit_per_s or filled(told, "nic_gbit_per_s", nominal["nic_gbit_per_s"])
    fabric = given.fabric or filled(told, "network.fabric", nominal["fabric"])
    latency_s = (
        given.latency_us * MICRO
        if given.latency_us is not None
        else MICRO * filled(told, "network.latency_us", round(NETWORK_LATENCY_S[fabric] / MICRO, 3))
    )
    warnings = ("network-nominal",) if missing and spec.num_nodes > 1 else ()
    return (
        Network(
            fabric=fabric,
            nic_wire_bytes_per_s=gbit * GB / BITS_PER_BYTE,
            nics_per_node=int(nics),
            latency_s=latency_s,
            rail_optimized=given.rail_optimized if given.rail_optimized is not None else fabric != "tcp",
            nodes_per_leaf=given.nodes_per_leaf,
            oversubscription=given.oversubscription if given.oversubscription is not None else 1.0,
        ),
        warnings,
    )
