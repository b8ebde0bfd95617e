"""How replicas stay together, as users write it: `strategy.sync` and `strategy.compression`.

A strategy that says neither reduces whole gradients at every step, as every framework does by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Annotated, Any

from pydantic import Field, model_validator

from cost_models.inputs.fields import ContradictionError, Quantity
from cost_models.specs.method import PLAIN, Compression, CompressionKind, Method, Quantize, Sync, SyncMethod, Topology
from planner.schemas.base import ContractModel, Count, Degree

_LOCAL = ("local-sgd", "diloco")
_NAMED_BY = {"SyncInput": "method", "CompressionInput": "kind"}
"""By model: the field that says which way is meant."""


def _only_for(given: ContractModel, name: str, values: Sequence[str], chosen: str) -> None:
    """Refuses a field that says nothing for the chosen method."""
    value = getattr(given, name)
    if value is not None and chosen not in values:
        *most, last = values
        users = f"{', '.join(most)} and {last} use" if most else f"{last} uses"
        message = f"{name} is {value!r}, but only {users} it, and {_NAMED_BY[type(given).__name__]} is {chosen!r}"
        raise ContradictionError(message, f"Leave {name} out.", field=name)


class SyncInput(ContractModel):
    """When replicas are brought together, and how."""

    method: SyncMethod
    """Way of bringing replicas together. every-step: gradients of all replicas are summed at every step. local-sgd, diloco: groups of replicas train by themselves and
    average their parameters now and then. gossip: each replica averages its parameters with a few others. parameter-server: gradients
    are summed by servers. async (no waiting at all) is run by no framework here."""
    sync_every: Annotated[Degree, Field(le=10_000_000)] | None = None
    """Number of steps from one synchronisation to the next; local-sgd and diloco need it."""
    fragments: Annotated[Degree, Field(le=10_000)] | None = None
    """Number of parts of the model that diloco synchronises one after the other, each once in sync_every steps. Default 1."""
    delay_steps: Count | None = None
    """Number of steps for which training goes on while a fragment of diloco is on its way. Default 0."""
    quantize: Quantize | None = None
    """Type in which diloco sends what has changed: none is the parameters' own. Default none."""
    topology: Topology | None = None
    """Whom a replica gossips with: one peer at distance 1, 2, 4 … in turn, both neighbours of a ring, or all these distances at once.
    Default one-peer-exp."""
    servers: Annotated[Count, Field(le=1_000_000)] | None = None
    """Number of machines without GPUs that serve parameters, beside the processes on the workers' machines. Default 0."""
    steps_factor: Annotated[Quantity, Field(le=1000)] | None = None
    """Steps that you expect to need over those of the exact method, as a ratio. Nothing is assumed where you do not say it."""

    @model_validator(mode="after")
    def _fields_of_the_method(self) -> SyncInput:
        if self.method in _LOCAL and self.sync_every is None:
            hint = "Add it: the number of steps from one synchronisation to the next, such as 100."
            raise ContradictionError(f"sync_every is required by {self.method}", hint, field="sync_every")
        _only_for(self, "sync_every", _LOCAL, self.method)
        for name in ("fragments", "delay_steps", "quantize"):
            _only_for(self, name, ("diloco",), self.method)
        _only_for(self, "topology", ("gossip",), self.method)
        _only_for(self, "servers", ("parameter-server",), self.method)
        # torchft's DiLoCo checks both (local_sgd.py): fragments take turns, and one must be back before it leaves again.
        every, fragments = self.sync_every or 1, self.fragments or 1
        if every % fragments:
            message = f"fragments {fragments} does not divide sync_every {every} (torchft/local_sgd.py)"
            hint = f"Choose fragments that divide sync_every, such as {gcd(every, fragments)}, or another sync_every."
            raise ContradictionError(message, hint, field="fragments")
        if (self.delay_steps or 0) >= every // fragments and self.method == "diloco" and self.delay_steps:
            message = f"delay_steps {self.delay_steps} is not below sync_every / fragments = {every // fragments} (torchft/local_sgd.py)"
            hint = f"Lower it to {every // fragments - 1} or less, raise sync_every, or take fewer fragments."
            raise ContradictionError(message, hint, field="delay_steps")
        return self

    def resolved(self) -> Sync:
        """The same with its defaults."""
        return Sync(**{name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None})


class CompressionInput(ContractModel):
    """The form in which gradients are exchanged."""

    kind: CompressionKind
    """Form of the gradients. none: whole; fp16 or bf16: cast by a hook; powersgd: two thin factors of each matrix; onebit: signs (1-bit Adam); zero-one: signs, and not
    at every step (0/1 Adam). topk is run by no framework here."""
    rank: Annotated[Degree, Field(le=10_000)] | None = None
    """Rank of powersgd's factors, as a number. Default 1."""
    freeze_steps: Count | None = None
    """Number of steps at the beginning that exchange whole gradients (start_powerSGD_iter, freeze_step, var_freeze_step). Default: that of
    the program, 1000 for powersgd and 100000 for onebit and zero-one."""
    sync_every: Annotated[Degree, Field(le=100_000)] | None = None
    """Mean number of steps from one exchange of zero-one to the next. Default 1."""

    @model_validator(mode="after")
    def _fields_of_the_kind(self) -> CompressionInput:
        _only_for(self, "rank", ("powersgd",), self.kind)
        _only_for(self, "freeze_steps", ("powersgd", "onebit", "zero-one"), self.kind)
        _only_for(self, "sync_every", ("zero-one",), self.kind)
        if self.kind == "powersgd" and self.freeze_steps is not None and self.freeze_steps < 2:
            message = (
                f"freeze_steps is {self.freeze_steps}; powersgd with error feedback needs 2 or more (powerSGD_hook.py)"
            )
            raise ContradictionError(message, "Raise it to 2 or more, or leave it out.", field="freeze_steps")
        return self

    def resolved(self) -> Compression:
        """The same with its defaults."""
        return Compression(
            **{name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}
        )


def method_of(sync: SyncInput | None, compression: CompressionInput | None) -> Method:
    """How replicas stay together under these two; `PLAIN` where nothing is said."""
    if sync is None and compression is None:
        return PLAIN
    return Method(
        Sync() if sync is None else sync.resolved(), Compression() if compression is None else compression.resolved()
    )


def method_document(method: Method) -> dict[str, Any]:
    """The fields of a strategy that say this method, those that say something alone; empty for the plain one."""
    # Fields that say nothing for a method are left out, since giving them back would be refused.
    found: dict[str, Any] = {}
    sync, compression = method.sync, method.compression
    if sync.method != "every-step":
        used: Mapping[str, tuple[str, ...]] = {
            "local-sgd": ("sync_every",),
            "diloco": ("sync_every", "fragments", "delay_steps", "quantize"),
            "gossip": ("topology",),
            "parameter-server": ("servers",),
        }
        names = ("method", *used.get(sync.method, ()))
        found["sync"] = {name: getattr(sync, name) for name in names}
        if sync.steps_factor is not None:
            found["sync"]["steps_factor"] = sync.steps_factor
    if compression.kind != "none":
        own: Mapping[str, tuple[str, ...]] = {"powersgd": ("rank",), "zero-one": ("sync_every",)}
        found["compression"] = {name: getattr(compression, name) for name in ("kind", *own.get(compression.kind, ()))}
        if compression.kind in ("powersgd", "onebit", "zero-one"):
            found["compression"]["freeze_steps"] = compression.first_steps
    return found
