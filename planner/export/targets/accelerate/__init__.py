"""Hugging Face Accelerate: its YAML for FSDP2, DistributedDataParallel and DeepSpeed, and a script around `Accelerator`."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.accelerate.catalogue import ALIASES, VERSIONS
from planner.export.targets.accelerate.read import read, recognises
from planner.export.targets.accelerate.write import write

TARGET = Target(
    name="accelerate", frameworks=("deepspeed", "fsdp"), versions=VERSIONS, own_version=False, write=write, read=read, recognises=recognises, aliases=ALIASES,
)  # fmt: skip
