"""Degrees of one: rules on a way to split leave a strategy alone that does not split that way, whatever else it does.

Each row meets every other condition of some rule, so that only the degree of one keeps the rule from it.
"""

from __future__ import annotations

from typing import Any

import pytest

from builders import Document, job_of, llama_model, row_of, with_experts
from planner.rules import reasons

DENSE = llama_model(vocab_size=32000)
MOE = with_experts(DENSE, expert_intermediate_size=14336)


def codes(model: Document, framework: str, version: str | None, strategy: Document, **training: Any) -> list[str]:
    """The code of every rule that a strategy on 16 GPUs breaks."""
    if version is not None:
        training["framework_version"] = version
    job = job_of(model, framework, num_nodes=2, seq_length=4096, **training)
    return [reason["code"] for reason in reasons(job, row_of(job, **strategy), 0)]


@pytest.mark.parametrize(
    ("framework", "version", "strategy"),
    [
        ("torchtitan", "0.2.2", {"cp": 2}),
        ("torchtitan", "0.2.2", {"cp": 2, "tp": 2}),
        ("torchtitan", "0.2.2", {"pp": 2, "vpp": 2, "recompute": "none", "overlap": {"moe_all_to_all": True}}),
        ("torchtitan", "0.2.2", {"tp": 2, "etp": 2}),
        ("torchtitan", "0.3", {"tp": 2, "etp": 2}),
        ("torchtitan", "0.1", {"moe_dispatcher": "flex"}),
        ("torchtitan", "0.3", {"moe_dispatcher": "allgather"}),
        ("deepspeed", "0.19.8", {"zero": 1, "tp": 2, "etp": 2}),
        ("deepspeed", "0.19.2", {"zero": 1, "tp": 2}),
        ("deepspeed", "0.19.8", {"zero": 1, "tp": 2, "cp": 2}),
        ("deepspeed", "0.19.8", {"zero": 2, "tp": 2, "offload": {"optimizer_fraction": 1.0}}),
        ("deepspeed", "0.19.7", {"zero": 3, "tp": 2}),
        ("deepspeed", "0.19.2", {"zero": 3}),
        ("deepspeed", "0.19.8", {"zero": 3, "cp": 2}),
        ("deepspeed", "0.14.0", {"zero": 1, "pp": 2}),
        ("deepspeed", "0.19.8", {"zero": 1, "moe_dispatcher": "flex"}),
        ("megatron-deepspeed", "2023", {"zero": 1, "pp": 2}),
        ("megatron-deepspeed", "2024", {"zero": 3}),
        ("megatron-deepspeed", "2024", {"zero": 1, "tp": 2, "etp": 2}),
        ("nanotron", None, {"tp": 2}),
        ("fsdp", None, {}),
        ("fsdp", None, {"tp": 2, "etp": 2}),
        ("megatron", "0.11", {"moe_dispatcher": "flex"}),
        ("megatron", "0.15", {"moe_dispatcher": "flex", "flex_backend": "hybridep"}),
        ("megatron", "0.16", {"overlap": {"moe_all_to_all": True}}),
        # DeepEP's 8 ranks of a node: 16 of expert tensor parallelism alone exchange no tokens.
        ("megatron", "0.16", {"tp": 16, "etp": 16, "moe_dispatcher": "flex"}),
    ],
)
def test_without_expert_parallelism_its_rules_say_nothing(
    framework: str, version: str | None, strategy: Document
) -> None:
    given = {"attention_kernel": "sdpa"} if framework == "torchtitan" and version != "0.3" else {}
    assert codes(MOE, framework, version, strategy, **given) == []


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "megatron-deepspeed", "fsdp", "nanotron"])
def test_an_expert_is_split_by_tensor_parallelism_or_not_at_all(framework: str) -> None:
    """No mesh but Megatron's has a degree of its own for the width of an expert, whether or not experts are spread over ranks."""
    for strategy in ({"etp": 2}, {"tp": 4, "etp": 2}):
        assert "expert-tensor-parallel-unsupported" in codes(
            MOE, framework, None, {"zero": 0 if framework == "nanotron" else 1, **strategy}
        )
        assert "expert-tensor-parallel-unsupported" not in codes(MOE, "megatron", None, strategy)
