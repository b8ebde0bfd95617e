"""How launches name the optimizer, against the frameworks' own words, and that they are read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import dense_model
from planner.export.launch_plan import launch_plan
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.target import Launch
from planner.export.targets import TARGETS


def launch_of(
    target: str, framework: str, version: str, optimizer: str, *, core: str | None = None, **strategy: Any
) -> Launch:
    row = {
        "model": dense_model(), "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {
            "seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": framework, "framework_version": core or version,
            "optimizer": optimizer,
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip
    quantities = Quantities(launch_plan(row), target=target, version=version)
    launch = TARGETS[target].write(quantities)
    quantities.finish()
    return launch


@pytest.mark.parametrize(("version", "zero", "optimizer", "said", "shards"), [
    # megatron/training/arguments.py: dist_muon to 0.17, --use-distributed-optimizer from 0.18; plain muon shards nothing
    ("0.17", 1, "muon", "--optimizer dist_muon", False), ("0.18", 1, "muon", "--optimizer muon", True),
    ("0.17", 0, "muon", "--optimizer muon", False), ("0.18", 1, "lion", "--optimizer lion", True),
    ("0.18", 1, "sgd-momentum", "--optimizer sgd", True),
])  # fmt: skip
def test_megatron_is_told_the_optimizer(version: str, zero: int, optimizer: str, said: str, shards: bool):
    launch = launch_of(
        "megatron",
        "megatron",
        version,
        optimizer,
        zero=zero,
        overlap={"grad_reduce": zero > 0, "param_gather": zero > 0},
    )
    line = " ".join(launch.command)
    assert said in line
    assert ("--use-distributed-optimizer" in line) == shards


def test_bridge_is_told_by_name_and_nemo_cannot_be():
    version = TARGETS["megatron-bridge"].versions[-1]
    launch = launch_of("megatron-bridge", "megatron", version, "muon", core="0.19", zero=1)
    text = " ".join([*launch.command, *(file.content for file in launch.files)])
    assert "dist_muon" in text  # recipes/utils/optimizer_utils.py
    with pytest.raises(FieldNotExpressibleError, match="nemo has no such optimizer"):
        launch_of("nemo", "megatron", TARGETS["nemo"].versions[-1], "muon", core="0.16", zero=1)


def test_deepspeeds_muon_gets_whole_gradients():
    launch = launch_of("deepspeed", "deepspeed", "0.19", "muon", zero=3)
    config = json.loads(next(file.content for file in launch.files if file.path == "ds_config.json"))
    assert config["optimizer"] == {"type": "Muon", "params": {"lr": 1e-5, "momentum": 0.95}}
    assert config["zero_optimization"]["reduce_scatter"] is False  # stage3.py refuses both together
    assert config["zero_allow_untested_optimizer"] is True


@pytest.mark.parametrize(("optimizer", "word"), [
    ("muon", "muon"), ("adam-4bit", "adamw-4bit"), ("sgd-momentum", "sgd-momentum"), ("adafactor", "adafactor"),
])  # fmt: skip
def test_the_pytorch_script_is_told(optimizer: str, word: str):
    launch = launch_of("pytorch", "fsdp", "2.11", optimizer, zero=0)
    plan = json.loads(next(file.content for file in launch.files if file.path.endswith("train_plan.json")))
    assert plan["optimizer"] == word
    assert ("torchao must be installed." in launch.notes) == (optimizer == "adam-4bit")


@pytest.mark.parametrize("target", ["transformers", "accelerate"])
@pytest.mark.parametrize(
    ("zero", "word", "package"), [(0, "adamw_bnb_8bit", "bitsandbytes"), (3, "adamw_torch_8bit", "torchao")]
)
def test_eight_bits_over_shards_are_torchaos(target: str, zero: int, word: str, package: str):
    """transformers' OptimizerNames; bitsandbytes' operators "got mixed torch.Tensor and DTensor" where FSDP2 shards."""
    launch = launch_of(target, "fsdp", TARGETS[target].versions[-1], "adam-8bit", core="2.11", zero=zero)
    assert sum(f'"optim": "{word}"' in each.content for each in launch.files) == 1
    assert any(package in note for note in launch.notes)
