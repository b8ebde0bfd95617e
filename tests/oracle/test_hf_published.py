"""Config files as they are published, with the keys that they leave out left out, against the real modules and the sizes on
the model cards. Multimodal ones are counted without their vision tower.
"""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters

# Said here too: a module that was skipped cannot be imported from.
pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")
from tests.oracle.test_hf_parameters import (
    modules_count,
    our_count,
    text_modules_count,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for

GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3", "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                    "sliding_window": 1024},
}  # fmt: skip
MULTIMODAL: dict[str, tuple[dict[str, Any], float]] = {
    "google/gemma-3-4b-it": (GEMMA_3_4B, 3.88),
    "google/gemma-3-12b-it": (
        {"model_type": "gemma3", "text_config": {
            "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024}}, 11.77),
    "llava-hf/llava-1.5-7b-hf": (
        {"model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}},
        6.74),
    "zai-org/GLM-4.5V": (
        {"model_type": "glm4v_moe", "text_config": {
            "model_type": "glm4v_moe_text", "vocab_size": 151552, "head_dim": 128, "attention_bias": True,
            "first_k_dense_replace": 1, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96, "num_experts_per_tok": 8,
            "num_hidden_layers": 46, "num_key_value_heads": 8, "use_qk_norm": False, "n_group": 1, "topk_group": 1}}, 106.0),
    "mistralai/Ministral-3-8B-Base-2512": (
        {"model_type": "mistral3", "text_config": {
            "model_type": "ministral3", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "vocab_size": 131072,
            "sliding_window": None, "max_position_embeddings": 262144, "tie_word_embeddings": False}}, 8.49),
}  # fmt: skip
TEXT: dict[str, tuple[dict[str, Any], float]] = {
    "swiss-ai/Apertus-8B-2509": (
        {"model_type": "apertus", "hidden_act": "xielu", "intermediate_size": 21504, "num_key_value_heads": 8}, 8.05),
    "zai-org/GLM-4.7-Flash": (
        {"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "num_nextn_predict_layers": 1}, 29.9),
    "rednote-hilab/dots.llm1.base": (
        {"model_type": "dots1", "hidden_size": 4096, "moe_intermediate_size": 1408, "n_routed_experts": 128,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}, 142.8),
    "arcee-ai/Trinity-Mini": (
        {"model_type": "afmoe", "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
         "num_experts_per_tok": 8, "num_shared_experts": 1, "num_dense_layers": 2, "moe_intermediate_size": 1024,
         "sliding_window": 2048}, 26.1),
    "ibm-granite/granite-4.0-micro": (
        {"model_type": "granitemoehybrid", "hidden_size": 2560, "shared_intermediate_size": 8192, "num_hidden_layers": 40,
         "num_attention_heads": 40, "num_key_value_heads": 8, "num_local_experts": 0, "num_experts_per_tok": 0,
         "layer_types": ["attention"] * 40, "vocab_size": 100352, "tie_word_embeddings": True,
         "position_embedding_type": "rope"}, 3.40),
    "XiaomiMiMo/MiMo-7B-Base": (
        {"model_type": "mimo", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151680, "head_dim": 128}, 7.62),
    "inclusionAI/Ling-mini-2.0": (
        {"model_type": "bailing_moe", "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 5120,
         "first_k_dense_replace": 1, "moe_intermediate_size": 512, "num_shared_experts": 1, "num_experts": 256,
         "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 128, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "vocab_size": 157184}, 16.3),
    "inclusionAI/Ling-lite-1.5": (
        {"model_type": "bailing_moe", "num_hidden_layers": 28, "hidden_size": 2048, "intermediate_size": 1408,
         "first_k_dense_replace": 0, "moe_intermediate_size": 1408, "num_shared_experts": 2, "num_experts": 64,
         "num_experts_per_tok": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "use_qkv_bias": False,
         "use_bias": False, "vocab_size": 126464}, 16.8),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MULTIMODAL))
def test_a_multimodal_config_as_published_counts_what_its_text_modules_hold(name: str):
    config, billions = MULTIMODAL[name]
    expected = text_modules_count(config)
    assert our_count(config) == expected
    assert expected / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", sorted(TEXT))
def test_a_config_as_published_counts_what_its_modules_hold(name: str):
    config, billions = TEXT[name]
    expected = modules_count(config)
    assert our_count(config) == expected
    assert expected / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_heads_that_gemma_3_leaves_out_are_its_class_defaults():
    """8 heads of 256 and 4 of keys and values: 3,880,263,168 with the vocabulary of 262,208 (model card: 3.88 billion)."""
    model = resolve_model({"hf_config": GEMMA_3_4B})
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim, model.vocab_size) == (
        8,
        4,
        256,
        262208,
    )
    assert count_parameters(model).total == 3_880_263_168


def test_modules_that_predict_further_tokens_are_a_layer_a_projection_and_three_norms():
    """MiMo-7B, vllm's mimo_mtp.py: a Qwen2 layer, 2h x h, and norms of the token, of the state and of the output.

    Layer: q and out 2 h^2, k and v 2 h 1024, their biases 4096 + 2 1024, MLP 3 h 11008, two norms.
    """
    config = {**TEXT["XiaomiMiMo/MiMo-7B-Base"][0], "num_nextn_predict_layers": 1}
    h = 4096
    layer = 2 * h * h + 2 * h * 1024 + (4096 + 2 * 1024) + 3 * h * 11008 + 2 * h
    assert count_parameters(resolve_model({"hf_config": config})).mtp == layer + 2 * h * h + 3 * h
