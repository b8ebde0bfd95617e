"""A plain PyTorch script: device mesh, FSDP2, tensor, context and pipeline parallelism without a framework."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.pytorch.read import read, recognises
from planner.export.targets.pytorch.write import write

TARGET = Target(
    name="pytorch", frameworks=("fsdp",), versions=("2.6", "2.8", "2.11", "2.13"), own_version=True, write=write, read=read,
    recognises=recognises,
)  # fmt: skip
