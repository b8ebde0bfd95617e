"""Warnings say the same wherever a job is answered: a plan's, a row's, on one kind of node and on pools."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.inputs.fields import WARNINGS
from planner.plan import plan
from planner.rows import evaluate_rows

VISION: dict[str, Any] = {
    "hf_config": {
        "model_type": "gemma3", "quantization_config": {"quant_method": "awq"},
        "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
                        "vocab_size": 1000},
    }
}  # fmt: skip
TRAINING = {"seq_length": 1024, "global_batch_size": 16, "precision": "bf16", "framework": "megatron"}
STRATEGY = {"tp": 1, "pp": 1, "dp": 8, "micro_batch_size": 1}
ONE = {"preset": "dgx-h100", "num_nodes": 1}
POOLS = {"pools": [{"name": name, "preset": "dgx-h100", "num_nodes": 1} for name in ("one", "two")]}


def told(cluster: dict[str, Any], strategy: dict[str, Any], **job: Any) -> tuple[list[str], list[str]]:
    """Warnings of the plan and of the row."""
    asked = {"model": VISION, "cluster": cluster, "training": TRAINING} | job
    response = plan(asked | {"top_k": 1})
    row = next(iter(evaluate_rows([asked | {"strategy": strategy}])))
    assert row["verdict"] == "fits"
    return response["warnings"], row["warnings"]


@pytest.mark.parametrize(
    ("cluster", "strategy"),
    [(ONE, STRATEGY), (POOLS, STRATEGY | {"pp": 2, "pool_per_stage": ["one", "two"]})],
)
def test_a_row_is_warned_of_what_its_plan_is_warned_of(cluster: dict[str, Any], strategy: dict[str, Any]) -> None:
    """What is said of the search of pools is said of the plan alone."""
    of_plan, of_row = told(cluster, strategy)
    assert {"vision-tower-ignored", "quantization-ignored"} <= set(of_row)
    assert [warning for warning in of_plan if not warning.startswith("pools-")] == of_row


def test_a_ranked_plan_is_warned_alike() -> None:
    response = plan({"model": VISION, "cluster": ONE, "training": TRAINING, "top_k": 1})
    assert response["plans"][0]["evaluation"]["warnings"] == response["warnings"]


def test_a_sequence_beyond_the_positions_is_warned_of_with_what_to_do() -> None:
    """Llama 2 knows 4,096 positions: one sequence more is beyond them, and ALiBi has none to exceed."""
    llama = {"preset": "llama-2-7b", "num_layers": 2}
    for length, warned in ((4096, False), (8192, True)):
        of_plan, of_row = told(ONE, STRATEGY, model=llama, training=TRAINING | {"seq_length": length})
        assert ("sequence-beyond-positions" in of_plan) is warned
        assert ("sequence-beyond-positions" in of_row) is warned
    assert "rope_scaling" in WARNINGS["sequence-beyond-positions"]
    alibi = {"preset": "mpt-7b", "num_layers": 2, "max_position_embeddings": 2048}
    assert told(ONE, STRATEGY, model=alibi, training=TRAINING | {"seq_length": 4096})[1] == []


def test_a_row_that_cannot_run_keeps_its_warnings() -> None:
    broken = {"model": VISION, "cluster": ONE, "training": TRAINING, "strategy": STRATEGY | {"tp": 3, "dp": 1}}
    answer = next(iter(evaluate_rows([broken])))
    assert answer["verdict"] == "invalid"
    assert "vision-tower-ignored" in answer["warnings"]
    assert next(iter(evaluate_rows(["{}"])))["warnings"] == []
