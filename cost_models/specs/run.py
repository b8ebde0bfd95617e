"""What a whole run depends on beside its steps: how often machines fail, how training restarts, and how it is saved.

Resolved from `cluster.reliability` and `training.checkpoint` by `cost_models.inputs.run`, in SI base units.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_SPARES = 10_000
"""More spare nodes than any cluster has; the time spent waiting for repairs is a recursion over them."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """How often one GPU stops a run, and how long the run then stands."""

    gpu_mtbf_s: float
    """Mean time between two stops of which one GPU, with its share of everything around it, is the cause."""
    detect_s: float
    """From the failure until the job is ended."""
    restart_s: float
    """From there until it trains again: scheduling, start of the processes, reading of the checkpoint."""
    spares: int | None = None
    """Nodes that stand ready beside those in use; None where nobody said, and a spare is then taken to be there."""
    repair_s: float | None = None
    """From a node's failure until it can be used again."""

    @property
    def recovery_s(self) -> float:
        """Seconds from a failure until the run trains again, on a node that stands ready."""
        return self.detect_s + self.restart_s


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How the state of training is written; exactly one of the first two is given."""

    save_s: float | None = None
    """Seconds to write one checkpoint."""
    storage_bytes_per_s: float | None = None
    """Rate at which all ranks together write to storage."""
    asynchronous: bool = False
    """Whether training goes on while a copy in host memory is written, so that only that copy stops it."""
