"""From the samples of a log to one reading: which run they are of, which of them are start-up, and how well they are known.

A file may hold several runs: one that was resumed goes on from an earlier step, another begins anew. Where their medians agree they
are one sample; where they do not, the last run is read and the reading says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from cost_models.frameworks.log_formats import LogFormat
from profiler.logs.reading import ALL_RANKS, Counter, Flag, Found, Kind, LogReading, RunFacts, Sample

_WARM_UP_STEPS = 3
"""Single steps that are left out at the start: allocators, compilers and clocks settle in them."""
_SAME_RUN_FRACTION = 0.05
"""Medians of runs that differ by less are of one plan on one machine."""
_UNSTEADY_FRACTION = 0.2
"""Spread of the middle half of the samples above which they are called unsteady."""
_FEW_STEPS = 3
_MOST_STEPS = 10**9
_PREFERRED: tuple[Counter, ...] = ("allocated", "reserved", "device")


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive samples whose steps rise."""

    samples: list[Sample]
    begins_anew: bool
    """Whether it starts at or before the first step of the runs before it, and not somewhere after."""


def reading_of(
    found: Found, log_format: LogFormat, facts: RunFacts, *, flags: Sequence[Flag] = ()
) -> LogReading | None:
    """The reading of what one reader has found; None where it found no time."""
    noted: set[Flag] = {*found.flags, *flags}
    samples = _of_this_batch(found.samples, facts, noted)
    runs = [run for run in _runs(samples) if run.samples]
    if not runs:
        return None
    kept = [(run, _settled(run.samples)) for run in runs]
    # Each run has a start of its own, a resumed one too: checkpoints are loaded and kernels compiled again.
    # A run whose only samples are of its start is left out where another has more.
    steady = [samples for _, (samples, is_start) in kept if not is_start]
    if not steady:
        noted.add("warm-up-only")
        steady = [samples for _, (samples, _) in kept]
    chosen = _agreeing(steady, noted)
    if any(not run.begins_anew for run in runs[1:]):
        noted.add("resumed")
    if any(run.begins_anew for run in runs[1:]):
        noted.add("several-runs")
    times = [sample.seconds for sample in chosen]
    median = statistics.median(times)
    kind = _kind(chosen)
    num_steps = min(sum(sample.covers or 1 for sample in chosen), _MOST_STEPS)
    if kind == "cumulative":
        noted.add("cumulative")
    if num_steps < _FEW_STEPS:
        noted.add("few-steps")
    if len(times) >= 4 and _middle_half(times) > _UNSTEADY_FRACTION * median:
        noted.add("unsteady")
    counter, peak, rank = _memory(found)
    return LogReading(
        format=log_format.name,
        step_time_s=median,
        num_steps=num_steps,
        kind=kind,
        samples_s=tuple(times),
        memory_bytes=peak,
        memory_counter=counter,
        memory_rank=rank,
        peaks_bytes={name: found_peak for name in _PREFERRED if (found_peak := _largest(found, name)) is not None},
        digits=min(sample.digits for sample in chosen),
        # A mean of many samples is known better than each of them, but only where their rounding differs, which nobody knows.
        resolution_fraction=max(sample.resolution_s for sample in chosen) / median,
        flags=tuple(sorted(noted)),
        lines=tuple(found.lines),
    )


def _of_this_batch(samples: Sequence[Sample], facts: RunFacts, noted: set[Flag]) -> Sequence[Sample]:
    """Samples of the row's global batch: a run may have begun with smaller ones."""
    # Lines that do not say their batch are believed: most programs never print it.
    same = [sample for sample in samples if sample.batch is None or sample.batch == facts.global_batch_size]
    if not same:
        noted.add("different-batch")
        return samples
    return same


def _runs(samples: Sequence[Sample]) -> list[_Run]:
    """The samples of each run, one for each step: ranks that print the same step are one, and the slowest sets the pace."""
    runs: list[_Run] = []
    held: dict[int, Sample] = {}
    first: int | None = None
    last: dict[int | None, int] = {}
    begins_anew = True

    def close() -> None:
        nonlocal held, last
        runs.append(_Run(_with_covers(list(held.values())), begins_anew))
        held, last = {}, {}

    for sample in samples:
        if sample.step is None:
            held[-1 - len(held)] = sample
            continue
        # A labelled rank goes back only when the run does; unlabelled ones may print the same step several times.
        if sample.step < last.get(sample.rank, 0):
            close()
            begins_anew = first is not None and sample.step <= first
        first = sample.step if first is None else min(first, sample.step)
        last[sample.rank] = sample.step
        known = held.get(sample.step)
        if known is None or sample.seconds > known.seconds:
            held[sample.step] = sample
    close()
    return runs


def _with_covers(samples: list[Sample]) -> list[Sample]:
    """Samples of intervals with the steps that each is a mean of, as the steps' numbers tell; of one step it is that step's time."""
    result = samples[:1]
    for before, sample in pairwise(samples):
        if sample.kind != "interval_mean" or sample.step is None or before.step is None:
            result.append(sample)
            continue
        steps = max(1, sample.covers or sample.step - before.step)
        result.append(replace(sample, covers=steps, kind="step" if steps == 1 else sample.kind))
    return result


def _settled(samples: list[Sample]) -> tuple[list[Sample], bool]:
    """The samples without those of the start, and whether these are all that there are.

    What covers a whole run cannot be parted from its start.
    """
    if all(sample.kind == "cumulative" for sample in samples):
        return samples, False
    if len(samples) == 1:
        return samples, True
    if all(sample.kind == "step" for sample in samples[1:]):
        return samples[min(_WARM_UP_STEPS, len(samples) // 2) :], False
    # A mean of several steps holds the first step of all, whatever the others did.
    return samples[1:], False


def _agreeing(runs: list[list[Sample]], noted: set[Flag]) -> list[Sample]:
    """The samples of all runs where their medians agree, and otherwise those of the last run."""
    # A twentieth is more than clocks and neighbours change between two starts, and less than most changes of a plan.
    medians = [statistics.median(sample.seconds for sample in run) for run in runs]
    if max(medians) > (1.0 + _SAME_RUN_FRACTION) * min(medians):
        noted.add("runs-differ")
        return runs[-1]
    return [sample for run in runs for sample in run]


def _kind(samples: Sequence[Sample]) -> Kind:
    """The weakest kind among the samples."""
    order: tuple[Kind, ...] = ("step", "interval_mean", "rolling", "cumulative")
    return max((sample.kind for sample in samples), key=order.index)


def _middle_half(times: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low


def _largest(found: Found, counter: Counter) -> float | None:
    return max((peak for (name, _), peak in found.peaks.items() if name == counter), default=None)


def _memory(found: Found) -> tuple[Counter | None, float | None, int | Literal["worst"] | None]:
    """The counter that is compared with predictions, its largest peak, and whose peak that is."""
    # Allocated memory is what the model predicts best; what is reserved depends on the allocator's history, and what the driver sees
    # on whatever else runs there.
    for counter in _PREFERRED:
        peaks = {rank: peak for (name, rank), peak in found.peaks.items() if name == counter}
        if peaks:
            (rank, *others) = peaks
            return counter, max(peaks.values()), "worst" if others or rank == ALL_RANKS else rank
    return None, None, None
