"""Facts that a row leaves open widen the range of its time towards their other values, and never move the time itself."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from planner.rows import evaluate_rows

DGX_H100 = {"preset": "dgx-h100", "num_nodes": 1}


def row(framework: str = "megatron", *, strategy: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": DGX_H100,
        "training": {
            "seq_length": 2048,
            "global_batch_size": 64,
            "precision": "bf16",
            "framework": framework,
            **training,
        },
        "strategy": {"tp": 2, "zero": 1, "recompute": "none", "micro_batch_size": 1, **(strategy or {})},
    }


def one(given: dict[str, Any]) -> dict[str, Any]:
    (answer,) = evaluate_rows([given])
    return answer


def reach(left_open: dict[str, Any], stated: dict[str, Any]) -> tuple[float, float]:
    """Squares of what the range of the first reaches further than that of the second, below and above, as logarithms."""
    time_s = left_open["step_time_s"]
    assert stated["step_time_s"] == time_s
    further, less = ([log(end / time_s) ** 2 for end in each["step_time_range_s"]] for each in (left_open, stated))
    return further[0] - less[0], further[1] - less[1]


def test_an_unstated_loss_reaches_down_to_the_leanest_that_the_framework_has() -> None:
    """Unfused takes 36 bytes a logit; Transformer Engine's takes 12, so that two thirds of the loss may fall away [F-7]."""
    left_open, stated = one(row()), one(row(cross_entropy="unfused"))
    below, above = reach(left_open, stated)
    lost = (1 - 12 / 36) * left_open["time_breakdown_s"]["loss"] / left_open["step_time_s"]
    assert below == pytest.approx(log(1 - lost) ** 2)
    assert above == pytest.approx(0)


def test_an_unstated_loss_that_is_lean_by_default_reaches_up() -> None:
    """A recipe's loss is stated by the recipe; without it, PyTorch's own takes 48 bytes where a compiled one takes 22."""
    given = {"compile": True, "strategy": {"tp": 1, "zero": 3}}
    left_open = one(row("torchtitan", framework_version="0.2", **given))
    stated = one(row("torchtitan", framework_version="0.2", cross_entropy="compiled", **given))
    _, above = reach(left_open, stated)
    more = (48 / 22 - 1) * left_open["time_breakdown_s"]["loss"] / left_open["step_time_s"]
    assert above == pytest.approx(log(1 + more) ** 2)


def test_gradients_of_an_unstated_type_may_be_reduced_in_half_the_bytes() -> None:
    left_open, stated = one(row()), one(row(grad_reduce_dtype="fp32"))
    below, above = reach(left_open, stated)
    terms = left_open["time_breakdown_s"]
    lost = 0.5 * (terms["dp_comm"] + terms["grad_accumulation"]) / left_open["step_time_s"]
    assert below == pytest.approx(log(1 - lost) ** 2)
    assert above == pytest.approx(0)


def test_unstated_recomputation_counts_only_where_the_row_does_not_fit_without() -> None:
    """Llama 8B on pairs of 80 GB fits at 2,048 tokens and not at 65,536, where repeating the layers' forward, a third of their work,
    takes longer.
    """
    fitting = row(strategy={"zero": 1})
    left_open = {**fitting, "strategy": {k: v for k, v in fitting["strategy"].items() if k != "recompute"}}
    assert one(left_open)["verdict"] == "fits"
    assert reach(one(left_open), one(fitting)) == pytest.approx((0, 0))
    long = row(seq_length=65536, strategy={"zero": 1}, cross_entropy="te")
    left_open = {**long, "strategy": {k: v for k, v in long["strategy"].items() if k != "recompute"}}
    found = one(left_open)
    assert found["verdict"] != "fits"
    below, above = reach(found, one(long))
    terms = found["time_breakdown_s"]
    layers = sum(terms[name] for name in ("gemm", "attention", "elementwise", "tp_comm", "cp_comm", "ep_comm"))
    assert above == pytest.approx(log(1 + layers / 3 / found["step_time_s"]) ** 2)
    assert below == pytest.approx(0)


@pytest.mark.parametrize(
    ("month", "sides"),
    [("2024-04", (0, 0)), ("2024-05", (1, 0)), ("2024-08", (1, 0)), ("2024-10", (0, 1)), ("2024-11", (0, 0))],
)
def test_while_nobody_knows_since_when_cudnns_attention_runs_a_row_reaches_to_the_other_kernel(
    month: str, sides: tuple[int, int]
) -> None:
    """FlashAttention 2 takes 1.75 times as long; the default changes in 2024-09."""
    kernel = "fa2" if month < "2024-09" else "cudnn"
    left_open, stated = one(row(software_date=month)), one(row(software_date=month, attention_kernel=kernel))
    share = left_open["time_breakdown_s"]["attention"] / left_open["step_time_s"]
    below, above = reach(left_open, stated)
    assert below == pytest.approx(sides[0] * log(1 - share * (1 - 1 / 1.75)) ** 2)
    assert above == pytest.approx(sides[1] * log(1 + share * 0.75) ** 2)


def test_states_that_are_whole_by_default_may_have_been_sharded() -> None:
    """Megatron-DeepSpeed's default is whole states. Over four replicas a sharded update takes a quarter of the time."""
    given = row("megatron-deepspeed", software_date="2024-04", strategy={"tp": 2, "dp": 4, "zero": 0})
    left_open = {**given, "strategy": {k: v for k, v in given["strategy"].items() if k != "zero"}}
    found = one(left_open)
    below, above = reach(found, one(given))
    lost = 0.75 * found["time_breakdown_s"]["optimizer"] / found["step_time_s"]
    assert below == pytest.approx(log(1 - lost) ** 2)
    assert above == pytest.approx(0)


def test_a_recipe_states_the_training_facts_that_it_is_made_of() -> None:
    """Under NVIDIA's recipe nothing about the training is open: stating its own loss changes no range."""
    assert reach(one(row(recipe="nvidia-perf")), one(row(recipe="nvidia-perf", cross_entropy="te"))) == pytest.approx(
        (0, 0)
    )


def test_rows_of_one_batch_are_widened_one_by_one() -> None:
    rows = [row(), row(cross_entropy="unfused"), row(grad_reduce_dtype="fp32", cross_entropy="unfused")]
    together = [answer["step_time_range_s"] for answer in evaluate_rows(rows)]
    assert together == [one(each)["step_time_range_s"] for each in rows]
    assert together[0][0] < together[1][0] < together[2][0]


@pytest.mark.parametrize(("tp", "ratio"), [(1, 7689.5 / 6768), (2, 820 / 540)])
def test_an_unstated_fp8_recipe_of_torchao_reaches_up_to_scales_by_row(tp: int, ratio: float) -> None:
    """Tokens per second by tensor and by row: torchao's README (8 H100) and, with tensor parallelism, pytorch issue 149990."""
    given = {"precision": "fp8", "compile": True, "strategy": {"tp": tp, "zero": 3}}
    left_open = one(row("torchtitan", **given))
    below, above = reach(left_open, one(row("torchtitan", fp8_recipe="tensorwise", **given)))
    assert (below, above) == (pytest.approx(0), pytest.approx(log(ratio) ** 2))


def test_transformer_engines_recipes_do_not_reach_to_torchaos() -> None:
    left_open = one(row(precision="fp8"))
    stated = one(row(precision="fp8", fp8_recipe=left_open["assumed"]["fp8_recipe"]))
    assert reach(left_open, stated) == (pytest.approx(0), pytest.approx(0))
