"""NeMo 2.5 to 2.7: a script around its `MegatronStrategy`. NVIDIA replaced its collection of language models by Megatron-Bridge."""

from __future__ import annotations

from planner.export.formats.python_module import read_module
from planner.export.target import Target
from planner.export.targets.nemo.keys import CORE, VERSIONS
from planner.export.targets.nemo.read import read, recognises
from planner.export.targets.nemo.write import write

TARGET = Target(
    name="nemo", frameworks=("megatron",), versions=VERSIONS, own_version=False, write=write, read=read, recognises=recognises,
    built_on=CORE, python=read_module,
)  # fmt: skip
