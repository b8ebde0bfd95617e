"""Which frameworks keep a moving average of the weights beside them, from which release on, and how one in host memory is updated.

Megatron Core, Megatron-DeepSpeed and nanotron have none. DeepSpeed's users gather parameters for a second model of their own (its
issue 2056, which is open), and transformers' Trainer has none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cost_models.specs.training import Framework


@dataclass(frozen=True, slots=True)
class AverageSupport:
    """How one framework averages."""

    source: str
    since: str | None = None
    """First release that does; None: every known one."""
    host_in_background: bool = False
    """An average in host memory comes up and goes down beside the next step, through a buffer of its size on the GPU that stays there.
    Otherwise the weights go down after the step, which waits until the processors have averaged them."""


AVERAGES: Final[Mapping[Framework, AverageSupport]] = {
    # Ranks average what they hold; AveragedModel copies a model before it is sharded, since fully_shard's modules cannot be copied.
    "fsdp": AverageSupport("torch/optim/swa_utils.py (get_ema_multi_avg_fn); aten._foreach_lerp_ on shards"),
    # Pull request 3985, merged after 0.3: EMAOptimizersContainer, _update_offloaded and its scratch tensors.
    "torchtitan": AverageSupport("torchtitan/components/ema.py", since="0.4", host_in_background=True),
}
