"""Arguments of transformers' Trainer on a command line, as the settings that a file of the same arguments would have.

transformers/hf_argparser.py: a field is an option of its own name, dashes may stand for underscores, and a truth value may stand alone.
Source of the other names: peft's and trl's examples, LLaVA's and FastChat's training scripts, LLaMA-Factory's `hparams/`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from planner.export.settings import Setting

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
_WHOLE: Final = re.compile(r"-?\d{1,15}")
_REAL: Final = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
LENGTHS: Final = ("max_seq_length", "max_seq_len", "cutoff_len", "model_max_length", "block_size", "max_length")
"""What training scripts call the longest sequence, which they cut or fill to."""
LENGTH_NOTE: Final = (
    "Sequences are taken to be as long as the files allow; shorter ones that are not packed take less time and memory."
)


def as_argument(setting: Setting, names: Collection[str]) -> Setting:
    """A setting of a command line under the name of the argument, with its value in its type; any other one as it is."""
    name = setting.key.lstrip("-").replace("-", "_")
    if not setting.key.startswith("--") or not (name in names or name in LENGTHS):
        return setting
    return replace(setting, key=name, value=_typed(setting.value))


def _typed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # HfArgumentParser reads truth values in any case, as Python and YAML write them.
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if _REAL.fullmatch(value) else value
