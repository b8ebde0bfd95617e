"""Agents on the page of calibrations: who can be asked, the button that asks, and what came of it."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_CALIBRATION

NODE = {"name": "<b>rack 7</b>", "gpu": "H100-SXM-80GB", "gpus_per_node": 8, "num_nodes": 2, "product_version": "0.1.0"}


def test_a_node_is_asked_from_the_page(client: TestClient, browser: dict[str, str], own: dict[str, str]) -> None:
    assert "Nodes that measure" not in client.get("/calibrations", headers=browser).text, "the example is no node"
    agent = client.post("/v1/agents", json=NODE).json()["id"]
    page = client.get("/calibrations", headers=browser).text
    assert "Measure &lt;b&gt;rack 7&lt;/b&gt;" in page
    assert "2 × 8 H100-SXM-80GB" in page
    assert "<b>rack" not in page

    path = f"/agents/{agent}/measure"
    assert client.post(path, headers=browser).status_code == 403, "not from a page of the service"
    assert client.post("/agents/agent-unknown/measure", headers=own).status_code == 404
    asked = client.post(path, headers=own, follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (303, "/calibrations#agents")
    assert "waits for its node" in client.get("/calibrations", headers=browser).text

    lease = client.post(f"/v1/agents/{agent}/lease", json={"instance": "i"}).json()["job"]["lease"]
    client.post(f"/v1/agents/{agent}/heartbeat", json={"lease": lease, "parts_done": 12})
    assert "measuring, 12 parts done" in client.get("/calibrations", headers=browser).text
    result = {"lease": lease, "outcome": "measured", "calibration": {**EXAMPLE_CALIBRATION, "name": "of rack 7"}}
    ended = client.post(f"/v1/agents/{agent}/results", json=result).json()
    page = client.get("/calibrations", headers=browser).text
    assert f'<a href="/calibrations/{ended["calibration"]}">' in page.partition("Asked lately")[2]
    assert "<b>rack" not in page
