"""What agents and those who ask them send and get: registration, leases, results, profiling jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.service.api.schemas import ProblemDocument, Status
from app.service.api.tuning_schemas import LeasedTrial
from app.service.intake.examples import EXAMPLE_AGENT_ID, EXAMPLE_CALIBRATION, EXAMPLE_LEASE
from cost_models.inputs.fields import Count, CountOrZero
from cost_models.specs.training import Framework
from planner.schemas.base import ContractModel

LEAST_BUDGET_S, MOST_BUDGET_S, USUAL_BUDGET_S = 10.0, 14_400.0, 300.0
"""Below ten seconds torch is hardly loaded; in four hours the largest node has measured everything twice."""
# No control characters: names are shown in lists and terminals, and PostgreSQL stores no U+0000.
_PRINTED = r"^[^\x00-\x1f\x7f]+$"
_Name = Annotated[str, Field(strict=True, min_length=1, max_length=80, pattern=_PRINTED)]
_Gpu = Annotated[str, Field(strict=True, min_length=1, max_length=64, pattern=_PRINTED)]
_Version = Annotated[str, Field(strict=True, min_length=1, max_length=40, pattern=_PRINTED)]
_GpusPerNode = Annotated[Count, Field(le=1024)]
_NumNodes = Annotated[Count, Field(le=100_000)]
_Lease = Annotated[str, Field(strict=True, min_length=1, max_length=80, pattern=_PRINTED)]
JobKind = Literal["measurement", "trial"]
EXAMPLE_REGISTRATION: JsonDict = {
    "name": "example", "gpu": "H100-SXM-80GB", "gpus_per_node": None, "num_nodes": 1, "product_version": "0.1.0",
}  # fmt: skip
EXAMPLE_LEASE_REQUEST: JsonDict = {"instance": "example-1"}
EXAMPLE_HEARTBEAT: JsonDict = {"lease": EXAMPLE_LEASE, "parts_done": 12}
EXAMPLE_RESULT: JsonDict = {"lease": EXAMPLE_LEASE, "outcome": "measured", "calibration": EXAMPLE_CALIBRATION}
EXAMPLE_PROFILING_REQUEST: JsonDict = {"agent": EXAMPLE_AGENT_ID, "budget_s": 60}


class AgentRegistration(ContractModel):
    """What an agent says of itself when it starts. The same name registered again keeps its id."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_REGISTRATION]})

    name: _Name
    """Name of the node, the same whenever the agent starts there."""
    gpu: _Gpu
    """Name of the GPU preset, as calibrations of this node will have it."""
    gpus_per_node: _GpusPerNode | None = None
    """Number of GPUs of each node. An agent that leaves it out measures only when it is asked by its id."""
    num_nodes: _NumNodes = 1
    """Number of nodes that it measures together."""
    product_version: _Version
    """Release of meshwright on the node."""


class AgentEntry(ContractModel):
    """A registered agent."""

    id: str
    """Id of the agent, which a profiling job may name."""
    name: str
    """Name of the node."""
    gpu: str
    """Name of the GPU preset."""
    gpus_per_node: int | None
    """Number of GPUs of each node; null for an agent that measures only when it is asked by its id."""
    num_nodes: int
    """Number of nodes that it measures together."""
    product_version: str
    """Release of meshwright on the node."""
    created_at: str
    """When it first registered, RFC 3339 in UTC."""
    last_seen_at: str
    """When it was last heard of, RFC 3339 in UTC."""
    in_touch: bool
    """Whether it was heard of within the last minute."""


class RegisteredAgent(AgentEntry):
    """The answer to a registration: the agent, and how often it should call."""

    poll_s: float
    """Seconds between two requests for a lease while nothing is asked."""
    heartbeat_s: float
    """Seconds between two heartbeats while it measures."""


class AgentPage(ContractModel):
    """Agents, newest first."""

    items: list[AgentEntry]
    """The agents of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class LeaseRequest(ContractModel):
    """An agent that is ready to measure."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_LEASE_REQUEST]})

    kinds: Annotated[tuple[JobKind, ...], Field(min_length=1, max_length=2)] = ("measurement",)
    """What it can do: measure its node (`measurement`), run training steps of a plan (`trial`), or both."""
    instance: Annotated[str, Field(strict=True, min_length=1, max_length=64, pattern=_PRINTED)]
    """A text that the agent draws whenever it starts, so that a lease whose answer was lost is told from one of an earlier run."""


