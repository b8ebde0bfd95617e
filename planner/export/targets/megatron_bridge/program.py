"""Programs around Megatron-Bridge, as the overrides that they amount to: nothing is imported or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from planner.export.formats.python_module import read_module
from planner.export.settings import InputFile, Setting
from planner.export.targets.megatron_bridge import keys

SECTIONS: Mapping[str, str] = {
    "GPTModelProvider": "model", "MLAModelProvider": "model", "TrainingConfig": "train", "OptimizerConfig": "optimizer",
    "DistributedDataParallelConfig": "ddp", "MixedPrecisionConfig": "mixed_precision", "CommOverlapConfig": "comm_overlap",
    "GPTDatasetConfig": "dataset", "MockGPTDatasetConfig": "dataset", "SchedulerConfig": "scheduler", "LoggerConfig": "logger",
    "TokenizerConfig": "tokenizer", "CheckpointConfig": "checkpoint", "RNGConfig": "rng", "DistributedInitConfig": "dist",
    "ValidationConfig": "validation",
}  # fmt: skip
"""Sections of the container by the classes that fill them."""


def script() -> str:
    """The script that every launch has beside its overrides."""
    return (files(__package__) / "templates" / "train.py.txt").read_text()


def read_program(file: InputFile) -> list[Setting]:
    """The settings of a program, under the keys of overrides where they are attributes of a container or arguments of its classes.

    Raises:
        SyntaxError: it is not Python, with its line.
    """
    # It reads what it is told from the overrides beside it, and is the same for every plan.
    if file.content == script():
        return []
    return [_restated(each) for each in read_module(file)]


def _restated(setting: Setting) -> Setting:
    head, _, rest = setting.key.partition(".")
    section, _, name = rest.partition(".")
    if head in SECTIONS:
        return replace(setting, key=f"{SECTIONS[head]}.{rest}", written=setting.key)
    # `cfg.model.sequence_parallel = True`, whatever the variable is called; and `cfg.mixed_precision = "bf16_mixed"`.
    if section in {*SECTIONS.values(), keys.ADAPTER} and (name or section == "mixed_precision"):
        return replace(setting, key=rest, written=setting.key)
    return setting
