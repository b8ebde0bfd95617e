"""What runs the trials of a tuning, and which back end that is; PyTorch's own parallelism as one of them (`exports.py` has the other).

Each takes an evaluate row and gives a trial record as JSON. The loop takes any that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from cost_models.frameworks import FRAMEWORKS

Json = dict[str, Any]
BackendName = Literal["pytorch", "export"]
Device = Literal["cuda", "cpu"]
_SAID_MOST = 3
"""Problems of one row that are told."""
_BYSTANDERS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "transformer_impl": lambda training: training["transformer_impl"] == "local",
    "fp8_recipe": lambda training: training["precision"] not in ("fp8", "nvfp4"),
    "cuda_graphs": lambda training: not training["cuda_graphs"],
    # How the allocator grows moves what it caches, and neither a step nor what is allocated.
    "expandable_segments": lambda _training: True,
    "total_tokens": lambda _training: True,
    "tokens_per_parameter": lambda _training: True,
    "checkpoint": lambda _training: True,
    "recipe": lambda training: training["recipe"] is None,
}
"""Fields of a training by name, each with whether it changes nothing in a step."""


class Backend(Protocol):
    """What runs trials."""

    @property
    def name(self) -> BackendName: ...

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        """Why it cannot run this row, in one line; None where it can. Nothing is started."""

    def run(self, row: Mapping[str, Any], *, deadline_s: float, knobs: Mapping[str, Any] | None = None) -> Json:
        """The trial record of a row, as JSON.

        Args:
            row: an evaluate row whose strategy states every degree.
            deadline_s: seconds after which it is ended.
            knobs: values of run-time knobs, as `planner.knobs.spelled` says them.
        """


def backend_name(framework: str, asked: str | None) -> BackendName:
    """The back end for plans of a framework.

    Raises:
        InvalidInputError: the one asked for would measure another program than the one that is planned for.
    """
    if asked == "export":
        return "export"
    if FRAMEWORKS[framework].parallelism_is_pytorchs:
        return "pytorch"
    # What is measured must be what will run, so that every other framework runs its own launch files.
    if asked is None:
        return "export"
    message = f"--backend pytorch runs PyTorch's own parallelism, but the plans are for {framework}"
    able = ", ".join(name for name, facts in FRAMEWORKS.items() if facts.parallelism_is_pytorchs)
    hint = f"Leave --backend out to run what `meshwright export` writes for {framework}, or plan for {able}."
    raise InvalidInputError([Problem("/backend", message, hint)])


def world_of(row: Mapping[str, Any]) -> int:
    """Number of ranks of a row whose strategy states every degree."""
    strategy = row["strategy"]
    return int(strategy["tp"] * strategy["pp"] * strategy["cp"] * strategy["dp"])


def one_line(error: MeshwrightError) -> str:
    """What an error says and what to do about it, in one line."""
    if isinstance(error, InvalidInputError):
        # Each by its own words, so that plans which share a reason can be told together.
        told = [
            f"{each.pointer}: {each.message.rstrip('.')}. {each.hint}".removeprefix(": ").strip()
            for each in error.problems[:_SAID_MOST]
        ]
        return " ".join(" ".join(told).split())
    return " ".join(f"{error.message.rstrip('.')}. {error.hint}".split())


def without_bystanders(row: Mapping[str, Any]) -> Json:
    """The row without fields of the training that change nothing in a step of PyTorch's own parallelism.

    The request of a response says every field, also those that only other frameworks, other precisions or whole runs know.
    """
    training = dict(row["training"])
    for name, without_effect in _BYSTANDERS.items():
        if name in training and without_effect(training):
            del training[name]
    return {**row, "training": training}


@dataclass(frozen=True, slots=True)
class PyTorchBackend:
    """PyTorch's own parallelism, in processes of this machine."""

    device: Device = "cuda"
    warm_up: int = 3
    steps: int = 6

    @property
    def name(self) -> BackendName:
        return "pytorch"

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        from profiler.trial.plan import trial_plan

        try:
            trial_plan(without_bystanders(row))
        except InvalidInputError as error:
            return one_line(error)
        return None

    def run(self, row: Mapping[str, Any], *, deadline_s: float, knobs: Mapping[str, Any] | None = None) -> Json:
        from profiler.trial.launch import run_trial

        assert not knobs, "PyTorch's own parallelism has no knobs that are tuned"
        record = run_trial(
            without_bystanders(row),
            world=world_of(row), deadline_s=deadline_s, device=self.device, warm_up=self.warm_up, steps=self.steps,
        )  # fmt: skip
        # The whole row, because it is what was predicted.
        return record.to_json() | {"row": dict(row)}
