"""Which library runs collectives, and which of its algorithms and protocols are forced: `cluster.collectives` of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.operations import Op

Library = Literal["nccl", "rccl", "gloo", "msccl"]
Algorithm = Literal[
    "ring", "tree", "nvls", "nvls-tree", "collnet", "pat", "halving-doubling", "hierarchical", "torus-2d", "chain"
]
Protocol = Literal["LL", "LL128", "Simple"]


@dataclass(frozen=True, slots=True)
class Collectives:
    """A library with what a user forces it to do. It is hashable, as a cluster's kind of nodes must be."""

    library: Library
    forced: tuple[tuple[Op, Algorithm], ...] = ()
    """Operations with the one algorithm that runs them; the library chooses for all others."""
    protocol: Protocol | None = None
    """The one protocol of NCCL and RCCL; None leaves it to them."""

    def algorithm(self, op: Op) -> Algorithm | None:
        """The algorithm that an operation is forced to take; None where the library chooses."""
        return dict(self.forced).get(op)
