"""How replicas of a model stay together: what they exchange, how often, and in which form.

A method belongs to the job and not to the columns of `Strategies`: strategies of one batch share it, so that a search without one
pays nothing for it. `PLAIN` is what every framework does by default: gradients are reduced whole, at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SyncMethod = Literal["every-step", "local-sgd", "diloco", "gossip", "parameter-server", "async"]
CompressionKind = Literal["none", "fp16", "bf16", "powersgd", "onebit", "zero-one", "topk"]
Topology = Literal["one-peer-exp", "ring", "static-exp2"]
Quantize = Literal["none", "fp8"]
FREEZE_STEPS: Mapping[CompressionKind, int] = {"powersgd": 1000, "onebit": 100_000, "zero-one": 100_000}
"""Defaults: start_powerSGD_iter of PowerSGDState (PyTorch), freeze_step of OnebitAdam and var_freeze_step of ZeroOneAdam (DeepSpeed)."""
Mathematics = Literal["exact", "rounded", "changed"]


@dataclass(frozen=True, slots=True)
class Sync:
    """When replicas are brought together, and how."""

    method: SyncMethod = "every-step"
    sync_every: int = 1
    """Steps from one synchronisation to the next (local SGD, DiLoCo)."""
    fragments: int = 1
    """Parts of the model that DiLoCo synchronises one after the other, each once in `sync_every` steps."""
    delay_steps: int = 0
    """Steps for which training goes on while a fragment is on its way."""
    quantize: Quantize = "none"
    """Type that outer gradients travel in; "none" means fp32."""
    topology: Topology = "one-peer-exp"
    """Whom a replica gossips with."""
    servers: int = 0
    """Machines without GPUs that serve parameters, beside the workers' own processes."""
    steps_factor: float | None = None
    """Steps that the user expects to need over those of the exact method; nothing is assumed where it is not stated."""


@dataclass(frozen=True, slots=True)
class Compression:
    """The form in which gradients are exchanged."""

    kind: CompressionKind = "none"
    rank: int = 1
    """Of PowerSGD's approximation."""
    freeze_steps: int | None = None
    """First steps of the run that exchange whole gradients; None where the user does not say."""
    sync_every: int = 1
    """Mean steps from one exchange to the next; only 0/1 Adam skips any."""

    @property
    def first_steps(self) -> int:
        """First steps of the run that exchange whole gradients: as stated, or the program's default."""
        return FREEZE_STEPS.get(self.kind, 0) if self.freeze_steps is None else self.freeze_steps


@dataclass(frozen=True, slots=True)
class Method:
    """How replicas stay together."""

    sync: Sync = Sync()
    compression: Compression = Compression()

    @property
    def is_plain(self) -> bool:
        """Whether whole gradients are reduced at every step."""
        return self.sync.method == "every-step" and self.compression.kind == "none"

    @property
    def mathematics(self) -> Mathematics:
        """Whether a step computes what a plain one does: the same, with fewer digits, or something else."""
        kind = self.compression.kind
        if self.sync.method in ("local-sgd", "diloco", "gossip", "async") or kind in (
            "powersgd",
            "onebit",
            "zero-one",
            "topk",
        ):
            return "changed"
        return "rounded" if kind in ("fp16", "bf16") else "exact"

    @property
    def is_local(self) -> bool:
        """Whether groups of replicas train by themselves between synchronisations of parameters."""
        return self.sync.method in ("local-sgd", "diloco")


PLAIN = Method()


@dataclass(frozen=True, slots=True)
class Islands:
    """Equal parts of a cluster with a slow link between any two of them."""

    count: int
    link_bytes_per_s: float
    """What one island sends to the others, and at the same time receives, all its GPUs together."""
    latency_s: float
