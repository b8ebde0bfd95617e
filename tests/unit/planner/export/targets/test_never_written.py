"""What the launch files of no target train is refused in a sentence that says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
from tower_configs import llava

from builders import tiny_model
from launch_rows import row_of
from planner.export.export import export_row
from planner.export.quantities import FieldNotExpressibleError


@pytest.mark.parametrize("target", ["pytorch", "transformers", "accelerate"])
@pytest.mark.parametrize(("model", "training", "message", "hint"), [
    (llava(), {"towers": {"vision": "frozen"}},
     "cannot be told training.towers: launch files train the text model alone", "or plan without training.towers"),
    (tiny_model(classes=5), {}, "cannot be told model.classes 5: launch files train language models", "AutoModelForSequenceClassification"),
])  # fmt: skip
def test_no_target_trains_towers_or_a_classification_head(
    target: str, model: dict[str, Any], training: dict[str, Any], message: str, hint: str
) -> None:
    row = row_of("fsdp", model=model, nodes=1, batch=8, training={"seq_length": 512, **training}, dp=8)
    with pytest.raises(FieldNotExpressibleError) as caught:
        export_row(row, target)
    assert message in caught.value.message
    assert hint in caught.value.hint
