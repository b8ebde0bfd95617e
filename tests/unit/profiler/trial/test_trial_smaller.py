"""A model too large to run is drawn on from two smaller ones, by hand-worked lines over the number of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from profiler.trial.record import TrialMachine, TrialRecord
from profiler.trial.smaller import extrapolated, smaller_row

MODEL = {
    "name": "wide", "num_layers": 80, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip


def _row(**strategy: Any) -> dict[str, Any]:
    return {"model": MODEL, "training": {"seq_length": 32, "global_batch_size": 8}, "strategy": {"tp": 2, **strategy}}


def _measured(layers: int, step_time_s: float, allocated: int, terms_s: dict[str, float] | None) -> TrialRecord:
    return TrialRecord(
        row=smaller_row(_row(), layers=layers), backend="pytorch", status="ok", step_time_s=step_time_s,
        step_s=(step_time_s,), peak_allocated_bytes=allocated, peak_reserved_bytes=2 * allocated, terms_s=terms_s,
        took_s=20.0, gpu_seconds=40.0, machine=TrialMachine(gpu="H200-SXM-141GB", gpus=2), started_at="2026-11-29T10:00:00Z",
        notes=(f"{layers} layers",),
    )  # fmt: skip


def test_two_smaller_models_make_a_line() -> None:
    """4 layers take 0.5 s, 8 take 0.7 s: 0.3 s once and 0.05 s a layer, hence 80 take 4.3 s. Memory: 6 GB, 10 GB, so 82 GB.

    Products: 0.1 s, 0.3 s, hence 3.9 s; the head 0.3 s in both; launches 0.1 s and 0.1 s. They sum to 4.3 s.
    """
    first = _measured(4, 0.5, 6_000_000_000, {"gemm": 0.1, "head": 0.3, "launch": 0.1})
    second = _measured(8, 0.7, 10_000_000_000, {"gemm": 0.3, "head": 0.3, "launch": 0.1})
    found = extrapolated(_row(), first, second)
    assert found.step_time_s == pytest.approx(4.3)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (82_000_000_000, 164_000_000_000)
    assert found.peak_device_bytes is None
    assert found.terms_s == pytest.approx({"gemm": 3.9, "head": 0.3, "launch": 0.1})
    assert (found.took_s, found.gpu_seconds, found.row["model"]["num_layers"]) == (40.0, 80.0, 80)
    document = found.to_json()
    assert document["extrapolated"] == {"layers_run": [4, 8], "layers": 80}
    assert document["notes"][:2] == ["4 layers", "8 layers"]
    assert "from models of 4 and 8 layers to one of 80" in document["notes"][2]
    assert TrialRecord.from_json(document) == found


def test_a_term_that_shrinks_ends_at_zero_and_the_sum_stays_the_step() -> None:
    """Launches hide behind more layers: 0.3 s, 0.1 s, and none below zero; the products' 3.9 s are then the whole step of 2.3 s."""
    first = _measured(4, 0.4, 1, {"gemm": 0.1, "launch": 0.3})
    second = _measured(8, 0.5, 1, {"gemm": 0.3, "launch": 0.2})
    assert extrapolated(_row(), first, second).terms_s == pytest.approx({"gemm": 2.3})


def test_a_line_that_falls_below_zero_is_no_measurement() -> None:
    """Noise: 4 layers take 0.50 s and 8 take 0.45 s, so that 80 would take 0.50 - 76 * 0.0125 = -0.45 s."""
    found = extrapolated(_row(), _measured(4, 0.50, 6, None), _measured(8, 0.45, 10, None))
    assert (found.status, found.step_time_s, found.took_s) == ("crash", None, 40.0)
    assert found.reason == "steps of 4 layers take 0.5 s and of 8 layers 0.45 s, which says nothing of one with 80"


def test_without_a_trace_there_are_no_terms() -> None:
    assert extrapolated(_row(), _measured(4, 0.4, 1, None), _measured(8, 0.5, 1, {"gemm": 0.3})).terms_s is None


def test_a_smaller_model_that_failed_is_how_the_whole_one_failed() -> None:
    first = _measured(4, 0.5, 6, None)
    failed = replace(_measured(8, 0.7, 10, None), status="oom", step_time_s=None, reason="CUDA out of memory")
    found = extrapolated(_row(), first, failed)
    assert (found.status, found.reason, found.step_time_s) == ("oom", "with 8 layers: CUDA out of memory", None)
    assert (found.took_s, found.row["model"]["num_layers"]) == (40.0, 80)


def test_what_says_the_split_is_left_out_of_the_smaller_row() -> None:
    row = _row(pp=4, vpp=2, layers_per_stage=[10] * 8)
    found = smaller_row(row, layers=16)
    assert found["model"] == {**MODEL, "num_layers": 16}
    assert found["strategy"] == {"tp": 2, "pp": 4, "vpp": 2}
    assert row["model"]["num_layers"] == 80


