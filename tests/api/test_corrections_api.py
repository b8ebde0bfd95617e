"""What a tenant's trials teach, over HTTP: listed, applied to its plans by default, switched off, and never to anybody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert

from app.scopes import SCOPES
from app.service.db.audit import page_of_audit
from app.service.db.engine import writing
from app.service.db.keys import create_key
from app.service.db.packing import packed
from app.service.db.tables import tuning_trials, tunings
from app.service.main import create_app
from app.settings import Settings
from benchmarks.correction_holdout import trial_records

TRIALS = trial_records()
JOB = {name: TRIALS[0]["row"][name] for name in ("model", "cluster", "training")} | {"top_k": 2}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), host="0.0.0.0", pool_size=1, log_level="error", seed_examples=False
    )
    with TestClient(create_app(settings)) as client:
        measured(client, "taught")
        yield client


def measured(client: TestClient, tenant: str, trials: Sequence[dict[str, Any]] = TRIALS) -> None:
    """Stores a tuning whose trials are those of two H200."""
    now = datetime.now(UTC)
    given = {
        "created_at": now,
        "plan_id": "p",
        "asked": packed("{}"),
        "backend": "pytorch",
        "gpu": "H200-SXM-141GB",
        "min_gpus": 2,
    }
    limits = {"max_trials": 40, "budget_s": 600.0, "gpu_hours": 1.0, "trial_limit_s": 60.0}
    with writing(client.app.state.service.engine) as connection:  # type: ignore[attr-defined]
        connection.execute(
            insert(tunings).values(tenant=tenant, id=f"of-{tenant}", status="succeeded", **given, **limits)
        )
        for number, record in enumerate(trials, start=1):
            trial = {
                "tenant": tenant,
                "tuning_id": f"of-{tenant}",
                "number": number,
                "candidate": number,
                "status": "ended",
                "gpus": 2,
            }
            times = {"job": packed("{}"), "expected_s": 1.0, "created_at": now, "finished_at": now}
            connection.execute(insert(tuning_trials).values(**trial, **times, record=packed(json.dumps(record))))


def headers(client: TestClient, tenant: str, *scopes: Any) -> dict[str, str]:
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {create_key(engine, tenant=tenant, name='test', scopes=scopes or SCOPES)[1]}"}


def listed(client: TestClient, tenant: str = "taught") -> list[dict[str, Any]]:
    answer = client.get("/v1/corrections", headers=headers(client, tenant))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def kept(client: TestClient) -> list[dict[str, Any]]:
    """The corrections in force of the framework that the plans here are for; the same trials also teach of others."""
    return [each for each in listed(client) if each["kept"] and each["framework"] == JOB["training"]["framework"]]


def planned(client: TestClient, tenant: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/plans", json=JOB | {"wait_s": 60} | fields, headers=headers(client, tenant))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def factors(plan: dict[str, Any]) -> dict[str, float] | None:
    return plan["plans"][0]["evaluation"]["provenance"].get("corrections")  # type: ignore[no-any-return]


def test_trials_of_a_tenant_teach_its_plans_and_nobody_elses(client: TestClient) -> None:
    learnt = {each["term"]: each["factor"] for each in kept(client)}
    assert learnt
    assert listed(client, "stranger") == []
    # The stranger asks first, so that nothing of its request can be taken for the other's.
    assert factors(planned(client, "stranger")) is None
    assert factors(planned(client, "taught")) == learnt
    assert factors(planned(client, "taught", corrections="none")) is None
    assert factors(planned(client, "stranger")) is None


def test_a_correction_that_is_switched_off_stays_off_and_can_come_back(client: TestClient) -> None:
    one = kept(client)[0]
    path, own = f"/v1/corrections/{one['id']}", headers(client, "taught")
    try:
        answer = client.put(path, json={"enabled": False}, headers=own)
        assert (answer.status_code, answer.json()["enabled"]) == (200, False)
        assert one["term"] not in (factors(planned(client, "taught")) or {})
        assert [each["enabled"] for each in listed(client) if each["id"] == one["id"]] == [False]
    finally:
        assert client.put(path, json={"enabled": True}, headers=own).json()["enabled"]
    assert one["term"] in (factors(planned(client, "taught")) or {})
    actions = [each.action for each in page_of_audit(client.app.state.service.engine, "taught", limit=100, after=None)]  # type: ignore[attr-defined]
    assert {"correction.enable", "correction.disable"} <= set(actions)


def test_one_correction_is_read_by_its_owner_alone(client: TestClient) -> None:
    one = listed(client)[0]
    answers = [
        client.get(f"/v1/corrections/{one['id']}", headers=headers(client, own)) for own in ("taught", "stranger")
    ]
    assert [answer.status_code for answer in answers] == [200, 404]
    assert answers[0].json() == one
    assert "GET /v1/corrections lists" in answers[1].json()["hint"]


def test_only_its_owner_with_the_scope_switches_a_correction(client: TestClient) -> None:
    path = f"/v1/corrections/{listed(client)[0]['id']}"
    assert client.put(path, json={"enabled": False}, headers=headers(client, "stranger")).status_code == 404
    assert client.put(path, json={"enabled": False}, headers=headers(client, "taught", "read")).status_code == 403
    assert client.put(path, json={"enabled": "no"}, headers=headers(client, "taught")).status_code == 422
    assert all(each["enabled"] for each in listed(client))


def test_observations_teach_as_trials_do(client: TestClient) -> None:
    own = headers(client, "observer")
    for trial in [each for each in TRIALS if each["status"] == "ok"][:6]:
        body = {"row": trial["row"], "measured": {"step_time_s": trial["step_time_s"]}}
        answer = client.post("/v1/observations", json=body, headers=own)
        assert answer.status_code == 201, answer.text
    runs = {each["trials"] for each in listed(client, "observer")}
    assert runs
    assert runs <= {5, 6}


def evaluated(client: TestClient, tenant: str, **fields: Any) -> dict[str, Any]:
    job = {name: JOB[name] for name in ("model", "cluster", "training")}
    row = job | {"strategy": TRIALS[0]["row"]["strategy"]} | fields
    answer = client.post("/v1/evaluate", json=row, headers=headers(client, tenant))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_rows_are_priced_with_the_own_corrections_unless_they_say_otherwise(client: TestClient) -> None:
    plain = evaluated(client, "stranger")
    own = evaluated(client, "taught")
    assert own["provenance"]["corrections"] == {each["term"]: each["factor"] for each in kept(client)}
    # The same numbers as a plan of the tenant has for the strategy.
    best = planned(client, "taught")["plans"][0]
    priced = evaluated(client, "taught", strategy=best["strategy"])
    assert priced["step_time_s"] == pytest.approx(best["evaluation"]["step_time_s"], rel=1e-9)
    assert evaluated(client, "taught", corrections="auto")["step_time_s"] == own["step_time_s"] != plain["step_time_s"]
    assert evaluated(client, "taught", corrections="none") == plain == evaluated(client, "stranger", corrections="auto")
    one = kept(client)[0]
    twice = {"schema_version": 1, "corrections": [{**one, "term": "gemm", "factor": 2.0}]}
    assert evaluated(client, "taught", corrections=twice)["provenance"]["corrections"] == {"gemm": 2.0}
    # Nothing is said of corrections where none of the tenant's is of the row's scope.
    other = evaluated(client, "taught", training=JOB["training"] | {"framework": "megatron"})
    assert other == evaluated(client, "stranger", training=JOB["training"] | {"framework": "megatron"})


def test_a_list_of_rows_is_priced_with_what_is_switched_on_now(client: TestClient) -> None:
    one = kept(client)[0]
    path, own = f"/v1/corrections/{one['id']}", headers(client, "taught")
    row = {**{name: JOB[name] for name in ("model", "cluster", "training")}, "strategy": TRIALS[0]["row"]["strategy"]}

    def terms() -> list[bool]:
        answer = client.post("/v1/evaluate", json=[row, row | {"corrections": "none"}], headers=own)
        return [one["term"] in (each["provenance"].get("corrections") or {}) for each in answer.json()]

    assert terms() == [True, False]
    try:
        client.put(path, json={"enabled": False}, headers=own)
        assert terms() == [False, False]
    finally:
        client.put(path, json={"enabled": True}, headers=own)
    assert terms() == [True, False]
