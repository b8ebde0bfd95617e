"""Launch files of every target as `export` writes them, for tests that read them back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from planner.export.export import export_row
from planner.export.settings import InputFile

_HUGGING_FACE = ("config.json", "train.json", "launch.sh")
CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("launch.sh",), "deepspeed": ("ds_config.json", *_HUGGING_FACE), "accelerate": ("accelerate.yaml", *_HUGGING_FACE),
    "accelerate around deepspeed": ("accelerate.yaml", "ds_config.json", *_HUGGING_FACE),
    "transformers": ("training_args.json", *_HUGGING_FACE),
    "transformers around deepspeed": ("training_args.json", "ds_config.json", *_HUGGING_FACE), "pytorch": ("train_plan.json", "launch.sh"),
    "torchtitan 0.2": ("plan.toml", "plan_model.py", "plan_steps.py", "launch.sh"),
    "torchtitan 0.3": ("plan_config.py", "plan_steps.py", "launch.sh"), "nanotron": ("config.yaml", "launch.sh"),
}  # fmt: skip
"""The files of each target that somebody would give to `import`; the others of a launch are around them."""
PLANS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "megatron": ("megatron", {}, {"tp": 2, "pp": 2, "zero": 1, "recompute": "none"}),
    "deepspeed": ("deepspeed", {}, {"zero": 3, "recompute": "full"}),
    "accelerate": ("fsdp", {}, {"zero": 3, "recompute": "full"}),
    "accelerate around deepspeed": ("deepspeed", {}, {"zero": 3, "recompute": "full"}),
    "transformers": ("fsdp", {}, {"zero": 3, "recompute": "full"}),
    "transformers around deepspeed": ("deepspeed", {}, {"zero": 2, "recompute": "full"}),
    "pytorch": ("fsdp", {"model_impl": "native"}, {"zero": 3, "recompute": "full", "tp": 2}),
    "torchtitan 0.2": ("torchtitan", {"framework_version": "0.2"}, {"zero": 3, "tp": 2, "recompute": "full"}),
    "torchtitan 0.3": ("torchtitan", {"framework_version": "0.3"}, {"zero": 3, "tp": 2, "recompute": "full"}),
    "nanotron": ("nanotron", {}, {"zero": 1, "tp": 2, "pp": 2, "recompute": "none"}),
}  # fmt: skip


def target_of(case: str) -> str:
    """The target's name."""
    return case.split(" ", maxsplit=1)[0]


def row_of(case: str, **strategy: Any) -> dict[str, Any]:
    """The evaluate row of a case: Llama 3.1 8B on two nodes of eight H100."""
    framework, training, own = PLANS[case]
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 2},
        "training": {
            "seq_length": 4096, "global_batch_size": 128, "precision": "bf16", "framework": framework, **training,
        },
        "strategy": {"micro_batch_size": 1, **own, **strategy},
    }  # fmt: skip


@cache
def _files(case: str) -> dict[str, str]:
    return {file.path: file.content for file in export_row(row_of(case), target_of(case))}


def files_of(case: str) -> list[InputFile]:
    """The configuration files of a case."""
    written = _files(case)
    return [InputFile(path, written[path]) for path in CONFIGURATIONS[case]]
