"""What users state of a whole run: how reliable the machines are (`cluster.reliability`), how training is saved
(`training.checkpoint`), and which parts of the cluster are far apart (`cluster.islands`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import child
from cost_models.inputs.fields import STRICT, ContradictionError, Count, CountOrZero, Flag, Quantity, QuantityOrZero
from cost_models.specs.method import Islands
from cost_models.specs.run import MOST_SPARES, Checkpoint, Reliability
from cost_models.units import BITS_PER_BYTE, GB, GRAMS_PER_KG, HOUR_S, KWH


class ReliabilityInput(Documented):
    """How often GPUs fail, and how long a run then stands."""

    model_config = STRICT

    gpu_mtbf_h: Annotated[Quantity, Field(le=1e9)]
    """Mean time between failures that stop the run, for one GPU with its share of everything around it, in hours: GPUs x hours /
    stops of earlier runs. Llama 3 had 419 stops in 54 days on 16,384 GPUs, which makes 50,677."""
    restart_s: Annotated[QuantityOrZero, Field(le=1e7)]
    """Time from the end of the failed job until it trains again, in seconds."""
    detect_s: Annotated[QuantityOrZero, Field(le=1e7)] = 0.0
    """Time from a failure until the job is ended, in seconds. Default 0."""
    spares: Annotated[CountOrZero, Field(le=MOST_SPARES)] | None = None
    """Number of nodes that stand ready beside `num_nodes`. They are paid for. Default: none are paid for, and a run never waits for one."""
    repair_h: Annotated[Quantity, Field(le=1e6)] | None = None
    """Time from a node's failure until it can be used again, in hours. With it the run waits while more nodes are broken than spares
    stand ready."""

    def resolved(self) -> Reliability:
        """The same in seconds."""
        return Reliability(
            gpu_mtbf_s=self.gpu_mtbf_h * HOUR_S,
            detect_s=self.detect_s,
            restart_s=self.restart_s,
            spares=self.spares,
            repair_s=None if self.repair_h is None else self.repair_h * HOUR_S,
        )


class IslandsInput(Documented):
    """Parts of the cluster, of equally many nodes, that a slow link joins, such as two sites."""

    model_config = STRICT

    count: Annotated[Count, Field(ge=2, le=1000)]
    """Number of islands; it divides num_nodes."""
    link_gbit_per_s: Annotated[Quantity, Field(le=1e9)]
    """Rate at which one island sends to the others and at the same time receives, all its GPUs together, in Gbit/s."""
    latency_ms: Annotated[QuantityOrZero, Field(le=1e6)] = 0.0
    """Time of one message from island to island, in milliseconds. Default 0."""

    def resolved(self) -> Islands:
        """The same in bytes and seconds."""
        return Islands(self.count, self.link_gbit_per_s * GB / BITS_PER_BYTE, self.latency_ms / 1000.0)


def resolved_islands(given: IslandsInput | None, *, num_nodes: int, pointer: str) -> Islands | None:
    """The islands of a cluster of so many nodes, in bytes and seconds; None where it has none.

    Raises:
        InvalidInputError: islands cannot have equally many nodes.
    """
    if given is not None and num_nodes % given.count:
        message = f"islands.count {given.count} does not divide the {num_nodes} nodes"
        hint = "Islands have equally many nodes; use a number that divides num_nodes."
        raise InvalidInputError([Problem(child(pointer, "islands"), message, hint)])
    return None if given is None else given.resolved()


class CheckpointInput(Documented):
    """How the state of training is saved; either `save_s` or `storage_gb_per_s` is given."""

    model_config = STRICT

    save_s: Annotated[Quantity, Field(le=1e7)] | None = None
    """Time to write one checkpoint, in seconds."""
    storage_gb_per_s: Annotated[Quantity, Field(le=1e9)] | None = None
    """Rate at which all ranks together write to storage, GB/s (1e9 bytes). The size follows from the model and the types of its state."""
    asynchronous: Flag = False
    """Whether training goes on while a copy in host memory is written. Default false."""

    @model_validator(mode="after")
    def _one_of_two(self) -> CheckpointInput:
        # Both would contradict each other as soon as the model changes, and neither leaves the goodput open.
        if (self.save_s is None) == (self.storage_gb_per_s is None):
            if self.save_s is None:
                raise ContradictionError(
                    "neither of save_s and storage_gb_per_s is given; give one", "Add one of the two."
                )
            both = f"both of save_s and storage_gb_per_s are given ({self.save_s:g} and {self.storage_gb_per_s:g}); give one"
            raise ContradictionError(both, "Leave one of the two out.")
        return self

    def resolved(self) -> Checkpoint:
        """The same in seconds and bytes."""
        rate = self.storage_gb_per_s
        return Checkpoint(self.save_s, None if rate is None else rate * GB, self.asynchronous)


def site_facts(
    reliability: ReliabilityInput | None, power_w: float | None, pue: float | None, carbon_g_per_kwh: float | None
) -> dict[str, Any]:
    """Fields of a `Cluster` in SI units: how reliable its GPUs are, what they draw, and what their electricity is made of."""
    return {
        "reliability": None if reliability is None else reliability.resolved(),
        "power_w_per_gpu": power_w,
        "pue": pue,
        "carbon_kg_per_j": None if carbon_g_per_kwh is None else carbon_g_per_kwh / GRAMS_PER_KG / KWH,
    }
