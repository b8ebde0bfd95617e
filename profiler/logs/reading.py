"""What is read from a log: samples and peaks as lines give them, and the reading that they come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cost_models.frameworks.log_formats import LogFormat

Kind = Literal["step", "interval_mean", "rolling", "cumulative"]
"""What a number is about: one step, the steps since the line before, the last steps of a window, or all since the start."""
Counter = Literal["allocated", "reserved", "device"]
"""Which peak of memory: what the allocator handed out, what it held, or what the driver saw in use."""
Flag = Literal[
    "cumulative", "different-batch", "few-steps", "line-cut", "mixed-formats", "resumed", "runs-differ", "several-runs",
    "sum-of-parts", "unclear-numbers", "unsteady", "warm-up-only",
]  # fmt: skip
"""What a user of a reading should know."""
_MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One printed time."""

    seconds: float
    """Of one optimizer step."""
    resolution_s: float
    """By how much the printed number could differ without being printed differently, in seconds a step."""
    digits: int
    """Significant digits that were printed."""
    kind: Kind
    step: int | None = None
    """Number of the step after which it was printed."""
    rank: int | None = None
    batch: float | None = None
    """Sequences in the global batch, where the line says so."""
    covers: int | None = None
    """Steps that it is a mean of; None where only the steps' numbers tell."""


@dataclass(frozen=True, slots=True)
class Peak:
    """One printed peak of memory."""

    counter: Counter
    peak_bytes: float
    rank: int | None = None
    """Rank that printed it; None where the line does not say, -1 where it is the largest of all ranks."""


ALL_RANKS = -1
"""In place of a rank: the program that printed the peak had asked all of them."""


@dataclass(slots=True)
class Found:
    """What one reader has found so far."""

    samples: list[Sample] = field(default_factory=list)
    peaks: dict[tuple[Counter, int | None], float] = field(default_factory=dict)
    flags: set[Flag] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    """The first lines that were read, to be shown and kept."""

    def add(self, sample: Sample) -> None:
        """Keeps a time; a number that cannot be a step's is none."""
        if 0.0 < sample.seconds < 1e7 and len(self.samples) < _MOST_SAMPLES:
            self.samples.append(sample)

    def add_peak(self, counter: Counter, peak_bytes: float, rank: int | None) -> None:
        """Keeps the largest peak of each counter and rank. A zero is what a program without a GPU prints."""
        if 0.0 < peak_bytes < 1e14:
            key = (counter, rank)
            self.peaks[key] = max(self.peaks.get(key, 0.0), peak_bytes)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What of the row a reader needs to turn a throughput into a time."""

    framework: str | None
    global_batch_size: float
    """Sequences a step."""
    seq_length: int
    num_gpus: int
    """Ranks of the run: tp x pp x cp x dp."""

    @property
    def tokens(self) -> float:
        """Tokens a step."""
        return self.global_batch_size * self.seq_length


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log without colours, carriage returns and the launcher's label."""

    text: str
    rank: int | None
    """Rank that the launcher's label names."""
    is_whole: bool
    """False for the last line of a file that ends within it, whose last number may be cut."""


class LineReader(ABC):
    """Reads the lines of one program."""

    marks: ClassVar[tuple[str, ...]] = ()
    """Texts of which a line has at least one, or it holds nothing for this reader."""

    def __init__(self) -> None:
        self.found = Found()

    @property
    @abstractmethod
    def format(self) -> LogFormat:
        """The format that was met."""

    @abstractmethod
    def take(self, line: Line) -> None:
        """Reads one line that has one of the marks.

        Raises:
            UnclearNumberError: a number of the line could be two; what stands before it is kept.
        """

    def finish(self) -> None:
        """Takes what only the end of the log decides.

        Raises:
            UnclearNumberError: as in `take`.
        """
        return


@dataclass(frozen=True, slots=True)
class LogReading:
    """What a log says of one run."""

    format: str
    step_time_s: float
    """Median seconds of a step, start-up left out."""
    num_steps: int
    """Steps that the median is taken over."""
    kind: Kind
    samples_s: tuple[float, ...]
    """The times that the median is of, in seconds a step, in the order of the log."""
    memory_bytes: float | None
    """Largest peak of `memory_counter` that the log shows."""
    memory_counter: Counter | None
    memory_rank: int | Literal["worst"] | None
    """Rank whose peak it is; "worst" where it is the largest of several or all ranks, None where the log does not say."""
    peaks_bytes: Mapping[Counter, float]
    """The largest peak of every counter that the log shows."""
    digits: int
    """Significant digits of the printed number; the fewest among the samples."""
    resolution_fraction: float
    """Distance of neighbouring printable numbers, as a share of the step."""
    flags: tuple[Flag, ...]
    lines: tuple[str, ...]
    """The first lines that were read."""
