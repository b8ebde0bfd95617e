"""A plan that is written and read again is the same plan, in every target around Hugging Face's modules."""

from __future__ import annotations

from typing import Any

import pytest

from planner.export.formats.documents import read_document
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.export.quantities import ABOUT_DATA_AND_DATES, Quantities, idle_fields
from planner.export.settings import InputFile, Setting, Settings
from planner.export.targets import TARGETS

CLUSTER = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
OF_DEEPSPEED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"zero": 0}, {"precision": "fp32"}),
    ({"zero": 1}, {"optimizer": "adam-8bit", "adapter": {"rank": 8}, "expandable_segments": True}),
    (
        {"zero": 2, "offload": {"optimizer_fraction": 1.0}, "micro_batch_size": 2},
        {"grad_dtype": "fp32", "model_impl": "liger"},
    ),
    (
        {"recompute": "full", "offload": {"optimizer_fraction": 0.5, "parameters": True}},
        {"optimizer": "sgd", "compile": True},
    ),
    ({"zero_param_shard_size": 4}, {"frozen": ["embedding"], "precision": "fp16", "cross_entropy": "linear"}),
    ({"overlap": {"grad_reduce": False, "param_gather": False}}, {"attention": "math"}),
]
BY_DEEPSPEED_ALONE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"zero": 1, "pp": 4, "recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 2}, {}),
    ({"zero": 2, "tp": 2, "overlap": {"tp_comm": True}}, {}),
    ({"cp": 2, "recompute": "full"}, {}),
    ({"zero": 2}, {"optimizer": "muon"}),
    ({"zero": 2}, {"optimizer": "lion"}),
    ({"zero": 1}, {"optimizer": "sgd-momentum"}),
]
OF_FSDP: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"zero": 0, "recompute": "full"}, {"grad_reduce_dtype": "fp32"}),
    ({"zero": 2, "grad_sync": "each"}, {"optimizer": "sgd", "param_dtype": "bf16"}),
    (
        {"recompute": "full", "offload": {"optimizer_fraction": 1.0, "parameters": True}},
        {"compile": True, "expandable_segments": True},
    ),
    ({"recompute": "full"}, {"adapter": {"rank": 8, "quantized_base": "nf4", "target_modules": ["q_proj", "v_proj"]}}),
    ({"zero": 0}, {"precision": "fp32"}),
    ({"zero": 0}, {"optimizer": "adafactor"}),
    ({}, {"optimizer": "adam-4bit"}),
    ({"zero": 0}, {"optimizer": "lion"}),
    ({"zero": 0}, {"optimizer": "adam-8bit"}),
    ({}, {"attention_kernel": "fa2", "mean_document_length": 512.0, "model_impl": "liger", "optimizer": "adam-8bit"}),
]
BY_ACCELERATE_ALONE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"zero_shard_size": 4}, {}),
    ({"cp": 2, "cp_comm": "p2p"}, {}),
    ({"recompute": "full", "offload": {"activation_layers": 32}}, {}),
]
OF_EXPERTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"ep": 4, "zero_shard_size": 4, "recompute": "full"}, {"grad_reduce_dtype": "fp32"}),
    ({"ep": 8, "tp": 2, "sequence_parallel": False, "grad_sync": "each"}, {"param_dtype": "bf16"}),
    ({"ep": 2, "offload": {"optimizer_fraction": 1.0, "parameters": True}}, {"precision": "fp32"}),
]
"""Experts split by transformers' DistributedConfig."""
CASES = [
    *[("deepspeed", "deepspeed", *plan) for plan in (*OF_DEEPSPEED, *BY_DEEPSPEED_ALONE)],
    *[(target, "deepspeed", *plan) for target in ("accelerate", "transformers") for plan in OF_DEEPSPEED],
    *[(target, "fsdp", *plan) for target in ("accelerate", "transformers") for plan in OF_FSDP],
    *[("accelerate", "fsdp", *plan) for plan in BY_ACCELERATE_ALONE],
    *[
        ("transformers", "fsdp", strategy, {"software_date": "2026-11", **training})
        for strategy, training in OF_EXPERTS
    ],
]


def planned(framework: str, strategy: dict[str, Any], training: dict[str, Any]) -> LaunchPlan:
    return launch_plan({
        "model": {"preset": "qwen3-30b-a3b" if "ep" in strategy else "llama-3.1-8b"},
        "cluster": CLUSTER,
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework, **training},
        "strategy": {"micro_batch_size": 1, **strategy},
    })  # fmt: skip


def settings_of(plan: LaunchPlan, target: str) -> Settings:
    quantities = Quantities(plan, target=target, version=TARGETS[target].versions[-1])
    launch = TARGETS[target].write(quantities)
    quantities.finish()
    files = [InputFile(file.path, file.content) for file in launch.files if not file.path.endswith(".py")]
    found = [setting for file in files for setting in read_document(file)]
    found += [Setting(f"${each.name}", each.value, "launch.sh", 1) for each in launch.variables]
    return Settings(found, files=files)


@pytest.mark.parametrize(("target", "framework", "strategy", "training"), CASES)
def test_what_is_written_is_read_again(target: str, framework: str, strategy: dict[str, Any], training: dict[str, Any]):
    plan = planned(framework, strategy, training)
    settings = settings_of(plan, target)
    read = TARGETS[target].read
    assert read is not None
    parts = read(settings)
    assert [setting.key for setting in settings.unknown()] == []
    again = launch_plan({
        "model": parts.model, "cluster": CLUSTER, "training": dict(parts.training), "strategy": dict(parts.strategy)
    })  # fmt: skip
    wanted, got = (Quantities(each, target=target, version="1") for each in (plan, again))
    skipped = idle_fields(plan) | ABOUT_DATA_AND_DATES
    differing = {
        field: (wanted.peek(field), got.peek(field))
        for field in {*wanted, *got} - skipped
        if wanted.peek(field) != got.peek(field)
    }
    assert differing == {}
    assert parts.training["framework"] == framework
    assert parts.world_size == 8


@pytest.mark.parametrize("key", ["zero_optimization.stagee", "bf16.enabledd", "tensor_parallel.autotp", "train_batch"])
def test_a_typo_is_not_understood(key: str):
    setting = Setting(key, 1, "ds_config.json", 1)
    settings = Settings([setting])
    read = TARGETS["deepspeed"].read
    assert read is not None
    read(settings)
    assert settings.unknown() == [setting]
