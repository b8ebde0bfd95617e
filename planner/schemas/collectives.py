"""What an evaluation says of the collectives of a strategy's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from cost_models.operations import Op
from cost_models.specs.collectives import Algorithm, Protocol
from cost_models.terms import Tier
from planner.schemas.base import ContractModel

CommunicationGroup = Literal["tp", "cp", "ep", "dp", "dp_replicas", "pp"]
if TYPE_CHECKING:
    TierName: TypeAlias = str
else:
    TierName = Literal[tuple(tier.label for tier in Tier)]


class GroupCollective(ContractModel):
    """The largest collective of one kind that one group of ranks runs, and how its time comes about."""

    group: CommunicationGroup
    """Which ranks communicate: those of tensor, context, expert, data or pipeline parallelism, or one of each shard of the data
    parallel state (dp_replicas)."""
    op: Op
    """The operation."""
    bytes: float
    """Size of the call in bytes, as nccl-tests count it: the whole array, or one rank's buffer of an all-reduce, all-to-all or send."""
    num_ranks: int
    """Number of ranks of the group."""
    num_nodes: int
    """Number of nodes (NVLink domains, where these are larger) that the group spans."""
    algorithm: Algorithm | Literal["measured", "direct"]
    """The algorithm that is assumed. A measured time has the one that the library took when it was measured, and all-to-alls and sends
    are direct messages."""
    protocol: Protocol | None
    """The protocol of NCCL or RCCL that is assumed; null where there is none or where the time was measured."""
    latency_s: float
    """Seconds of the call that do not depend on its size. With bandwidth_s it is the time of one call."""
    bandwidth_s: float
    """Seconds of the call that its bytes take."""
    tier: TierName
    """How the time came about: measured, interpolated between measurements, extrapolated beyond them, or nominal."""
