"""The same job on other GPUs, micro-batches and sequence lengths."""

from __future__ import annotations

from typing import Any

import pytest

from planner.plan import add_what_if, plan, plan_checked
from planner.request.checked_request import check_request

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "constraints": {"fixed": {"tp": 4, "cp": 1}},
    "include": ["what_if"],
}


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return plan(REQUEST)["what_if"]


def entries(found: list[dict[str, Any]], field: str) -> dict[int, dict[str, Any]]:
    return {entry["value"]: entry for entry in found if entry["field"] == field}


def test_nodes_are_halved_doubled_and_quadrupled(found: list[dict[str, Any]]) -> None:
    nodes = entries(found, "cluster.num_nodes")
    assert list(nodes) == [1, 4, 8]
    base = found[0]
    assert base["field"] == "as asked"
    for value, entry in nodes.items():
        assert entry["num_gpus"] <= 8 * value
        assert entry["speedup"] == pytest.approx(base["step_time_s"] / entry["step_time_s"])
        assert entry["proof"]["optimal"]
    assert nodes[1]["step_time_s"] > base["step_time_s"] > nodes[4]["step_time_s"]


def test_a_variant_is_what_planning_it_gives(found: list[dict[str, Any]]) -> None:
    alone = plan({**REQUEST, "include": [], "cluster": {"preset": "dgx-h100", "num_nodes": 4}})
    assert entries(found, "cluster.num_nodes")[4]["step_time_s"] == alone["plans"][0]["evaluation"]["step_time_s"]


def test_sequences_keep_the_tokens_of_a_step(found: list[dict[str, Any]]) -> None:
    lengths = entries(found, "training.seq_length")
    assert list(lengths) == [2048, 8192, 16384]
    for entry in lengths.values():
        assert entry["tokens_per_s"] * entry["step_time_s"] == pytest.approx(4096 * 64)


def test_variants_share_what_is_left_of_the_time() -> None:
    checked = check_request(REQUEST)
    response = plan_checked(check_request({**REQUEST, "include": []}))
    add_what_if(response, checked, should_stop=lambda: True)
    assert [entry["field"] for entry in response["what_if"]] == ["as asked"]
    assert any("every variant of `what_if`" in warning for warning in response["warnings"])


def test_without_a_plan_there_is_nothing_to_compare() -> None:
    small = {**REQUEST, "model": {"preset": "llama-3.1-405b"}, "cluster": {"preset": "dgx-h100", "num_nodes": 1}}
    assert plan(small)["what_if"] == []


def test_variants_of_an_open_split_are_open_too() -> None:
    """Else a job that gains by its split would seem to lose by every change."""
    asked = {
        **REQUEST,
        "model": {
            "num_layers": 13, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336,
            "vocab_size": 250_000,
        },
        "constraints": {"fixed": {"pp": 4, "tp": 2, "cp": 1, "vpp": 1, "zero": 1}},
        "include": ["open_splits", "what_if"],
    }  # fmt: skip
    variant = entries(plan(asked)["what_if"], "cluster.num_nodes")[4]
    changed = {**asked, "cluster": {"preset": "dgx-h100", "num_nodes": 4}, "top_k": 1}
    opened, listed = (
        plan({**changed, "include": include})["plans"][0]["evaluation"]["step_time_s"]
        for include in (["open_splits"], [])
    )
    assert opened < listed
    assert variant["step_time_s"] == opened
