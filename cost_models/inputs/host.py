"""What a node's host offers to offloaded state: its link to the GPUs, its processors, and its NVMe drives, in GB/s and GiB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from cost_models.constants import HOST_CORE_STREAM_BYTES_PER_S
from cost_models.documented import Documented
from cost_models.inputs.fields import STRICT, Quantity
from cost_models.inputs.gpu import filled
from cost_models.specs.cluster import Gpu, Nvme
from cost_models.units import GB, GIB


class NvmeInput(Documented):
    """The NVMe drives of one node, all of them together, as its ranks share them."""

    model_config = STRICT

    read_gb_per_s: Annotated[Quantity, Field(le=1e6)]
    """Rate at which the node reads, GB/s (1e9 bytes)."""
    write_gb_per_s: Annotated[Quantity, Field(le=1e6)]
    """Rate at which the node writes, GB/s."""
    capacity_gib: Annotated[Quantity, Field(le=1e9)] | None = None
    """Room for offloaded state, GiB. Without it nothing is said of whether the state fits."""

    def resolved(self) -> Nvme:
        """The same in bytes."""
        capacity = None if self.capacity_gib is None else self.capacity_gib * GIB
        return Nvme(self.read_gb_per_s * GB, self.write_gb_per_s * GB, capacity)


def host_link_gb_per_s(gpu: Gpu, nominal: Mapping[str, Any], assumed: dict[str, object], *, sharing: int) -> float:
    """GB/s between a GPU and the host in one direction where nobody states it; GPUs of one PCIe switch (`sharing` of them) share its
    uplink.
    """
    link = nominal.get("host_link_gb_per_s", gpu.pcie_bytes_per_s / GB / sharing)
    return float(filled(assumed, "host_link_gb_per_s", link))


def host_adam_gb_per_s(gpus_per_node: int) -> float:
    """GB/s of a node's updates where each rank has one thread, which is what torchrun gives several processes of a node."""
    return gpus_per_node * HOST_CORE_STREAM_BYTES_PER_S.value / GB
