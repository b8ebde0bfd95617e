"""Named requests for each call that takes a body, read from `requests.json`; the first of each is sent when none is chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from app.service.api.agent_schemas import (
    EXAMPLE_HEARTBEAT,
    EXAMPLE_LEASE_REQUEST,
    EXAMPLE_PROFILING_REQUEST,
    EXAMPLE_REGISTRATION,
    EXAMPLE_RESULT,
)
from app.service.api.correction_schemas import EXAMPLE_SWITCH
from app.service.api.key_documents import EXAMPLE_KEY_REQUEST
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.intake.tuning_requests import EXAMPLE_TUNING_REQUEST
from cost_models.hardware import document_of
from planner.schemas.judgement import EXAMPLE_JUDGE_REQUEST
from planner.schemas.observation import EXAMPLE_OBSERVATION_REQUEST
from planner.schemas.plan_request import EXAMPLE_REQUEST
from planner.schemas.row import EXAMPLE_ROW


@dataclass(frozen=True, slots=True)
class Example:
    """One request: its line in the menu, what it shows, and the body."""

    title: str
    meaning: str
    body: Any


Examples = Mapping[str, Example]

# Every tenant starts with what these describe, so the first click finds an answer that is already stored.
_FIRST: Mapping[str, Any] = {
    "/v1/plans": EXAMPLE_REQUEST,
    "/v1/evaluate": EXAMPLE_ROW,
    "/v1/judge": EXAMPLE_JUDGE_REQUEST,
    "/v1/calibrations": EXAMPLE_CALIBRATION,
    "/v1/agents": EXAMPLE_REGISTRATION,
    "/v1/agents/{agent_id}/lease": EXAMPLE_LEASE_REQUEST,
    "/v1/agents/{agent_id}/heartbeat": EXAMPLE_HEARTBEAT,
    "/v1/agents/{agent_id}/results": EXAMPLE_RESULT,
    "/v1/observations": EXAMPLE_OBSERVATION_REQUEST,
    "/v1/profiling-jobs": EXAMPLE_PROFILING_REQUEST,
    "/v1/tunings": EXAMPLE_TUNING_REQUEST,
    "/v1/corrections/{correction_id}": EXAMPLE_SWITCH,
    "/v1/keys": EXAMPLE_KEY_REQUEST,
}


def _read() -> dict[str, Examples]:
    # A data file, because the examples name frameworks, and code that does so would have to change with each new one.
    kept = json.loads(Path(__file__).with_name("requests.json").read_text(encoding="utf-8"))
    return {
        path: {name: Example(**{"body": _FIRST[path], **each}) for name, each in examples.items()}
        for path, examples in kept.items()
    }


REQUESTS: Mapping[str, Examples] = _read()
"""By the path that they are posted to."""


@cache
def example_calibrations() -> frozenset[str]:
    """Ids of the calibrations that the examples hold, whose numbers were measured nowhere."""
    return frozenset(document_of(example.body).id for example in REQUESTS["/v1/calibrations"].values())
