"""What needs no storage: evaluations, presets, health and figures; and calibrations, which are stored as they came."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient

import meshwright
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.logs import OWN_LOGGERS
from app.service.main import create_app
from app.settings import Settings
from cost_models import presets
from cost_models.frameworks import FRAMEWORKS
from cost_models.hardware import document_of
from planner.rows import evaluate_rows
from planner.schemas import Evaluation
from planner.schemas.judgement import EXAMPLE_JUDGE_REQUEST, Judgement

ROW: dict[str, Any] = {
    "id": "r1",
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "strategy": {"tp": 2, "pp": 1, "micro_batch_size": 1},
    "measured_step_time_s": 1.5,
}


class TestEvaluate:
    def test_one_row_is_one_evaluation(self, client: TestClient) -> None:
        response = client.post("/v1/evaluate", json=ROW)
        assert response.status_code == 200
        evaluation = Evaluation.model_validate_json(response.text)
        assert (evaluation.id, evaluation.num_gpus_used) == ("r1", 8)
        assert evaluation.memory is not None
        assert evaluation.memory.stages

    def test_a_whole_run_tells_the_goodput_of_llama_3(self, client: TestClient) -> None:
        """16,384 GPUs that stop once in 50,677 hours each, 600 s until they train again: 1,156 s and 0.860 with saves of 60 s."""
        cluster = {**ROW["cluster"], "num_nodes": 2048, "reliability": {"gpu_mtbf_h": 50_677, "restart_s": 600}}
        training = {**ROW["training"], "global_batch_size": 8192, "total_tokens": 1e12, "checkpoint": {"save_s": 60}}
        answer = client.post("/v1/evaluate", json={**ROW, "cluster": cluster, "training": training}).json()
        assert (round(answer["run"]["stops"]["interval_s"]), round(answer["run"]["goodput"], 3)) == (1156, 0.86)
        assert (answer["mathematics"], answer["changes"]) == ("exact", [])
        assert answer["overlap_conditions"].keys() == {"dp", "tp"}

    def test_a_gpu_that_never_lasts_is_refused_by_its_rule(self, client: TestClient) -> None:
        cluster = {**ROW["cluster"], "reliability": {"gpu_mtbf_h": 0, "restart_s": 600}}
        answer = client.post("/v1/evaluate", json={**ROW, "cluster": cluster}).json()
        assert (answer["verdict"], answer["run"]) == ("invalid", None)
        told = "cluster.reliability.gpu_mtbf_h: gpu_mtbf_h is 0; it must be at least 1e-06"
        assert [reason["message"] for reason in answer["reasons"]] == [told]
        training = {key: value for key, value in ROW.items() if key in ("model", "training")}
        refused = client.post("/v1/plans", json={**training, "cluster": cluster})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/cluster/reliability/gpu_mtbf_h")

    def test_it_is_what_the_command_line_answers(self, client: TestClient) -> None:
        assert client.post("/v1/evaluate", json=[ROW]).json() == json.loads(json.dumps(list(evaluate_rows([ROW]))))

    def test_a_list_is_answered_in_order_and_a_bad_row_in_its_place(self, client: TestClient) -> None:
        bad = {**ROW, "id": "r2", "strategy": {"tpp": 2}}
        answers = client.post("/v1/evaluate", json=[ROW, bad, {**ROW, "id": "r3"}]).json()
        assert [answer["id"] for answer in answers] == ["r1", "r2", "r3"]
        assert [answer["verdict"] == "invalid" for answer in answers] == [False, True, False]
        assert "tp" in answers[1]["reasons"][0]["hint"]

    def test_an_empty_list_has_no_answers(self, client: TestClient) -> None:
        assert client.post("/v1/evaluate", json=[]).json() == []

    def test_a_single_row_with_an_unknown_field_is_refused(self, client: TestClient) -> None:
        response = client.post("/v1/evaluate", json={**ROW, "strategy": {"tpp": 2}})
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/strategy/tpp")

    @pytest.mark.parametrize("row", [None, 3, "", "{}", []])
    def test_a_row_that_is_no_object_is_named(self, client: TestClient, row: object) -> None:
        response = client.post("/v1/evaluate", json=[ROW, row])
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/1")

    def test_too_many_rows_are_refused(self, client: TestClient) -> None:
        response = client.post("/v1/evaluate", json=[{}] * 10_001)
        assert response.status_code == 422
        assert "10001" in response.json()["errors"][0]["message"]

    def test_twenty_rows_that_are_no_objects_are_named(self, client: TestClient) -> None:
        response = client.post("/v1/evaluate", json=[None] * 25)
        assert [entry["pointer"] for entry in response.json()["errors"]] == [f"/{number}" for number in range(20)]

    def test_as_many_rows_as_are_allowed_are_answered(self, client: TestClient) -> None:
        """10,000, in order, each with what is wrong with it."""
        answers = client.post("/v1/evaluate", json=[{"id": number} for number in range(10_000)]).json()
        assert [answer["id"] for answer in answers] == list(range(10_000))
        assert {answer["verdict"] for answer in answers} == {"invalid"}


class TestJudge:
    def test_a_configuration_is_judged_as_on_the_command_line(self, client: TestClient) -> None:
        response = client.post("/v1/judge", json=EXAMPLE_JUDGE_REQUEST)
        assert response.status_code == 200
        judgement = Judgement.model_validate_json(response.text)
        assert judgement.imported.format == "deepspeed"
        assert judgement.best is not None
        assert judgement.diff.startswith("--- ds_config.json\n+++ ds_config.json\n")
        files = {file["path"]: file["content"] for file in EXAMPLE_JUDGE_REQUEST["files"]}
        options = {name: EXAMPLE_JUDGE_REQUEST[name] for name in ("cluster", "model", "training")}
        assert response.json() == json.loads(json.dumps(meshwright.judge(files, **options)))

    def test_what_is_missing_is_pointed_at(self, client: TestClient) -> None:
        asked = {name: EXAMPLE_JUDGE_REQUEST[name] for name in ("files", "cluster")}
        response = client.post("/v1/judge", json=asked)
        assert response.status_code == 422
        assert [each["pointer"] for each in response.json()["errors"]] == ["/model", "/training/seq_length"]

    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"files": []}, "/files"),
            ({"files": [{"path": "x.json"}]}, "/files/0/content"),
            ({"cluster": None}, "/cluster"),
            ({"framework": "megatronn"}, "/framework"),
            ({"strategy": {"tpp": 2}}, "/strategy/tpp"),
            ({"clusters": {}}, "/clusters"),
        ],
    )
    def test_bad_requests_are_refused(self, client: TestClient, change: dict[str, Any], pointer: str) -> None:
        response = client.post("/v1/judge", json={**EXAMPLE_JUDGE_REQUEST, **change})
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)

    def test_a_calibration_is_never_a_path(self, client: TestClient) -> None:
        asked = {**EXAMPLE_JUDGE_REQUEST, "cluster": {"preset": "dgx-h100", "calibration": "/etc/passwd"}}
        assert client.post("/v1/judge", json=asked).status_code == 422

    def test_hostile_files_are_refused_by_name(self, client: TestClient) -> None:
        files = [{"path": "x.yaml", "content": "a: !!python/object/apply:os.system [true]\n"}]
        response = client.post("/v1/judge", json={**EXAMPLE_JUDGE_REQUEST, "files": files})
        assert response.status_code == 422
        assert "x.yaml, line 1" in response.json()["errors"][0]["message"]


class TestCalibrations:
    def test_a_document_comes_back_as_it_was_stored(self, client: TestClient) -> None:
        content = {**EXAMPLE_CALIBRATION, "name": "mine", "notes": ["by hand"]}
        stored = client.post("/v1/calibrations", json=content)
        assert stored.status_code == 201
        digest = document_of(content).id
        assert stored.headers["location"] == f"/v1/calibrations/{digest}"
        read = client.get(stored.headers["location"])
        assert read.json() == stored.json()
        assert (read.json()["id"], read.json()["notes"]) == (digest, ["by hand"])
        assert client.post("/v1/calibrations", json=read.json()).json()["id"] == digest
        listed = [entry["id"] for entry in client.get("/v1/calibrations").json()["items"]]
        assert listed.count(digest) == 1

    def test_an_edited_document_is_refused(self, client: TestClient) -> None:
        stored = client.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": "original"}).json()
        response = client.post("/v1/calibrations", json={**stored, "name": "edited"})
        assert (response.status_code, response.json()["errors"][0]["code"]) == (422, "calibration")

    def test_a_wrong_field_is_pointed_at(self, client: TestClient) -> None:
        broken = {**EXAMPLE_CALIBRATION, "device": {**EXAMPLE_CALIBRATION["device"], "num_sms": -1}}
        response = client.post("/v1/calibrations", json=broken)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/device/num_sms")

    def test_a_list_pages_through_all_of_them_newest_first(self, client: TestClient) -> None:
        made = [
            client.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": f"page {number}"}).json()["id"]
            for number in range(3)
        ]
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(20):
            page = client.get("/v1/calibrations", params={"limit": 2, **cursor}).json()
            seen += [entry["id"] for entry in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert page["next_cursor"] is None
        assert seen[:3] == made[::-1]
        assert len(set(seen)) == len(seen) == len(client.get("/v1/calibrations", params={"limit": 100}).json()["items"])

    def test_auto_is_the_newest_one_uploaded(self, client: TestClient, asked: dict[str, Any]) -> None:
        mine = client.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": "newest"}).json()["id"]
        asked["cluster"] = {**asked["cluster"], "calibration": "auto"}
        plan = client.post("/v1/plans", json=asked).json()
        assert plan["request"]["cluster"]["calibration"] == [mine]
        assert plan["plans"][0]["evaluation"]["provenance"]["calibration"] == mine or "newest" in str(
            plan["plans"][0]["evaluation"]["provenance"]["calibration"]
        )

    def test_auto_without_an_upload_is_the_reference_data(self, client: TestClient, asked: dict[str, Any]) -> None:
        asked["cluster"] = {"gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8, "calibration": "auto"}
        plan = client.post("/v1/plans", json=asked).json()
        assert "calibration" not in plan["request"]["cluster"]


class TestPresets:
    @pytest.mark.parametrize("kind", presets.KINDS)
    def test_every_preset_is_listed(self, client: TestClient, kind: presets.Kind) -> None:
        items = client.get(f"/v1/presets/{kind}").json()["items"]
        assert [item["name"] for item in items] == list(presets.names(kind))
        assert all(item["spec"] for item in items)

    def test_every_framework_is_listed_with_versions_and_defaults(self, client: TestClient) -> None:
        items = {item["name"]: item for item in client.get("/v1/presets/frameworks").json()["items"]}
        assert set(items) == set(FRAMEWORKS)
        megatron = items["megatron"]
        assert megatron["default_version"] in [entry["version"] for entry in megatron["versions"]]
        assert megatron["training_defaults"]["main_param_dtype"] == "fp32"
        assert megatron["training_defaults"]["transformer_impl"][0] == {
            "value": "transformer-engine",
            "when": {"since": "2024-01"},
        }
        assert megatron["vocabulary_multiple_per_tp"] == 128
        assert {rule["code"] for rule in megatron["rules"]} >= {"kv-heads-not-divisible", "split-unsupported"}
        assert all(rule["source"] for rule in megatron["rules"])


class TestService:
    def test_health_needs_nothing(self, client: TestClient) -> None:
        assert client.get("/healthz").json()["status"] == "ok"

    def test_metrics_count_requests_by_route_and_never_by_id(self, client: TestClient) -> None:
        client.get("/v1/plans/plan-of-nobody")
        text = client.get("/metrics").text
        assert 'meshwright_http_requests_total{method="GET",route="/v1/plans/{plan_id}",status="404"}' in text
        assert "plan-of-nobody" not in text
        assert "meshwright_workers_ready 1.0" in text
        assert 'meshwright_jobs{status="succeeded"}' in text

    def test_an_unknown_method_does_not_become_a_label(self, client: TestClient) -> None:
        client.request("BREW", "/v1/plans")
        assert "BREW" not in client.get("/metrics").text

    def test_the_log_of_a_service_on_an_old_schema_begins_with_what_to_do(
        self, tmp_path: Any, capfd: pytest.CaptureFixture[str]
    ) -> None:
        kept = {name: logging.getLogger(name).handlers for name in OWN_LOGGERS}
        with TestClient(create_app(Settings(data_dir=tmp_path, auto_upgrade=False, pool_size=1))):
            pass
        for name, handlers in kept.items():
            logging.getLogger(name).handlers = handlers
        first = json.loads(capfd.readouterr().err.splitlines()[0])
        assert (first["event"], first["remedy"]) == (
            "the schema of the database is not current",
            "run `meshwright db upgrade`",
        )

    def test_logs_are_json_lines_on_stderr(self, tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
        kept = {name: logging.getLogger(name).handlers for name in OWN_LOGGERS}
        with TestClient(create_app(Settings(data_dir=tmp_path, log_level="info", pool_size=1))) as client:
            client.get("/healthz", headers={"x-request-id": "find-me"})
        for name, handlers in kept.items():
            logging.getLogger(name).handlers = handlers
        out, err = capfd.readouterr()
        assert out == ""
        lines = [json.loads(line) for line in err.splitlines()]
        (line,) = [line for line in lines if line.get("request_id") == "find-me"]
        assert (line["event"], line["path"], line["status"], line["level"]) == ("request", "/healthz", 200, "info")
