"""Random rows for the targets of torchtitan, nanotron and PyTorch, and the way from a row to files and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from planner.export.formats.documents import read_document
from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.export.settings import InputFile, Setting, Settings
from planner.export.target import Launch, RowParts, Target
from planner.export.targets.torchtitan.python_calls import read_python

MODELS: Mapping[str, tuple[Any, ...]] = {
    "torchtitan": ("llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "llama-3.2-1b",
                   {"preset": "deepseek-v3", "mtp_num_layers": 0}),
    "nanotron": ("llama-3.1-8b", "llama-2-7b", "mixtral-8x7b", "llama-3.2-1b"),
    "fsdp": ("llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "gpt3-1.3b", "mistral-7b"),
}  # fmt: skip
NOT_READ_BACK = ("model.name", "training.software_date", "training.framework_version")


def row_of(framework: str, *, version: str | None = None, model: Any = "llama-3.1-8b", nodes: int = 16, batch: int = 64,
           training: Mapping[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:  # fmt: skip
    """A row on 8 H100 a node; other arguments are fields of the strategy."""
    named = {"framework_version": version} if version else {}
    return {
        "model": model if isinstance(model, dict) else {"preset": model},
        "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {
            "seq_length": 8192, "global_batch_size": batch, "precision": "bf16", "framework": framework, **named, **(training or {}),
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip


def drawn_row(random: Random, framework: str, version: str | None) -> dict[str, Any]:
    """A random row, which the planner's rules may refuse."""
    pick = random.choice
    pp = 1 if framework == "fsdp" else pick([1, 1, 2, 4])
    strategy: dict[str, Any] = {
        "tp": pick([1, 1, 2, 4]), "pp": pp, "cp": pick([1, 1, 1, 2]), "dp": pick([1, 2, 4, 8]), "micro_batch_size": pick([1, 2]),
        "zero": pick([0, 1] if framework == "nanotron" else [0, 2, 3]), "recompute": pick(["none", "full", "selective"]),
    }  # fmt: skip
    if framework == "torchtitan":
        _titan_fields(random, strategy)
    else:
        strategy["recompute"] = pick(["none", "full"])
        strategy["sequence_parallel"] = strategy["tp"] > 1 and random.random() < 0.5
    if framework != "nanotron" and random.random() < 0.3:
        strategy["zero_shard_size"] = pick([2, 4]) * strategy["cp"]
    if random.random() < 0.1:
        strategy["offload"] = {"optimizer_fraction": 1.0, "parameters": True}
    training: dict[str, Any] = {
        "compile": random.random() < 0.3,
        "precision": pick(["bf16", "bf16", "bf16", "fp8", "fp16"]),
    }
    if framework == "fsdp":
        training["model_impl"] = pick(["native", "transformers"])
    if random.random() < 0.2:
        training["param_dtype"] = "bf16"
    return row_of(framework, version=version, model=pick(MODELS[framework]), training=training, **strategy)


def _titan_fields(random: Random, strategy: dict[str, Any]) -> None:
    pick = random.choice
    if strategy["zero"] == 0 or random.random() < 0.2:
        strategy["grad_sync"] = pick(["each", "last"])
    if strategy["pp"] > 1:
        strategy["schedule"] = pick(["1f1b", "interleaved", "gpipe", "zb-v"])
        strategy["vpp"] = 1 if strategy["schedule"] in ("1f1b", "gpipe") else 2
    if random.random() < 0.3:
        strategy["ep"] = pick([2, 4])
        strategy["etp"] = 1
    elif random.random() < 0.8:
        strategy["etp"] = strategy["tp"]
    if random.random() < 0.2:
        strategy |= {"recompute_method": "block", "recompute_num_layers": pick([1, 2, 4])}


def exported(target: Target, row: Mapping[str, Any]) -> tuple[Quantities, Launch]:
    """The plan's quantities and its launch, complete."""
    plan = launch_plan(row)
    quantities = Quantities(plan, target=target.name, version=plan.training["framework_version"])
    launch = target.write(quantities)
    quantities.finish()
    return quantities, launch


def settings_of(launch: Launch) -> Settings:
    """The settings of a launch's files and environment."""
    found: list[Setting] = []
    inputs = [
        InputFile(file.path, file.content)
        for file in launch.files
        if "mock" not in file.path and file.path not in ("plan_steps.py", "train.py")
    ]
    for file in inputs:
        found += read_python(file) if file.path.endswith(".py") else read_document(file)
    found += [Setting(f"${each.name}", each.value, "environment", 1) for each in launch.variables]
    return Settings(found, files=inputs)


def read_back(parts: RowParts, row: Mapping[str, Any]) -> Quantities:
    """The quantities of the row that a reader understood, on the cluster of the row that was written."""
    again = json.loads(json.dumps(row))
    again |= {"strategy": dict(parts.strategy), "training": dict(parts.training), "model": dict(parts.model)}
    return Quantities(launch_plan(again), target="", version="")


def meaning(quantities: Quantities) -> dict[str, Any]:
    """The fields that make a difference, one spelling where two mean the same."""
    found = {
        name: quantities.peek(name) for name in quantities if quantities.matters(name) and name not in NOT_READ_BACK
    }
    if found.get("model.position_embedding") != "learned":
        # The length of a table of positions, which a longer sequence extends.
        found.pop("model.max_position_embeddings", None)
    return {name: value for name, value in found.items() if value is not None}
