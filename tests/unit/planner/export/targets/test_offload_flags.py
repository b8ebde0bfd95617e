"""Launch files of quantised ZeRO, state on drives and offloaded modules say what the row says, and are read back as it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch_rows import exported, read_back, row_of, settings_of
from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.export.targets import TARGETS
from planner.export.targets.megatron_bridge.keys import CORE as BRIDGE_CORE
from planner.export.targets.nemo.keys import CORE as NEMO_CORE

ON_DRIVES = {"optimizer_fraction": 1.0, "optimizer_device": "nvme", "optimizer_overlap": "pipelined"}
BOTH = {**ON_DRIVES, "parameters": True, "parameter_device": "nvme"}
NVME = {"read_gb_per_s": 25.0, "write_gb_per_s": 12.0}


def row(framework: str, strategy: dict[str, Any]) -> dict[str, Any]:
    found = row_of(framework, nodes=2, **strategy)
    found["cluster"]["nvme"] = NVME
    return found


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"zero_quantized_weights": True}, {"zero_quantized_weights": True}),
        ({"zero_quantized_gradients": True}, {"zero_quantized_gradients": True, "reduce_scatter": True}),
        ({"offload": ON_DRIVES}, {"offload_optimizer": {"device": "nvme", "ratio": 1.0, "nvme_path": "/local_nvme",
                                                       "pipeline_read": True, "pipeline_write": True}}),
        ({"offload": BOTH}, {"offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}}),
        ({"micro_batch_size": 4, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}},
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


MODULES = {
    "activation_modules": ["core_attn", "attn_proj"],
    "optimizer_fraction": 1.0,
    "optimizer_overlap": "pipelined",
}


def test_megatron_is_told() -> None:
    asked = row("megatron", {"zero": 1, "offload": {**MODULES, "activation_fraction": 0.5}})
    asked["training"]["framework_version"] = "0.19"
    _, launch = exported(TARGETS["megatron"], asked)
    said = " ".join(launch.command)
    assert "--fine-grained-activation-offloading" in said
    assert "--offload-modules core_attn attn_proj" in said
    assert "--activation-offload-fraction 0.5" in said
    assert "--overlap-cpu-optimizer-d2h-h2d" in said
    assert [each.value for each in launch.variables if each.name == "NVTE_CPU_OFFLOAD_V1"] == ["1"]


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo"])
def test_programs_on_megatron_are_told(target: str) -> None:
    """Their releases run on a Megatron Core of their own, which has modules from 0.16 on."""
    version = TARGETS[target].versions[-1]
    core = {**BRIDGE_CORE, **NEMO_CORE}[version]
    asked = row("megatron", {"zero": 1, "offload": MODULES})
    asked["training"]["framework_version"] = core
    plan = launch_plan(asked)
    launch = TARGETS[target].write(Quantities(plan, target=target, version=version))
    text = " ".join([*launch.command, *(file.content for file in launch.files)])
    assert "offload_modules" in text
    assert "overlap_cpu_optimizer_d2h_h2d" in text
