"""How a job's framework splits decoder layers over pipeline stages when nobody tells it to, and legal splits to suggest.

A split lists the layers of each of the pp*vpp virtual stages in model order. The rules themselves are facts of each framework
(`SplitRule`).
"""

from __future__ import annotations

from cost_models.frameworks.splits import ENDS, Split
from cost_models.job import Job


def default_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split over pp*vpp virtual stages, None where it refuses."""
    stages = pp * vpp
    if stages == 1:
        return (job.model.num_layers,)
    return job.framework.splits.own(job.model, stages, job.training.framework_version)


def legal_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split, else a nearly even one that this version can be told, None where there is neither."""
    layers, told = job.model.num_layers, job.framework.splits.told
    found = default_split(job, pp=pp, vpp=vpp)
    if found is not None or told is None or pp * vpp > layers + (ENDS if vpp > 1 else 0):
        return found
    return told(layers, pp, vpp, job.training.framework_version)
