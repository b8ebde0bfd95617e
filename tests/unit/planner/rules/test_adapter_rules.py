"""What frameworks cannot run beside adapters, and what a search then leaves over."""

from __future__ import annotations

from typing import Any

import pytest

from planner.plan import plan
from planner.rows import evaluate_rows

CARDS = {"gpu": "RTX4090-24GB", "num_nodes": 1, "gpus_per_node": 2, "intra_node": "pcie"}
TRAINING = {"seq_length": 2048, "global_batch_size": 16, "precision": "bf16"}


def answer(framework: str, adapter: dict[str, Any], **strategy: Any) -> dict[str, Any]:
    row = {
        "id": 0,
        "model": {"preset": "llama-3.2-1b"},
        "cluster": CARDS,
        "training": {**TRAINING, "framework": framework, "adapter": {"rank": 16, **adapter}},
        "strategy": {"micro_batch_size": 1, "zero": 0, **strategy},
    }
    (found,) = evaluate_rows([row])
    return found


@pytest.mark.parametrize(
    ("framework", "adapter", "strategy", "code", "remedy"),
    [
        ("fsdp", {}, {"tp": 2}, "adapter-unsupported", "Set tp to 1 and shard with zero 3, or use megatron."),
        ("deepspeed", {}, {"pp": 2}, "adapter-unsupported", "Set pp to 1 and shard with zero 3, or use megatron."),
        ("fsdp", {}, {"cp": 2}, "context-parallel-unsupported", "Set zero to 3"),
        ("fsdp", {"quantized_base": "nf4"}, {"cp": 2, "zero": 3}, "context-parallel-unsupported", "Set cp to 1"),
        ("fsdp", {"quantized_base": "int8"}, {"dp": 2, "zero": 3}, "quantized-base-unsupported", "nf4"),
        ("fsdp", {"quantized_base": "int8"}, {"dp": 2, "zero": 2}, "quantized-base-unsupported", "nf4"),
        ("deepspeed", {"quantized_base": "int8"}, {"dp": 2, "zero": 3}, "quantized-base-unsupported", "nf4"),
    ],
)
def test_what_does_not_run_is_refused_with_a_remedy(
    framework: str, adapter: Any, strategy: Any, code: str, remedy: str
) -> None:
    found = answer(framework, adapter, **strategy)
    (reason,) = [reason for reason in found["reasons"] if reason["code"] == code]
    assert (found["verdict"], remedy in reason["hint"]) == ("invalid", True)


@pytest.mark.parametrize(
    ("framework", "adapter", "strategy"),
    [
        ("fsdp", {}, {"cp": 2, "zero": 3}),
        ("fsdp", {"quantized_base": "nf4"}, {"dp": 2, "zero": 3}),
        ("fsdp", {"quantized_base": "int8"}, {"dp": 2}),
        ("deepspeed", {"quantized_base": "int8"}, {"dp": 2, "zero": 2}),
        ("megatron", {}, {"tp": 2}),
        ("megatron", {}, {"pp": 2}),
    ],
)
def test_what_runs_is_priced(framework: str, adapter: Any, strategy: Any) -> None:
    assert answer(framework, adapter, **strategy)["verdict"] == "fits"


def test_8b_on_two_cards_of_24_gb_has_plans() -> None:
    """16 GB of weights in 16 bits do not fit one card beside anything: they are sharded, or held in four bits."""
    for base in ("none", "nf4"):
        training = {**TRAINING, "framework": "fsdp", "adapter": {"rank": 16, "quantized_base": base}}
        plans = plan({"model": {"preset": "llama-3.1-8b"}, "cluster": CARDS, "training": training})["plans"]
        assert plans
        assert {each["strategy"]["zero"] for each in plans} <= ({3} if base == "none" else {0, 2, 3})
        assert all(each["evaluation"]["trainable_parameters"] == 41_943_040 for each in plans)
