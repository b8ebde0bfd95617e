"""nanotron: one YAML file."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.nanotron.read import read, recognises
from planner.export.targets.nanotron.write import write

TARGET = Target(
    name="nanotron", frameworks=("nanotron",), versions=("2025",), own_version=True, write=write, read=read, recognises=recognises,
)  # fmt: skip
