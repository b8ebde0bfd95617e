"""What a named recipe sets where a request says nothing, and that what is stated wins."""

from __future__ import annotations

from typing import Any

import pytest

from planner.rows import evaluate_rows


def answer(*, strategy: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    row = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 2},
        "training": {
            "seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron", **training,
        },
        "strategy": {"tp": 2, "micro_batch_size": 1, **(strategy or {})},
    }  # fmt: skip
    (found,) = evaluate_rows([row])
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_nvidias_recipe_holds_gradients_in_bf16_and_fp8_parameters_with_fp8_products(precision: str) -> None:
    """`grad_reduce_in_fp32 = False` in every performance recipe of NeMo and Megatron-Bridge; `fp8_param_gather = True` in
    bf16_with_fp8_mixed.
    """
    assumed = answer(recipe="nvidia-perf", precision=precision)["assumed"]
    assert assumed["grad_dtype"] == assumed["grad_reduce_dtype"] == "bf16"
    assert assumed["param_dtype"] == ("fp8" if precision == "fp8" else "bf16")
    assert assumed["main_param_dtype"] == "fp32"
    assert answer(precision=precision)["assumed"]["grad_dtype"] == "fp32"


def test_what_a_request_states_wins_over_its_recipe() -> None:
    found = answer(recipe="nvidia-perf", grad_dtype="fp32", strategy={"overlap": {"tp_comm": False}})
    stated = answer(recipe="nvidia-perf", strategy={"overlap": {"tp_comm": False}})
    assert "grad_dtype" not in found["assumed"]
    assert "overlap.tp_comm" not in found["assumed"]
    # fp32 gradients of the 8.03e9 parameters over two ranks take two bytes more each
    held = [max(s["breakdown_bytes"]["gradients"] for s in each["memory"]["stages"]) for each in (found, stated)]
    assert held[0] == pytest.approx(2 * held[1])


@pytest.mark.parametrize(
    ("strategy", "training", "overlapped"),
    [
        ({}, {}, True),
        ({"sequence_parallel": False}, {}, False),
        ({}, {"transformer_impl": "local"}, False),
    ],
)
def test_its_tensor_parallel_overlap_is_on_wherever_megatron_can(
    strategy: dict[str, Any], training: dict[str, Any], overlapped: bool
) -> None:
    """--tp-comm-overlap needs Transformer Engine and sequence parallelism (megatron/training/arguments.py)."""
    found = answer(recipe="nvidia-perf", strategy=strategy, **training)
    assert found["verdict"] != "invalid"
    assert found["assumed"]["overlap.tp_comm"] is overlapped
    assert answer(strategy=strategy, **training)["assumed"]["overlap.tp_comm"] is False
