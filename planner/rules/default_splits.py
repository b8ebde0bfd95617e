"""How a job's framework splits the decoder layers over pipeline stages by itself, and which splits can be suggested instead.

A split lists the layers of each of the pp * vpp virtual stages in the order of the model. How each framework splits is one of
its facts (`SplitRule`).
"""

from __future__ import annotations

from cost_models.frameworks.splits import ENDS, Split
from cost_models.job import Job


def default_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The split that the framework makes by itself over pp * vpp virtual stages; None where it refuses."""
    stages = pp * vpp
    if stages == 1:
        return (job.model.num_layers,)
    return job.framework.splits.own(job.model, stages, job.training.framework_version)


def legal_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split, or else a nearly even one that this version can be told; None where there is neither."""
    # The first virtual stage holds the embedding and the last one the head, so with vpp > 1 these two may be without a layer.
    layers, told = job.model.num_layers, job.framework.splits.told
    found = default_split(job, pp=pp, vpp=vpp)
    if found is not None or told is None or pp * vpp > layers + (ENDS if vpp > 1 else 0):
        return found
    return told(layers, pp, vpp, job.training.framework_version)
