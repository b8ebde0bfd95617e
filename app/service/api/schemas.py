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
    """What is wrong, with the value."""
    hint: str
    """What to do."""
    code: str
    """Stable name of the mistake, in kebab-case."""


class ProblemDocument(_Document):
    """RFC 9457 problem details: the shape of every error."""

    type: str
    """A name for the kind of error: `urn:meshwright:error:` and its code."""
    title: str
    """The HTTP status in words."""
    status: int
    """HTTP status: a number from 400."""
    detail: str
    """What is wrong, in a sentence."""
    code: Annotated[str, Field(json_schema_extra={"enum": sorted({cls.code for cls in STATUSES})})]
    """Stable name of the kind of error, in kebab-case."""
    hint: str
    """What to do."""
    errors: list[ProblemEntry]
    """Each thing that is wrong with the input."""
    request_id: str | None
    """Id of the request, as it stands in the service's log."""
    quota: str | None = None
    """With status 429, what there is too much of: `requests`, `uploads`, `unfinished_jobs`, `waiting_answers`, `agents`, `plans` or `stored_bytes`."""
    limit: int | None = None
    """With status 429, the largest number allowed."""
    used: int | None = None
    """With status 429, the number that is used now."""


Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class PlanDocument(PlanResponse):
    """A plan without per-stage detail. Fields that are known only once the job has succeeded are empty until then."""

    error: ProblemDocument | None = None
    """Why the job failed."""
    priority: int | None = None
    """A number; of your own queued plans the one with the highest starts first. Only a plan that has not succeeded tells it."""
    position: int | None = None
    """Number of a queued plan in the line of everybody's plans: 1 starts next. Plans that are asked later may move it back."""
    estimated_start_at: str | None = None
    """When a queued plan is expected to start, by the time that recent ones took, RFC 3339 in UTC; null while none has ended."""


class LaunchFileDocument(_Document):
    """One text file of a launch."""

    path: str
    """Relative to the folder of the launch."""
    content: str
    """The file's text."""


class LaunchFiles(_Document):
    """The launch files of one plan."""

    files: list[LaunchFileDocument]
    """The files, in the order in which one would read them."""


class Headline(_Document):
    """The best plan in a few numbers, which are null where no plan was found."""

    num_plans: int
    """Number of ranked plans."""
    step_time_s: float | None
    """Seconds of a step."""
    tokens_per_s_per_gpu: float | None
    """Tokens per second and GPU."""
    num_gpus_used: int | None
    """Number of GPUs."""


class PlanEntry(_Document):
    """A plan in a list."""

    id: str
    """Id of the plan."""
    status: Status
    """State of the job."""
    created_at: str
    """When it was asked, RFC 3339 in UTC."""
    finished_at: str | None
    """When it ended, RFC 3339 in UTC; null until then."""
    request_digest: str
    """Digest of the request; equal requests have the same."""
    headline: Headline | None
    """The best plan in a few numbers; null until the job has succeeded."""


class PlanPage(_Document):
    """Plans, newest first."""

    items: list[PlanEntry]
    """The plans of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class PlanState(_Document):
    """The state of a plan's job after a request to cancel it."""

    id: str
    """Id of the plan."""
    status: Status
    """State of the job."""


class PlanEvent(_Document):
    """One event of a plan's stream. Seconds are those of a training step."""

    seq: int
    """Number of the event, from 1."""
    type: Literal["queued", "started", "progress", "succeeded", "failed", "cancelled"]
    """What happened."""
    at: str
    """When, RFC 3339 in UTC."""
    evaluated: float | None
    """Number of strategies priced so far."""
    best_s: float | None
    """Seconds of a step of the best plan so far."""
    bound_s: float | None
    """Seconds of a step that no strategy can undercut."""


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
    """Id of the calibration: its digest."""
    created_at: str
    """When it was stored, RFC 3339 in UTC."""
    gpu: str
    """Name of the GPU preset."""
    gpus_per_node: int | None
    """Number of GPUs of a node; null where `auto` must not choose it."""


class CalibrationPage(_Document):
    """Calibrations, newest first."""

    items: list[CalibrationEntry]
    """The calibrations of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class PresetEntry(_Document):
    """One preset: what it sets, and the facts beside it, such as sources and dates."""

    name: str
    """The name that a request gives."""
    spec: dict[str, Any]
    """The fields that it sets, as a request would write them."""
    facts: dict[str, Any]
    """What is known beside them: sources, dates, checks."""


class PresetList(_Document):
    """All presets of a kind."""

    items: list[PresetEntry]
    """The presets."""


class FrameworkRule(_Document):
    """A reason why a framework would not run a strategy. Its texts are templates, filled from the strategy that breaks it."""

    code: str
    """Stable name of the reason, in kebab-case."""
    message: str
    """What is wrong."""
    hint: str
    """What to do."""
    smallest_change: str
    """The smallest change that satisfies the rule."""
    source: str
    """The part of the framework that enforces the rule."""
    since: str | None
    """First release with this rule; null where every release has it."""
    until: str | None
    """First release without this rule; null where the newest release still has it."""


class FrameworkEntry(_Document):
    """One framework."""

    name: str
    """The name that a request gives."""
    default_version: str
    """The release that is assumed where none is given."""
    versions: list[dict[str, str]]
    """Known releases with the month in which each came out, oldest first."""
    strategy_defaults: dict[str, Any]
    """What a strategy's fields are where it leaves them out."""
    training_defaults: dict[str, Any]
    """By field: a value, or a list of values with the condition of each, of which the first that holds applies."""
    choices: dict[str, Any]
    """By field of a strategy: the values that the framework can be told."""
    vocabulary_multiple_per_tp: int
    """Number by which, times tp, the padded vocabulary is divisible."""
    rules: list[FrameworkRule]
    """What it refuses to run."""


class FrameworkList(_Document):
    """All frameworks."""

    items: list[FrameworkEntry]
    """The frameworks."""


class Health(_Document):
    """The health of the service."""

    status: Literal["ok"]
    """Always ok: what is not ok answers with another status."""
    version: str
    """Release of meshwright."""
    workers: int | None = Field(default=None, description="Number of worker processes that run jobs, on all machines.")
