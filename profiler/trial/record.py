"""What one trial found, as one record: tune keeps it, agents send it, the service stores it, and files of measured trials consist of it.

A record says what ran (the row, the back end, the machine), how it ended, and what was measured of it. Sizes are bytes, times seconds.
It knows no torch, so that whoever only reads records needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from math import isclose
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from cost_models.inputs.fields import SMALLEST, STRICT, Count, CountOrZero, Name, validated
from cost_models.terms import TIME_NAMES

Backend = Literal["pytorch", "export"]
Status = Literal["ok", "oom", "hang", "crash"]
LONGEST_REASON = 1000
"""Characters of a reason; a longer line is cut."""
# Of a document that comes from elsewhere.
_MOST_STEPS, _MOST_RANKS, _MOST_NOTES = 10_000, 4096, 50

_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
"""Moments beyond which a clock is wrong; in UTC some of them would be in years that no date has."""

Seconds = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
# A kernel alone takes longer to launch. What believes in a step of no time can order plans no more.
StepSeconds = Annotated[float, Field(strict=True, ge=SMALLEST, le=1e9, allow_inf_nan=False)]
_Line = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_REASON, pattern=r"^[^\r\n]+$")]


class RankPeaks(BaseModel):
    """What one rank measured."""

    model_config = STRICT
    peak_allocated_bytes: CountOrZero | None = Field(
        default=None, description="Peak that PyTorch's allocator had handed out, in bytes, after the warm-up."
    )
    peak_reserved_bytes: CountOrZero | None = Field(
        default=None, description="Peak that the allocator held, in bytes, after the warm-up."
    )
    device_bytes: CountOrZero | None = Field(
        default=None, description="Memory of the device in use after the last step, in bytes, whoever uses it."
    )
    losses: Annotated[list[float | None], Field(max_length=_MOST_STEPS)] = Field(
        default=[], description="Loss of each step; null on ranks that hold no head."
    )


class Extrapolation(BaseModel):
    """How the figures of a model came about that was too large to be run."""

    model_config = STRICT
    layers_run: Annotated[list[Count], Field(min_length=2, max_length=2)] = Field(
        description="Numbers of layers of the two models that ran."
    )
    layers: Count = Field(description="Number of layers that the figures stand for.")

    @property
    def rises(self) -> bool:
        """Whether both models that ran differ, and are smaller than the one that they stand for."""
        return self.layers_run[0] < self.layers_run[1] < self.layers


class TrialMachine(BaseModel):
    """Where a trial ran."""

    model_config = STRICT
    gpu: Name = Field(
        description="The GPU: our preset's name, else the driver's; CPU where the trial ran on processors."
    )
    gpus: Count = Field(description="Number of GPUs, or of processes on processors.")
    torch: Annotated[str, Field(max_length=100)] = Field(
        default="", description="Version of PyTorch; empty if unknown."
    )
    nccl: Annotated[str, Field(max_length=100)] = Field(default="", description="Version of NCCL; empty if unknown.")
    driver: Annotated[str, Field(max_length=100)] = Field(default="", description="Version of the driver.")
    host_fingerprint: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="Digest of the host's name, which tells two machines of one kind apart."
    )


class TrialDocument(BaseModel):
    """A trial record as JSON."""

    model_config = STRICT
    row: dict[str, Any] = Field(description="The evaluate row that ran: model, cluster, training, strategy.")
    backend: Backend = Field(description="What ran it: PyTorch's own parallelism, or exported launch files.")
    status: Status = Field(description="How it ended: measured, out of memory, past its time, or with an error.")
    reason: _Line | None = Field(description="First line of the error; null where it was measured.")
    step_time_s: StepSeconds | None = Field(description="Median of the timed steps, in seconds; null unless measured.")
    step_s: Annotated[list[StepSeconds], Field(max_length=_MOST_STEPS)] = Field(
        description="Seconds of every step that ran, in order, the warm-up first."
    )
    warm_up: CountOrZero = Field(default=0, description="Steps at the beginning that do not count.")
    peak_allocated_bytes: CountOrZero | None = Field(description="Largest allocated peak of all ranks, in bytes.")
    peak_reserved_bytes: CountOrZero | None = Field(description="Largest reserved peak of all ranks, in bytes.")
    peak_device_bytes: CountOrZero | None = Field(description="Largest memory in use on a device, in bytes.")
    ranks: Annotated[list[RankPeaks], Field(max_length=_MOST_RANKS)] = Field(
        description="One entry for each rank that told its memory, in the order of ranks."
    )
    terms_s: dict[str, Seconds] | None = Field(
        description="Seconds by named term of the slowest rank's traced step, which sum to that step; null if not traced."
    )
    extrapolated: Extrapolation | None = Field(description="Set where two smaller models ran in place of this one.")
    took_s: Seconds = Field(description="Seconds from its start until the devices were free again.")
    gpu_seconds: Seconds = Field(description="The same, times the number of GPUs.")
    machine: TrialMachine = Field(description="Where it ran.")
    started_at: AwareDatetime = Field(ge=_FIRST, lt=_LAST, description="When it was started, RFC 3339.")
    notes: Annotated[list[_Line], Field(max_length=_MOST_NOTES)] = Field(
        default=[], description="What makes the figures doubtful, such as other programs on a GPU."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> TrialDocument:
        measured = self.status == "ok"
        if measured != (self.step_time_s is not None):
            given = "missing" if measured else "given"
            raise ValueError(f"step_time_s is {given}, but status is {self.status}; exactly measured trials have one")
        if measured != (self.reason is None):
            given = "given" if measured else "missing"
            raise ValueError(f"reason is {given}, but status is {self.status}; exactly trials that failed have one")
        if self.warm_up > len(self.step_s):
            raise ValueError(f"warm_up is {self.warm_up}, but only {len(self.step_s)} steps ran")
        # Nobody ran the steps of a model that was drawn on from smaller ones.
        if self.step_time_s is not None and self.extrapolated is None:
            counted = self.step_s[self.warm_up :]
            took = (
                f"the steps that count took {min(counted):g} to {max(counted):g} s"
                if counted
                else "no step that counts ran"
            )
            if not counted or not _lies_among(self.step_time_s, counted):
                raise ValueError(f"step_time_s is {self.step_time_s:g}, but {took}")
        if not isclose(self.gpu_seconds, self.took_s * self.machine.gpus, rel_tol=0.01, abs_tol=0.01):
            held = f"{self.machine.gpus} GPUs were held for {self.took_s:g} s"
            raise ValueError(f"gpu_seconds is {self.gpu_seconds:g}, but {held}")
        if self.extrapolated is not None and not self.extrapolated.rises:
            a, b = self.extrapolated.layers_run
            raise ValueError(f"extrapolated: {a}, {b} and {self.extrapolated.layers} layers do not rise")
        if unknown := sorted(set(self.terms_s or ()) - set(TIME_NAMES)):
            raise ValueError(f"terms_s names {unknown[0][:100]!r}, which is no term of time")
        if lacking := sorted({"model", "training", "strategy"} - self.row.keys()):
            raise ValueError(f"row has no {lacking[0]}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """What one trial found. The fields are those of `TrialDocument`, which says what each of them means."""

    row: Mapping[str, Any]
    backend: Backend
    status: Status
    reason: str | None = None
    step_time_s: float | None = None
    step_s: tuple[float, ...] = ()
    warm_up: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_device_bytes: int | None = None
    ranks: tuple[RankPeaks, ...] = ()
    terms_s: Mapping[str, float] | None = None
    extrapolated: Extrapolation | None = None
    took_s: float
    gpu_seconds: float
    machine: TrialMachine
    started_at: str
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, document: object, *, pointer: str = "") -> TrialRecord:
        """The record that a parsed JSON document is.

        Args:
            document: as `to_json` gives it.
            pointer: where it stands in what somebody sent, for the error.

        Raises:
            InvalidInputError: it is no trial record; each problem names its field.
        """
        read = validated(TrialDocument, document, pointer=pointer)
        values = {field.name: getattr(read, field.name) for field in fields(cls)}
        values |= {name: tuple(values[name]) for name in ("step_s", "ranks", "notes")}
        return cls(**values | {"started_at": written_time(read.started_at)})

    def to_json(self) -> dict[str, Any]:
        """Plain values, in the order of the fields, which `json` can write."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {"row": dict(self.row), "terms_s": None if self.terms_s is None else dict(self.terms_s)}
        nested = {
            "ranks": [rank.model_dump() for rank in self.ranks],
            "extrapolated": None if self.extrapolated is None else self.extrapolated.model_dump(),
            "machine": self.machine.model_dump(exclude_none=True),
        }
        return values | plain | nested | {"step_s": list(self.step_s), "notes": list(self.notes)}


def _lies_among(median_s: float, step_s: Sequence[float]) -> bool:
    # Means of intervals are written with fewer digits than their median.
    return min(step_s) * (1.0 - 1e-9) <= median_s <= max(step_s) * (1.0 + 1e-9)


def largest(values: Iterable[int | None]) -> int | None:
    """The largest of what is known; None if nothing is."""
    return max((value for value in values if value is not None), default=None)


def written_time(moment: datetime) -> str:
    """The moment as RFC 3339 in UTC, to the second."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def one_line(text: str) -> str:
    """The text as a reason: its white space joined, cut to what a record takes."""
    return " ".join(text.split())[:LONGEST_REASON]
