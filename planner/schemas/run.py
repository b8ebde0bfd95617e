"""What an evaluation says beside one step: the whole run, what failures take of it, and what could hide communication."""

from __future__ import annotations

from typing import Literal

from planner.schemas.base import ContractModel

Communication = Literal["dp", "zero3", "tp", "pp"]
RaisedField = Literal["global_batch_size", "micro_batch_size", "hidden_size", "layers_per_stage"]


class Change(ContractModel):
    """One way in which a strategy computes something else than the plain step of its framework."""

    what: str
    """What is done otherwise."""
    effect: str
    """What that changes in the numbers that are computed."""
    source: str
    """Where this is said."""


class NodeTraffic(ContractModel):
    """What nodes receive of the parameters and gradients of one micro-batch, over parameter_bytes: 3 in plain ZeRO-3, 0.75 in ZeRO++.

    A node of N holds 1/N of it already and receives the rest.
    """

    parameter_bytes: float
    """Bytes of the model's parameters in the type in which they are gathered."""
    forward_gather: float
    """Gather of the first forward of a step, as a ratio."""
    backward_gather: float
    """Gathers of a backward, as a ratio."""
    reduction: float
    """Reduction of the gradients, as a ratio."""
    first: float
    """All of the first micro-batch of a step, as a ratio."""
    later: float
    """All of each further micro-batch, as a ratio."""


class OverlapCondition(ContractModel):
    """Whether computation at the dense peak of the GPU could hide one kind of communication. The time of a step does not rest on it."""

    ratio: float
    """Seconds of the communication over seconds of the computation beside it, as a ratio; it can be hidden up to 1."""
    verdict: Literal["hidden", "exposed"]
    """Whether it could be hidden."""
    num_ranks: int
    """Number of ranks that communicate with each other."""
    element_bytes: float
    """Bytes of one element as it travels."""
    bandwidth_bytes_per_s: float
    """Bytes per second that one rank's link carries in this group, in one direction."""
    hidden_by: RaisedField
    """The field that hides it when it is raised: the batch, the micro-batch, the width of the model, or the layers of a virtual stage."""
    hidden_from: int
    """Smallest value of that field, as a number, at which it could be hidden, with everything else as it is."""


class RunVariant(ContractModel):
    """The same run, saved at another interval or with other spare nodes."""

    interval_s: float
    """Seconds of training between two checkpoints."""
    spares: int | None
    """Number of spare nodes; null where nobody said."""
    goodput: float
    """Share of the run's time that trains what no failure undoes, from 0 to 1."""
    days: float
    """Days from the first step to the last."""
    gpu_hours: float
    """Hours for which GPUs are held, summed over all of them, those of spare nodes included."""
    cost: float | None
    """Price of these, in the currency of price_per_gpu_hour; null without it."""


class RunStops(ContractModel):
    """What failures and checkpoints take of a run."""

    mean_time_between_s: float
    """Mean seconds between two failures of the GPUs in use."""
    num_stops: float
    """Number of failures to expect in the whole run."""
    recovery_s: float
    """Seconds from a failure until the run trains again, a spare node being ready."""
    checkpoint_bytes: float
    """Bytes of one checkpoint: parameters, main parameters and optimizer states, each once."""
    save_s: float
    """Seconds for which saving one stops training."""
    unsafe_s: float
    """Seconds from there until storage holds it; 0 unless it is written in the background."""
    interval_s: float
    """Seconds of training between two checkpoints by Young's formula, which `goodput` goes by."""
    optimal_interval_s: float
    """Seconds of training between two checkpoints at which the run is available the longest share of its time."""
    waiting_fraction: float | None
    """Share of the run's time in which it waits for a node to be repaired, from 0 to 1; null where spares or repair_h are not given."""
    what_if: list[RunVariant]
    """The run at other intervals and, where repair_h is given, with other numbers of spare nodes."""


class Run(ContractModel):
    """The whole training run of a plan."""

    total_tokens: float
    """Number of tokens that the run trains on."""
    days: float
    """Days from the first step to the last, with failures and checkpoints where goodput is given."""
    days_range: tuple[float, float]
    """The same for the ends of step_time_range_s, in days."""
    gpu_hours: float
    """Hours for which GPUs are held, summed over all of them, those of spare nodes included."""
    cost: float | None
    """Price of these, in the currency of price_per_gpu_hour; null where a GPU in use has no price."""
    energy_kwh: float | None
    """Energy that the GPUs in use and their site draw, in kilowatt-hours; null where the power of a GPU is not known."""
    co2_kg: float | None
    """Carbon dioxide of that energy, in kilograms; null without carbon_g_per_kwh."""
    goodput: float | None
    """Share of the run's time that trains what no failure undoes, from 0 to 1; null without cluster.reliability and
    training.checkpoint."""
    stops: RunStops | None
    """How goodput comes about; null like goodput."""