class LeasedJob(ContractModel):
    """A measurement to be made or a trial to be run, and the lease under which it is."""

    kind: JobKind
    """Which of the two it is."""
    id: str
    """Id of the profiling job, or a name of the trial that no other has."""
    lease: str
    """Name of the lease, which heartbeats and the result repeat."""
    attempt: int
    """Number of the attempt, from 1."""
    lease_s: float
    """Seconds without a heartbeat after which the job may be given to another agent."""
    budget_s: float
    """Seconds that the measurement or the trial may take."""
    time_limit_s: float
    """Seconds after which the agent ends it by force."""
    framework: str | None
    """The framework whose layers the host is timed at first; null for all of them, last."""
    name: str | None
    """Name of the calibration; null leaves it to the agent."""
    trial: LeasedTrial | None
    """What a trial runs; null for a measurement."""


class AgentLease(ContractModel):
    """The answer to an agent that is ready."""

    job: LeasedJob | None
    """What to measure; null while nothing is asked."""


class Heartbeat(ContractModel):
    """A sign of life from an agent that measures."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_HEARTBEAT]})

    lease: _Lease
    """The lease under which it measures."""
    parts_done: Annotated[CountOrZero, Field(le=1_000_000)] | None = None
    """Number of parts of the measurement that are finished."""


class HeartbeatAnswer(ContractModel):
    """Whether to go on."""

    go_on: bool
    """False where the job was cancelled, has ended, or is another agent's now: the measurement is then to be ended."""
    status: Status | None
    """State of the job; null where the lease is no longer its newest."""


class MeasurementFailure(ContractModel):
    """Why nothing was measured."""

    message: Annotated[str, Field(strict=True, min_length=1, max_length=2000)]
    """What was wrong."""
    hint: Annotated[str, Field(strict=True, max_length=2000)] = ""
    """What to do on the node."""


class MeasurementResult(ContractModel):
    """How a measurement ended. Sending the same result again changes nothing."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_RESULT]})

    lease: _Lease
    """The lease under which it was made."""
    # One shape for both kinds, because a result of either may wait on disk while an agent is restarted.
    outcome: Literal["measured", "failed", "given-back"]
    """`given-back`: the agent shuts down in good order, and the job is queued again."""
    calibration: dict[str, Any] | None = None
    """What was measured, as `POST /v1/calibrations` takes it."""
    trial: dict[str, Any] | None = None
    """The record of a trial, which says how the plan ended: measured, out of memory, hung or crashed."""
    error: MeasurementFailure | None = None
    """Why nothing was measured. Of a trial: why this machine could not run it just now."""


class ProfilingRequest(ContractModel):
    """A measurement that is asked of an agent: of one by its id, of the first that fits, or of any."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_PROFILING_REQUEST]})

    agent: Annotated[str, Field(strict=True, min_length=1, max_length=80, pattern=_PRINTED)] | None = None
    """Id of the agent that is to measure."""
    gpu: _Gpu | None = None
    """Name of the GPU preset that is to be measured."""
    gpus_per_node: _GpusPerNode | None = None
    """Number of GPUs of each node that is to be measured."""
    num_nodes: _NumNodes | None = None
    """Number of nodes that are to be measured together."""
    budget_s: Annotated[float, Field(strict=True, ge=LEAST_BUDGET_S, le=MOST_BUDGET_S, allow_inf_nan=False)] = (
        USUAL_BUDGET_S
    )
    """Seconds that the measurement may take."""
    framework: Framework | None = None
    """The framework that will be planned: what its layers cost the host is measured first."""
    name: _Name | None = None
    """Name of the calibration; by default that of the job."""


class AskedMeasurement(ContractModel):
    """What was asked. Fields that are null leave the choice open."""

    agent: str | None
    """Id of the agent that is to measure."""
    gpu: str | None
    """Name of the GPU preset."""
    gpus_per_node: int | None
    """Number of GPUs of each node."""
    num_nodes: int | None
    """Number of nodes that are measured together."""
    budget_s: float
    """Seconds that the measurement may take."""
    framework: str | None
    """The framework that will be planned."""
    name: str | None
    """Name of the calibration."""


class ProfilingJobDocument(ContractModel):
    """A profiling job."""

    id: str
    """Id of the job."""
    status: Status
    """State of the job."""
    created_at: str
    """When it was asked, RFC 3339 in UTC."""
    started_at: str | None
    """When the newest attempt began, RFC 3339 in UTC; null until then."""
    finished_at: str | None
    """When it ended, RFC 3339 in UTC; null until then."""
    request: AskedMeasurement
    """What was asked."""
    agent: str | None
    """Id of the agent that measures or has measured; null until one has begun."""
    agents_in_touch: int
    """Number of agents that could take it and were heard of within the last minute; a queued job waits while there is none."""
    attempts: int
    """Number of times that it was begun; an agent that falls silent costs one."""
    parts_done: int | None
    """Number of parts that the newest attempt has finished; null before it has said so."""
    calibration: str | None
    """Id of the calibration that was measured; null until the job has succeeded."""
    error: ProblemDocument | None
    """Why the job failed."""


class ProfilingJobPage(ContractModel):
    """Profiling jobs, newest first."""

    items: list[ProfilingJobDocument]
    """The jobs of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""
