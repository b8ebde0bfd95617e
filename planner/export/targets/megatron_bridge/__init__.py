"""Megatron-Bridge 0.3 to 0.6: overrides of its `ConfigContainer`, and a script that trains with them."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.megatron_bridge.keys import CORE, VERSIONS
from planner.export.targets.megatron_bridge.program import read_program
from planner.export.targets.megatron_bridge.read import read, recognises
from planner.export.targets.megatron_bridge.write import write

TARGET = Target(
    name="megatron-bridge", frameworks=("megatron",), versions=VERSIONS, own_version=False, write=write, read=read,
    recognises=recognises, built_on=CORE, python=read_program,
)  # fmt: skip
