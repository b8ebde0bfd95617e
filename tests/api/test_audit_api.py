"""The audit log: every call that changes something leaves one entry with who did it, and nothing else does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.scopes import SCOPES
from app.service.access import NEEDED
from app.service.api.agent_schemas import EXAMPLE_REGISTRATION
from app.service.api.key_documents import AuditPage
from app.service.db.audit import forget_audit
from app.service.db.engine import now_of, writing
from app.service.db.keys import create_key
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.main import create_app
from app.settings import Settings
from planner.schemas.observation import EXAMPLE_OBSERVATION_REQUEST

PLAN = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 2048, "global_batch_size": 8, "precision": "bf16", "framework": "megatron"},
}
CHANGES_NOTHING = {"POST /v1/evaluate", "POST /v1/judge", "POST /web/check", "POST /plans/{plan_id}/why-not"}
"""Posts that only compute."""
OF_AGENTS = {f"POST /v1/agents/{{agent_id}}/{verb}" for verb in ("lease", "heartbeat", "results")}
"""How an agent works on a job that somebody asked for. What it brings is the creation of a calibration."""
TRIED = {
    "POST /v1/plans", "DELETE /v1/plans/{plan_id}", "POST /v1/calibrations", "DELETE /v1/calibrations/{calibration_id}",
    "POST /v1/observations", "DELETE /v1/observations/{observation_id}",
    "POST /v1/agents", "POST /v1/profiling-jobs", "DELETE /v1/profiling-jobs/{job_id}", "POST /v1/keys",
    "POST /v1/tunings", "DELETE /v1/tunings/{tuning_id}", "DELETE /v1/keys/{key_id}", "POST /plans", "POST /plans/{plan_id}/cancel", "POST /agents/{agent_id}/measure",
    "POST /tunings/{tuning_id}/cancel",
}  # fmt: skip
"""What the tests below do, and find in the log."""
TRIED_ELSEWHERE = {"PUT /v1/corrections/{correction_id}"}
"""`test_corrections_api.py` finds it in the log, since only a tenant with trials has a correction to switch."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, host="0.0.0.0", pool_size=1, log_level="error", seed_examples=False)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


def admin(client: TestClient, tenant: str) -> tuple[str, str]:
    """Id and secret of a key that may do everything."""
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    key, secret = create_key(engine, tenant=tenant, name="test", scopes=SCOPES)
    return key.id, secret


def entries(client: TestClient, headers: dict[str, str]) -> list[dict[str, Any]]:
    """The log, oldest entry first."""
    answer = client.get("/v1/audit", params={"limit": 100}, headers=headers)
    assert answer.status_code == 200
    return [entry.model_dump() for entry in reversed(AuditPage.model_validate_json(answer.text).items)]


def test_no_call_that_changes_something_is_left_out() -> None:
    """A new one has to be tried here."""
    writes = {call for call, scope in NEEDED.items() if scope is not None and not call.startswith("GET ")}
    assert writes == TRIED | TRIED_ELSEWHERE | CHANGES_NOTHING | OF_AGENTS


def test_what_is_done_is_written_down_with_who_did_it(audited: TestClient) -> None:
    key_id, secret = admin(audited, "writes")
    headers = {"Authorization": f"Bearer {secret}"}

    def call(method: str, path: str, **sent: Any) -> Any:
        number = len(made)
        return audited.request(method, path, headers={**headers, "X-Request-ID": f"call-{number}"}, **sent)

    made: list[tuple[str, str]] = []
    plan = call("POST", "/v1/plans", json=PLAN).json()["id"]
    made.append(("plan.create", plan))
    assert call("POST", "/v1/plans", json=PLAN).json()["id"] == plan, "asked again, nothing is made"
    assert call("DELETE", f"/v1/plans/{plan}").status_code == 204
    made.append(("plan.delete", plan))
    assert call("DELETE", f"/v1/plans/{plan}").status_code == 404, "and nothing is done"
    calibration = call("POST", "/v1/calibrations", json=EXAMPLE_CALIBRATION).json()["id"]
    made.append(("calibration.create", calibration))
    assert call("POST", "/v1/calibrations", json=EXAMPLE_CALIBRATION).status_code == 201
    assert call("DELETE", f"/v1/calibrations/{calibration}").status_code == 204
    made.append(("calibration.delete", calibration))
    observation = call("POST", "/v1/observations", json=EXAMPLE_OBSERVATION_REQUEST).json()["id"]
    made.append(("observation.create", observation))
    assert call("POST", "/v1/observations", json=EXAMPLE_OBSERVATION_REQUEST).json()["id"] == observation
    assert call("DELETE", f"/v1/observations/{observation}").status_code == 204
    made.append(("observation.delete", observation))
    other = call("POST", "/v1/keys", json={"name": "other"}).json()["id"]
    made.append(("key.create", other))
    assert call("DELETE", f"/v1/keys/{other}").status_code == 204
    made.append(("key.revoke", other))
    agent = call("POST", "/v1/agents", json=EXAMPLE_REGISTRATION).json()["id"]
    made.append(("agent.register", agent))
    assert call("POST", "/v1/agents", json=EXAMPLE_REGISTRATION).json()["id"] == agent, "it only says that it is back"
    job = call("POST", "/v1/profiling-jobs", json={"agent": agent}).json()["id"]
    made.append(("profiling-job.create", job))
    for status, action in ((202, "profiling-job.cancel"), (204, "profiling-job.delete")):
        assert call("DELETE", f"/v1/profiling-jobs/{job}").status_code == status
        made.append((action, job))
    tuning = call("POST", "/v1/tunings", json={"request": PLAN, "agent": agent}).json()
    made += [("plan.create", tuning["plan_id"]), ("tuning.create", tuning["id"])]
    requests = [*range(len(made) - 1), len(made) - 2]
    for status, action in ((202, "tuning.cancel"), (204, "tuning.delete")):
        requests.append(len(made))
        assert call("DELETE", f"/v1/tunings/{tuning['id']}").status_code == status
        made.append((action, tuning["id"]))
    made_by_hand, *found = entries(audited, headers)
    assert (made_by_hand["action"], made_by_hand["by"], made_by_hand["address"]) == ("key.create", "service", None)
    assert [(entry["action"], entry["object"]) for entry in found] == made
    assert [entry["request_id"] for entry in found] == [f"call-{number}" for number in requests]
    assert {(entry["by"], entry["address"]) for entry in found} == {(key_id, "testclient")}
    assert [entry["at"] for entry in found] == sorted(entry["at"] for entry in found)


