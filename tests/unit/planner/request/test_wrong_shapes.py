"""What is given as a name or a number where an object belongs is answered with how to write it."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.rows import evaluate_rows

JOB: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("model", "meta-llama/Llama-3.1-8B", '{"preset": "llama-3.1-8b"}'),
        ("model", None, '{"preset": "llama-3.1-8b"}'),
        ("cluster", "dgx-a100", '{"preset": "dgx-a100-80gb", "num_nodes": 1}'),
        ("training", "bf16", '{"seq_length": 8192, '),
    ],
)
def test_rows_and_requests_say_how_to_write_a_part(name: str, value: Any, hint: str) -> None:
    """The same problem, with the same remedy, from `evaluate` and from `plan`."""
    row = {**JOB, name: value, "strategy": {"micro_batch_size": 1}}
    [reason] = next(evaluate_rows([row]))["reasons"]
    assert "it must be an object" in reason["message"]
    assert hint in reason["hint"]
    with pytest.raises(InvalidInputError) as caught:
        plan({**JOB, name: value})
    assert [(p.pointer, p.hint) for p in caught.value.problems] == [(f"/{name}", reason["hint"])]


@pytest.mark.parametrize("request_document", [[], "llama-3.1-8b", None, 5])
def test_a_request_that_is_no_object(request_document: Any) -> None:
    with pytest.raises(InvalidInputError, match="it must be an object"):
        plan(request_document)


@pytest.mark.parametrize(
    ("changed", "pointer", "message"),
    [
        ({"strategy": "tp 8"}, "strategy", "strategy is 'tp 8'; it must be an object"),
        ({"cluster": {"preset": "dgx-h100", "num_nodes": 1, "intra_node": 300}}, "cluster.intra_node",
         "intra_node is 300; it must be an object {…} or a name"),
        ({"model": {"hf_config": {"model_type": "gemma3", "text_config": "gemma"}}}, "model.hf_config.text_config",
         "text_config is 'gemma'; it must be an object"),
        ({"model": {"hf_config": {"model_type": "dots1", "num_experts_per_tok": 6}}}, "model.hf_config.n_routed_experts",
         "n_routed_experts is required"),
    ],
)  # fmt: skip
def test_one_problem_with_a_remedy(changed: dict[str, Any], pointer: str, message: str) -> None:
    """One sentence each: a config whose class has no default for a key is told to add it, not that it holds null."""
    [reason] = next(evaluate_rows([{**JOB, "strategy": {"micro_batch_size": 1}, **changed}]))["reasons"]
    assert reason["message"].startswith(f"{pointer}: {message}")
    assert reason["hint"]
