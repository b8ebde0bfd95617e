"""Which other framework a hint may name: one that has modules for the model at hand."""

from __future__ import annotations

from cost_models.frameworks import FRAMEWORKS
from cost_models.frameworks.choices import Choices
from cost_models.job import Job
from cost_models.specs.model import Model


def is_hybrid(model: Model) -> bool:
    """Whether some layer is not attention with an MLP behind it."""
    return not all(kind.is_plain for kind in model.distinct_kinds)


def has_layers(model: Model, choices: Choices) -> bool:
    """Whether a framework has a module for every layer of the model in some release."""
    # A model of single blocks needs a framework that builds its layers from a pattern, as those do that have recurrent layers.
    if is_hybrid(model) and not choices.recurrent:
        return False
    if any(kind.mixer == "both" for kind in model.distinct_kinds) and not choices.recurrent_beside_attention:
        return False
    return model.recurrent is None or model.recurrent.kind in choices.recurrent


def or_another(job: Job, *, adapted: bool = False) -> str:
    """The end of a hint, such as ", or use torchtitan": the nearest framework that can do more with the job's model; empty without one.

    Args:
        job: the job, on a framework that cannot do what was asked.
        adapted: whether the other framework has to train adapters with dropout and the like, as peft's have.
    """
    for name in job.framework.choices.nearest:
        choices = FRAMEWORKS[name].choices
        towers = choices.towers or not job.training.tower_uses
        sparse = choices.sparse_attention or job.model.indexer is None
        adapters = bool(choices.adapter_features) or not adapted
        if towers and sparse and adapters and has_layers(job.model, choices):
            return f", or use {name}"
    return ""
