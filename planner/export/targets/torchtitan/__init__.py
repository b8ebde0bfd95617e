"""torchtitan: TOML up to 0.2, Python from 0.3 on."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.torchtitan.read import read, recognises
from planner.export.targets.torchtitan.write import write

TARGET = Target(
    name="torchtitan", frameworks=("torchtitan",), versions=("0.2", "0.3"), own_version=True, write=write, read=read,
    recognises=recognises,
)  # fmt: skip
