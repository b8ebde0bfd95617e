"""Options of earlier Megatron-LM that mean what one of today's means, and spellings of programs that derive from it.

Source: `megatron/arguments.py` of Megatron-LM 2.0 to 3.0 (validate_args, "is no longer valid, use"), where --checkpoint-activations sets
recompute_granularity full and recompute_method uniform; epfLLM/Megatron-LLM writes underscores in options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.settings import Setting
from planner.export.targets.megatron.names import ALL, Values

RENAMED: Mapping[str, str] = {
    "--model-parallel-size": "--tensor-model-parallel-size", "--batch-size": "--micro-batch-size",
    "--activations-checkpoint-method": "--recompute-method", "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--checkpoint-num-layers": "--recompute-num-layers",
}  # fmt: skip
"""Today's options by earlier names."""
_CHECKPOINTS: Values = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MEANT: Mapping[str, Values] = {
    "--checkpoint-activations": _CHECKPOINTS, "--activations-checkpoint-method": {"recompute_granularity": "full"},
    "--use-flash-attn": {"attention_backend": "flash"},
}  # fmt: skip
"""What an option that is given says in today's settings, where these say nothing themselves."""
FLASH = "--use-flash-attn"
_ROTARY = {"--position-embedding-type": {"rotary": "rope"}}
_KNOWN = frozenset(name.option for name in ALL)


def today(option: str) -> str:
    """Today's name of an option; itself where it has none."""
    renamed = RENAMED.get(option, option)
    spelled = dashed(renamed)
    return spelled if spelled in _KNOWN or spelled in MEANT else renamed


def dashed(option: str) -> str:
    """An option with dashes in the place of underscores."""
    return option.replace("_", "-") if option.startswith("--") else option


def value_of(option: str, setting: Setting) -> Any:
    """A setting's value in today's words."""
    # The positions of LLaMA bore this name in derived programs.
    words = _ROTARY.get(option, {})
    return words.get(setting.value, setting.value) if isinstance(setting.value, str) else setting.value
