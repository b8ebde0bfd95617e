"""A row that leaves a fact open is never called out of memory because of the default that stood in for it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cost_models.units import GIB
from planner.plan import plan
from planner.rows import evaluate_rows

A100_40 = {"gpu": "A100-SXM-40GB", "num_nodes": 1, "gpus_per_node": 8}
A100_80 = {"gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}


def row(framework: str, strategy: dict[str, Any], cluster: dict[str, Any] = A100_40, **training: Any) -> dict[str, Any]:
    job = {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": framework, **training}
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": cluster,
        "training": job,
        "strategy": {"micro_batch_size": 1, **strategy},
    }


def one(given: dict[str, Any]) -> dict[str, Any]:
    (answer,) = evaluate_rows([given])
    return answer


def stated(given: dict[str, Any], field: str, value: object) -> dict[str, Any]:
    """The row with one more fact, named as in a reason's hint."""
    part, name = field.split(".")
    changed = json.loads(json.dumps(given))
    changed[part][name] = value
    return changed


CASES = [
    # activations of 32,768 tokens: full recomputation keeps one tensor a layer, none keeps some 30
    (
        row("megatron", {"tp": 2, "zero": 1}, A100_80, seq_length=32768, cross_entropy="te"),
        "strategy.recompute",
        "full",
        "none",
    ),
    # 16 bytes a parameter on every rank of a tp group of 4; a dp group of 2 halves the optimizer's 12
    (row("megatron-deepspeed", {"tp": 4, "recompute": "full"}), "strategy.zero", 2, 0),
    # logits of 16,384 tokens x 128,256 words: 12 bytes each unfused are 23.5 GiB
    (row("fsdp", {"recompute": "full", "zero": 3}, seq_length=16384), "training.cross_entropy", "linear", "unfused"),
    # fp32 parameters, gradients and moments of 8.03e9 parameters over 2 ranks are 60 GiB; in bf16 30
    (
        row("fsdp", {"dp": 2, "recompute": "full", "zero": 3, "grad_sync": "each"}),
        "training.param_dtype",
        "bf16",
        "fp32",
    ),
    # bf16 gradients of 8.03e9 parameters that wait unsharded are 15 GiB; fp32 shards over 8 ranks 3.7
    (row("fsdp", {"dp": 8, "recompute": "full", "zero": 3}), "strategy.grad_sync", "each", "last"),
    # fp32 gradients of 8.03e9 / 2 parameters are 15 GiB; in bf16 7.5
    (row("nanotron", {"tp": 2, "recompute": "full", "zero": 1}), "training.grad_dtype", "bf16", "fp32"),
]


@pytest.mark.parametrize(("given", "field", "lean", "default"), CASES, ids=[case[1] for case in CASES])
def test_the_fact_that_decides_is_named_and_stating_it_decides(given, field, lean, default):
    """With the fact open the row is at risk and names it; with either value stated the verdict is that value's own."""
    answer = one(given)
    assert answer["verdict"] == "at-risk"
    named = {reason["hint"]: reason["message"] for reason in answer["reasons"] if reason["code"] == "unstated-fact"}
    message = named[f"State {field}."]
    name = field.split(".")[1]
    assert f"with {name} {lean} and" in message
    assert f"{name} {default};" in message
    leaner, as_priced = one(stated(given, field, lean)), one(stated(given, field, default))
    assert leaner["verdict"] == ("at-risk" if "may fit" in message else "fits")
    assert as_priced["verdict"] == ("at-risk" if "at risk with" in message else "oom")
    assert as_priced["step_time_s"] == answer["step_time_s"]


def test_stated_facts_give_a_narrow_range_and_no_such_reason():
    """Open, the range reaches from the leanest reading to the default's high end; stated, only over the model's own error."""
    given = CASES[0][0]
    wide = one(given)["memory"]["peak_device_range_bytes"]
    answer = one(stated(given, "strategy.recompute", "none"))
    low, high = answer["memory"]["peak_device_range_bytes"]
    assert answer["verdict"] == "oom"
    assert high == wide[1]
    assert wide[0] < 0.5 * low
    assert high / low < 1.25
    assert [reason["code"] for reason in answer["reasons"]] == ["out-of-memory"]


