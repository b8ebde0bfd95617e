"""What frameworks cannot split where a tower runs in front of the text model; each beside a plan that is legal."""

from __future__ import annotations

from typing import Any

import pytest
from tower_configs import TEXT, qwen

from builders import job_of, row_of
from planner.rules import reasons


def qwen3(**vision: Any) -> dict[str, Any]:
    """A model of Qwen3-VL's modules, whose tower Megatron-Bridge splits over tp."""
    tower = {"depth": 2, "hidden_size": 96, "num_heads": 6, "intermediate_size": 192, "out_hidden_size": 256}
    return {
        "hf_config": {
            "model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", **TEXT, "head_dim": 64}, "vision_config": tower | vision,
        }
    }  # fmt: skip


CASES = [
    ("deepspeed", qwen(), {"pp": 2, "dp": 4, "zero": 1}, "pipeline-unsupported", {"dp": 8, "zero": 1}),
    ("deepspeed", qwen(), {"cp": 2, "dp": 4, "zero": 3}, "context-parallel-unsupported", {"dp": 8, "zero": 3}),
    ("fsdp", qwen(), {"cp": 2, "dp": 4, "zero": 3}, "context-parallel-unsupported", {"dp": 8, "zero": 3}),
    ("megatron", qwen3(), {"tp": 4, "dp": 2}, "heads-not-divisible", {"tp": 2, "dp": 4}),  # 4 does not divide 6 heads
    ("megatron", qwen3(intermediate_size=193), {"tp": 2, "dp": 4}, "heads-not-divisible", {"dp": 8}),
]


@pytest.mark.parametrize(("framework", "model", "strategy", "code", "legal"), CASES)
def test_towers_limit_how_a_model_is_split(
    framework: str, model: dict[str, Any], strategy: dict[str, Any], code: str, legal: dict[str, Any]
) -> None:
    job = job_of(model, framework, towers={"vision": "frozen", "tokens_per_image": 64})
    assert [reason["code"] for reason in reasons(job, row_of(job, **strategy), 0)] == [code]
    assert reasons(job, row_of(job, **legal), 0) == []


@pytest.mark.parametrize(("framework", "model", "strategy", "code", "legal"), CASES[:1] + CASES[3:4])
def test_the_text_model_alone_is_not_limited_so(
    framework: str, model: dict[str, Any], strategy: dict[str, Any], code: str, legal: dict[str, Any]
) -> None:
    job = job_of(model, framework)
    assert code not in [reason["code"] for reason in reasons(job, row_of(job, **strategy), 0)]


def test_a_tower_of_hugging_faces_modules_is_not_split_over_tp() -> None:
    """Qwen2.5-VL's tower is whole on every rank, so that its heads need not divide by tp: 6 heads beside tp 4."""
    model = qwen(num_heads=6, hidden_size=96)
    job = job_of(model, "megatron", towers={"vision": "frozen", "tokens_per_image": 64})
    model_tp = {"tp": 2, "dp": 4}
    assert reasons(job, row_of(job, **model_tp), 0) == []


def test_a_hint_for_towers_names_a_framework_that_trains_them() -> None:
    """fsdp has no pipeline; torchtitan, which has one, trains no towers, and Megatron does."""
    job = job_of(qwen(), "fsdp", towers={"vision": "frozen", "tokens_per_image": 64})
    hints = {reason["hint"] for reason in reasons(job, row_of(job, pp=2, dp=4, zero=3), 0)}
    assert hints == {"Set pp to 1, or use megatron.", "Set pp to 1 and shard with zero 3, or use megatron."}
