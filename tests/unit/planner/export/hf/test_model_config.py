"""The `config.json` of a model: the family that says exactly it, and what no family says."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models import presets
from cost_models.inputs.hf.families import FAMILIES
from cost_models.inputs.model import resolve_model
from planner.export.hf.model_config import NOT_IN_TRANSFORMERS, nearest_config

LLAMA = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip

NEEDED: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 128},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1},
    "granitemoehybrid": {"layer_types": ["attention"] * 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
"""What a config must say where the class has no default that would do."""


def nearest(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return nearest_config(resolve_model(spec), seq_length=512)


@pytest.mark.parametrize("name", presets.names("models"))
def test_every_preset_has_a_config(name: str):
    assert nearest({"preset": name})[1] == {}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("llama-3.1-8b", "llama"), ("qwen2.5-7b", "qwen2"), ("qwen3-8b", "qwen3"), ("mixtral-8x7b", "mixtral"), ("gpt2-xl", "gpt2"),
        ("qwen3-30b-a3b", "qwen3_moe"), ("deepseek-v2", "deepseek_v2"), ("deepseek-v3", "deepseek_v3"), ("gemma-2-9b", "gemma2"),
        ("falcon-40b", "falcon"), ("bloom-176b", "bloom"), ("opt-66b", "opt"), ("gpt-oss-20b", "gpt_oss"), ("olmo-2-13b", "olmo2"),
    ],
)  # fmt: skip
def test_the_family_is_the_published_one(name: str, family: str):
    assert nearest({"preset": name})[0]["model_type"] == family


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - NOT_IN_TRANSFORMERS))
def test_the_defaults_of_a_class_are_said_again(family: str):
    """A config with nothing but its family and what the class has no default for."""
    config = {"model_type": family, "num_experts_per_tok": 2, **NEEDED.get(family, {})}
    assert nearest({"hf_config": config})[1] == {}


def test_the_numbers_of_a_config():
    config, differing = nearest(LLAMA)
    assert differing == {}
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] == 4
    assert config["head_dim"] == 16
    assert config["max_position_embeddings"] == 512


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"embedding_norm": True, "norm": "rmsnorm"}, "embedding_norm"),
        ({"moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 32, "capacity_factor": 1.25}}, "moe.capacity_factor"),
        ({"norms_per_layer": 3}, "norms_per_layer"),
    ],
)  # fmt: skip
def test_the_field_that_no_family_says_is_named(change: dict[str, Any], field: str):
    assert field in nearest({**LLAMA, **change})[1]
