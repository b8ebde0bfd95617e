"""Every target by name."""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.target import Target
from planner.export.targets import megatron

_ALL: tuple[Target, ...] = (megatron.TARGET,)
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
