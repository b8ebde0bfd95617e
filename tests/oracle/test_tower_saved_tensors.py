"""What transformers' vision encoders save for their backward, counted by torch's own hooks, with two images in a micro-batch.

Encoders with more and with fewer layers are compared, so that what lies around the layers cancels; bytes of one storage count once.
"""

from __future__ import annotations

from typing import Any

import pytest
import saved_tensors

from planner.rows import evaluate_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HEADS, HIDDEN, PATCH, SIDE = 4, 64, 4, 32
"""Images of 8 x 8 patches."""
ANY_SIZE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
IMAGES = 2
MERGED: dict[str, Any] = {
    "num_heads": HEADS,
    "patch_size": PATCH,
    "hidden_size": HIDDEN,
    "intermediate_size": 160,
    "out_hidden_size": HIDDEN,
}
FIXED: dict[str, Any] = {
    "num_attention_heads": HEADS, "patch_size": PATCH, "hidden_size": HIDDEN, "intermediate_size": 160, "image_size": SIDE,
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": MERGED | {"embed_dim": HIDDEN, "mlp_ratio": 2},
    "qwen2_5_vl": MERGED | {"fullatt_block_indexes": list(range(9))},
    "qwen3_vl": MERGED | {"num_position_embeddings": 64, "deepstack_visual_indexes": []},
    "glm4v": MERGED | {"image_size": SIDE},
    "llava": FIXED | {"model_type": "clip_vision_model"},
    "internvl": FIXED | {"num_channels": 3},
    "llama4": FIXED | {"intermediate_size": 4 * HIDDEN, "projector_input_dim": 24, "projector_output_dim": 24, "vision_output_dim": 24},
    "gemma3": FIXED | {"model_type": "siglip_vision_model", "vision_use_head": False},
}  # fmt: skip


def vision_config(family: str, layers: int) -> dict[str, Any]:
    return VISION[family] | {"depth" if family in ANY_SIZE else "num_hidden_layers": layers}


def configuration(family: str, layers: int) -> dict[str, Any]:
    """The whole model, with a small text part."""
    text = {
        "model_type": {"llava": "llama", "internvl": "qwen2"}.get(family, f"{family}_text"), "hidden_size": HIDDEN, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 160, "vocab_size": 64,
        "pad_token_id": 0,
    }  # fmt: skip
    return {
        "model_type": family, "vision_config": vision_config(family, layers), "text_config": text, "mm_tokens_per_image": 16,
    }  # fmt: skip


def saved_bytes(family: str, layers: int) -> int:
    """Bytes that an encoder's forward keeps for the backward, weights left out."""
    config = transformers.AutoConfig.for_model(**configuration(family, layers))
    whole = transformers.AutoModelForImageTextToText.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16
    )
    (model,) = (
        part for name, part in whole.named_modules() if name in ("model.visual", "model.vision_tower", "vision_model")
    )
    grid = SIDE // PATCH

    def forward() -> None:
        if family in ANY_SIZE:
            pixels = torch.zeros(IMAGES * grid * grid, 2 * 3 * PATCH * PATCH)
            model(pixels, grid_thw=torch.tensor([[1, grid, grid]] * IMAGES))
        else:
            model(torch.zeros(IMAGES, 3, SIDE, SIDE, dtype=torch.bfloat16))

    # On a CPU, LayerNorm keeps the mean and the inverse deviation of each row in bf16; on a GPU, in fp32.
    rows = IMAGES * (grid * grid + (family != "gemma3"))
    statistics = 2 * 2 * 2 * rows * layers * (family not in ("qwen2_5_vl", "glm4v"))
    return saved_tensors.saved_bytes(model, forward)[0] + statistics


def priced_bytes(family: str, layers: int) -> float:
    """The activations of the same layers here."""
    towers = {"vision": "trained", "images_per_sequence": IMAGES}
    if family in ANY_SIZE:
        towers["tokens_per_image"] = (SIDE // PATCH // 2) ** 2
    row = {
        "id": 0, "model": {"hf_config": configuration(family, layers)}, "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 1},
        "training": {
            "seq_length": 256, "global_batch_size": 1, "precision": "bf16", "framework": "fsdp", "param_dtype": "bf16",
            "main_param_dtype": "none", "optimizer": "sgd", "attention_kernel": "sdpa", "towers": towers,
        },
        "strategy": {"micro_batch_size": 1, "zero": 0, "recompute": "none"},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    assert answer["verdict"] == "fits", answer["reasons"]
    return float(answer["towers"][0]["activations_gib"]) * 2**30


@pytest.mark.parametrize("family", VISION)
def test_a_layer_of_an_encoder_saves_what_torch_keeps(family: str) -> None:
    kept = [saved_bytes(family, layers) for layers in (2, 3)]
    priced = [priced_bytes(family, layers) for layers in (2, 3)]
    assert priced[1] - priced[0] == pytest.approx(kept[1] - kept[0], abs=16)  # scalars aside
