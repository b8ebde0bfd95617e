"""The training scripts that are written beside the configurations: programs kept as text, the same for every plan."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from planner.export.target import LaunchFile

MODEL_CONFIG: Final = "config.json"
MOCK: Final = ("train.py", "--mock-data", "--steps", "10")
OWN_DATA: Final = "train.py trains on random tokens; put your own data set into its `batches`."


def script(target: str) -> tuple[LaunchFile, ...]:
    """The target's `train.py`, and `hf_model.py`, which makes the model and measures steps."""
    shared = files("planner.export.hf").joinpath("templates/hf_model.py.txt").read_text()
    own = files(f"planner.export.targets.{target}").joinpath("templates/train.py.txt").read_text()
    return LaunchFile("hf_model.py", shared), LaunchFile("train.py", own)
