"""What speaks against a strategy: the first rule that it breaks, its memory, or its price."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builders import request_of, tiny_model
from cost_models.errors import InvalidInputError
from example_plans import example_plan
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.why_not import CHOICES, usual_choices, why_not

REQUESTS = Path(__file__).resolve().parents[3] / "examples" / "requests"


@cache
def response(name: str = "llama-3.1-70b") -> dict[str, Any]:
    return example_plan(name)


def row(strategy: dict[str, Any], name: str = "llama-3.1-70b") -> dict[str, Any]:
    request = response(name)["request"]
    return {**{part: request[part] for part in ("model", "cluster", "training")}, "strategy": strategy}


def test_a_strategy_that_breaks_a_rule_is_told_the_first() -> None:
    strategy = {"tp": 6, "pp": 1, "dp": 16, "micro_batch_size": 1}
    (evaluated,) = evaluate_rows([row(strategy)])
    found = why_not(response(), strategy)
    assert found["verdict"] == evaluated["verdict"] == "invalid"
    assert found["reasons"] == evaluated["reasons"]
    assert found["step_time_s"] is None
    assert found["place"] is None


def test_a_strategy_is_priced_beside_the_first_plan() -> None:
    strategy = {"tp": 8, "pp": 2, "dp": 8, "micro_batch_size": 1, "sequence_parallel": True}
    (evaluated,) = evaluate_rows([row(strategy)])
    found = why_not(response(), strategy)
    first = response()["plans"][0]["evaluation"]
    assert found["step_time_s"] == pytest.approx(evaluated["step_time_s"])
    assert found["difference_s"] == pytest.approx(evaluated["step_time_s"] - first["step_time_s"])
    assert found["peak_device_bytes"] == evaluated["memory"]["peak_device_bytes"]
    for term, more in found["largest_terms_s"].items():
        assert more == pytest.approx(evaluated["time_breakdown_s"][term] - first["time_breakdown_s"][term])
    faster = [each for each in response()["plans"] if each["evaluation"]["step_time_s"] < found["step_time_s"]]
    assert found["place"] == 1 + len(faster)


def test_a_listed_plan_is_recognised() -> None:
    for plan_ in response()["plans"]:
        found = why_not(response(), plan_["strategy"])
        assert found["rank"] == plan_["rank"]
        assert found["verdict"] == "fits"
    assert why_not(response(), response()["plans"][0]["strategy"])["difference_s"] == pytest.approx(0.0, abs=1e-9)


def test_a_strategy_that_does_not_fit_keeps_its_price() -> None:
    found = why_not(response(), {"dp": 128, "micro_batch_size": 1, "zero": 0})
    assert found["verdict"] == "oom"
    assert found["reasons"][0]["code"] == "out-of-memory"
    assert found["peak_device_bytes"] > found["capacity_bytes"]
    assert found["step_time_s"] > 0


def test_constraints_that_leave_a_strategy_out_are_told() -> None:
    request = request_of(tiny_model())
    constraints = {"fixed": {"tp": 2}, "allowed": {"zero": [0, 1]}, "allow_idle_gpus": False}
    answer = plan({**request, "constraints": constraints, "top_k": 2})
    found = why_not(answer, {"tp": 4, "dp": 1, "zero": 3, "micro_batch_size": 1})
    told = " ".join(found["excluded"])
    assert "fixes tp to 2, and here it is 4" in told
    assert "allows zero 0 or 1, and here it is 3" in told
    assert "4 of 8" in told
    assert why_not(answer, answer["plans"][0]["strategy"])["excluded"] == []


def test_a_wrong_field_is_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        why_not(response(), {"tpp": 4})
    assert caught.value.problems[0].pointer.startswith("/strategy")


def test_another_revision_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be priced"):
        why_not({**response(), "model_revision": "000000000000"}, {"tp": 8})


def test_usual_choices_are_the_best_of_their_variants() -> None:
    found = {each["choice"]: each for each in usual_choices(response())}
    assert set(found) == {*CHOICES, "nearest"}
    assert found["defaults"]["verdict"] == "oom"
    sharded = found["zero_3"]["strategy"]
    assert (sharded["tp"], sharded["pp"], sharded["dp"], sharded["zero"]) == (1, 1, 128, 3)
    variants = [
        {"tp": 1, "pp": 1, "cp": 1, "dp": 128, "zero": 3, "micro_batch_size": size, "recompute": recompute}
        for size in (1, 2, 4)
        for recompute in ("none", "selective", "full")
    ]
    fitting = [each["step_time_s"] for each in evaluate_rows([row(v) for v in variants]) if each["verdict"] == "fits"]
    assert found["zero_3"]["step_time_s"] == pytest.approx(min(fitting))
    inside = found["tensor_in_node"]["strategy"]
    assert (inside["tp"], inside["pp"]) == (8, 1)
    assert found["pipeline"]["strategy"]["tp"] == 1
    assert found["pipeline"]["strategy"]["pp"] > 1


def test_the_nearest_infeasible_ones_are_priced() -> None:
    listed = response()["nearest_infeasible"]
    found = [each for each in usual_choices(response()) if each["choice"] == "nearest"]
    assert [each["strategy"] for each in found] == [each["strategy"] for each in listed]
    assert [each["reasons"] for each in found] == [each["reasons"] for each in listed]
    assert all(each["difference_s"] is not None for each in found)


def test_a_framework_without_pipelines_says_so() -> None:
    found = {each["choice"]: each for each in usual_choices(response("qwen3-8b-fsdp"))}
    assert found["pipeline"]["verdict"] == "invalid"
    assert "no pipeline" in found["pipeline"]["reasons"][0]["message"]


def test_pools_and_answers_without_plans_are_answered_too() -> None:
    assert usual_choices(response("llama-3.1-70b-two-pools")) == []
    for each in usual_choices(response("too-small")):
        assert each["difference_s"] is None
        assert each["verdict"] != "fits"
