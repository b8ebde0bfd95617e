"""From a posted request to a job: how long it may take, and what the job is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine
from app.service.db.migrate import upgrade
from app.service.intake.plan_requests import prepare_request
from cost_models.errors import InvalidInputError

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
}


@pytest.fixture
def calibrations(tmp_path: Path) -> Iterator[CalibrationStore]:
    engine = build_engine(f"sqlite:///{tmp_path / 'service.db'}")
    upgrade(engine)
    yield CalibrationStore(engine)
    engine.dispose()


@pytest.mark.parametrize(
    ("asked_s", "limit_s"),
    [
        (None, 30.0),  # the service's own
        (10.0, 15.0),  # 5 s in which the search stops by itself and its answer is written
        (25.0, 30.0),
        (26.0, 30.0),  # never longer than the service allows
        (3600.0, 30.0),
    ],
)
def test_a_job_ends_soon_after_its_search_and_never_after_the_services_limit(
    calibrations: CalibrationStore, asked_s: float | None, limit_s: float
) -> None:
    request = REQUEST | ({} if asked_s is None else {"time_limit_s": asked_s})
    found = prepare_request(request, tenant="a", calibrations=calibrations, job_time_limit_s=30.0)
    assert found.time_limit_s == limit_s
    assert json.loads(found.payload)["request"] == request


def test_an_unknown_calibration_is_refused_at_its_place(calibrations: CalibrationStore) -> None:
    request = REQUEST | {"cluster": {**REQUEST["cluster"], "calibration": "nobodys"}}
    with pytest.raises(InvalidInputError) as caught:
        prepare_request(request, tenant="a", calibrations=calibrations, job_time_limit_s=30.0)
    assert [(problem.pointer, problem.code) for problem in caught.value.problems] == [
        ("/cluster/calibration", "calibration")
    ]
