"""Rows of one document and padding: what counts as tokens and as work, and who leaves the padding out."""

from __future__ import annotations

import json

import pytest

from builders import H100, cluster_of, dense_model, job_of, row_of, training_of
from cost_models.errors import InvalidInputError
from cost_models.layers.attention_core import layer_attention_s
from cost_models.layers.flops import model_flops, model_flops_per_step
from planner.export.export import export_row
from planner.rows import evaluate_rows

S = 1024
DOCUMENTS = [[256, 3], [4096, 1]]
"""Three of 256 tokens for one that is cut to 1024: (3 x 256 + 1024) of 4 x 1024 tokens, which is 7/16."""
FILLED = 7 / 16
PADDED = {"seq_length": S, "document_lengths": DOCUMENTS, "packing": "padded"}


def evaluation(framework: str = "fsdp", **training):
    row = {
        "model": dense_model(), "cluster": cluster_of(H100), "strategy": {"zero": 3, "micro_batch_size": 2},
        "training": training_of(framework, **{"seq_length": S, "global_batch_size": 32, **training}),
    }  # fmt: skip
    (answer,) = evaluate_rows([json.dumps(row)])
    assert answer["verdict"] == "fits", answer["reasons"]
    return answer


def test_padding_takes_time_and_memory_and_counts_as_nothing():
    full, padded = evaluation(total_tokens=1e9), evaluation(total_tokens=1e9, **PADDED)
    assert padded["padding_share"] == pytest.approx(1 - FILLED, rel=1e-12)
    assert "padding_share" not in full
    # PyTorch's attention computes whole rows, so that step and memory are those of full sequences.
    for name in ("step_time_s", "memory", "hardware_tflops_per_gpu"):
        assert padded[name] == full[name], name
    assert padded["tokens_per_s_per_gpu"] == pytest.approx(FILLED * full["tokens_per_s_per_gpu"], rel=1e-12)
    assert padded["run"]["days"] == pytest.approx(full["run"]["days"] / FILLED, rel=1e-12)
    assert padded["mfu"] < FILLED * full["mfu"]  # documents have fewer pairs a token, too
    assert {"padded-to-seq-length", "padding-masks-attention"} <= set(padded["warnings"])


def test_model_operations_are_those_of_the_documents():
    job = job_of(dense_model(), "fsdp", global_batch_size=32, **PADDED)
    rows = 4 * 8  # eight times the four documents
    linear = model_flops(job).forward - model_flops(job).all_attention
    # 2 operations for each of score and value, 8 heads of 128 elements, 4 layers; the contract counts the whole square.
    pairs = 3 * 256**2 + S**2
    attention = 4 * 4 * 8 * 128 * pairs * rows / 4
    expected = 3 * (linear * FILLED * S * rows + attention)
    assert model_flops_per_step(job) == pytest.approx(expected, rel=1e-12)
    whole = job_of(dense_model(), "fsdp", global_batch_size=32, seq_length=S)
    assert model_flops_per_step(job, padding=True) == model_flops_per_step(whole)


@pytest.mark.parametrize(("framework", "kernel", "skips"), [
    ("fsdp", "fa2", True), ("deepspeed", "fa3", True), ("fsdp", "sdpa", False), ("megatron", "fa2", False),
])  # fmt: skip
def test_transformers_takes_padding_out_for_flash_attention(framework, kernel, skips):
    job = job_of(dense_model(), framework, attention_kernel=kernel, **PADDED)
    whole = job_of(dense_model(), framework, attention_kernel=kernel, seq_length=S)
    of_whole, of_padded = (
        layer_attention_s(each, each.model.layer_kinds[0], row_of(each, micro_batch_size=8)) for each in (whole, job)
    )
    if not skips:
        assert of_padded.forward_s[0] == of_whole.forward_s[0]
        return
    # A row in four is full and three hold a quarter: the time is the sum, with the launch paid once.
    short = job_of(dense_model(), framework, attention_kernel=kernel, seq_length=256)
    of_short = layer_attention_s(short, short.model.layer_kinds[0], row_of(short, micro_batch_size=8)).forward_s[0]
    per_launch = 2e-6
    expected = of_whole.forward_s[0] / 4 + of_short * 3 / 4
    assert of_padded.forward_s[0] == pytest.approx(expected, abs=per_launch)
    assert of_padded.forward_s[0] < of_whole.forward_s[0] / 2


def test_a_mean_pads_every_row_alike():
    # A quarter of each row; a mean beyond the row fills it.
    assert evaluation(mean_document_length=256.0, packing="padded")["padding_share"] == pytest.approx(0.75)
    assert evaluation(document_lengths={"mean": 9000}, packing="padded")["padding_share"] == 0.0


def test_packing_needs_lengths_and_one_of_two_words():
    with pytest.raises(InvalidInputError, match="nothing says how long documents are") as refused:
        job_of(dense_model(), packing="padded")
    assert refused.value.problems[0].pointer == "/training/packing"
    with pytest.raises(InvalidInputError, match="packing"):
        job_of(dense_model(), packing="longest")


def test_packed_is_what_nothing_means():
    said, unsaid = (job_of(dense_model(), document_lengths=DOCUMENTS, **given) for given in ({"packing": "packed"}, {}))
    assert said.training.attended_spans == unsaid.training.attended_spans
    assert model_flops_per_step(said) == model_flops_per_step(unsaid)


def test_launch_files_leave_padding_to_the_data():
    row = {
        "model": dense_model(), "cluster": cluster_of(H100), "strategy": {"tp": 2, "micro_batch_size": 1, "dp": 4},
        "training": training_of("megatron", global_batch_size=32, **PADDED),
    }  # fmt: skip
    texts = [file.content for file in export_row(row, "megatron")]
    assert any("one document in each sequence" in text for text in texts)
