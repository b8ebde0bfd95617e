"""The volume of ZeRO++ over HTTP: a quarter of what plain stage 3 moves between nodes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

ROW: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"},
}
HPZ = {"zero": 3, "micro_batch_size": 1, "recompute": "full", "zero_param_shard_size": 8}
EVERY = {**HPZ, "zero_quantized_weights": True, "zero_quantized_gradients": True}


def test_zero_plus_moves_three_quarters_of_the_parameters(client: TestClient) -> None:
    """Wang et al. 2023: 3M for plain stage 3, 2M with hpZ, 0.75M with all three. Scales add 4 bytes to 8,000 weights."""
    given = [{**ROW, "strategy": strategy} for strategy in (HPZ, EVERY)]
    hpz, every = client.post("/v1/evaluate", json=given).json()
    assert (hpz["mathematics"], every["mathematics"]) == ("exact", "rounded")
    assert hpz["node_traffic"]["first"] == 2.0
    assert every["node_traffic"]["parameter_bytes"] == 2 * 8_030_261_248
    assert every["node_traffic"]["first"] == pytest.approx(0.75 + 4 / 8000 / 2, rel=1e-12)
    assert every["node_traffic"]["later"] == 0.25
    assert [each["what"].rpartition(" ")[2] for each in every["changes"]] == ["qwZ).", "qgZ)."]


def test_zenflow_is_evaluated_and_planned_apart(client: TestClient) -> None:
    zenflow = {"zero": 2, "micro_batch_size": 1, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}
    found = client.post("/v1/evaluate", json={**ROW, "strategy": zenflow}).json()
    assert found["mathematics"] == "changed"
    asked = {**ROW, "constraints": {"fixed": {"offload": zenflow["offload"]}}}
    plan = client.post("/v1/plans", json=asked).json()
    assert {each["evaluation"]["mathematics"] for each in plan["plans"]} == {"exact"}
    assert [each["evaluation"]["mathematics"] for each in plan["changed_plans"]][:1] == ["changed"]
    refused = client.post("/v1/plans", json={**asked, "training": {**ROW["training"], "framework": "torchtitan"}})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
    assert [each["pointer"] for each in refused.json()["errors"]] == ["/constraints/fixed/offload/optimizer_overlap"]
