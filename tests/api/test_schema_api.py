"""Generated requests against the OpenAPI document: no server error, no undocumented status, no other shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, settings

from app.main import create_app
from app.settings import Settings

BOUNDED = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def fuzzed_schema(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("data")
    app = create_app(Settings(data_dir=folder, pool_size=1, log_level="error", max_queued_jobs=10_000))
    with TestClient(app):
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("fuzzed_schema")