def test_what_is_done_on_pages_is_written_down_too(audited: TestClient) -> None:
    key_id, secret = admin(audited, "browses")
    form = {
        "model.by": "preset", "model.preset": "llama-3.1-405b", "cluster.by": "gpu", "cluster.gpu": "H100-SXM-80GB",
        "cluster.num_nodes": "128", "cluster.gpus_per_node": "8", "training.seq_length": "4k", "training.precision": "bf16",
        "training.global_batch_size": "1024", "training.framework": "megatron", "include": "open_splits,what_if",
    }  # fmt: skip
    own = {"Origin": "http://testserver", "Cookie": f"meshwright_key={secret}"}
    sent = audited.post("/plans", data=form, headers=own)
    assert sent.status_code == 303, sent.text
    plan = sent.headers["location"].rpartition("/")[2]
    assert audited.post(f"/plans/{plan}/cancel", headers=own).status_code == 303
    shown = {"Authorization": f"Bearer {secret}"}
    agent = audited.post("/v1/agents", json=EXAMPLE_REGISTRATION, headers=shown).json()["id"]
    assert audited.post(f"/agents/{agent}/measure", headers=own).status_code == 303
    (job,) = audited.get("/v1/profiling-jobs", headers=shown).json()["items"]
    tuning = audited.post("/v1/tunings", json={"request": PLAN, "agent": agent}, headers=shown).json()
    assert audited.post(f"/tunings/{tuning['id']}/cancel", headers=own).status_code == 303
    assert [(entry["action"], entry["object"], entry["by"]) for entry in entries(audited, shown)[1:]] == [
        ("plan.create", plan, key_id),
        ("plan.cancel", plan, key_id),
        ("agent.register", agent, key_id),
        ("profiling-job.create", job["id"], key_id),
        ("plan.create", tuning["plan_id"], key_id),
        ("tuning.create", tuning["id"], key_id),
        ("tuning.cancel", tuning["id"], key_id),
    ]


def test_entries_that_are_too_old_are_forgotten(audited: TestClient) -> None:
    _, secret = admin(audited, "forgets")
    engine = audited.app.state.service.engine  # type: ignore[attr-defined]
    time.sleep(0.01)
    with writing(engine) as connection:
        between = now_of(connection)
    headers = {"Authorization": f"Bearer {secret}"}
    audited.post("/v1/keys", json={"name": "later"}, headers=headers)
    with writing(engine) as connection:
        assert forget_audit(connection, before=between) >= 1
    (kept,) = entries(audited, headers)
    assert datetime.fromisoformat(kept["at"]) >= between.astimezone(UTC)


def test_pages_of_the_log_follow_one_another(audited: TestClient) -> None:
    _, secret = admin(audited, "reads")
    headers = {"Authorization": f"Bearer {secret}"}
    for number in range(4):
        audited.post("/v1/keys", json={"name": str(number)}, headers=headers)
    found, cursor = [], None
    for _ in range(3):
        asked = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = audited.get("/v1/audit", params=asked, headers=headers).json()
        found += [entry["id"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert (len(set(found)), cursor) == (5, None)
