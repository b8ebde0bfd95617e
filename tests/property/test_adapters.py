"""What holds for every job with adapters or frozen parts: a batch equals its rows, and less that is trained never costs more."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from planner.plan import plan
from planner.rows import evaluate_rows

Json = dict[str, Any]
ROW: Json = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 2048, "global_batch_size": 8, "precision": "bf16", "framework": "fsdp"},
    "strategy": {"dp": 2, "micro_batch_size": 2, "zero": 0},
}  # fmt: skip
ADAPTERS: list[Json] = [
    {"rank": 16}, {"rank": 16, "target_modules": "attention"}, {"rank": 16, "quantized_base": "nf4"}, {"rank": 8, "dora": True},
    {"rank": 16, "dropout": 0.1},
]  # fmt: skip


def row(strategy: Json | None = None, **training: Any) -> Json:
    found = copy.deepcopy(ROW)
    found["training"].update(training)
    found["strategy"].update(strategy or {})
    return found


def answers(rows: list[Json]) -> list[Json]:
    return list(evaluate_rows(rows))


def alone(given: Json) -> Json:
    return answers([given])[0]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_batch_equals_its_rows(adapter: Json) -> None:
    rows = [
        row({"zero": zero, "recompute": recompute, "micro_batch_size": size}, adapter=adapter)
        for zero in (0, 2, 3)
        for recompute in ("none", "full")
        for size in (1, 2)
    ]
    together = answers(rows * 2)
    assert {answer["verdict"] for answer in together} == {"fits"}
    assert together == [alone(copy.deepcopy(each)) for each in rows] * 2
    assert len({answer["step_time_s"] for answer in together}) == len(rows)


@pytest.mark.parametrize("strategy", [{"zero": 0}, {"zero": 3}, {"zero": 3, "recompute": "full"}])
def test_less_that_is_trained_takes_less_memory(strategy: Json) -> None:
    def peak(**training: Any) -> float:
        return float(alone(row(strategy, **training))["memory"]["peak_allocated_bytes"])

    whole = peak()
    frozen = peak(frozen=["mlp"])
    assert peak(frozen=["mlp", "attention"]) < frozen < whole
    lora, attention = peak(adapter={"rank": 16}), peak(adapter={"rank": 16, "target_modules": "attention"})
    assert attention < lora < frozen
    assert peak(adapter={"rank": 16, "quantized_base": "nf4"}) < lora
    assert lora < peak(adapter={"rank": 64})


def test_frozen_parts_save_their_weight_gradients() -> None:
    whole, frozen = alone(row()), alone(row(frozen=["mlp", "attention"]))
    assert frozen["step_time_s"] < whole["step_time_s"]
    # Forward, data gradient and weight gradient of equal work, and the last of them is gone.
    assert frozen["time_breakdown_s"]["gemm"] / whole["time_breakdown_s"]["gemm"] == pytest.approx(2 / 3, rel=0.02)
    # 16 layers of 60,817,408 matrix weights: 2 operations each a token.
    tokens, gone = 2048 * 8, 2 * 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    flops = [each["model_tflops_per_gpu"] * 2 * each["step_time_s"] * 1e12 for each in (whole, frozen)]
    assert flops[0] - flops[1] == pytest.approx(gone * tokens, rel=1e-9)


@pytest.mark.parametrize(
    ("strategy", "adapter", "code"),
    [
        ({"tp": 2, "dp": 1}, {"rank": 16}, "adapter-unsupported"),
        ({"zero": 3}, {"rank": 16, "quantized_base": "int8"}, "quantized-base-unsupported"),
    ],
)
def test_frameworks_refuse_splits_of_adapters(strategy: Json, adapter: Json, code: str) -> None:
    answer = alone(row(strategy, adapter=adapter))
    assert (answer["verdict"], [reason["code"] for reason in answer["reasons"]]) == ("invalid", [code])
    assert alone(row(adapter={"rank": 16, "quantized_base": "int8"}))["verdict"] == "fits"


def test_plans_of_adapters_are_those_of_their_rows() -> None:
    """What a plan states is priced alike when it is handed back, resolved request and all."""
    request = dict(row(adapter={"peft_type": "LORA", "r": 8, "target_modules": "all-linear"}).items())
    del request["strategy"]
    found = plan({**request, "top_k": 3})
    assert found["plans"]
    for each in found["plans"]:
        given = {name: found["request"][name] for name in ("model", "cluster", "training")}
        again = alone({**given, "strategy": each["strategy"]})
        assert again["step_time_s"] == each["evaluation"]["step_time_s"]
        assert again["trainable_parameters"] == each["evaluation"]["trainable_parameters"] == 5_636_096
