"""What the service sends of observations beside the observation itself."""

from __future__ import annotations

from planner.schemas.base import ContractModel
from planner.schemas.observation import ObservationFlag


class ObservationEntry(ContractModel):
    """An observation in a list."""

    id: str
    """Id of the observation."""
    created_at: str
    """When it was stored, RFC 3339 in UTC."""
    framework: str
    """Framework of the run."""
    gpu: str
    """GPU of the run."""
    used: bool
    """Whether predictions are corrected by it."""
    step_time_s: float
    """Measured seconds of a step."""
    peak_memory_gib: float | None
    """Measured peak memory of a GPU in GiB; null where nobody told it."""
    predicted_step_time_s: float | None
    """Predicted seconds of a step; null where there is no prediction."""
    flags: list[ObservationFlag]
    """What is special about it."""


class ObservationPage(ContractModel):
    """Observations, newest first."""

    items: list[ObservationEntry]
    """The observations of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""
