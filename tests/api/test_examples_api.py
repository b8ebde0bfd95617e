"""Every example of the OpenAPI document: each request is accepted and answers well, and each answer is what is sent today."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from app.service.api.examples.answers import answers
from app.service.api.examples.requests import REQUESTS
from app.service.main import create_app
from app.settings import Settings
from scripts.response_examples import comparable, recorded

PLANS, EVALUATE, JUDGE = REQUESTS["/v1/plans"], REQUESTS["/v1/evaluate"], REQUESTS["/v1/judge"]
CALIBRATIONS = REQUESTS["/v1/calibrations"]
BEST = {
    "preset": {"pp": 1, "zero": 1},
    "hf_config": {"dp": 8},
    "moe": {"ep": 8},
    "long_context": {"cp": 4},
    "pools": {"pp": 2},
    "include": {"dp": 16},
    "offload": {"dp": 2},
    "adapter": {"tp": 1, "dp": 1},
    "cost": {"dp": 8},
}
"""What the best plan of each example shows: the point of the example."""


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    """Of a schema that refers to the document's components."""
    whole = Resource.from_contents(document, default_specification=DRAFT202012)
    relative = {**schema, "components": document["components"]}
    return Draft202012Validator(relative, registry=Registry().with_resource("", whole))


def shown(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every example in the document: where it stands, its schema, and the example."""
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            places = [(f"{status}", response) for status, response in call["responses"].items()]
            for place, holder in [("request", call.get("requestBody", {})), *places]:
                for media, content in holder.get("content", {}).items():
                    schema = content.get("schema", {}) if "json" in media else {"type": "string"}
                    found = [each["value"] for each in content.get("examples", {}).values()]
                    for value in [*found, *([content["example"]] if "example" in content else [])]:
                        yield f"{method} {path} {place} {media}", schema, value


def test_every_call_shows_an_answer(document: dict[str, Any]) -> None:
    """Without one, Swagger UI invents an answer from the schema: a plan that fits and yet has reasons against it."""
    places = {place for place, _, _ in shown(document)}
    missing = [
        f"{method} {path} {status} {media}"
        for path, methods in document["paths"].items()
        for method, call in methods.items()
        for status, response in call["responses"].items()
        for media in response.get("content", {})
        if media != "application/zip" and f"{method} {path} {status} {media}" not in places
    ]
    assert missing == []


def test_every_example_agrees_with_its_schema(document: dict[str, Any]) -> None:
    examples = list(shown(document))
    assert len(examples) > 100
    wrong = [
        f"{place}: {error.json_path} {error.message[:200]}"
        for place, schema, value in examples
        for error in validator(document, schema).iter_errors(value)
    ]
    assert wrong == []


def test_the_answers_are_those_of_today(tmp_path: Path) -> None:
    """Not so? `python -m scripts.response_examples write`, and look at the difference."""
    with TestClient(create_app(Settings(data_dir=tmp_path, pool_size=1, log_level="error"))) as client:
        today = recorded(client)
    kept = answers()
    assert list(kept) == list(today)
    for call, statuses in kept.items():
        assert list(statuses) == list(today[call])
        for status, answer in statuses.items():
            if isinstance(answer, str):
                # Streams and figures hold times; their form is compared.
                now = {line.partition(":")[0] for line in today[call][status].splitlines()}
                assert {line.partition(":")[0] for line in answer.splitlines() if not line.startswith("#")} & now
            else:
                assert_alike(comparable(answer), comparable(today[call][status]), at=f"{call} {status}")


def assert_alike(kept: Any, today: Any, *, at: str) -> None:
    """Equal, with numbers to nine digits: the last bits depend on the processor."""
    assert type(kept) is type(today), at
    if isinstance(kept, dict):
        assert list(kept) == list(today), at
        for key, value in kept.items():
            assert_alike(value, today[key], at=f"{at}/{key}")
    elif isinstance(kept, list):
        assert len(kept) == len(today), at
        for position, value in enumerate(kept):
            assert_alike(value, today[position], at=f"{at}/{position}")
    elif isinstance(kept, float):
        assert kept == pytest.approx(today, rel=1e-9), at
    else:
        assert kept == today, at


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_example_is_answered_well(client: TestClient, name: str) -> None:
    answer = client.post("/v1/plans", json={**PLANS[name].body, "wait_s": 60})
    assert answer.status_code == 201
    response = answer.json()
    assert response["status"] == "succeeded"
    if name == "too_small":
        assert response["plans"] == []
        assert response["nearest_infeasible"][0]["smallest_change"]
        return
    assert response["search"]["proof"]["optimal"]
    assert len(response["plans"]) == 3
    assert response["plans"][0]["evaluation"]["verdict"] == "fits"
    strategy = response["plans"][0]["strategy"]
    assert {field: strategy[field] for field in BEST[name]} == BEST[name]


def test_examples_show_what_their_titles_promise(client: TestClient) -> None:
    def best(name: str) -> dict[str, Any]:
        found: dict[str, Any] = client.post("/v1/plans", json={**PLANS[name].body, "wait_s": 60}).json()
        return found

    assert best("pools")["plans"][0]["strategy"]["pool_per_stage"] == ["new", "old"]
    assert best("offload")["plans"][0]["strategy"]["offload"]["optimizer_fraction"] == 1.0
    assert best("adapter")["plans"][0]["evaluation"]["trainable_parameters"] < 1e8
    included = best("include")
    assert len(included["pareto"]) > 3
    assert len(included["what_if"]) > 3


def test_the_rows_are_priced_and_the_wrong_one_is_told(client: TestClient) -> None:
    row = client.post("/v1/evaluate", json=EVALUATE["row"].body).json()
    assert row["verdict"] == "fits"
    rows = client.post("/v1/evaluate", json=EVALUATE["list"].body).json()
    assert [each["verdict"] for each in rows] == ["fits"] * 3
    wrong, right = client.post("/v1/evaluate", json=EVALUATE["wrong_row"].body).json()
    assert (wrong["verdict"], right["verdict"]) == ("invalid", "fits")
    assert "tp 3" in wrong["reasons"][0]["message"]


@pytest.mark.parametrize("name", JUDGE)
def test_the_configurations_are_read_whole_and_can_be_better(client: TestClient, name: str) -> None:
    judged = client.post("/v1/judge", json=JUDGE[name].body)
    assert judged.status_code == 200
    assert (judged.json()["import"]["unknown"], judged.json()["import"]["missing"]) == ([], [])
    assert judged.json()["gain_fraction"] > 0.05


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_the_calibrations_are_stored(client: TestClient, name: str) -> None:
    assert client.post("/v1/calibrations", json=CALIBRATIONS[name].body).status_code == 201


def test_every_request_has_a_title_and_a_meaning() -> None:
    titles = [each.title for examples in REQUESTS.values() for each in examples.values()]
    assert len(set(titles)) == len(titles) == 31
    assert all(each.meaning.endswith(".") for examples in REQUESTS.values() for each in examples.values())
