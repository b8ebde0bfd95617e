"""The moving average of the weights as a user states it (`training.ema`), and which frameworks keep one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.frameworks import precedes
from cost_models.frameworks.averages import AVERAGES
from cost_models.inputs.fields import STRICT
from cost_models.specs.average import Average, AverageDevice
from cost_models.specs.training import BYTES_PER, Training


class AverageInput(Documented):
    """A moving average of the weights, which follows them at every step."""

    model_config = STRICT

    device: AverageDevice = "gpu"
    """Where the average lies: beside the weights (default), or in host memory ("cpu")."""
    decay: Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)] = 0.9999
    """Share of itself that the average keeps at each step, between 0 and 1. It changes no cost; launch files say it. Default 0.9999."""


def resolve_average(given: AverageInput, training: Training, pointer: str) -> tuple[Average, tuple[str, ...]]:
    """The average of a job, and warnings about it.

    Args:
        given: `training.ema`.
        training: the job with its other defaults filled.
        pointer: of `training.ema`.

    Raises:
        InvalidInputError: the framework's release keeps none.
    """
    support = AVERAGES.get(training.framework)
    able = " or ".join(f"{name} (from {its.since})" if its.since else name for name, its in AVERAGES.items())
    hint = f"Leave 'ema' out, or plan for {able}."
    if support is None:
        message = f"ema is given, but {training.framework} keeps no moving average of the weights"
        raise InvalidInputError([Problem(pointer, message, hint)])
    if support.since is not None and precedes(training.framework_version, support.since):
        message = f"ema is given, but {training.framework} {training.framework_version} keeps no moving average of the weights"
        raise InvalidInputError([Problem(pointer, message, hint)])
    # A step of (1 - decay) of the difference is rounded away where the type has 8 or 11 bits.
    coarse = BYTES_PER[training.param_dtype] < BYTES_PER["fp32"]
    return Average(given.device, given.decay), ("average-in-half-precision",) if coarse else ()


def average_document(average: Average) -> dict[str, object]:
    """The same as it was written, with every field."""
    return {"device": average.device, "decay": average.decay}
