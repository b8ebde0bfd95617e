"""A classification head in place of the output projection: parameters, operations, memory, and who trains it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import job_of, llama_model, row_of
from cost_models.errors import InvalidInputError, NotExpressibleError
from cost_models.evaluate import evaluate
from cost_models.layers.flops import model_flops
from cost_models.layers.parameters import count_parameters
from planner.export.export import export_row
from planner.request.resolved import model_document

ALONE: dict[str, Any] = {"cluster": {"gpus_per_node": 1}}
ONE = {"dp": 1, "zero": 0, "recompute": "none"}


def test_the_head_has_a_row_for_each_class() -> None:
    """Llama 3.1 8B: 128,256 rows of 4,096 in the head, of which 2 are left; a tied model gets a matrix of its own."""
    language, classifier, tied = (
        count_parameters(job_of(llama_model(**each), "fsdp").model)
        for each in ({}, {"classes": 2}, {"classes": 2, "tie_word_embeddings": True})
    )
    assert language.total - classifier.total == (128256 - 2) * 4096
    assert classifier.head == tied.head == 2 * 4096
    assert classifier.total == tied.total


def test_operations_and_memory_lose_the_vocabularys_share() -> None:
    language, classifier = (job_of(llama_model(2, **each), "fsdp", **ALONE) for each in ({}, {"classes": 2}))
    saved = model_flops(language).forward - model_flops(classifier).forward
    assert saved == 2 * 4096 * (128256 - 2)
    before, after = (evaluate(job, row_of(job, **ONE)) for job in (language, classifier))
    assert after.terms_s["head"][0] < 0.02 * before.terms_s["head"][0]
    # What is left of the head is the final norm.
    assert after.terms_s["loss"][0] < 0.01 * before.terms_s["loss"][0]
    assert after.terms_s["gemm"][0] == before.terms_s["gemm"][0]
    was, now = (found.memory.breakdown(0, 0) for found in (before, after))
    # FSDP keeps fp32 parameters and two fp32 moments.
    assert was["parameters"] - now["parameters"] == pytest.approx(4 * (128256 - 2) * 4096)
    assert was["optimizer_states"] - now["optimizer_states"] == pytest.approx(8 * (128256 - 2) * 4096)
    assert now["logits_and_loss"] < 2048 * 2 * 4 + 1


def test_only_hugging_faces_modules_have_a_classification_head() -> None:
    with pytest.raises(InvalidInputError, match="megatron trains language models") as caught:
        job_of(llama_model(classes=2), "megatron")
    (problem,) = caught.value.problems
    assert problem.pointer == "/training/framework"
    assert "deepspeed or fsdp" in problem.hint


def test_a_resolved_model_keeps_its_classes() -> None:
    assert model_document(job_of(llama_model(classes=5), "deepspeed").model)["classes"] == 5
    assert "classes" not in model_document(job_of(llama_model(), "deepspeed").model)


def test_launch_files_for_language_models_are_not_written_for_classifiers() -> None:
    row = {
        "model": llama_model(classes=2), "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"},
        "strategy": {"dp": 8, "zero": 3, "micro_batch_size": 1},
    }  # fmt: skip
    with pytest.raises(NotExpressibleError, match=r"model\.classes"):
        export_row(row, "accelerate")
