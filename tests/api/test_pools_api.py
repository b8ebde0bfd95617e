"""Pools over HTTP: planned, priced, refused by name; a pool's own calibration."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import example_calibration
from planner.schemas import Evaluation, RankedPlan

POOLS = [
    {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
]


@pytest.fixture
def pooled(asked: dict[str, Any]) -> dict[str, Any]:
    """A small plan request on two pools."""
    return {**asked, "cluster": {"pools": POOLS}, "constraints": {"allowed": {"tp": [2, 4], "vpp": [1]}}}


def test_plans_on_pools_say_where_every_stage_lies(client: TestClient, pooled: dict[str, Any]) -> None:
    response = client.post("/v1/plans", json=pooled)
    assert response.status_code == 201, response.text
    plan = response.json()
    assert plan["search"]["proof"]["optimal"]
    assert set(plan["plans"][0]["strategy"]["pool_per_stage"]) == {"old", "new"}
    ranked = RankedPlan.model_validate_json(client.get(f"/v1/plans/{plan['id']}/ranked/1").text)
    assert ranked.evaluation.memory is not None
    assert {stage.pool for stage in ranked.evaluation.memory.stages or ()} == {"old", "new"}
    assert client.post("/v1/plans", json=pooled).json()["id"] == plan["id"]


def test_a_row_on_pools_is_priced(client: TestClient, pooled: dict[str, Any]) -> None:
    strategy = {"tp": 4, "pp": 2, "dp": 2, "micro_batch_size": 1, "pool_per_stage": ["old", "new"], "recompute": "full"}
    row = {part: pooled[part] for part in ("model", "cluster", "training")} | {"strategy": strategy}
    evaluation = Evaluation.model_validate_json(client.post("/v1/evaluate", json=row).text)
    assert evaluation.num_gpus_used == 16
    assert evaluation.step_time_s is not None


@pytest.mark.parametrize(
    ("cluster", "pointer", "says"),
    [
        ({"pools": []}, "/cluster/pools", "empty"),
        ({"pools": [{**POOLS[0], "num_nodes": 0}]}, "/cluster/pools/0/num_nodes", "pool 'old' is empty"),
        ({"pools": POOLS, "gpu": "H100-SXM-80GB"}, "/cluster/gpu", "beside pools"),
        ({"pools": [*POOLS, POOLS[0]]}, "/cluster/pools/2/name", "two pools"),
    ],
)
def test_wrong_pools_are_refused_before_searching(
    client: TestClient, pooled: dict[str, Any], cluster: dict[str, Any], pointer: str, says: str
) -> None:
    response = client.post("/v1/plans", json=pooled | {"cluster": cluster})
    assert response.status_code == 422
    error = response.json()["errors"][0]
    assert error["pointer"] == pointer
    assert says in error["message"]


def test_what_is_not_modelled_on_pools_is_refused(client: TestClient, pooled: dict[str, Any]) -> None:
    response = client.post("/v1/plans", json=pooled | {"include": ["pareto"]})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/include/0")


def test_a_pool_has_its_own_calibration(client: TestClient, pooled: dict[str, Any]) -> None:
    """The newest one of a pool's GPU and node shape is found for that pool; one that is not there is refused."""
    document = example_calibration().model_dump(mode="json")
    stored = client.post("/v1/calibrations", json=document)
    assert stored.status_code in (200, 201), stored.text
    with_auto = {"pools": [POOLS[0], {**POOLS[1], "calibration": "auto"}]}
    plan = client.post("/v1/plans", json=pooled | {"cluster": with_auto}).json()
    own = [pool.get("calibration") for pool in plan["request"]["cluster"]["pools"]]
    assert own[0] is None
    missing = {"pools": [{**POOLS[0], "calibration": "no-such-one"}, POOLS[1]]}
    response = client.post("/v1/plans", json=pooled | {"cluster": missing})
    assert response.status_code == 422
    error = response.json()["errors"][0]
    assert error["pointer"] == "/cluster/pools/0/calibration"
    assert error["message"].startswith("pool 'old': ")


def test_the_openapi_document_describes_pools(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert "pools" in schemas["ClusterInput"]["properties"]
    assert {"gpu", "num_nodes", "gpus_per_node", "name"} <= schemas["NodesInput"]["properties"].keys()
    assert {"pool", "capacity_bytes"} <= schemas["StageReport"]["properties"].keys()
