"""A whole training run from the time of one step: days, GPU-hours, cost, energy, carbon dioxide, and what failures take.    [T-7]

Failures and checkpoints count where the job says how often GPUs fail and how it is saved; what else is not said is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cost_models.job import PooledJob
from cost_models.runs.checkpoints import Save, save_of
from cost_models.runs.stops import fewest_spares, goodput, optimal_interval_s, ready_fraction, young_interval_s
from cost_models.specs.cluster import Cluster
from cost_models.strategies.strategy import Strategies
from cost_models.units import HOUR_S

INTERVAL_FACTORS = (0.25, 0.5, 2.0, 4.0)
"""Multiples of Young's interval that a what-if tells beside it."""
RARE_FAILURES = 5.0
"""Intervals, or recoveries, that lie at least between two failures where these count as rare."""
LITTLE_WAITING = 0.001
"""Share of a run's time: with so little waiting, more spares are not worth a line."""


@dataclass(frozen=True, slots=True)
class Part:
    """The GPUs of one kind that a plan uses."""

    num_gpus: float
    cluster: Cluster
    """The nodes that they belong to."""

    @property
    def power_w(self) -> float | None:
        """Power that one GPU and its share of its node draw: as stated, else the limit of the GPU alone."""
        # A node draws more than its GPUs, by how much depends on the machine; what is assumed is then a lower bound, and is told.
        stated = self.cluster.power_w_per_gpu
        return self.cluster.gpu.power_limit_w if stated is None else stated

    @property
    def site_factor(self) -> float:
        """Power of the site over that of its machines; 1 where nobody stated it."""
        # No building has less than 1, so that this is a lower bound as well.
        return self.cluster.pue or 1.0


@dataclass(frozen=True, slots=True)
class Repairs:
    """What becomes of broken nodes of one kind."""

    in_repair: float | None
    """Nodes that fail during one repair; None where nobody said how long a repair takes."""
    spares: int | None
    """Nodes that stand ready; None where nobody said."""

    @property
    def ready(self) -> float | None:
        """Share of the run's time in which a node stands ready for every broken one; None where that is not known. [T-9]"""
        if self.in_repair is None or self.spares is None:
            return None
        return ready_fraction(in_repair=self.in_repair, spares=self.spares)


@dataclass(frozen=True, slots=True)
class Stops:
    """What failures and saves do to a run; seconds."""

    between_s: float
    """Mean time between two failures of the GPUs in use."""
    recovery_s: float
    save: Save
    interval_s: float
    """Training between two saves by Young's formula."""
    optimal_interval_s: float
    """Training between two saves at which the run is available the longest."""
    repairs: Sequence[Repairs]
    """Those of each kind of node in use, in the order of the run's parts."""

    @property
    def goodput(self) -> float:
        """Share of the run's time that trains what no failure undoes, above 0 to 1. [T-8] [T-9]"""
        trained = goodput(
            interval_s=self.interval_s,
            save_s=self.save.blocking_s,
            between_s=self.between_s,
            recovery_s=self.recovery_s,
            unsafe_s=self.save.unsafe_s,
        )
        return trained if self.ready is None else trained * self.ready

    @property
    def ready(self) -> float | None:
        """Share of the run's time in which it does not wait for a repair; None where that is not known. [T-9]"""
        known = [each.ready for each in self.repairs if each.ready is not None]
        # A kind of node of which nothing is known is taken to have a spare ready, and kinds fail independently.
        return math.prod(known) if known else None

    @property
    def spares(self) -> int | None:
        """Spare nodes of all kinds; None where nobody said."""
        counts = [each.spares for each in self.repairs if each.spares is not None]
        return sum(counts) if counts else None

    @property
    def are_rare(self) -> bool:
        """Whether failures are far enough apart for the formula of the goodput, which at these intervals then errs by 3 % at most. [T-8]"""
        longest_s = max(self.interval_s + self.save.blocking_s, self.recovery_s, self.save.unsafe_s)
        return longest_s <= self.between_s / RARE_FAILURES

    def count(self, duration_s: float) -> float:
        """Failures that a run of this length meets, waiting and recovery included. [T-8]"""
        # One cycle of training, failure, recovery and repeated training holds one stop; while the run waits, nothing fails.
        ready_s = duration_s * (1.0 if self.ready is None else self.ready)
        lost_s = self.recovery_s + self.interval_s / 2.0 + self.save.unsafe_s
        return ready_s / (self.between_s + lost_s)


