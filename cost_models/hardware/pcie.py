"""What a ring over PCIe carries, by what it crosses and by whether the cards reach each other's memory. [C-1]"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.constants import Constant
from cost_models.specs.cluster import Cluster

PCIE_SAME_SWITCH = Constant(
    0.7, "1", 0.45, 0.86,
    "between what eight RTX PRO 6000 on three or four switches of one CPU all-reduce at (39.4 to 41.1 of 63 GB/s: 0.63 to 0.65) and peer copies "
    "inside one switch (54 of 63 GB/s: 0.86; voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md)",
)  # fmt: skip
PCIE_SOCKET = Constant(
    0.63, "1", 0.05, 0.8,
    "cards that reach each other through one socket's host bridges: two L40S 18.5 to 22.3 of 31.5 GB/s over four operations (aiconfigurator), three A100 20 "
    "(NVIDIA/nccl-tests issue 178); four L40S of the first server, an odd one, 5",
)  # fmt: skip
PCIE_CROSS_SOCKET = Constant(
    0.73, "1", 0.56, 0.95,
    "all-reduce of eight cards on two sockets over that on one: dual EPYC Turin 22.2 of 63 GB/s with NCCL's own number of channels and 37.6 with eight "
    "(rtx6kpro, as above), 0.56 and 0.95 of PCIE_SOCKET; their geometric mean",
)  # fmt: skip
STAGED_CROSS_SOCKET = Constant(
    0.8, "1", 0.55, 1.0, "the same without peer access: RTX 5090 on two Xeon 8480+, 28 over 35 GB/s (NVIDIA/nccl issue 1639)"
)  # fmt: skip
STAGED_SHARE = Constant(
    0.91, "1", 0.3, 1.0,
    "of a socket's memory bandwidth that staging moves, each byte in and out: four RTX 5090 at 35 GB/s on a Xeon 8480+ with eight channels of DDR5-4800, "
    "280 of 307 GB/s (NVIDIA/nccl issue 1639); a four-card desktop of RTX 4090 reached 2.2 GB/s",
)  # fmt: skip
# Servers of one PCIe generation have one generation of memory; the contract has no field for a host's channels.
_DDR4_BYTES_PER_S, _DDR5_BYTES_PER_S = 8 * 25.6e9, 8 * 38.4e9
"""Eight channels of DDR4-3200 and of DDR5-4800, of EPYC Milan and Xeon 8480: hosts of PCIe 4.0 and of 5.0."""
_FASTEST_PCIE4_BYTES_PER_S = 32e9


@dataclass(frozen=True, slots=True)
class PcieRates:
    """Bus bandwidth of a ring in bytes per second, one direction."""

    switch: float
    """All members on one switch."""
    socket: float
    """Members on several switches of one socket."""
    both_sockets: float


def pcie_rates(cluster: Cluster) -> PcieRates:
    """What rings inside a switch and inside a socket carry where every card of the node takes part in one.

    Cards with peer access write to each other, and a ring is as fast over eight of them as over two. Without it every byte goes into
    the host's memory and out again, which all cards of a socket share, and a switch between them helps nothing.
    """
    lanes = cluster.pcie_bytes_per_s
    socket = lanes * PCIE_SOCKET.value
    if cluster.gpu.peer_access:
        return PcieRates(lanes * PCIE_SAME_SWITCH.value, socket, both_sockets=socket * PCIE_CROSS_SOCKET.value)
    memory = _DDR5_BYTES_PER_S if lanes > _FASTEST_PCIE4_BYTES_PER_S else _DDR4_BYTES_PER_S
    cards = min(cluster.pcie_gpus_per_socket, cluster.gpus_per_node)
    staged = min(socket, memory * STAGED_SHARE.value / (2.0 * cards))
    return PcieRates(staged, staged, both_sockets=staged * STAGED_CROSS_SOCKET.value)
