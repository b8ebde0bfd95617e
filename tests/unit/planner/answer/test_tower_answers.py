"""What answers say of towers: their part of an evaluation, warnings, the request that can be posted again, and launch files."""

from __future__ import annotations

from typing import Any

import pytest
from tower_configs import llava, qwen

from builders import request_of
from cost_models.errors import NotExpressibleError
from planner.export.export import export_row
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.schemas.evaluation import Evaluation

SIZES = {"tokens_per_image": 256, "images_per_sequence": 2.0}


def evaluation(
    model: dict[str, Any], framework: str = "fsdp", *, strategy: dict[str, Any] | None = None, **training: Any
) -> dict[str, Any]:
    row = {
        **request_of(model, framework, **training),
        "strategy": strategy or {"dp": 8, "zero": 3, "micro_batch_size": 1},
    }
    (found,) = evaluate_rows([row])
    return found


def test_an_evaluation_tells_what_its_tower_is_and_takes() -> None:
    found = evaluation(qwen(), towers={"vision": "trained", **SIZES})
    (tower,) = Evaluation.model_validate(found).towers or []
    # Two layers: qkv and output with biases, a gated MLP with biases, two norms; and 3 x 2 x 14 x 14 pixels to 64.
    layer = 4 * 64 * 64 + 4 * 64 + 3 * 64 * 128 + 2 * 128 + 64 + 2 * 64
    encoder = 2 * layer + 3 * 2 * 14 * 14 * 64
    merger = 64 + 256 * 256 + 256 + 256 * 256 + 256
    assert (tower.parameters, tower.projector_parameters, tower.trainable_parameters) == (
        encoder,
        merger,
        encoder + merger,
    )
    assert (tower.tokens_per_sequence, tower.placement, tower.split_over_tp) == (512.0, "first-stage", False)
    plain = evaluation(qwen())
    assert found["num_parameters"] == plain["num_parameters"] + encoder + merger
    assert found["trainable_parameters"] == found["num_parameters"]
    rows = 4 * 256
    layers = 2 * (2 * (4 * 64 * 64 + 3 * 64 * 128) + 4 * rows * 64)
    ends = 2 * 3 * 2 * 14 * 14 * 64 + 2 * (256 * 256 + 256 * 256) / 4
    assert tower.forward_tflops_per_image == pytest.approx(rows * (layers + ends) / 1e12)
    # All of the difference but jitter, a share of the step, and what is done once a step.
    assert 0 < tower.step_s < 1.01 * (found["step_time_s"] - plain["step_time_s"])


def test_the_warning_stays_where_towers_are_not_counted() -> None:
    assert "vision-tower-ignored" in evaluation(qwen())["warnings"]
    assert "towers" not in evaluation(qwen())
    assert "vision-tower-ignored" not in evaluation(qwen(), towers={"vision": "frozen", **SIZES})["warnings"]
    without = evaluation(qwen(), towers={"vision": "none"})
    assert "vision-tower-ignored" not in without["warnings"]
    assert without["step_time_s"] == evaluation(qwen())["step_time_s"]


def test_adapters_beside_towers_are_those_of_the_text_model() -> None:
    found = evaluation(llava(), towers={"vision": "frozen", "projector": "frozen"}, adapter={"rank": 4})
    assert "adapters-not-in-towers" in found["warnings"]
    # Four layers: queries and outputs 256 x 256, keys and values 256 x 128, three of an MLP 256 x 512.
    assert found["trainable_parameters"] == 4 * 4 * (2 * 512 + 2 * 384 + 3 * 768)


def test_a_resolved_request_with_towers_means_the_same() -> None:
    request = request_of(llava(), "fsdp", towers={"vision": "frozen", "recompute": "none"})
    first = plan(request)
    again = plan(first["request"])
    assert again["plans"][0]["evaluation"]["towers"] == first["plans"][0]["evaluation"]["towers"]
    assert again["plans"][0]["evaluation"]["step_time_s"] == first["plans"][0]["evaluation"]["step_time_s"]
    assert first["request"]["training"]["towers"] == {
        "vision": "frozen", "audio": "none", "projector": "trained", "recompute": "none", "images_per_sequence": 1.0, "tokens_per_image": 16,
    }  # fmt: skip


def test_launch_files_are_refused_for_towers() -> None:
    row = {
        **request_of(llava(), "fsdp", towers={"vision": "frozen"}),
        "strategy": {"dp": 8, "zero": 3, "micro_batch_size": 1},
    }
    with pytest.raises(NotExpressibleError, match="text model alone") as caught:
        export_row(row, "accelerate")
    assert caught.value.context["field"] == "training.towers"
