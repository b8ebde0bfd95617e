"""Every target by name."""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.target import Target

_ALL: tuple[Target, ...] = ()
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
