"""Megatron-LM on Megatron Core 0.14 to 0.19: argument lists of `pretrain_gpt.py` and of the programs that train hybrids."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.megatron.names import VERSIONS
from planner.export.targets.megatron.read import read, recognises
from planner.export.targets.megatron.write import write

TARGET = Target(
    name="megatron", frameworks=("megatron",), versions=VERSIONS, own_version=True, write=write, read=read, recognises=recognises,
)  # fmt: skip
