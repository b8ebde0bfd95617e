"""The formats of training logs that are read, and which frameworks write each of them.

A log of one framework says nothing about a plan of another, so that a reader refuses it. How the lines of a format are read is
`profiler/logs`' affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.specs.training import Framework


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One kind of log."""

    name: str
    """What a user types."""
    title: str
    """What a message calls the program that writes it."""
    frameworks: frozenset[Framework]
    """Whose runs write it, in the names of `training.framework`; empty where any may."""

    def fits(self, framework: str | None) -> bool:
        """Whether a run of this framework may write such a log; of an unknown framework any run may."""
        return framework is None or not self.frameworks or framework in self.frameworks


def _format(name: str, title: str, *frameworks: Framework) -> LogFormat:
    return LogFormat(name, title, frozenset(frameworks))


EXPORTED = _format("meshwright", "a launch that meshwright exported")
MEGATRON = _format("megatron", "Megatron-LM", "megatron", "megatron-deepspeed")
MEGATRON_BRIDGE = _format("megatron-bridge", "Megatron-Bridge", "megatron")
NEMO = _format("nemo", "NeMo", "megatron")
TORCHTITAN = _format("torchtitan", "torchtitan", "torchtitan")
DEEPSPEED = _format("deepspeed", "DeepSpeed", "deepspeed", "megatron-deepspeed")
DEEPSPEED_PIPELINE = _format("deepspeed-pipeline", "DeepSpeed's pipeline engine", "deepspeed", "megatron-deepspeed")
DEEPSPEED_BREAKDOWN = _format(
    "deepspeed-breakdown", "DeepSpeed's wall_clock_breakdown", "deepspeed", "megatron-deepspeed"
)
TRAINER_STATE = _format("trainer-state", "transformers' trainer_state.json", "fsdp", "deepspeed")
TRANSFORMERS = _format("transformers", "transformers' Trainer", "fsdp", "deepspeed")
AXOLOTL = _format("axolotl", "axolotl", "fsdp", "deepspeed")
COMPOSER = _format("composer", "composer or llm-foundry", "fsdp", "deepspeed")
NANOTRON = _format("nanotron", "nanotron", "nanotron")
NUMBERS = _format("numbers", "a JSON object with step_time_s")

LOG_FORMATS: Mapping[str, LogFormat] = {
    each.name: each
    for each in (
        EXPORTED, MEGATRON, MEGATRON_BRIDGE, NEMO, TORCHTITAN, DEEPSPEED, DEEPSPEED_PIPELINE, DEEPSPEED_BREAKDOWN, TRAINER_STATE,
        TRANSFORMERS, AXOLOTL, COMPOSER, NANOTRON, NUMBERS,
    )
}  # fmt: skip
"""Every format by its name."""
