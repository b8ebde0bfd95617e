"""Any small request has a valid, finite, repeatable response whose plans keep its constraints."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answer.changes import ADAPTER, EIGHT_BIT, QUANTIZED, changes
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rows import evaluate_rows
from planner.schemas.plan_response import PlanResponse

PARTS = ("model", "cluster", "training")


def of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


DENSE = {
    "num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 32000,
}  # fmt: skip
MODELS = of(
    DENSE,
    {**DENSE, "num_layers": 7, "tie_word_embeddings": True},
    {**DENSE, "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 1024}},
)
FIXED = of({}, {"tp": 2}, {"pp": 2}, {"zero": 1}, {"recompute": "full"}, {"micro_batch_size": 1, "cp": 1}, {"tp": 3})
ALLOWED = of({}, {}, {"vpp": [1, 2]}, {"dp": [2, 4]}, {"sequence_parallel": [True]}, {"zero_shard_size": [2]})
REQUESTS = st.builds(
    lambda model, memory_gib, nodes, framework, fixed, allowed, at_risk, objective, top_k: {
        "model": model,
        "cluster": {
            "gpu": {
                "name": "toy", "memory_gib": memory_gib, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 1500,
                "nvlink_gb_per_s": 200,
            },
            "num_nodes": nodes, "gpus_per_node": 4,
        },
        "training": {"seq_length": 1024, "global_batch_size": 16, "precision": "bf16", "framework": framework},
        "constraints": {"fixed": fixed, "allowed": allowed, "allow_at_risk": at_risk},
        "objective": objective,
        "top_k": top_k,
    },
    MODELS, of(4, 6, 12, 40), of(1, 2), of("megatron", "torchtitan", "deepspeed", "nanotron", "fsdp"), FIXED,
    ALLOWED, st.booleans(), of("step_time", "cost"), of(1, 5),
)  # fmt: skip


def consistent(request: dict[str, Any]) -> bool:
    constraints = request["constraints"]
    return not set(constraints["fixed"]) & set(constraints["allowed"])


@settings(max_examples=25)
@given(REQUESTS.filter(consistent))
def test_a_response_is_valid_finite_and_repeatable(request) -> None:
    response = plan(request)
    PlanResponse.model_validate(response)
    json.dumps(response, allow_nan=False)
    again = plan(response["request"])
    assert again["request_digest"] == response["request_digest"]
    # What a request leaves open, its resolved form states: no default, and no warning of one.
    for each, other in zip(response["plans"], again["plans"], strict=True):
        left_open = {name: other["evaluation"][name] for name in ("assumed", "warnings")}
        assert other == {**each, "evaluation": {**each["evaluation"], **left_open}}
    assert again["rejected"] == response["rejected"]


@settings(max_examples=25)
@given(REQUESTS.filter(consistent))
def test_plans_keep_the_constraints_and_evaluate_to_what_they_say(request) -> None:
    response, limits = plan(request), request["constraints"]
    verdicts = {"fits", "at-risk"} if limits["allow_at_risk"] else {"fits"}
    rows = [{**{part: request[part] for part in PARTS}, "strategy": each["strategy"]} for each in response["plans"]]
    for each, answer in zip(response["plans"], evaluate_rows(rows), strict=True):
        assert each["evaluation"]["verdict"] in verdicts
        assert answer["step_time_s"] == each["evaluation"]["step_time_s"]
        assert answer["memory"] == each["evaluation"]["memory"]
        assert {name: each["strategy"][name] for name in limits["fixed"]} == limits["fixed"]
        for name, values in limits["allowed"].items():
            assert each["strategy"][name] in values


@settings(max_examples=25)
@given(REQUESTS.filter(consistent))
def test_a_smallest_change_makes_it_fit(request) -> None:
    """Applied to the strategy it belongs to, whatever the framework, every fact stated as the plan took it."""
    response = plan(request)
    parts = {part: response["request"][part] for part in PARTS}
    for each in response["nearest_infeasible"]:
        (before,) = evaluate_rows([{**parts, "strategy": each["strategy"]}])
        if before["verdict"] == "invalid":  # nothing legal was left: a contradiction or broken rules, each told as one
            assert each["reasons"]
            assert each["smallest_change"]
            continue
        assert before["verdict"] in {"oom", "at-risk"}
        assert [reason["code"] for reason in before["reasons"]] == [reason["code"] for reason in each["reasons"]]
        name = each["smallest_change"].split(" (which ", maxsplit=1)[0]
        found = [change for change in changes(resolve_job(parts), each["strategy"]) if change.name == name]
        if not found:
            assert each["smallest_change"].startswith(("no change is enough", "use more GPUs"))
        else:
            edits = {
                EIGHT_BIT: {"optimizer": "adam-8bit"},
                ADAPTER: {"adapter": {"rank": 16}},
                QUANTIZED: {"adapter": {"rank": 16, "quantized_base": "nf4"}},
            }
            training = {**parts["training"], **edits.get(found[0].edit, {})}
            (after,) = evaluate_rows([{**parts, "training": training, "strategy": found[0].strategy}])
            assert after["verdict"] == "fits"
