"""What a request lists or fixes beside the degrees: no strategy twice, kernels with their dispatcher, versions as facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import dense_model, with_experts
from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.rows import evaluate_rows

DENSE = dense_model(4, intermediate_size=2048, vocab_size=1000)
MIXTURE = with_experts(DENSE)

TRAINING = {"seq_length": 1024, "global_batch_size": 32, "precision": "bf16", "framework": "megatron"}


def planned(constraints: dict[str, Any], *, model: Any = MIXTURE, top_k: int = 400, **training: Any) -> dict[str, Any]:
    cluster = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
    constraints = {"allow_at_risk": True, **constraints}
    return plan({
        "model": model, "cluster": cluster, "training": {**TRAINING, **training}, "top_k": top_k,
        "constraints": constraints,
    })  # fmt: skip


def evaluated(strategy: dict[str, Any]) -> dict[str, Any]:
    cluster = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
    row = {"model": MIXTURE, "cluster": cluster, "training": TRAINING, "strategy": {"micro_batch_size": 1, **strategy}}
    return next(evaluate_rows([row]))


@pytest.mark.parametrize(
    "listed",
    [
        {"overlap": {"p2p": [True, False], "tp_comm": [False, True], "moe_all_to_all": [False, True]}},
        {"moe_dispatcher": ["alltoall", "flex"], "flex_backend": ["hybridep", "deepep"]},
        {"cp_comm": ["p2p", "a2a"]},
    ],
    ids=["overlaps", "dispatchers", "cp_comm"],
)
def test_no_strategy_is_ranked_twice(listed: dict[str, Any]) -> None:
    """A listed value without effect (an overlap that cannot exist, kernels of a dispatcher not in use) makes no second plan."""
    found = planned({"allowed": {**listed, "recompute": ["none"], "zero": [1]}, "fixed": {"micro_batch_size": 1}})
    strategies = [dict(entry["strategy"]) for entry in found["plans"]]
    for strategy in strategies:
        if strategy["cp"] == 1:
            del strategy["cp_comm"]
        if strategy["ep"] * strategy["etp"] == 1:
            del strategy["moe_dispatcher"]
            strategy.pop("flex_backend", None)
    texts = [json.dumps(strategy, sort_keys=True) for strategy in strategies]
    assert len(texts) > 20
    assert len(set(texts)) == len(texts)
    for name, values in listed.items():
        if name != "overlap":
            assert {strategy.get(name) for strategy in strategies} >= set(values), name


def test_listed_values_lose_nothing() -> None:
    """The two dispatchers together are searched as each alone: the best plan is the better of the two."""
    fixed = {"ep": 8, "etp": 1}
    alone = [planned({"fixed": {**fixed, "moe_dispatcher": name}}, top_k=1) for name in ("alltoall", "flex")]
    both = planned({"fixed": fixed, "allowed": {"moe_dispatcher": ["alltoall", "flex"]}}, top_k=1)
    best_s = min(found["plans"][0]["evaluation"]["step_time_s"] for found in alone)
    assert both["plans"][0]["evaluation"]["step_time_s"] == best_s


def test_flex_kernels_mean_the_flex_dispatcher() -> None:
    """A row and a request that name DeepEP's kernels alone get the dispatcher that has them, said in `assumed`."""
    named, whole = evaluated({"dp": 8, "ep": 8, "etp": 1, "flex_backend": "deepep"}), None
    whole = evaluated({"dp": 8, "ep": 8, "etp": 1, "flex_backend": "deepep", "moe_dispatcher": "flex"})
    assert named["assumed"]["moe_dispatcher"] == "flex"
    assert named["step_time_s"] == whole["step_time_s"]
    assert named["memory"]["peak_device_bytes"] == whole["memory"]["peak_device_bytes"]
    found = planned({"fixed": {"flex_backend": "deepep"}}, top_k=20)
    assert {entry["strategy"]["moe_dispatcher"] for entry in found["plans"]} == {"flex"}
    assert found["search"]["space"]["moe_dispatcher"] == ["flex"]


def test_flex_kernels_of_another_dispatcher_are_refused() -> None:
    """No other dispatcher has them: the row is invalid, the request an error, each naming both values."""
    wrong = {"flex_backend": "deepep", "moe_dispatcher": "alltoall"}
    [reason] = evaluated({"dp": 8, "ep": 8, "etp": 1, **wrong})["reasons"]
    assert (reason["code"], reason["hint"]) == (
        "dispatcher-unsupported",
        "Set moe_dispatcher to 'flex', or leave flex_backend out.",
    )
    for constraints in (
        {"fixed": wrong},
        {"fixed": {"moe_dispatcher": "alltoall"}, "allowed": {"flex_backend": ["deepep"]}},
    ):
        with pytest.raises(InvalidInputError, match="flex_backend is 'deepep', but moe_dispatcher is 'alltoall'"):
            planned(constraints)


@pytest.mark.parametrize(
    ("training", "constraints"),
    [
        ({"framework": "megatron-deepspeed"}, {"allowed": {"cp": [1, 2, 4]}}),
        ({"framework": "megatron", "software_date": "2024-06"}, {"allowed": {"zero": [0, 1, 2]}}),
    ],
    ids=["version-by-default", "version-by-date"],
)
def test_a_plan_runs_in_the_version_that_it_states(training: dict[str, Any], constraints: dict[str, Any]) -> None:
    """The response states a version, so no ranked plan may use what came later: Ulysses with Megatron-DeepSpeed of 2023, ZeRO 2
    with Megatron Core 0.12 (2025). A row of which a date alone is known stays lenient, since its stack may carry more than its release;
    one that gives neither is judged like a plan.
    """
    found = planned(constraints, model=DENSE, **training)
    stated = {name: found["request"][name] for name in ("model", "cluster", "training")}
    rows = [{**stated, "strategy": entry["strategy"]} for entry in found["plans"]]
    assert rows
    for entry, answer in zip(found["plans"], evaluate_rows(rows), strict=True):
        assert answer["verdict"] == entry["evaluation"]["verdict"], entry["strategy"]
    row = {**rows[0], "training": {**TRAINING, **training}, "strategy": {"dp": 4, "cp": 2, "micro_batch_size": 1}}
    codes = [reason["code"] for reason in next(evaluate_rows([row]))["reasons"]]
    assert codes == ([] if "software_date" in training else ["context-parallel-unsupported"])
