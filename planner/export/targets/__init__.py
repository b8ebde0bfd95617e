"""Every target by name."""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.target import Target
from planner.export.targets import (
    accelerate,
    deepspeed,
    megatron,
    megatron_bridge,
    nanotron,
    nemo,
    pytorch,
    torchtitan,
    transformers,
)

_ALL: tuple[Target, ...] = (
    megatron.TARGET,
    megatron_bridge.TARGET,
    nemo.TARGET,
    deepspeed.TARGET,
    torchtitan.TARGET,
    nanotron.TARGET,
    accelerate.TARGET,
    transformers.TARGET,
    pytorch.TARGET,
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
