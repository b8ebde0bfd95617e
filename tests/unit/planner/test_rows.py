"""Evaluate rows: every line is answered, in order; bad ones say why; numbers are those of the batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import dense_model, request_of
from cost_models.errors import CalibrationError
from planner.rows import evaluate_arriving, evaluate_rows
from planner.schemas import Evaluation

ROW: dict[str, Any] = {
    "id": "row",
    **request_of(dense_model(8, num_attention_heads=16, num_key_value_heads=8), global_batch_size=32),
    "strategy": {"tp": 2, "pp": 2, "micro_batch_size": 1, "zero": 1},
}


def row(**changes: dict[str, Any]) -> dict[str, Any]:
    """The row with parts changed; None removes a field."""
    made = json.loads(json.dumps(ROW))
    for part, fields in changes.items():
        made[part] = {name: value for name, value in {**made[part], **fields}.items() if value is not None}
    return made


def one(given: object) -> dict[str, Any]:
    (answer,) = evaluate_rows([given if isinstance(given, str) else json.dumps(given)])
    return answer


def test_an_answer_is_an_evaluation_of_the_contract():
    answer = one(ROW)
    # These are given only where not every parameter is trained, where replicas exchange something else than all gradients, where
    # ZeRO-3 lowers what crosses nodes, where towers are counted, and where weights are averaged or sequences padded.
    absent = {
        "trainable_parameters", "stored_parameters", "exchange", "node_traffic", "towers", "ema", "padding_share",
    }  # fmt: skip
    assert set(answer) == set(Evaluation.model_fields) - absent
    parsed = Evaluation.model_validate_json(json.dumps(answer, allow_nan=False))
    assert (parsed.id, parsed.verdict, parsed.reasons) == ("row", "fits", [])
    assert (parsed.num_gpus_used, parsed.num_micro_batches) == (8, 16)  # dp 2: 32 / (2 x 1)
    assert parsed.padded_vocab_size == 32000  # already a multiple of 128 x tp 2


def test_breakdowns_sum_to_their_totals():
    answer = one(ROW)
    assert sum(answer["time_breakdown_s"].values()) == pytest.approx(answer["step_time_s"], rel=1e-12)
    assert [stage["layers"] for stage in answer["memory"]["stages"]] == [4, 4]
    for stage in answer["memory"]["stages"]:
        assert sum(stage["breakdown_bytes"].values()) == pytest.approx(stage["peak_allocated_bytes"], rel=1e-12)
    heaviest = max(stage["peak_allocated_bytes"] for stage in answer["memory"]["stages"])
    assert heaviest == pytest.approx(answer["memory"]["peak_allocated_bytes"], rel=1e-12)


def test_rates_follow_from_the_step_time():
    """Model FLOPs by hand: 6 x matmul weights x tokens + 12 x layers x S x q width x tokens, tokens = 32 x 2048."""
    answer = one(ROW)
    tokens, step_s = 32 * 2048, answer["step_time_s"]
    assert answer["tokens_per_s_per_gpu"] == pytest.approx(tokens / step_s / 8)
    layer = 1024 * 1024 * 2 + 1024 * 512 * 2 + 3 * 1024 * 4096
    flops = 6 * (8 * layer + 1024 * 32000) * tokens + 12 * 8 * 2048 * 1024 * tokens
    assert answer["model_tflops_per_gpu"] == pytest.approx(flops / step_s / 8 / 1e12)
    causal = flops - 6 * 8 * 2048 * 1024 * tokens
    assert answer["model_tflops_per_gpu_causal"] == pytest.approx(causal / step_s / 8 / 1e12)
    assert answer["mfu"] == pytest.approx(answer["model_tflops_per_gpu"] / 989, rel=2e-3)
    assert answer["mfu_bf16"] is None


def test_short_documents_in_a_long_sequence_do_not_raise_utilisation_past_one():
    """131,072 tokens in documents of 1,000: time and operations both follow the documents (MFU was 1.94)."""
    answer = one({
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 4},
        "training": {
            "seq_length": 131072, "global_batch_size": 32, "precision": "bf16", "framework": "megatron",
            "mean_document_length": 1000,
        },
        "strategy": {"cp": 8, "zero": 1, "micro_batch_size": 1, "recompute": "full"},
    })  # fmt: skip
    # 6 x (8.03e9 - 0.53e9 embedding) x tokens of matmuls, attention 12 x 32 x 4096 x 1000 on top: 3.5 %
    tokens, step_s = 32 * 131072, answer["step_time_s"]
    flops = (6 * (8_030_261_248 - 128256 * 4096 - 65 * 4096) + 12 * 32 * 4096 * 1000) * tokens
    assert answer["model_tflops_per_gpu"] == pytest.approx(flops / step_s / 32 / 1e12, rel=1e-9)
    assert answer["mfu"] < 0.8


def test_fp8_is_measured_against_both_peaks():
    answer = one(row(training={"precision": "fp8"}))
    assert answer["mfu_bf16"] == pytest.approx(2 * answer["mfu"], rel=2e-3)


@pytest.mark.parametrize(
    ("given", "code", "named"),
    [
        ("{", "invalid-json", "not JSON"),
        ('{"id": NaN}', "invalid-json", "NaN"),
        ("[" * 100_000, "invalid-json", "deep"),
        ("[1]", "invalid-json", "list"),
        ("7", "invalid-json", "7"),
        ({"id": 1}, "missing-field", "model"),
        (row(training={"seq_length": None}), "missing-field", "training.seq_length"),
        (row(training={"global_batch_size": None}), "missing-field", "training.global_batch_size"),
        (row(training={"precision": None}), "missing-field", "training.precision"),
        (row(strategy={"micro_batch_size": None}), "missing-field", "micro_batch_size"),
        (row(strategy={"tpp": 2}), "unknown-field", "strategy.tpp"),
        (row(model={"hidden_size": -1}), "invalid-field", "model.hidden_size"),
        (row(cluster={"gpu": "H1000"}), "unknown-preset", "H1000"),
        (row(training={"adapter": {"rank": 8, "target_modules": ["q_porj"]}}), "invalid-field", "q_porj"),
        (row(cluster={"calibration": "no-such"}), "calibration", "no-such"),
        (row(strategy={"pp": 3, "dp": 1, "tp": 1}), "layers-not-divisible", "pp 3"),
        (row(strategy={"tp": 16, "pp": 1}), "world-exceeds-gpus", "16"),
        (row(strategy={"tp": 8, "pp": 1, "dp": 1, "cp": 2}), "world-exceeds-gpus", "16"),
    ],
)
def test_a_bad_line_is_invalid_and_says_why(given, code, named):
    answer = one(given)
    assert answer["verdict"] == "invalid"
    assert code in [reason["code"] for reason in answer["reasons"]]
    assert named in " ".join(reason["message"] for reason in answer["reasons"])
    assert (answer["step_time_s"], answer["memory"], answer["mfu"]) == (None, None, None)
    assert Evaluation.model_validate(answer)


def test_every_mistake_of_a_line_is_named_at_once():
    answer = one(row(model={"num_layers": 0}, strategy={"tp": 0}))
    messages = " ".join(reason["message"] for reason in answer["reasons"])
    assert "model.num_layers" in messages
    assert "strategy.tp" in messages


def test_answers_keep_the_order_and_the_ids_whatever_is_wrong_between():
    lines = ["{", "", json.dumps({**ROW, "id": 1}), json.dumps(row(strategy={"tp": 0}) | {"id": 2}), "\n"]
    lines += [json.dumps({**row(training={"global_batch_size": 32 * n}), "id": 10 + n}) for n in range(1, 30)]
    answers = list(evaluate_rows(lines))
    assert [answer["id"] for answer in answers] == [None, 1, 2, *range(11, 40)]
    assert [answer["verdict"] for answer in answers[:3]] == ["invalid", "fits", "invalid"]


def test_rows_priced_together_cost_what_each_costs_alone():
    """Different batches, micro-batches and splits share one evaluation."""
    given = [
        row(training={"global_batch_size": batch}, strategy={"micro_batch_size": micro, "tp": tp})
        for batch in (32, 64, 96) for micro in (1, 2) for tp in (1, 2, 4)
    ]  # fmt: skip
    together = list(evaluate_rows(given))
    assert together == [next(evaluate_rows([alone])) for alone in given]
    assert len({answer["step_time_s"] for answer in together}) == len(given)


@pytest.mark.parametrize(
    "cluster",
    [
        # Fast domains of 18 nodes, which the smaller of these clusters cut short and which segments of the larger ones divide.
        {"preset": "gb200-nvl72"},
        {"preset": "dgx-h100", "network": {"nodes_per_leaf": 4, "oversubscription": 2.0, "rail_optimized": False}},
        {"preset": "l40s-pcie-8"},
    ],
    ids=["nvl72", "leaves", "pcie"],
)
def test_rows_on_clusters_of_different_sizes_cost_what_each_costs_alone(cluster):
    """Rows that differ in their number of nodes share one evaluation, whether they use all of the GPUs or leave some idle."""
    given = [
        row(training={"global_batch_size": 1080}, strategy=strategy) | {"cluster": {**cluster, "num_nodes": nodes}}
        for nodes in (18, 36, 20, 27, 9, 2)
        for strategy in ({"zero": 2}, {"dp": 2}, {"tp": 4, "pp": 1, "recompute": "full"})
    ]  # fmt: skip
    # Windows grow from one row, so that after 31 rows one holds all of these.
    together = list(evaluate_rows([{}] * 31 + given))[31:]
    assert together == [next(evaluate_rows([alone])) for alone in given]
    assert {answer["verdict"] for answer in together} == {"fits"}
    assert len({answer["step_time_s"] for answer in together}) > 12


def test_parsed_rows_and_texts_are_answered_alike():
    assert next(evaluate_rows([ROW])) == one(ROW)


def test_windows_grow_over_batches_and_end_with_each_batch():
    """The fourth window may hold eight rows, however few rows the batches before it held."""
    batches = [[{"id": 0}], [{"id": 1}], [{"id": 2}], [{"id": n} for n in range(3, 11)]]
    windows = [[answer["id"] for answer in answers] for answers in evaluate_arriving(batches)]
    assert windows == [[0], [1], [2], [3, 4, 5, 6, 7, 8, 9, 10]]


def test_answers_come_while_lines_are_still_being_written():
    """The first line is answered before the second is read."""
    read: list[int] = []

    def lines():
        for number in range(3):
            read.append(number)
            yield json.dumps(ROW)

    answers = evaluate_rows(lines())
    next(answers)
    assert read == [0]


def test_a_row_that_does_not_fit_keeps_its_numbers_and_says_by_how_much():
    big = {**ROW["model"], "num_layers": 64, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    answer = one({**ROW, "model": big, "strategy": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero": 0}})
    assert answer["verdict"] == "oom"
    assert [reason["code"] for reason in answer["reasons"]] == ["out-of-memory"]
    assert answer["memory"]["peak_device_range_bytes"][0] > answer["memory"]["capacity_bytes"]
    assert answer["step_time_s"] > 0


def test_defaults_are_reported_with_the_answer():
    assumed = one(ROW)["assumed"]
    assert assumed["dp"] == 2
    assert assumed["norm"] == "rmsnorm"
    assert assumed["optimizer"] == "adam"
    assert "tp" not in assumed


def test_a_named_calibration_that_cannot_be_read_stops_before_any_row(tmp_path):
    with pytest.raises(CalibrationError):
        next(evaluate_rows([ROW], calibration=str(tmp_path / "nowhere.json")))


def test_a_row_may_name_a_file_only_where_files_are_allowed(tmp_path):
    answer = one(row(cluster={"calibration": str(tmp_path / "mine.json")}))
    assert [reason["code"] for reason in answer["reasons"]] == ["calibration"]


def test_a_key_given_twice_makes_the_line_invalid() -> None:
    (answer,) = evaluate_rows(['{"id": 1, "strategy": {"dp": 4, "tp": 1, "dp": 2}}'])
    assert (answer["verdict"], answer["reasons"][0]["code"]) == ("invalid", "invalid-json")
    assert "the key 'dp' appears twice" in answer["reasons"][0]["message"]


@pytest.mark.parametrize(("number", "said"), [("1e999", "larger than any double"), ("9" * 5000, "5000 digits")])
def test_a_number_that_no_double_holds_makes_the_line_invalid_like_any_other_document(number, said) -> None:
    (answer,) = evaluate_rows([f'{{"id": 1, "strategy": {{"dp": {number}}}}}'])
    assert (answer["verdict"], answer["reasons"][0]["code"]) == ("invalid", "invalid-json")
    assert said in answer["reasons"][0]["message"]
