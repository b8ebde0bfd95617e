"""The objects that every tenant starts with: told from the visitor's own, and never what prices a plan by itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.api.examples.requests import REQUESTS
from app.service.db.keys import create_key
from app.service.intake.examples import EXAMPLE_CALIBRATION, EXAMPLE_PLAN_ID, example_calibration

EXAMPLES = {name: each.body for name, each in REQUESTS["/v1/calibrations"].items()}


@pytest.fixture
def newcomer(public: TestClient, request: pytest.FixtureRequest) -> dict[str, str]:
    """Headers of a tenant that has done nothing yet."""
    engine = public.app.state.service.engine  # type: ignore[attr-defined]
    secret = create_key(engine, tenant=re.sub(r"\W", "-", request.node.name)[:60], name="test")[1]
    public.cookies.clear()
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def visitor(public: TestClient, newcomer: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """The same tenant in a browser that holds its key."""
    secret = newcomer["Authorization"].removeprefix("Bearer ")
    assert public.post("/key", data={"key": secret}, headers=own).status_code == 303
    return own


def parts(text: str) -> tuple[str, str]:
    """The page up to the heading of the examples, and from there on."""
    before, heading, after = text.partition('<h2 id="examples">')
    assert heading
    return before, after


@pytest.mark.parametrize("posted", [(), *((name,) for name in sorted(EXAMPLES))])
def test_auto_is_never_an_example(
    public: TestClient, newcomer: dict[str, str], asked: dict[str, Any], posted: tuple[str, ...]
) -> None:
    """The examples are of the very GPU and node shape that is asked for, and whoever tries /docs stores them."""
    for name in posted:
        place = EXAMPLES[name]["fingerprint"]
        assert (place["gpu"], place["gpus_per_node"]) == ("H100-SXM-80GB", 8)
        assert public.post("/v1/calibrations", json=EXAMPLES[name], headers=newcomer).status_code == 201
    asked["cluster"] = {**asked["cluster"], "calibration": "auto"}
    plan = public.post("/v1/plans", json={**asked, "wait_s": 0}, headers=newcomer).json()
    assert "calibration" not in plan["request"]["cluster"]
    row = {**asked, "strategy": {"tp": 8}}
    row.pop("top_k")
    evaluated = public.post("/v1/evaluate", json=row, headers=newcomer)
    assert evaluated.status_code == 200
    assert "example" not in str(evaluated.json()["provenance"])
    mine = public.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": "mine"}, headers=newcomer).json()["id"]
    plan = public.post("/v1/plans", json={**asked, "wait_s": 0}, headers=newcomer).json()
    assert plan["request"]["cluster"]["calibration"] == [mine]


def test_examples_are_listed_apart_from_ones_own(
    public: TestClient, newcomer: dict[str, str], visitor: dict[str, str], asked: dict[str, Any]
) -> None:
    example = example_calibration().id
    before, after = parts(public.get("/calibrations", headers=visitor).text)
    assert "None is stored." in before
    assert f'href="/calibrations/{example}"' in after
    assert f'href="/calibrations/{example}"' not in before
    before, after = parts(public.get("/plans", headers=visitor).text)
    assert "No plan has been asked for yet." in before
    assert f'href="/plans/{EXAMPLE_PLAN_ID}"' in after

    mine = public.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": "mine"}, headers=newcomer).json()["id"]
    plan = public.post("/v1/plans", json={**asked, "wait_s": 0}, headers=newcomer).json()["id"]
    before, after = parts(public.get("/calibrations", headers=visitor).text)
    assert f'href="/calibrations/{mine}"' in before
    assert f'href="/calibrations/{mine}"' not in after
    before, after = parts(public.get("/plans", headers=visitor).text)
    assert f'href="/plans/{plan}"' in before
    assert f'href="/plans/{plan}"' not in after


def test_the_form_offers_no_invented_numbers(
    public: TestClient, newcomer: dict[str, str], visitor: dict[str, str]
) -> None:
    for body in (*EXAMPLES.values(), mine := {**EXAMPLE_CALIBRATION, "name": "mine"}):
        stored = public.post("/v1/calibrations", json=body, headers=newcomer).json()["id"]
        offered = f'<option value="{stored}"' in public.get("/", headers=visitor).text
        assert offered == (body is mine)


def test_an_example_says_so_on_its_page(public: TestClient, visitor: dict[str, str]) -> None:
    text = public.get(f"/calibrations/{example_calibration().id}", headers=visitor).text
    assert "Its numbers are invented for the documentation" in text
    assert "Measured on this machine" not in text
    assert "invented" not in public.get("/calibrations/h100x4-nvls-off-2026", headers=visitor).text
