"""What an evaluation says of what replicas exchange, where that is not every gradient at every step on one network."""

from __future__ import annotations

from planner.schemas.base import ContractModel


class SentMatrices(ContractModel):
    """What PowerSGD sends; both factors of a matrix count."""

    layer_elements: float
    """Number of elements of the matrices of one decoder layer, the last."""
    layer_sent_elements: float
    """Number of elements that are sent for them."""
    elements: float
    """Number of elements of all matrices of the model that are sent as factors."""
    sent_elements: float
    """Number of elements of their factors."""
    whole_elements: float
    """Number of elements of the model that are sent whole: vectors, and matrices too small to gain."""


class Exchange(ContractModel):
    """What replicas tell each other, and what a step waits for it."""

    groups: int | None = None
    """Number of groups of replicas, such as islands, with a boundary of its own kind between them; null where there are none."""
    synchronisation_s: float | None = None
    """Seconds of one synchronisation between groups, whatever hides it."""
    exposed_s: float | None = None
    """Mean seconds that a step waits for it."""
    useful_fraction: float | None = None
    """Share of the time in which groups train, from 0 to 1."""
    plain_bytes: float | None = None
    """Bytes of one rank's gradients in a step, whole, in the type in which the framework reduces them; a ring sends about twice as much
    of this and of the next."""
    mean_bytes: float | None = None
    """Bytes that take their place, the mean of the run's steps."""
    volume_ratio: float | None = None
    """The former over the latter: how many times less is sent, as a ratio."""
    warm_up_fraction: float | None = None
    """Share of the run's steps that exchange whole gradients, from 0 to 1; 0 where training.total_tokens is not given."""
    matrices: SentMatrices | None = None
    """What PowerSGD makes of the matrices; null for anything else."""