@dataclass(frozen=True, slots=True)
class Run:
    """One whole run."""

    parts: Sequence[Part]
    training_s: float
    """Seconds that its steps take."""
    stops: Stops | None
    """None where the job does not say how often GPUs fail, or how it is saved."""

    @property
    def goodput(self) -> float | None:
        """Share of its time that trains what no failure undoes, 0...1; None where that is not known."""
        return None if self.stops is None else self.stops.goodput

    @property
    def duration_s(self) -> float:
        """Seconds from its first step to its last. [T-7]"""
        return self.training_s if self.goodput is None else self.training_s / self.goodput

    @property
    def gpu_seconds(self) -> float:
        """Seconds for which GPUs are held, spares included. [T-7]"""
        return self.duration_s * sum(self._held)

    @property
    def cost(self) -> float | None:
        """Price of all GPUs that are held, in the currency of the prices; None where a GPU has none. [T-7]"""
        total = 0.0
        for part, held in zip(self.parts, self._held, strict=True):
            price = part.cluster.price_per_gpu_hour
            if price is None:
                return None
            total += price * held * self.duration_s / HOUR_S
        return total

    @property
    def _held(self) -> list[float]:
        """GPUs of each part, those of its spare nodes included."""
        # A what-if replaces the number of spares that the cluster states. Without a goodput there is none, but spares are paid for.
        if self.stops is None:
            stated = [part.cluster.reliability for part in self.parts]
            spares = [its.spares if its is not None else None for its in stated]
        else:
            spares = [each.spares for each in self.stops.repairs]
        return [
            part.num_gpus + (count or 0) * part.cluster.gpus_per_node
            for part, count in zip(self.parts, spares, strict=True)
        ]

    @property
    def energy_j(self) -> float | None:
        """Energy that the GPUs in use and their site draw, in joules; None where the power of a GPU is not known. [T-7]"""
        # Spare nodes idle at a fraction of this power that nobody states, and a run has few of them.
        each = [_site_power_w(part) for part in self.parts]
        return None if None in each else self.duration_s * sum(power or 0.0 for power in each)

    @property
    def carbon_kg(self) -> float | None:
        """Kilograms of carbon dioxide of that energy; None where a part's power or grid is not known. [T-7]"""
        total = 0.0
        for part in self.parts:
            power_w, per_j = _site_power_w(part), part.cluster.carbon_kg_per_j
            if power_w is None or per_j is None:
                return None
            total += power_w * per_j * self.duration_s
        return total

    def with_interval(self, interval_s: float) -> Run:
        """The same run, saved after other seconds of training."""
        assert self.stops is not None
        return replace(self, stops=replace(self.stops, interval_s=interval_s))

    def with_spares(self, spares: int) -> Run:
        """The same run on nodes of one kind with another number of spare ones."""
        assert self.stops is not None
        (repairs,) = self.stops.repairs
        return replace(self, stops=replace(self.stops, repairs=(replace(repairs, spares=spares),)))

    def variants(self) -> Iterator[Run]:
        """The run as it is, at other intervals, and where repairs of the only kind of node are known with other numbers of spares."""
        if self.stops is None:
            return
        # Intervals below the shortest one would begin a save before the last one is on storage, which no framework does.
        shortest_s = self.stops.save.shortest_interval_s
        intervals = {self.stops.interval_s, self.stops.optimal_interval_s}
        intervals |= {max(factor * self.stops.interval_s, shortest_s) for factor in INTERVAL_FACTORS}
        yield from (self.with_interval(interval_s) for interval_s in sorted(intervals))
        in_repair = self.stops.repairs[0].in_repair
        if len(self.parts) > 1 or in_repair is None:
            return
        enough = fewest_spares(in_repair=in_repair, waiting=LITTLE_WAITING)
        # Powers of two show where more spares stop to pay; beyond `enough` the waiting is less than other errors of the goodput.
        counts = {0, enough, *(2**power for power in range(enough.bit_length()) if 2**power < enough)}
        yield from (self.with_spares(count) for count in sorted(counts) if count != self.stops.spares)


def whole_run(
    pooled: PooledJob, strategies: Strategies, index: int, *, step_s: float, gpus_by_pool: Mapping[int, float]
) -> Run | None:
    """The run of strategy `index`; None where the job has no number of tokens. [T-7]

    Args:
        pooled: the job.
        strategies: the batch.
        index: which of its strategies.
        step_s: seconds of one step.
        gpus_by_pool: GPUs in use, by pool.
    """
    job = pooled.jobs[0]
    tokens = job.training.total_tokens
    if tokens is None:
        return None
    # Not rounded up: a deadline of the search divides in the same way, and a run of one step more or less is the same run.
    steps = tokens / job.training.tokens_per_step
    parts = [Part(gpus, pooled.jobs[pool].cluster) for pool, gpus in gpus_by_pool.items()]
    save = save_of(job, strategies, index)
    return Run(parts, steps * step_s, None if save is None else _stops(parts, save))


def _stops(parts: Sequence[Part], save: Save) -> Stops | None:
    """What failures do to a run on these GPUs; None where one kind of them has no rate of failures."""
    known = [part.cluster.reliability for part in parts]
    each = [reliability for reliability in known if reliability is not None]
    if len(each) < len(known):
        return None
    # Kinds of GPU fail independently of each other, so their rates add; the slowest of them decides how soon the run goes on.
    rates = [part.num_gpus / its.gpu_mtbf_s for part, its in zip(parts, each, strict=True)]
    between_s, recovery_s = 1.0 / sum(rates), max(its.recovery_s for its in each)
    failing = 1.0 / (1.0 + recovery_s / between_s)  # share of the time between two stops in which machines can fail
    interval_s = young_interval_s(between_s=between_s, save_s=save.blocking_s)
    best_s = optimal_interval_s(between_s=between_s, recovery_s=recovery_s + save.unsafe_s, save_s=save.blocking_s)
    return Stops(
        between_s=between_s,
        recovery_s=recovery_s,
        save=save,
        interval_s=max(interval_s, save.shortest_interval_s),
        optimal_interval_s=max(best_s, save.shortest_interval_s),
        repairs=tuple(
            Repairs(None if its.repair_s is None else its.repair_s * rate * failing, its.spares)
            for its, rate in zip(each, rates, strict=True)
        ),
    )


def _site_power_w(part: Part) -> float | None:
    return None if part.power_w is None else part.num_gpus * part.power_w * part.site_factor
