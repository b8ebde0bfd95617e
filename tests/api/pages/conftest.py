"""What tests of pages share: a browser's headers, keys, and a filled form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.service.db.keys import create_key
from app.service.main import create_app
from app.settings import Settings

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = {**BROWSER, "Origin": "http://testserver"}
"""Headers of a form that a page of the service sends."""


@pytest.fixture
def form() -> dict[str, str]:
    """The fields of a small request, as somebody fills them in."""
    return {
        "model.by": "preset", "model.preset": "llama-3.1-8b",
        "cluster.by": "gpu", "cluster.gpu": "H100-SXM-80GB", "cluster.num_nodes": "1", "cluster.gpus_per_node": "8",
        "training.seq_length": "4k", "training.global_batch_size": "64", "training.precision": "bf16",
        "training.framework": "megatron", "top_k": "3",
    }  # fmt: skip


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that everybody can reach, and that therefore needs keys."""
    folder = tmp_path_factory.mktemp("data")
    # No key is remembered, so that one that a test revokes in the database is refused at once.
    settings = Settings(data_dir=folder, host="0.0.0.0", pool_size=1, log_level="error", key_memory_s=0)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


@pytest.fixture
def key_of(public: TestClient) -> Iterator[dict[str, str]]:
    """Keys of two tenants by their names."""
    engine = public.app.state.service.engine  # type: ignore[attr-defined]
    public.cookies.clear()
    yield {tenant: create_key(engine, tenant=tenant, name="test")[1] for tenant in ("alice", "bob")}
    public.cookies.clear()


@pytest.fixture
def browser() -> dict[str, str]:
    """Headers of a browser that follows a link."""
    return dict(BROWSER)


@pytest.fixture
def own() -> dict[str, str]:
    """Headers of a browser that sends a form of ours."""
    return dict(OWN)
