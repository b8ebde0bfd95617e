"""DeepSpeed 0.17 to 0.19: its JSON, and a script that trains a model of transformers with its engine or its pipeline engine."""

from __future__ import annotations

from planner.export.target import Target
from planner.export.targets.deepspeed.catalogue import VERSIONS
from planner.export.targets.deepspeed.read import read, recognises
from planner.export.targets.deepspeed.write import write

TARGET = Target(
    name="deepspeed", frameworks=("deepspeed",), versions=VERSIONS, own_version=True, write=write, read=read, recognises=recognises,
)  # fmt: skip
