"""The OpenAPI document: its examples are valid and work as they stand, and what it promises is what is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_PLAN_ID
from cost_models.calibration import CalibrationDocument
from planner.schemas import EvaluateRow, PlanRequest

METHODS = {"get", "post", "delete", "put", "patch"}


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    response = client.get("/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture(scope="module", autouse=True)
def _example_is_planned(client: TestClient) -> None:
    end_at = time.monotonic() + 30.0
    while client.get(f"/v1/plans/{EXAMPLE_PLAN_ID}").json()["status"] != "succeeded":
        assert time.monotonic() < end_at
        time.sleep(0.05)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield path, method, operation


def example_of(parameter: dict[str, Any]) -> object:
    examples = list(parameter.get("examples", {}).values())
    return examples[0]["value"] if examples else None


def first_body(operation: dict[str, Any]) -> object:
    """The example that Swagger UI sends when none is chosen."""
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    return next(iter(examples.values()))["value"]


def test_the_contracts_routes_are_there(document: dict[str, Any]) -> None:
    present = {(method, path) for path, method, _ in operations(document)}
    assert present == {
        ("post", "/v1/plans"), ("get", "/v1/plans"), ("get", "/v1/plans/{plan_id}"), ("post", "/v1/judge"),
        ("get", "/v1/plans/{plan_id}/ranked/{rank}"), ("get", "/v1/plans/{plan_id}/events"),
        ("get", "/v1/plans/{plan_id}/exports/{framework}"),
        ("delete", "/v1/plans/{plan_id}"), ("post", "/v1/evaluate"),
        ("post", "/v1/calibrations"), ("get", "/v1/calibrations"), ("get", "/v1/calibrations/{calibration_id}"),
        ("delete", "/v1/calibrations/{calibration_id}"),
        ("post", "/v1/observations"), ("get", "/v1/observations"), ("get", "/v1/observations/{observation_id}"),
        ("delete", "/v1/observations/{observation_id}"),
        ("post", "/v1/keys"), ("get", "/v1/keys"), ("delete", "/v1/keys/{key_id}"),
        ("get", "/v1/agents"), ("post", "/v1/agents"), ("get", "/v1/agents/{agent_id}"),
        ("post", "/v1/agents/{agent_id}/lease"), ("post", "/v1/agents/{agent_id}/heartbeat"),
        ("post", "/v1/agents/{agent_id}/results"),
        ("get", "/v1/profiling-jobs"), ("post", "/v1/profiling-jobs"), ("get", "/v1/profiling-jobs/{job_id}"),
        ("delete", "/v1/profiling-jobs/{job_id}"),
        ("get", "/v1/tunings"), ("post", "/v1/tunings"), ("get", "/v1/tunings/{tuning_id}"), ("get", "/v1/tunings/{tuning_id}/events"),
        ("delete", "/v1/tunings/{tuning_id}"),
        ("get", "/v1/corrections"), ("get", "/v1/corrections/{correction_id}"), ("put", "/v1/corrections/{correction_id}"),
        ("get", "/v1/audit"),
        ("get", "/v1/presets/models"), ("get", "/v1/presets/gpus"), ("get", "/v1/presets/clusters"),
        ("get", "/v1/presets/frameworks"), ("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("post", "/v1/plans", {"201", "202"}), ("post", "/v1/calibrations", {"201"}), ("post", "/v1/evaluate", {"200"}),
        ("delete", "/v1/plans/{plan_id}", {"202", "204"}), ("get", "/v1/plans", {"200"}), ("get", "/metrics", {"200"}),
    ],
)  # fmt: skip
def test_the_statuses_of_success_are_the_contracts(
    document: dict[str, Any], method: str, path: str, statuses: set[str]
) -> None:
    assert {status for status in document["paths"][path][method]["responses"] if status < "400"} == statuses


def test_every_get_and_post_succeeds_with_its_examples_alone(client: TestClient, document: dict[str, Any]) -> None:
    """What the first click on "try it out" sends: required parameters and the body from the examples, nothing else."""
    tried = 0
    for path, method, operation in operations(document):
        # What is learnt follows from runs that somebody has measured, of which a new service has none.
        if method not in {"get", "post"} or path == "/v1/corrections/{correction_id}":
            continue
        filled = path
        for parameter in operation.get("parameters", []):
            if parameter["required"]:
                assert parameter["in"] == "path"
                example = example_of(parameter)
                assert example is not None, (path, parameter["name"])
                filled = filled.replace(f"{{{parameter['name']}}}", str(example))
        body = None
        if "requestBody" in operation:
            body = first_body(operation)
        response = client.request(method, filled, json=body)
        assert response.status_code in {200, 201} | (
            {202} if path in ("/v1/profiling-jobs", "/v1/tunings") else set()
        ), (
            method,
            filled,
            response.text,
        )
        tried += 1
    assert tried == 38


def test_a_call_that_makes_an_object_says_which_calls_take_its_id(document: dict[str, Any]) -> None:
    by_name = {operation["operationId"]: (path, method) for path, method, operation in operations(document)}
    for status in ("201", "202"):
        links = document["paths"]["/v1/plans"]["post"]["responses"][status]["links"]
        assert {by_name[link["operationId"]] for link in links.values()} == {
            ("/v1/plans/{plan_id}", "get"), ("/v1/plans/{plan_id}", "delete"), ("/v1/plans/{plan_id}/events", "get"),
            ("/v1/plans/{plan_id}/ranked/{rank}", "get"), ("/v1/plans/{plan_id}/exports/{framework}", "get"),
        }  # fmt: skip
        assert all(link["parameters"] == {"plan_id": "$response.body#/id"} for link in links.values())
    assert "links" not in document["paths"]["/v1/evaluate"]["post"]["responses"]["200"]


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/plans", PlanRequest), ("/v1/evaluate", EvaluateRow), ("/v1/calibrations", CalibrationDocument)],
)
def test_body_examples_are_valid(document: dict[str, Any], path: str, model: Any) -> None:
    assert model.model_validate(first_body(document["paths"][path]["post"]))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref":
                    yield value
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    found = set(references(document))
    assert len(found) > 10
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"], reference


def test_nothing_of_the_library_is_left_in_it(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "x-definitions" not in str(document)


class TestDocumentationPage:
    def test_it_loads_from_this_service_only(self, client: TestClient) -> None:
        page = client.get("/docs").text
        assert "https://" not in page
        assert "http://" not in page
        for path in ("/static/swagger/swagger-ui-bundle.js", "/static/swagger/swagger-ui.css", "/static/favicon.svg"):
            assert path in page
            response = client.get(path)
            assert response.status_code == 200
            assert len(response.content) > 100

    def test_schemas_are_folded_away(self, client: TestClient) -> None:
        assert "defaultModelsExpandDepth: 0" in client.get("/static/docs.js").text

    def test_the_root_links_to_it(self, client: TestClient) -> None:
        assert '<a href="/docs">' in client.get("/").text
