"""Fields of a training job as they are filled with defaults, and the types of its parameters, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.frameworks import FRAMEWORKS
from cost_models.frameworks.training_defaults import COMPUTE, GRAD, PARAM
from cost_models.specs.training import Framework, Precision


@dataclass(slots=True)
class Filling:
    """The fields of a job as they are filled, and which of them the user did not give."""

    values: dict[str, Any]
    assumed: dict[str, object]

    def fill(self, name: str, value: object, *, told: bool = True) -> Any:
        """The field's value, or this one, reported unless it has no effect."""
        if name not in self.values:
            self.values[name] = value
            if told:
                self.assumed[name] = value
        return self.values[name]


def fill_state_dtypes(job: Filling, precision: Precision, framework: Framework) -> None:
    """Types of parameters, main parameters, gradients and optimizer states."""
    held = FRAMEWORKS[framework].state_dtypes
    recipe = FRAMEWORKS[framework].choices.recipes.get(job.values["recipe"]) if job.values.get("recipe") else None
    for name, value in recipe.fields(precision).items() if recipe else ():
        job.fill(name, value)
    compute = precision if precision in ("bf16", "fp16", "fp32") else "bf16"
    named = {COMPUTE: compute}
    param = job.fill("param_dtype", named.get(held.param_dtype, held.param_dtype))
    main = job.fill("main_param_dtype", "none" if param == "fp32" else held.main_param_dtype)
    named[PARAM] = param
    fp16_held = precision == "fp16" and held.fp16_gradients
    # Shards of FSDP's gradients have the parameters' type anyway, so that who states a type means the reduction's.
    states_grad = held.stated_grad_is_reduced and "grad_dtype" in job.values
    grad = job.fill("grad_dtype", "fp16" if fp16_held else named.get(held.grad_dtype, held.grad_dtype))
    named[GRAD] = grad
    reduced = GRAD if states_grad else held.grad_reduce_dtype
    job.fill("grad_reduce_dtype", named.get(reduced, reduced))
    state = param if main == "none" else main
    narrow = job.values["optimizer"] in ("adam-8bit", "adam-4bit")
    # Sums of rows and columns are kept in fp32 whatever the parameters are (transformers/optimization.py, torch/optim/_adafactor.py).
    usual = "fp32" if job.values["optimizer"] == "adafactor" else state
    job.fill("optimizer_state_dtype", "fp8" if narrow else usual)
