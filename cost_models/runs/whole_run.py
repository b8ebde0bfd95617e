"""A whole training run from the time of one step: days, GPU-hours, cost, energy, carbon dioxide, and what failures take.    [T-7]

Failures and checkpoints count where the job says how often GPUs fail and how it is saved; what else is not said is None.
"""

from __future__ import annotations

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
        stated = self.cluster.power_w_per_gpu
        return self.cluster.gpu.power_limit_w if stated is None else stated

    @property
    def site_factor(self) -> float:
        """Power of the site over that of its machines; 1 where nobody stated it."""
        return self.cluster.pue or 1.0


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
    in_repair: float | None
    """Nodes that fail during one repair; None where nobody said how long a repair takes."""
    spares: int | None

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
        if self.in_repair is None or self.spares is None:
            return None
        return ready_fraction(in_repair=self.in_repair, spares=self.spares)

    @property
    def are_rare(self) -> bool:
        """Whether failures are far enough apart for the formula of the goodput, which at these intervals then errs by 3 % at most. [T-8]"""
        longest_s = max(self.interval_s + self.save.blocking_s, self.recovery_s, self.save.unsafe_s)
        return longest_s <= self.between_s / RARE_FAILURES

    def count(self, duration_s: float) -> float:
        """Failures that a run of this length meets, waiting and recovery included. [T-8]"""
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
        return self.duration_s * sum(part.num_gpus + _spare_gpus(part, self.stops) for part in self.parts)

    @property
    def cost(self) -> float | None:
        """Price of all GPUs that are held, in the currency of the prices; None where a GPU has none. [T-7]"""
        total = 0.0
        for part in self.parts:
            price = part.cluster.price_per_gpu_hour
            if price is None:
                return None
            total += price * (part.num_gpus + _spare_gpus(part, self.stops)) * self.duration_s / HOUR_S
        return total

    @property
    def energy_j(self) -> float | None:
        """Energy that the GPUs in use and their site draw, in joules; None where the power of a GPU is not known. [T-7]"""
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
        """The same run with another number of spare nodes."""
        assert self.stops is not None
        return replace(self, stops=replace(self.stops, spares=spares))

    def variants(self) -> Iterator[Run]:
        """The run as it is, at other intervals, and where repairs are known with other numbers of spares."""
        if self.stops is None:
            return
        shortest_s = self.stops.save.shortest_interval_s
        intervals = {self.stops.interval_s, self.stops.optimal_interval_s}
        intervals |= {max(factor * self.stops.interval_s, shortest_s) for factor in INTERVAL_FACTORS}
        yield from (self.with_interval(interval_s) for interval_s in sorted(intervals))
        if self.stops.in_repair is None:
            return
        enough = fewest_spares(in_repair=self.stops.in_repair, waiting=LITTLE_WAITING)
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
    steps = tokens / (float(job.training.seq_length) * job.training.global_batch_size)
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
    per_s = sum(part.num_gpus / its.gpu_mtbf_s for part, its in zip(parts, each, strict=True))
    between_s, recovery_s = 1.0 / per_s, max(its.recovery_s for its in each)
    only = each[0] if len(each) == 1 else None
    repaired = only is not None and only.repair_s is not None
    interval_s = young_interval_s(between_s=between_s, save_s=save.blocking_s)
    best_s = optimal_interval_s(between_s=between_s, recovery_s=recovery_s + save.unsafe_s, save_s=save.blocking_s)
    return Stops(
        between_s=between_s,
        recovery_s=recovery_s,
        save=save,
        interval_s=max(interval_s, save.shortest_interval_s),
        optimal_interval_s=max(best_s, save.shortest_interval_s),
        in_repair=only.repair_s / (between_s + recovery_s) if repaired and only and only.repair_s else None,
        spares=only.spares if only is not None else None,
    )


def _spare_gpus(part: Part, stops: Stops | None) -> float:
    """GPUs of the spare nodes of a part; the number of a what-if stands for the stated one."""
    reliability = part.cluster.reliability
    if reliability is None:
        return 0.0
    spares = stops.spares if stops is not None and stops.spares is not None else reliability.spares
    return float((spares or 0) * part.cluster.gpus_per_node)


def _site_power_w(part: Part) -> float | None:
    return None if part.power_w is None else part.num_gpus * part.power_w * part.site_factor
