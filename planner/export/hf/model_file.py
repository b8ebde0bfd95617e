"""The model's `config.json` among the files of a launch, taken as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cost_models.errors import InvalidInputError
from planner.export.formats.documents import loaded_json
from planner.export.settings import InputFile, Settings

MODEL_CONFIG: Final = "config.json"


def read_model(settings: Settings) -> dict[str, Any]:
    """The model as `{"hf_config": ...}`; empty where no file is one. What its reader ignores, it ignores everywhere."""
    for file in settings.files:
        if file.path.rpartition("/")[2] != MODEL_CONFIG:
            continue
        document = loaded_json(file)
        if not isinstance(document, dict) or "model_type" not in document:
            continue
        for key in dict.fromkeys(setting.key for setting in settings if setting.file == file.path):
            settings.take(key, "model")
        return {"hf_config": document}
    return {}


def holds(files: Sequence[InputFile], *keys: str) -> bool:
    """Whether a JSON file has one of these keys at the top."""
    for file in files:
        if not file.path.endswith(".json"):
            continue
        try:
            document = loaded_json(file)
        except InvalidInputError:
            continue
        if isinstance(document, dict) and not document.keys().isdisjoint(keys):
            return True
    return False
