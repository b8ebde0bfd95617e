"""A tuning over HTTP: asked for, its trials leased by an agent that says it can run them, sent back, read, cancelled and deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.api.agent_schemas import AgentLease
from app.service.api.tuning_schemas import TrialEnded, TuningDocument, TuningEvent, TuningPage
from app.service.db.engine import writing
from app.service.db.gpu_time import spend
from app.service.db.keys import create_key
from app.service.main import create_app
from app.settings import Settings
from stand_in_trial import record_of, step_time_of

GPU = "H200-SXM-141GB"
NODE = {"name": "node-7", "gpu": GPU, "gpus_per_node": 2, "num_nodes": 1, "product_version": "0.1.0"}
PLANNED: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": GPU, "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
    "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan"},
    "top_k": 4,
}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that wants keys."""
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(
        data_dir=folder,
        host="0.0.0.0",
        pool_size=1,
        log_level="error",
        seed_examples=False,
        max_tuning_gpu_hours=5.0,
        max_tenant_gpu_hours=0.5,
    )
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture
def mine(public: TestClient, request: pytest.FixtureRequest) -> dict[str, str]:
    """Headers of a tenant of this test's own."""
    engine = public.app.state.service.engine  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {create_key(engine, tenant=request.node.name[:60], name='test')[1]}"}


def posted(client: TestClient, path: str, body: object, headers: dict[str, str], *, status: int = 200) -> Any:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def leased(client: TestClient, agent: str, headers: dict[str, str], *kinds: str) -> Any:
    body = {"instance": "i", **({"kinds": kinds} if kinds else {})}
    return AgentLease.model_validate(posted(client, f"/v1/agents/{agent}/lease", body, headers)).model_dump()["job"]


def first_trial(client: TestClient, agent: str, headers: dict[str, str]) -> Any:
    """The first trial, once the plan has been computed."""
    end_at = time.monotonic() + 60.0
    while (job := leased(client, agent, headers, "trial")) is None:
        assert time.monotonic() < end_at
        time.sleep(0.02)
    return job


def tuned(client: TestClient, tuning_id: str, headers: dict[str, str]) -> dict[str, Any]:
    answer = client.get(f"/v1/tunings/{tuning_id}", headers=headers)
    assert answer.status_code == 200, answer.text
    return TuningDocument.model_validate(answer.json()).model_dump()


