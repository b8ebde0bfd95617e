"""Right values of what replicas exchange, asked over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.api.schemas import PlanDocument

H200 = {"preset": "dgx-h200", "num_nodes": 2}
TRAINING = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"}
DILOCO = {"method": "diloco", "sync_every": 100}


def row(compression: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": H200,
        "training": {**TRAINING, **training},
        "strategy": {"zero": 0, "micro_batch_size": 1, "recompute": "full", "compression": compression},
    }


def test_powersgd_of_a_layer_of_llama(client: TestClient) -> None:
    """218,103,808 elements of a layer's matrices: ranks 1, 4 and 32 send 81,920, 327,680 and 2,621,440 of them."""
    answers = client.post("/v1/evaluate", json=[row({"kind": "powersgd", "rank": rank}) for rank in (1, 4, 32)]).json()
    matrices = [answer["exchange"]["matrices"] for answer in answers]
    assert {each["layer_elements"] for each in matrices} == {218_103_808}
    assert [each["layer_sent_elements"] for each in matrices] == [81_920, 327_680, 2_621_440]
    assert {answer["mathematics"] for answer in answers} == {"changed"}


def test_volumes_of_one_bit_adam(client: TestClient) -> None:
    """Warm-ups of 15, 20 and 25 % of 100,000 steps: 1 / (f + (1 - f) / 16) is 4.92, 4.0 and 3.37. 0.19.6 is the last release with it."""
    given = {
        "framework": "deepspeed",
        "framework_version": "0.19.6",
        "precision": "fp16",
        "total_tokens": 4096 * 64 * 100_000,
    }
    rows = [row({"kind": "onebit", "freeze_steps": steps}, **given) for steps in (15_000, 20_000, 25_000)]
    answers = client.post("/v1/evaluate", json=rows).json()
    assert [round(answer["exchange"]["volume_ratio"], 2) for answer in answers] == [4.92, 4.0, 3.37]


def test_break_even_of_diloco_on_two_islands_at_10_gbit(client: TestClient) -> None:
    """Its step is that of one island by itself and a hundredth of 25.70 s; it pays below t_exact / t_own - 1 more steps."""
    asked = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {**H200, "num_nodes": 4, "islands": {"count": 2, "link_gbit_per_s": 10}},
        "training": {**TRAINING, "framework": "torchtitan", "global_batch_size": 256},
        "constraints": {"allowed": {"sync": [DILOCO]}},
        "top_k": 2,
        "wait_s": 60,
    }
    response = client.post("/v1/plans", json=asked)
    assert response.status_code == 201, response.text
    answer = PlanDocument.model_validate_json(response.text)
    best, own = answer.plans[0].evaluation, answer.changed_plans[0]
    assert (best.mathematics, own.evaluation.mathematics) == ("exact", "changed")
    assert best.step_time_s is not None
    assert own.evaluation.step_time_s is not None
    assert own.evaluation.exchange is not None
    assert own.evaluation.memory is not None
    assert own.break_even_extra_steps == pytest.approx(best.step_time_s / own.evaluation.step_time_s - 1.0)
    assert round(own.evaluation.exchange.synchronisation_s or 0.0, 2) == 25.70
    assert own.evaluation.memory.stages is None  # a summary, as those of the plans are
    assert own.break_even_extra_steps == pytest.approx(0.82, abs=0.15)


def test_a_method_that_no_framework_runs_is_refused_by_its_field(client: TestClient) -> None:
    asked = {"model": {"preset": "llama-3.1-8b"}, "cluster": H200, "training": TRAINING}
    refused = client.post("/v1/plans", json=asked | {"constraints": {"allowed": {"sync": [{"method": "async"}]}}})
    (problem,) = refused.json()["errors"]
    assert (refused.status_code, problem["pointer"]) == (422, "/constraints/allowed/sync/0")
    assert "does not run sync 'async'" in problem["message"]
