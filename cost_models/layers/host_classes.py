"""Layers whose host time a profile measured, by class: which class a job's layer is of, and what it takes. [F-4]

The profiling agent measures a Llama layer of Hugging Face's modules in training steps, so that no ratio of a wrapper to a plain layer
and no factor from a loop to a step stands between. Which of the measured classes say what real jobs take, and are therefore read
here, is a fact of the framework.
"""

from __future__ import annotations

from typing import Literal

from cost_models.calibration.samples import HostLayer
from cost_models.job import Job
from cost_models.layers.hf_modules import runs_liger

Around = Literal["nothing", "sharded", "hooked"]
"""What stands around a layer for data parallelism: nothing, gathering layer by layer, or hooks that reduce its gradients."""


def measured_layer(job: Job, *, around: Around) -> HostLayer | None:
    """A layer of this job's class as measured; None where none was, or where this class is not read.

    Args:
        job: model, training and prices.
        around: what stands around the layer.
    """
    training, known = job.training, job.framework.layer_runtimes
    if not (known.priced and job.has_hf_modules) or training.compile or training.cuda_graphs:
        return None
    # Layers with Liger's kernels are measured as well, but no job has shown yet that they take what a small layer does.
    if runs_liger(job) or training.adapter is not None:
        return None
    layers, runtimes = job.calibration.host_layers, dict[str, tuple[str, ...]](
        sharded=known.sharded, hooked=known.hooked, nothing=known.nothing
    )[around]  # fmt: skip
    return next((layers[name] for name in (f"transformers-{runtime}" for runtime in runtimes) if name in layers), None)