MOE = {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 32}
# Two layers with a window of 16 tokens and one without, again and again, in our own words and in Hugging Face's.
WINDOWS = [["sliding_attention", "full_attention"][place % 3 == 2] for place in range(78)]
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 78, "layer_types": WINDOWS, "sliding_window": 16, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 256,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "layers", "field", "told"),
    [
        ({**MODEL, "num_layers": 78, "layer_types": WINDOWS, "sliding_window": 16}, 6, "layer_types", WINDOWS[:6]),
        ({"hf_config": GPT_OSS}, 9, "hf_config", {**GPT_OSS, "num_hidden_layers": 9, "layer_types": WINDOWS[:9]}),
        ({"preset": "gpt-oss-20b"}, 8, "num_layers", 8),
        # Two dense layers come first, once; behind them each second layer has experts, by a number or by a list.
        ({**MODEL, "moe": {**MOE, "moe_layer_freq": 2}}, 8, "moe", {**MOE, "moe_layer_freq": 2}),
        (
            {**MODEL, "num_layers": 6, "moe": {**MOE, "moe_layer_freq": [0, 0, 1, 0, 1, 0]}}, 4, "moe",
            {**MOE, "moe_layer_freq": [0, 0, 1, 0]},
        ),
        ({**MODEL, "moe": {**MOE, "first_dense_layers": 3}}, 5, "moe", {**MOE, "first_dense_layers": 3}),
    ],
)  # fmt: skip
def test_layers_of_several_kinds_are_made_fewer_by_what_repeats(
    model: dict[str, Any], layers: int, field: str, told: object
) -> None:
    row = {**_row(), "model": model}
    found = smaller_row(row, layers=layers)["model"]
    assert found[field] == told
    assert resolve_model(found).layer_kinds == resolve_model(model).layer_kinds[:layers]


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        # The first three of the layers of a chunk, whatever their number.
        ({"recompute_method": "block", "recompute_num_layers": 3}, {"recompute_method": "block", "recompute_num_layers": 3}),
        # All twenty of each of the four chunks are all four.
        ({"pp": 4, "recompute_num_layers": 20}, {"pp": 4, "recompute_num_layers": 4}),
        ({"recompute_method": "uniform", "recompute_num_layers": 4}, {"recompute_method": "uniform", "recompute_num_layers": 4}),
        ({"pp": 4, "recompute_per_stage": [3, 2, 1, 0]}, {"pp": 4, "recompute_per_stage": [3, 2, 1, 0]}),
        ({"pp": 2, "vpp": 2, "recompute_per_stage": [40, 40]}, {"pp": 2, "vpp": 2, "recompute_per_stage": [8, 8]}),
        ({"offload": {"activation_layers": 2}}, {"offload": {"activation_layers": 2}}),
    ],
)  # fmt: skip
def test_counts_of_layers_mean_the_same_of_the_smaller_model(strategy: dict[str, Any], told: dict[str, Any]) -> None:
    assert smaller_row(_row(**strategy), layers=16)["strategy"] == {"tp": 2, **told}


@pytest.mark.parametrize(
    ("changed", "layers", "said"),
    [
        ({"model": "llama-3.1-8b"}, 4, "/model: the model is not given field by field"),
        ({}, 80, "/model/num_layers: 80 layers do not stand for 80"),
        ({}, 0, "0 layers do not stand for 80"),
        ({"strategy": {"pp": 4}}, 6, "multiples of the 4 chunks"),
        ({"strategy": {"pp": 3}}, 6, "multiples of the 3 chunks"),
        ({"model": {**MODEL, "moe": {**MOE, "first_dense_layers": 2}}, "strategy": {"pp": 2}}, 4, "its first 2 layers are others"),
        ({"model": {**MODEL, "moe": {**MOE, "first_dense_layers": 2}}}, 2, "2 layers do not stand for 80; .* 2 more than multiples of 1"),
        ({"model": {**MODEL, "moe": {**MOE, "moe_layer_freq": 2}}}, 5, "multiples of the 2 layers that repeat"),
        ({"model": {**MODEL, "moe": {**MOE, "moe_layer_freq": 2}}, "strategy": {"pp": 4}}, 4, "multiples of 8"),
        ({"model": {**MODEL, "num_layers": 4, "moe": {**MOE, "moe_layer_freq": [0, 1, 1, 0]}}}, 2, "nothing of its layers repeats"),
        ({"strategy": {"pp": 4, "layers_per_stage": [19, 21, 20, 20]}}, 8, r"/strategy/layers_per_stage: .* uneven"),
        ({"strategy": {"recompute_num_layers": 10}}, 8, "/strategy/recompute_num_layers: 10 of 80 layers .* not of 8"),
        ({"strategy": {"recompute_method": "uniform", "recompute_num_layers": 3}}, 6, "/strategy/recompute_num_layers"),
        ({"strategy": {"pp": 4, "recompute_per_stage": [20, 20, 19, 0]}}, 16, "/strategy/recompute_per_stage"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_smaller_is_refused(changed: dict[str, Any], layers: int, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        smaller_row({**_row(), **changed}, layers=layers)
