"""Classification heads against transformers' AutoModelForSequenceClassification, counted on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters

torch = pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": 300, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "mixtral"])
def test_a_classifier_has_the_parameters_of_its_modules(model_type: str, tied: bool) -> None:
    config: dict[str, Any] = {"model_type": model_type, **SIZES, "tie_word_embeddings": tied}
    built = transformers.AutoConfig.for_model(**config, num_labels=3)
    with torch.device("meta"):
        count = transformers.AutoModelForSequenceClassification.from_config(built).num_parameters()
    assert count_parameters(resolve_model({"hf_config": config, "classes": 3})).total == count
