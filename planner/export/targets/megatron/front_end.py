"""What front ends of Megatron Core share: the release that they run on, and values of overrides on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.frameworks.releases import version_key
from planner.export.quantities import Quantities
from planner.export.settings import Setting

_FIELD = "training.framework_version"
_INT, _FLOAT = (
    re.compile(r"-?\d{1,15}"),
    re.compile(r"-?(\d{1,15}\.\d{0,17}|\.\d{1,17}|\d{1,15}(\.\d{0,17})?e-?\d{1,3})"),
)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None}


def on_core(q: Quantities, core: Mapping[str, str]) -> Quantities:
    """The account with the settings of the Megatron Core that a front end's release runs on.

    Args:
        core: release of Megatron Core by the front end's.

    Raises:
        FieldNotExpressibleError: the plan is one for another release, which has other rules and costs.
    """
    release = core[q.version]
    planned = version_key(str(q.peek(_FIELD)))
    if planned[: len(version_key(release))] != version_key(release):
        raise q.refusal(_FIELD, why=f"it runs on Megatron Core {release}", nearest={_FIELD: release})
    return q.on(release)


def check_positions(q: Quantities) -> None:
    """Refuses a table of positions that is longer than a sequence: the providers of models make one of the sequence's length.

    Raises:
        FieldNotExpressibleError: learned positions go on behind the end of a sequence.
    """
    field, length = "model.max_position_embeddings", q.peek("training.seq_length")
    if q.peek("model.position_embedding") == "learned" and q.peek(field) != length:
        raise q.refusal(
            field, why="its table of positions has as many rows as a sequence has tokens", nearest={field: length}
        )


def scalar(setting: Setting) -> Any:
    """A value in its type, where a command line gave it as text."""
    text = setting.value
    if not isinstance(text, str):
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    # Hydra's lists of bare words and numbers; those of lists or objects stay text, and so are not understood.
    if text.startswith("[") and text.endswith("]"):
        inner = [each.strip().strip("'\"") for each in text[1:-1].split(",")]
        return tuple(int(each) if _INT.fullmatch(each) else each for each in inner if each)
    return text
