"""A run that somebody has measured: what is told of it, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from cost_models.frameworks.log_formats import LOG_FORMATS
from cost_models.inputs.fields import SMALLEST
from planner.schemas.base import ContractModel
from planner.schemas.evaluation import Verdict
from planner.schemas.row import EXAMPLE_ROW, EvaluateRow

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:
    FormatName = Literal[tuple(LOG_FORMATS)]
MemoryCounter = Literal["allocated", "reserved", "device"]
MeasuredKind = Literal["step", "interval_mean", "rolling", "cumulative"]
ObservationFlag = Literal[
    "coarse", "cumulative", "different-batch", "few-steps", "implausible", "line-cut", "mixed-formats", "not-predicted", "resumed",
    "runs-differ", "several-runs", "sum-of-parts", "unclear-numbers", "unsteady", "warm-up-only",
]  # fmt: skip
EXAMPLE_OBSERVATION_REQUEST: JsonDict = {
    "row": EXAMPLE_ROW,
    "measured": {"step_time_s": 5.27, "peak_memory_gib": 13.4, "memory_counter": "allocated"},
}
_Seconds = Annotated[float, Field(ge=SMALLEST, lt=1e7)]
_Line = Annotated[str, Field(max_length=300)]


class MeasuredRun(ContractModel):
    """What a run was measured to take. All but the first field may be left out."""

    step_time_s: _Seconds
    """Median seconds of an optimizer step in steady state."""
    peak_memory_gib: Annotated[float, Field(ge=SMALLEST, lt=1e5)] | None = None
    """Peak memory of a GPU in GiB, the largest among those that were looked at."""
    memory_counter: MemoryCounter | None = None
    """Which peak it is: what PyTorch's allocator handed out (where nothing is said), what it held, or what the driver saw in use."""
    memory_rank: Annotated[int, Field(ge=0, lt=10_000_000)] | Literal["worst"] | None = None
    """Rank whose peak it is, or "worst" for the largest of several; null where nobody knows."""
    kind: MeasuredKind | None = None
    """What the printed times are of: a step, the mean of an interval, of a rolling window, or of the whole run."""
    num_steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Number of steps that the time is the median of."""
    digits: Annotated[int, Field(ge=1, le=50)] | None = None
    """Number of significant digits of the printed times."""
    resolution_fraction: Annotated[float, Field(ge=0)] | None = None
    """Distance of neighbouring printable times, as a share of the step."""


class ObservationSource(ContractModel):
    """Where the numbers come from. Of a log nothing else is kept."""

    format: FormatName
    """Format of the log that was read; `numbers` where they were told."""
    log_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Digest of the log's bytes."""
    lines: Annotated[list[_Line], Field(max_length=5)] = Field(default_factory=list)
    """The first lines that were read."""


class ObservationRequest(ContractModel):
    """A run of yours: its row, and either its log or its numbers."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_OBSERVATION_REQUEST]})

    row: EvaluateRow
    """What was run, as for an evaluation."""
    log: Annotated[str, Field(min_length=1)] | None = None
    """The text that the run printed, or a `trainer_state.json`. It is read, and not kept."""
    format: FormatName | None = None
    """Format of the log; without it, it is found out."""
    measured: MeasuredRun | None = None
    """The numbers, where there is no log, or where it was read elsewhere (`meshwright observe --server`)."""
    source: ObservationSource | None = None
    """Where the numbers come from; beside `measured` only."""
    flags: Annotated[list[ObservationFlag], Field(max_length=20)] = Field(default_factory=list)
    """What the reader of the log noticed; beside `measured` only."""


class PredictedRun(ContractModel):
    """What is predicted for the same row."""

    step_time_s: float
    """Seconds of a step."""
    step_time_range_s: tuple[float, float]
    """80 % interval of it, in seconds."""
    peak_memory_gib: float
    """Peak memory in GiB by the counter that was measured."""
    verdict: Verdict
    """Whether the plan was expected to run."""
    calibration: str | None
    """Calibration that the prediction rests on; null for the reference data of the GPU."""


class Observation(ContractModel):
    """A measured run beside its prediction."""

    id: str
    """Made of its row and its numbers: the same run told twice is one observation."""
    created_at: str
    """When it was stored, RFC 3339 in UTC."""
    product_version: str
    """Release that read it and made the prediction."""
    row: dict[str, Any]
    """What was run."""
    measured: MeasuredRun
    """What was measured."""
    source: ObservationSource
    """Where the numbers come from."""
    predicted: PredictedRun | None
    """The prediction for the same row; null where there is none."""
    used: bool
    """Whether predictions are corrected by it."""
    flags: list[ObservationFlag]
    """What is special about it."""
    remarks: list[str]
    """The same in sentences, one for each flag."""
