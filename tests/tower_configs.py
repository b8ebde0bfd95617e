"""Small multimodal configurations for tests of towers."""

from __future__ import annotations

from typing import Any

TEXT = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512,
    "vocab_size": 1024,
}  # fmt: skip


def qwen(**vision: Any) -> dict[str, Any]:
    """A model of Qwen2.5-VL's modules, whose images may have any size; every layer attends to the whole image."""
    tower = {
        "depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 256,
        "fullatt_block_indexes": [0, 1],
    }  # fmt: skip
    return {
        "hf_config": {
            "model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", **TEXT}, "vision_config": tower | vision,
        }
    }  # fmt: skip


def llava(**vision: Any) -> dict[str, Any]:
    """A model of LLaVA's modules: 16 x 16 pixels in patches of 4, so 16 patches and a class row."""
    tower = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128, "image_size": 16,
        "patch_size": 4,
    }  # fmt: skip
    return {
        "hf_config": {
            "model_type": "llava", "text_config": {"model_type": "llama", **TEXT}, "vision_config": tower | vision,
        }
    }  # fmt: skip
