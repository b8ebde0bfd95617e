"""What an answer says of the towers in front of a text model: their sizes, their work, and where they run."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.frameworks import memory_traits
from cost_models.job import Job
from cost_models.layers.flops import tower_flops
from cost_models.layers.tower_parameters import split_by_tensor, tower_elements
from cost_models.memory.towers import saved_by_each_tower
from cost_models.step.stage_costs import tower_seconds
from cost_models.strategies.strategy import Strategies
from cost_models.units import GIB, TERA


def tower_parts(job: Job, strategies: Strategies, index: int) -> dict[str, Any]:
    """The key `towers` of strategy `index`; nothing where the job counts no towers."""
    towers = job.training.towers
    if towers is None or not towers.uses:
        return {}
    row = strategies.take(np.array([index]))
    # Of one micro-batch; the first stage encodes those of a step one after another.
    seconds = tower_seconds(job, row)
    saved = saved_by_each_tower(job, memory_traits(job.training), row)
    # Each micro-batch's images are encoded once, on every rank of the first stage.
    micro_batches = float(row.num_micro_batches[0])
    found = []
    for position, use in enumerate(towers.uses):
        sizes, flops = tower_elements(use, projector_trained=towers.projector_trained), tower_flops(job, position)
        vision = use.tower.sense == "vision"
        amount = towers.given["images_per_sequence" if vision else "audio_seconds_per_sequence"]
        found.append({
            "tower": use.tower.sense,
            "state": "trained" if use.trained else "frozen",
            "parameters": sizes.encoder,
            "projector_parameters": sizes.projector,
            "trainable_parameters": sizes.trained,
            "tokens_per_sequence": use.tokens,
            "forward_tflops_per_image" if vision else "forward_tflops_per_second": flops.forward / amount / TERA,
            "placement": "first-stage",
            "split_over_tp": split_by_tensor(job, use) and bool(row.tp[0] > 1),
            "step_s": micro_batches * float(sum(term[0] for term in seconds[position].values())),
            "activations_gib": float(saved[position][0]) / GIB,
        })  # fmt: skip
    return {"towers": found}