def test_facts_that_decide_only_together_are_named_together():
    given = row("fsdp", {"dp": 2, "grad_sync": "each"}, A100_80, seq_length=16384)
    (reason,) = (r for r in one(given)["reasons"] if r["code"] == "unstated-fact")
    assert reason["hint"] == "State strategy.recompute and training.cross_entropy."
    assert one(stated(given, "strategy.recompute", "full"))["verdict"] == "at-risk"
    together = stated(stated(given, "strategy.recompute", "full"), "training.cross_entropy", "linear")
    assert one(together)["verdict"] == "at-risk"
    assert one(stated(together, "training.param_dtype", "fp32"))["verdict"] == "at-risk"
    fixed = stated(stated(given, "strategy.recompute", "none"), "training.cross_entropy", "unfused")
    assert one(stated(stated(fixed, "training.param_dtype", "fp32"), "strategy.zero", 3))["verdict"] == "oom"


def test_no_reading_that_a_framework_refuses_rescues_a_row():
    """nanotron has no zero 2 or 3, and a 70B model does not fit eight GPUs of 40 GiB whatever else is left open."""
    given = row("nanotron", {"tp": 8}) | {"model": {"preset": "llama-3.1-70b"}}
    answer = one(given)
    assert answer["verdict"] == "oom"
    assert "unstated-fact" not in [reason["code"] for reason in answer["reasons"]]


def test_what_one_row_states_says_nothing_about_its_neighbour():
    """Both rows price alike, but only the second leaves its cross entropy open (they used to share the first one's facts)."""
    open_row = CASES[2][0]
    closed = stated(open_row, "training.cross_entropy", "unfused")
    closed = stated(stated(closed, "training.param_dtype", "fp32"), "training.grad_dtype", "fp32")
    for rows in ([closed, open_row, closed], [open_row, closed, open_row]):
        # the first line is answered by itself, the next two together
        assert [answer["verdict"] for answer in evaluate_rows([row("megatron", {"tp": 8}), *rows])][1:] == [
            one(given)["verdict"] for given in rows
        ]
    assert (one(closed)["verdict"], one(open_row)["verdict"]) == ("oom", "at-risk")


def test_stages_on_pools_leave_the_same_facts_open():
    pools = [
        {"name": "small", "gpu": "A100-SXM-40GB", "num_nodes": 1, "gpus_per_node": 8},
        {"name": "large", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    ]
    given = row("megatron", {"tp": 2, "pp": 2, "dp": 4, "zero": 1}, {"pools": pools}, seq_length=16384)
    answer = one(given)
    assert answer["verdict"] == "at-risk"
    (reason,) = (r for r in answer["reasons"] if r["code"] == "unstated-fact")
    assert re.match(r"it (fits|may fit) with recompute full and not with recompute none", reason["message"])
    assert "out-of-memory" not in [r["code"] for r in answer["reasons"]]
    low, high = answer["memory"]["peak_device_range_bytes"]
    none = one(stated(given, "strategy.recompute", "none"))
    assert none["verdict"] == "oom"
    assert high == none["memory"]["peak_device_range_bytes"][1]
    assert low < none["memory"]["peak_device_range_bytes"][0]


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan", "fsdp", "nanotron"])
def test_a_plan_fed_back_is_judged_as_the_plan_was(framework):
    """In a plan the defaults are facts: its request's training and its strategy leave nothing open, at risk or not."""
    response = plan({
        "model": {"preset": "llama-3.2-3b"},
        "cluster": {"gpu": "RTX4090-24GB", "num_nodes": 1, "gpus_per_node": 4},
        "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": framework},
        "constraints": {"allow_at_risk": True},
        "top_k": 40,
    })  # fmt: skip
    request = {name: response["request"][name] for name in ("model", "cluster", "training")}
    back = list(evaluate_rows([{**request, "strategy": ranked["strategy"]} for ranked in response["plans"]]))
    assert len(back) > 3
    for ranked, answer in zip(response["plans"], back, strict=True):
        own = ranked["evaluation"]
        assert (answer["verdict"], answer["reasons"]) == (own["verdict"], own["reasons"])
        assert answer["memory"] == own["memory"]
        assert answer["memory"]["peak_device_bytes"] > GIB
