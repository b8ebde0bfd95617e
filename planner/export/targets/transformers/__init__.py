"""Transformers' Trainer: `TrainingArguments` as JSON for FSDP2, DistributedDataParallel and DeepSpeed, and a script around it."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.transformers.catalogue import VERSIONS
from planner.export.targets.transformers.read import read, recognises
from planner.export.targets.transformers.write import write

TARGET = Target(

    name="transformers", frameworks=("deepspeed", "fsdp"), versions=VERSIONS, own_version=False, write=write, read=read, recognises=recognises
,
)  # fmt: skip
