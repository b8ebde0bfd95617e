"""Which models a target's launch can hold: experts that no rank splits, and Qwen2's biases in nanotron."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch_rows import exported, meaning, read_back, settings_of
from planner.export.quantities import FieldNotExpressibleError
from planner.export.targets import TARGETS

TRAINING = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16"}


def row(model: str, framework: str, **strategy: Any) -> dict[str, Any]:
    return {
        "model": {"preset": model},
        "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 2, "gpus_per_node": 8},
        "training": {**TRAINING, "framework": framework},
        "strategy": {"dp": 16, "micro_batch_size": 1, "recompute": "full", **strategy},
    }


@pytest.mark.parametrize(("target", "framework"), [
    ("accelerate", "fsdp"), ("transformers", "fsdp"), ("pytorch", "fsdp"), ("deepspeed", "deepspeed"),
    ("accelerate", "deepspeed"), ("transformers", "deepspeed"),
])  # fmt: skip
def test_experts_that_every_rank_holds_need_no_dispatcher(target: str, framework: str):
    """Hugging Face's configuration names 128 experts of width 768, of which 8 take a token; nothing exchanges tokens between ranks."""
    asked = row("qwen3-30b-a3b", framework, zero=3, ep=1)
    files = {file.path: file.content for file in exported(TARGETS[target], asked)[1].files}
    config = json.loads(files["config.json"])
    assert (config["num_experts"], config["moe_intermediate_size"], config["num_experts_per_tok"]) == (128, 768, 8)


def test_nanotrons_qwen_has_biases_of_queries_keys_and_values():
    """`Qwen2Config.attention_bias` adds them in models/qwen.py; models/llama.py has none, whatever its configuration says."""
    quantities, launch = exported(TARGETS["nanotron"], row("qwen2.5-7b", "nanotron", tp=2, dp=8, zero=1))
    text = next(file.content for file in launch.files if file.path == "config.yaml")
    assert "is_qwen2_config: true" in text
    assert "attention_bias: true" in text
    settings = settings_of(launch)
    parts = TARGETS["nanotron"].read(settings)
    assert settings.unknown() == []
    assert parts.model["attention_bias"] == "qkv"
    assert meaning(read_back(parts, row("qwen2.5-7b", "nanotron", tp=2, dp=8, zero=1))) == meaning(quantities)


def test_nanotrons_llama_reads_no_biases():
    launch = exported(TARGETS["nanotron"], row("llama-3.1-8b", "nanotron", zero=1))[1]
    settings = settings_of(launch)
    assert TARGETS["nanotron"].read(settings).model["attention_bias"] is False


def test_a_bias_of_the_output_projection_is_refused_by_nanotron():
    asked = row("qwen2.5-7b", "nanotron", zero=1)
    asked["model"] = {"preset": "qwen2.5-7b", "attention_bias": True}
    with pytest.raises(FieldNotExpressibleError, match=r"model\.attention_bias true"):
        exported(TARGETS["nanotron"], asked)
