"""Parameters of vision and audio towers against the real modules: transformers builds each multimodal model on the meta device.

Sizes are drawn with a seed for every family, class defaults left in place now and then; published sizes are counted as well.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from cost_models.inputs.hf.towers import WRAPPERS, read_tower
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters
from cost_models.layers.tower_parameters import tower_elements
from cost_models.specs.tower import TowerUse

torch = pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")
transformers.utils.logging.set_verbosity_error()

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for

CLIP_LIKE = ("llava", "llava_next")
GLM = ("glm4v", "glm46v", "glm4v_moe")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
AUDIO = ("qwen2_audio", "voxtral")


def text_config(draw: random.Random, wrapper: str) -> dict[str, Any]:
    """A small text model of the wrapper's family."""
    kinds = {
        "llava": "llama", "llava_next": "llama", "mistral3": "mistral", "internvl": "qwen2", "qwen2_audio": "qwen2",
        "voxtral": "llama", "glm46v": "glm4v_text",
    }  # fmt: skip
    known = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
    config = {
        "model_type": kinds.get(wrapper) or known.get(wrapper) or f"{wrapper}_text", "num_hidden_layers": 2,
        "hidden_size": 16 * draw.randint(1, 4), "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": draw.randint(8, 40), "vocab_size": 64, "tie_word_embeddings": False, "pad_token_id": 0,
    }  # fmt: skip
    if wrapper in ("qwen2_vl", "qwen2_5_vl", "internvl", "qwen2_audio"):
        del config["head_dim"]
    if wrapper in ("qwen3_vl_moe", "glm4v_moe", "llama4"):
        config |= {
            "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
            "n_shared_experts": 1, "intermediate_size_mlp": 24,
        }  # fmt: skip
    return config


def audio_encoder(draw: random.Random, wrapper: str) -> dict[str, Any]:
    heads = draw.choice([2, 4])
    hidden = heads * 8 * draw.randint(1, 3)
    sizes = (draw.randint(1, 3), heads, 4 * hidden, hidden)
    names = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model")
    if wrapper == "voxtral":
        names = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_size")
    rest = {"num_mel_bins": draw.randint(4, 12), "max_source_positions": draw.randint(4, 60)}
    return dict(zip(names, sizes, strict=True)) | rest


def image_encoder(draw: random.Random, wrapper: str) -> dict[str, Any]:
    """An encoder whose configuration says the size of its images, as CLIP's does."""
    heads, patch = draw.choice([2, 4]), draw.choice([2, 4])
    hidden = heads * 8 * draw.randint(1, 3)
    found: dict[str, Any] = {
        "num_hidden_layers": draw.randint(1, 3), "hidden_size": hidden, "num_attention_heads": heads, "patch_size": patch,
        "image_size": patch * draw.choice([4, 8]), "intermediate_size": draw.randint(8, 50),
    }  # fmt: skip
    if wrapper in CLIP_LIKE:
        found["model_type"] = draw.choice(["clip_vision_model", "siglip_vision_model"])
    if wrapper == "gemma3" and draw.random() < 0.7:
        found["vision_use_head"] = draw.random() < 0.5
    if wrapper == "internvl":
        switches = (
            "attention_bias",
            "use_qk_norm",
            "use_mask_token",
            "use_absolute_position_embeddings",
            "use_mean_pooling",
        )
        found |= {name: draw.random() < 0.5 for name in switches}
        found["norm_type"] = draw.choice(["layer_norm", "rms_norm"])
    if wrapper == "llama4":
        width = draw.randint(8, 50)
        found |= {
            "intermediate_size": 4 * hidden,
            "projector_input_dim": width,
            "projector_output_dim": 24,
            "vision_output_dim": 24,
        }
    return found