def forgeries(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Records of something else than what was leased, each with the place that is wrong."""
    row, machine = record["row"], record["machine"]
    yield record | {"row": row | {"strategy": row["strategy"] | {"micro_batch_size": 16}}}, "/trial/row/strategy"
    yield record | {"row": row | {"id": "x" * 1000}}, "/trial/row/id"
    yield record | {"row": row | {"note": 1}}, "/trial/row/note"
    yield record | {"machine": machine | {"gpu": "B200-SXM-180GB"}}, "/trial/machine/gpu"
    yield record | {"machine": machine | {"gpus": 1}, "gpu_seconds": record["took_s"]}, "/trial/machine/gpus"
    yield record | {"started_at": "0001-01-01T00:00:00+23:00"}, "/trial/started_at"
    if record["status"] == "ok":
        yield record | {"step_time_s": 0.0}, "/trial/step_time_s"


def test_a_plan_is_tuned_by_an_agent_that_runs_trials(public: TestClient, mine: dict[str, str]) -> None:
    agent = posted(public, "/v1/agents", NODE, mine, status=201)["id"]
    results = f"/v1/agents/{agent}/results"
    asked = {"request": PLANNED, "backend": "export", "max_trials": 3, "trial_limit_s": 30.0}
    tuning = posted(public, "/v1/tunings", asked, mine, status=202)
    job = first_trial(public, agent, mine)
    assert leased(public, agent, mine) is None, "an agent of an earlier release is never given a trial"
    assert leased(public, agent, mine, "measurement", "trial") == job, "a lost answer is given again"
    # Twice the limit, since a model that is too large is run twice with fewer layers, and two minutes for loading.
    assert (job["kind"], job["time_limit_s"], job["trial"]["gpus"]) == ("trial", 2 * 30.0 + 120.0, 2)
    now = tuned(public, tuning["id"], mine)
    assert (now["status"], now["trials"][0]["status"], now["trials"][0]["agent"]) == ("running", "running", agent)

    # A machine that is not ready costs an attempt and no result.
    failed = {"lease": job["lease"], "outcome": "failed", "error": {"message": "GPU 1 is used by other processes"}}
    assert posted(public, results, failed, mine)["status"] == "queued"
    assert posted(public, f"/v1/agents/{agent}/heartbeat", {"lease": job["lease"]}, mine)["go_on"]

    told = []
    while job is not None:
        for wrong, pointer in forgeries(record_of(job["trial"], 3.0)):
            body = {"lease": job["lease"], "outcome": "measured", "trial": wrong}
            refused = posted(public, results, body, mine, status=422)
            assert refused["errors"][0]["pointer"] == pointer
        sent = {"lease": job["lease"], "outcome": "measured", "trial": record_of(job["trial"], 3.0)}
        ended = TrialEnded.model_validate(posted(public, results, sent, mine))
        assert ended.step_time_s == step_time_of(job["trial"]["row"]["strategy"])
        assert posted(public, results, sent, mine) == ended.model_dump()
        told.append(ended)
        job = leased(public, agent, mine, "trial")

    found = tuned(public, tuning["id"], mine)
    assert (found["status"], found["used"]["trials"]) == ("succeeded", len(told))
    assert found["best"]["step_time_s"] == min(each.step_time_s or 9.0 for each in told)
    listed = TuningPage.model_validate(public.get("/v1/tunings?status=succeeded", headers=mine).json())
    assert [each.id for each in listed.items] == [tuning["id"]]
    gone = public.delete(f"/v1/tunings/{tuning['id']}", headers=mine)
    assert gone.status_code == 204
    assert public.get(f"/v1/tunings/{tuning['id']}", headers=mine).status_code == 404


def test_trials_that_all_fail_fail_the_tuning_with_their_reasons(public: TestClient, mine: dict[str, str]) -> None:
    agent = posted(public, "/v1/agents", NODE, mine, status=201)["id"]
    only_tp = {**PLANNED, "constraints": {"fixed": {"tp": 2}}, "top_k": 2}
    key = {**mine, "Idempotency-Key": "once"}
    tuning, again = (
        posted(public, "/v1/tunings", {"request": only_tp, "backend": "export"}, key, status=202) for _ in range(2)
    )
    assert tuning["id"] == again["id"]
    job = first_trial(public, agent, mine)
    while job is not None:
        sent = {"lease": job["lease"], "outcome": "measured", "trial": record_of(job["trial"], 3.0)}
        assert posted(public, f"/v1/agents/{agent}/results", sent, mine)["trial_status"] == "oom"
        job = leased(public, agent, mine, "trial")
    found = tuned(public, tuning["id"], mine)
    assert (found["status"], found["best"], found["error"]["code"]) == ("failed", None, "measurement")
    assert "oom: CUDA out of memory. Tried to allocate 2.00 GiB" in found["error"]["detail"]


def test_a_tenant_whose_gpu_hours_are_spent_is_told_so(
    public: TestClient, mine: dict[str, str], request: pytest.FixtureRequest
) -> None:
    posted(public, "/v1/agents", NODE, mine, status=201)
    with writing(public.app.state.service.engine) as connection:  # type: ignore[attr-defined]
        spend(connection, request.node.name[:60], 1800.0)
    refused = public.post("/v1/tunings", json={"request": PLANNED}, headers=mine)
    told = refused.json()
    assert (refused.status_code, told["code"], refused.headers["Retry-After"]) == (429, "quota-exceeded", "3600")
    assert (told["quota"], told["limit"], told["used"]) == ("gpu_hours", 0.5, 0.5)
    assert told["detail"] == "the trials of your tunings took 0.5 of at most 0.5 GPU hours within 30 days"


def test_a_tuning_that_cannot_be_run_is_refused_with_its_field(public: TestClient, mine: dict[str, str]) -> None:
    posted(public, "/v1/agents", NODE, mine, status=201)
    megatron = {**PLANNED, "training": {**PLANNED["training"], "framework": "megatron"}}
    eight = {**PLANNED, "cluster": {**PLANNED["cluster"], "gpus_per_node": 8}}
    pools = {
        "pools": [
            {"name": name, **PLANNED["cluster"], "gpu": gpu} for name, gpu in (("x", GPU), ("y", "H100-SXM-80GB"))
        ]
    }
    misspelt = {**PLANNED, "training": {**PLANNED["training"], "seq_len": 1}}
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"request": PLANNED, "plan_id": "p"}, ""),
        ({"plan_id": "plan-of-nobody"}, "/plan_id"),
        ({"request": misspelt}, "/request/training/seq_len"),
        ({"request": {**PLANNED, "cluster": pools}}, "/request/cluster"),
        ({"request": megatron, "backend": "pytorch"}, "/backend"),
        ({"request": PLANNED, "gpu_hours": 6.0}, "/gpu_hours"),
        ({"request": PLANNED, "max_trials": 0}, "/max_trials"),
        ({"request": PLANNED, "agent": "agent-of-nobody"}, "/agent"),
        ({"request": eight}, ""),
    ]
    for body, pointer in bad:
        answer = public.post("/v1/tunings", json=body, headers=mine)
        assert answer.status_code == 422, (body, answer.text)
        (problem,) = answer.json()["errors"]
        assert problem["pointer"] == pointer, (body, problem)
        assert problem["hint"]
    assert public.get("/v1/tunings", headers=mine).json()["items"] == []


def browsed(client: TestClient, method: str, path: str, headers: dict[str, str], **sent: str) -> Any:
    """A page as a browser gets it that holds the tenant's key."""
    client.cookies.set("meshwright_key", headers["Authorization"].removeprefix("Bearer "))
    try:
        return client.request(method, path, headers={"Accept": "text/html", **sent}, follow_redirects=False)
    finally:
        client.cookies.clear()


def streamed(client: TestClient, path: str, headers: dict[str, str]) -> list[str]:
    """The lines of a stream to its end. A cookie of this call alone, since other calls run beside it."""
    cookie = headers["Authorization"].replace("Bearer ", "meshwright_key=")
    with client.stream("GET", path, headers={**headers, "Cookie": cookie}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return list(stream.iter_lines())


def test_a_tuning_is_watched_by_its_events_and_on_its_page(public: TestClient, mine: dict[str, str]) -> None:
    agent = posted(public, "/v1/agents", NODE, mine, status=201)["id"]
    body = {"request": {**PLANNED, "top_k": 3}, "backend": "export", "max_trials": 2, "gpu_hours": 2.0}
    tuning_id = posted(public, "/v1/tunings", body, mine, status=202)["id"]
    path, api = f"/tunings/{tuning_id}", f"/v1/tunings/{tuning_id}"
    job = first_trial(public, agent, mine)
    with ThreadPoolExecutor(2) as pool:
        watched = [pool.submit(streamed, public, each, mine) for each in (f"{api}/events", f"{path}/progress")]
        page = browsed(public, "GET", path, mine)
        assert (page.status_code, "<dd>Trial 1 runs.</dd>" in page.text) == (200, True)
        for told in (
            "<dd>0 of 2</dd>",
            "<dd>0 s of 10.0 min</dd>",
            "<dd>0 of 2</dd>",
            '<meta http-equiv="refresh" content="5">',
        ):
            assert told in page.text
        assert f'action="{path}/cancel"' in page.text
        took_s = []
        while job is not None:
            took_s.append(step_time_of(job["trial"]["row"]["strategy"]))
            sent = {"lease": job["lease"], "outcome": "measured", "trial": record_of(job["trial"], 3.0)}
            posted(public, f"/v1/agents/{agent}/results", sent, mine)
            job = leased(public, agent, mine, "trial")
        events, parts = (each.result(timeout=60.0) for each in watched)
    states = [
        TuningEvent.model_validate_json(line.removeprefix("data: ")) for line in events if line.startswith("data:")
    ]
    names = [line.removeprefix("event: ") for line in events if line.startswith("event:")]
    assert names == [each.status for each in states]
    assert (names[0], names[-1]) == ("running", "succeeded")
    assert [each.status for each in states[0].trials] == ["running"]
    last = states[-1]
    # Two trials of 3 s on two GPUs.
    assert (last.best_s, last.gpu_hours) == (min(took_s), 2 * 3.0 * 2 / 3600.0)
    assert [each.step_time_s for each in last.trials] == took_s
    assert last.stopped is not None
    # Whoever has seen the last state is told nothing again.
    assert not any(
        "data:" in line for line in streamed(public, f"{api}/events", {**mine, "Last-Event-ID": str(last.seq)})
    )
    assert [line for line in parts if line.startswith("event:")] == ["event: finished"]
    assert any("<dd>Trial 1 runs.</dd>" in line for line in parts)
    assert not [line for line in parts if "<script" in line or "style=" in line]
    done = browsed(public, "GET", f"{path}/finished", mine)
    assert (done.status_code, done.headers["hx-refresh"]) == (204, "true")

    report = browsed(public, "GET", path, mine)
    assert (report.status_code, 'id="verdict"' in report.text) == (200, True)
    file = browsed(public, "GET", f"{path}/tuning.json", mine)
    assert file.headers["content-disposition"] == f'attachment; filename="{tuning_id}.json"'
    assert file.json() == public.get(api, headers=mine).json()
    # A press on a page that was not loaded again must not delete what it found.
    late = browsed(public, "POST", f"{path}/cancel", mine, Origin="http://testserver")
    assert (late.status_code, late.headers["location"]) == (303, path)
    assert public.get(api, headers=mine).json()["status"] == "succeeded"
    rows = browsed(public, "GET", "/tunings", mine).text
    assert f'<a href="{path}">llama-3.2-1b on 1 × 2 {GPU}, 4096 tokens, torchtitan</a>' in rows
    assert f"{min(took_s):.3f} s</td>" in rows
    assert ">2 of 2</td>" in rows


def test_a_tuning_that_waits_says_for_what_and_is_cancelled_on_its_page(
    public: TestClient, mine: dict[str, str]
) -> None:
    posted(public, "/v1/agents", NODE, mine, status=201)
    tuning_id = posted(public, "/v1/tunings", {"request": PLANNED, "backend": "export"}, mine, status=202)["id"]
    path = f"/tunings/{tuning_id}"
    end_at = time.monotonic() + 60.0
    # Nobody asks for trials: whoever looks begins it when its plan is there.
    while "is being computed" in (text := browsed(public, "GET", path, mine).text):
        assert time.monotonic() < end_at
        time.sleep(0.05)
    assert "<dd>An agent is expected to ask for the next trial.</dd>" in text
    assert browsed(public, "POST", f"{path}/cancel", mine, Origin="https://evil.example").status_code == 403
    assert browsed(public, "POST", f"{path}/cancel", mine, Origin="http://testserver").status_code == 303
    page = browsed(public, "GET", path, mine).text
    assert "No trial was made, so nothing was measured." in page
    assert "somebody cancelled the tuning" in page
    assert streamed(public, f"/v1{path}/events", mine)[0] == "event: cancelled"


def test_the_best_plans_knobs_are_tuned_by_agents_after_the_plans(public: TestClient, mine: dict[str, str]) -> None:
    """A step takes half a second and 1 ns for each element of a bucket: 1 s with DeepSpeed's own 500,000,000."""
    agent = posted(public, "/v1/agents", NODE, mine, status=201)["id"]
    deepspeed = {**PLANNED["training"], "framework": "deepspeed"}
    sharded = {"fixed": {"zero": 3, "tp": 1, "pp": 1, "dp": 2}}
    body = {"request": {**PLANNED, "training": deepspeed, "constraints": sharded, "top_k": 1}, "knobs": 3}
    path = f"/v1/tunings/{posted(public, '/v1/tunings', body, mine, status=202)['id']}"
    job, buckets, rows = first_trial(public, agent, mine), [], []
    while job is not None:
        config = json.loads(job["trial"]["files"]["ds_config.json"])
        buckets.append(config["zero_optimization"]["reduce_bucket_size"])
        rows.append(job["trial"]["row"])
        step_s = 0.5 + buckets[-1] * 1e-9
        record = record_of(job["trial"], 3.0) | {"step_time_s": step_s, "step_s": [step_s] * 6}
        sent = {"lease": job["lease"], "outcome": "measured", "trial": record}
        posted(public, f"/v1/agents/{agent}/results", sent, mine)
        job = leased(public, agent, mine, "trial")
    plans, knobs = buckets[:-3], buckets[-3:]
    assert all(row == rows[len(plans) - 1] for row in rows[len(plans) :]), "the same plan"
    assert knobs[0] == plans[-1] == 500_000_000
    assert len(set(knobs)) == 3
    found = public.get(path, headers=mine).json()
    assert (found["status"], len(found["trials"])) == ("succeeded", len(plans))
    assert found["used"] == {
        "seconds": 3.0 * len(plans),
        "trials": len(plans),
        "gpu_hours": 6.0 * len(buckets) / 3600.0,
    }
    told = found["knobs"]
    assert (told["told"], told["failed"], told["open"], told["default_step_time_s"]) == (3, 0, 0, 1.0)
    assert [each["step_time_s"] for each in told["trials"]] == [0.5 + each * 1e-9 for each in knobs]
    assert told["best"]["config"]["zero_optimization"]["reduce_bucket_size"] == min(knobs)
    assert told["gain_fraction"] == pytest.approx(1.0 - (0.5 + min(knobs) * 1e-9))
    # What other values do to a step says nothing of the model of it.
    assert all(each["trials"] == len(plans) for each in found["corrections"])
    page = browsed(public, "GET", path.removeprefix("/v1"), mine).text
    assert "Run-time knobs of the fastest plan" in page


def test_a_plan_without_knobs_is_tuned_and_says_so(public: TestClient, mine: dict[str, str]) -> None:
    agent = posted(public, "/v1/agents", NODE, mine, status=201)["id"]
    body = {"request": {**PLANNED, "top_k": 3}, "backend": "export", "max_trials": 1, "knobs": 3}
    path = f"/v1/tunings/{posted(public, '/v1/tunings', body, mine, status=202)['id']}"
    job = first_trial(public, agent, mine)
    sent = {"lease": job["lease"], "outcome": "measured", "trial": record_of(job["trial"], 3.0)}
    posted(public, f"/v1/agents/{agent}/results", sent, mine)
    assert leased(public, agent, mine, "trial") is None
    found = public.get(path, headers=mine).json()
    assert (found["status"], found["knobs"]) == ("succeeded", None)
    assert any(
        "The knobs were not tuned: torchtitan has no knob to tune under this plan." in each
        for each in found["warnings"]
    )
