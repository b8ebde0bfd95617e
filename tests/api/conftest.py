"""Services in process: one with the real planner for a whole module, and one whose plans take as long as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.db.plans import write_result
from app.service.jobs.runner import Kind
from app.service.main import create_app
from app.settings import Settings
from live_service import listening

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "top_k": 3,
}


@pytest.fixture
def asked() -> dict[str, Any]:
    """A small plan request."""
    return {**REQUEST}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service on loopback, with the real planner."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), pool_size=1, log_level="error")
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture
def slow_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a service for `slow_plans`, with no examples in the way."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return Settings(data_dir=tmp_path, pool_size=1, log_level="error", seed_examples=False, max_queued_jobs=4)


@pytest.fixture
def slow_client(slow_settings: Settings) -> Iterator[TestClient]:
    """A service whose plans take `seed` tenths of a second."""
    with TestClient(create_app(slow_settings, kinds=SLOW)) as client:
        yield client


SLOW = {"plan": Kind("slow_plans:run", write_result)}


@pytest.fixture
def slow_kinds() -> dict[str, Kind]:
    """The kinds of `slow_client`, to start the same service again."""
    return SLOW


@pytest.fixture(scope="module")
def live_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a service that listens, with a ready worker."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), pool_size=1, log_level="error", max_queued_jobs=10_000
    )
    with listening(settings) as address:
        yield address
