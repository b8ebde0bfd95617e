"""Launch files of quantised ZeRO, state on drives and offloaded modules say what the row says, and are read back as it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch_rows import exported, read_back, row_of, settings_of
from planner.export.target import Launch
from planner.export.targets import TARGETS

ON_DRIVES = {"optimizer_fraction": 1.0, "optimizer_device": "nvme", "optimizer_overlap": "pipelined"}
BOTH = {**ON_DRIVES, "parameters": True, "parameter_device": "nvme"}
NVME = {"read_gb_per_s": 25.0, "write_gb_per_s": 12.0}


def row(framework: str, strategy: dict[str, Any]) -> dict[str, Any]:
    found = row_of(framework, nodes=2, **strategy)
    found["cluster"]["nvme"] = NVME
    return found


def text_of(launch: Launch) -> str:
    return "\n".join(file.content for file in launch.files)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"zero_quantized_weights": True}, {"zero_quantized_weights": True}),
        ({"zero_quantized_gradients": True}, {"zero_quantized_gradients": True, "reduce_scatter": True}),
        ({"offload": ON_DRIVES}, {"offload_optimizer": {"device": "nvme", "ratio": 1.0, "nvme_path": "/local_nvme",
                                                       "pipeline_read": True, "pipeline_write": True}}),
        ({"offload": BOTH}, {"offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}}),
        ({"offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}},
         {"zenflow": {"topk_ratio": 0.1, "update_interval": 4, "select_strategy": "auto", "select_interval": "auto",
                      "full_warm_up_rounds": 0, "overlap_step": True}}),
    ],
)  # fmt: skip
def test_deepspeed_is_told(strategy: dict[str, Any], said: dict[str, Any]) -> None:
    asked = row("deepspeed", {"zero": 3, **strategy})
    quantities, launch = exported(TARGETS["deepspeed"], asked)
    quantities.finish()
    config = json.loads(next(file.content for file in launch.files if file.path == "ds_config.json"))
    assert said.items() <= config["zero_optimization"].items()
    back = read_back(TARGETS["deepspeed"].read(settings_of(launch)), asked)
    for field in ("zero_quantized_weights", "zero_quantized_gradients", "offload.optimizer_device", "offload.optimizer_overlap",
                  "offload.parameter_device"):  # fmt: skip
        assert (back.peek(field) or None) == (quantities.peek(field) or None), field


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "nemo"])
def test_megatron_is_told(target: str) -> None:
    modules = {
        "activation_modules": ["core_attn", "attn_proj"],
        "optimizer_fraction": 1.0,
        "optimizer_overlap": "pipelined",
    }
    asked = row("megatron", {"zero": 1, "offload": modules})
    quantities, launch = exported(TARGETS[target], asked)
    quantities.finish()
    text = text_of(launch)
    for word in ("offload", "core_attn", "attn_proj", "NVTE_CPU_OFFLOAD_V1"):
        assert word in text, word
    back = read_back(TARGETS[target].read(settings_of(launch)), asked)
    assert back.peek("offload.activation_modules") == ("core_attn", "attn_proj")
    assert back.peek("offload.optimizer_overlap") == "pipelined"


def test_a_fraction_of_modules_is_said_on_the_command_line() -> None:
    offload = {"activation_modules": ["attn_norm"], "activation_fraction": 0.5}
    _, launch = exported(TARGETS["megatron"], row("megatron", {"zero": 1, "offload": offload}))
    text = text_of(launch)
    assert "--fine-grained-activation-offloading" in text
    assert "--activation-offload-fraction" in text
