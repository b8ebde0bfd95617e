"""What the service sends beside the planner's own documents: problems, lists, events.

These models describe the answers in the OpenAPI document. The routes send plain dictionaries or stored text, so that nothing
is parsed and validated a second time on its way out; tests hold the two equal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.errors import STATUSES
from cost_models.calibration import CalibrationDocument
from planner.schemas import PlanResponse


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ProblemEntry(_Document):
    """One thing wrong with the input."""

    pointer: str
    """JSON pointer into the body, or `/query/…`, `/path/…`, `/header/…`."""
    message: str
    hint: str
    code: str


class ProblemDocument(_Document):
    """RFC 9457 problem details: the shape of every error."""

    type: str
    title: str
    status: int
    detail: str
    code: Annotated[str, Field(json_schema_extra={"enum": sorted({cls.code for cls in STATUSES})})]
    """Stable name of the kind of error, in kebab-case."""
    hint: str
    """What to do."""
    errors: list[ProblemEntry]
    request_id: str | None


Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class PlanDocument(PlanResponse):
    """A plan without per-stage detail. Fields that are known only once the job has succeeded are empty until then."""

    error: ProblemDocument | None = None
    """Why the job failed."""


class LaunchFileDocument(_Document):
    """One text file of a launch."""

    path: str
    """Relative to the folder of the launch."""
    content: str


class LaunchFiles(_Document):
    """The launch files of one plan."""

    files: list[LaunchFileDocument]


class Headline(_Document):
    """The best plan in a few numbers, which are null where no plan was found."""

    num_plans: int
    step_time_s: float | None
    tokens_per_s_per_gpu: float | None
    num_gpus_used: int | None


class PlanEntry(_Document):
    """A plan in a list."""

    id: str
    status: Status
    created_at: str
    finished_at: str | None
    request_digest: str
    headline: Headline | None


class PlanPage(_Document):
    """Plans, newest first."""

    items: list[PlanEntry]
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class PlanState(_Document):
    """The state of a plan's job after a request to cancel it."""

    id: str
    status: Status


class PlanEvent(_Document):
    """One event of a plan's stream. Seconds are those of a training step."""

    seq: int
    type: Literal["queued", "started", "progress", "succeeded", "failed", "cancelled"]
    at: str
    evaluated: float | None
    """Strategies priced so far."""
    best_s: float | None
    bound_s: float | None
    """Seconds that no strategy can undercut."""


def _add_id(schema: dict[str, Any]) -> None:
    schema["properties"]["id"] = {
        "type": "string",
        "description": "Digest of the other fields; the service computes it if it is missing.",
    }


class CalibrationFile(CalibrationDocument):
    """A calibration as it is stored and sent: the document with its id beside its fields."""

    model_config = ConfigDict(json_schema_extra=_add_id)


class CalibrationEntry(_Document):
    """A calibration in a list."""

    id: str
    created_at: str
    gpu: str
    gpus_per_node: int | None


class CalibrationPage(_Document):
    """Calibrations, newest first."""

    items: list[CalibrationEntry]
    next_cursor: str | None


class PresetEntry(_Document):
    """One preset: what it sets, and the facts beside it, such as sources and dates."""

    name: str
    spec: dict[str, Any]
    facts: dict[str, Any]


class PresetList(_Document):
    """All presets of a kind."""

    items: list[PresetEntry]


class FrameworkRule(_Document):
    """A reason why a framework would not run a strategy. Its texts are templates, filled from the strategy that breaks it."""

    code: str
    message: str
    hint: str
    smallest_change: str
    source: str
    """The part of the framework that enforces the rule."""
    since: str | None
    """First release with this rule; null where every release has it."""
    until: str | None
    """First release without this rule; null where the newest release still has it."""


class FrameworkEntry(_Document):
    """One framework."""

    name: str
    default_version: str
    versions: list[dict[str, str]]
    """Known releases with the month in which each came out, oldest first."""
    strategy_defaults: dict[str, Any]
    training_defaults: dict[str, Any]
    """By field: a value, or a list of values with the condition of each, of which the first that holds applies."""
    choices: dict[str, Any]
    """By field of a strategy: the values that the framework can be told."""
    vocabulary_multiple_per_tp: int
    """The vocabulary is padded to a multiple of this times tp."""
    rules: list[FrameworkRule]


class FrameworkList(_Document):
    """All frameworks."""

    items: list[FrameworkEntry]


class Health(_Document):
    """The health of the service."""

    status: Literal["ok"]
    version: str
    workers: int | None = Field(default=None, description="Worker processes that run jobs.")