def merging_encoder(draw: random.Random, wrapper: str, text_hidden: int) -> dict[str, Any]:
    """An encoder of images of any size, whose neighbouring patches are merged."""
    heads, patch = draw.choice([2, 4]), draw.choice([2, 4])
    hidden = heads * 8 * draw.randint(1, 3)
    found: dict[str, Any] = {
        "depth": draw.randint(1, 3), "num_heads": heads, "patch_size": patch, "spatial_merge_size": draw.choice([1, 2]),
        "hidden_size": hidden, "out_hidden_size": text_hidden, "intermediate_size": draw.randint(8, 50),
    }  # fmt: skip
    if wrapper == "qwen2_vl":
        found |= {"embed_dim": hidden, "hidden_size": text_hidden, "mlp_ratio": draw.choice([2, 4])}
    elif wrapper in GLM:
        found |= {"image_size": patch * draw.choice([4, 8]), "attention_bias": draw.random() < 0.5}
    elif wrapper != "qwen2_5_vl":
        found |= {"num_position_embeddings": draw.choice([16, 64]), "deepstack_visual_indexes": draw.choice([[], [0]])}
    # The class knows these, too.
    left_out = {key for key in ("patch_size", "spatial_merge_size") if draw.random() < 0.2 and wrapper not in GLM}
    return {key: value for key, value in found.items() if key not in left_out}


def tower_of(draw: random.Random, wrapper: str, text_hidden: int) -> dict[str, Any]:
    """A small encoder of the wrapper's class."""
    if wrapper in AUDIO:
        return audio_encoder(draw, wrapper)
    merging = wrapper in GLM or wrapper in QWEN
    return merging_encoder(draw, wrapper, text_hidden) if merging else image_encoder(draw, wrapper)


def drawn(wrapper: str, seed: int) -> dict[str, Any]:
    draw = random.Random(f"{wrapper} {seed}")
    text = text_config(draw, wrapper)
    part = "audio_config" if wrapper in AUDIO else "vision_config"
    config = {
        "model_type": wrapper, "text_config": text, part: tower_of(draw, wrapper, text["hidden_size"]),
        "tie_word_embeddings": False,
    }  # fmt: skip
    if wrapper == "gemma3":
        config["mm_tokens_per_image"] = draw.choice([1, 4, 16])
    if wrapper in ("mistral3", *CLIP_LIKE):
        config["multimodal_projector_bias"] = draw.random() < 0.5
        config["vision_feature_layer"] = draw.choice([-1, [-1, 0]])
    if wrapper == "mistral3":
        config["spatial_merge_size"] = draw.choice([1, 2])
    return config


def counted(config: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the text model, and of all else, in the modules that transformers builds."""
    built = transformers.AutoConfig.for_model(**config)
    audio = config["model_type"] in AUDIO
    with torch.device("meta"):
        make = transformers.AutoModelForMultimodalLM if audio else transformers.AutoModelForImageTextToText
        model = make.from_config(built)
    parts = [(name, p.numel()) for name, p in model.named_parameters()]
    text = sum(size for name, size in parts if "language_model" in name or name.startswith("lm_head"))
    return text, sum(size for _, size in parts) - text


def ours(config: dict[str, Any]) -> tuple[int, int]:
    model = resolve_model({"hf_config": config})
    tower = read_tower(model, WRAPPERS[config["model_type"]].sense, pointer="/model/hf_config")
    assert tower is not None
    elements = tower_elements(TowerUse(tower, True, 1.0, 1, 1.0), projector_trained=True)
    return count_parameters(model).total, elements.total


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_towers_have_the_parameters_of_their_modules(wrapper: str) -> None:
    config = drawn(wrapper, 0)
    assert ours(config) == counted(config), config


@pytest.mark.proof
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_many_drawn_towers_have_the_parameters_of_their_modules(wrapper: str) -> None:
    for seed in range(1, 41):
        config = drawn(wrapper, seed)
        assert ours(config) == counted(config), config


def test_a_tower_of_published_size_has_the_parameters_on_its_card() -> None:
    """Qwen2.5-VL-7B-Instruct: 8,292,166,656 parameters in its safetensors index; Gemma-3-4b: 4,300,079,472."""
    qwen = {
        "model_type": "qwen2_5_vl",
        "text_config": {"model_type": "qwen2_5_vl_text", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
        "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
    }  # fmt: skip
    gemma = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
                          "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False},
    }  # fmt: skip
    assert sum(ours(qwen)) == 8_292_166_656
    assert sum(ours(gemma)) == 4_300_079_472
