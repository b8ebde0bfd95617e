"""The links of a cluster as a user writes them: inside a node, over PCIe, and between the nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cost_models.documented import Documented
from cost_models.inputs.fields import STRICT, Count, Flag, Quantity, QuantityOrZero
from cost_models.specs.cluster import Fabric


class LinkInput(Documented):
    """A fast link inside the node, described by its numbers."""

    model_config = STRICT

    bandwidth_gb_per_s: Annotated[Quantity, Field(le=1e9)]
    """Bandwidth per GPU in one direction, GB/s (1e9 bytes)."""
    latency_us: Annotated[QuantityOrZero, Field(le=1e6)] | None = None
    """Time of one hop, in microseconds. Default: that of the GPU's own kind of link."""


class PcieInput(Documented):
    """How GPUs hang on PCIe switches and sockets."""

    model_config = STRICT

    gpus_per_switch: Count | None = None
    """Number of GPUs that share one PCIe switch. Default 2."""
    gpus_per_socket: Count | None = None
    """Number of GPUs that hang on one processor socket. Default: half of the node's."""


class NetworkInput(Documented):
    """What is between the nodes."""

    model_config = STRICT

    fabric: Fabric | None = None
    """Kind of network."""
    rail_optimized: Flag | None = None
    """Whether the n-th NICs of all nodes meet at one leaf switch. Default: true, except for tcp."""
    nodes_per_leaf: Count | None = None
    """Number of nodes that share a leaf switch. Default: all."""
    oversubscription: Annotated[float, Field(strict=True, ge=1, le=1000, allow_inf_nan=False)] | None = None
    """Bandwidth into a leaf switch over the bandwidth out of it, as a ratio of 1 or more. Default 1."""
    latency_us: Annotated[QuantityOrZero, Field(le=1e6)] | None = None
    """Time of one hop between nodes, in microseconds. Default: nominal for the fabric."""
