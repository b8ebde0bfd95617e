"""Tensor-parallel collectives around latent attention's projections under sequence parallelism. [C-10]

They depend on who splits the down-projections. Megatron's Transformer Engine layers project each rank's own tokens down, with
whole weights, and gather what comes out; its earlier layers and its local ones split the down-projections by columns.
Elsewhere whole rows of the hidden size are gathered, as for plain attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.specs.model import Mla
from cost_models.strategies.strategy import Floats


@dataclass(frozen=True, slots=True)
class LatentSeconds:
    """Seconds of the collectives in front of the attention core, shape (U,) each; the output projection's are left out."""

    forward: Floats
    """All gathers of forward."""
    backward: Floats
    """Gathers of saved inputs for weight gradients, and the collectives that their gradients and those of split
    rows need."""


def latent_s(job: Job, mla: Mla, *, tokens: Floats, tp: Placement) -> LatentSeconds:
    """Seconds of what replaces the all-gather of T*h before attention, with sequence parallelism. [C-10]

        shards     forward  AG(q_lora) + AG(kv_lora) + AG(rope)       backward  AG(q_lora) + AG(kv_lora) + RS(all three)
        columns    forward  2 AG(h) + AG(q_lora) + AG(kv_lora + rope) + AG(q_lora) + AG(kv_lora)
                   backward 2 (AG + RS)(h) + (2 AG + RS)(q_lora) + (2 AG + RS)(kv_lora)

    h stands in for q_lora where queries have no latent. What is split again after a gather is gathered again in backward.

    Args:
        job: its `latent_down` is "shards" or "columns".
        mla: the latent widths.
        tokens: tokens of a micro-batch on a rank.
        tp: the tensor-parallel group.
    """
    price, e = job.calibration.collective_s, job.training.compute_bytes

    def gather(width: float) -> Floats:
        return price("all_gather", tokens * width * e, placement=tp).seconds

    def scatter(width: float) -> Floats:
        return price("reduce_scatter", tokens * width * e, placement=tp).seconds

    h, kv, rope = float(job.model.hidden_size), float(mla.kv_lora_rank), float(mla.qk_rope_head_dim)
    query = float(mla.q_lora_rank or h)
    if job.latent_down == "shards":
        # The rotated part of the keys has no weights behind it, so backward has no use for its gathered input.
        up = gather(query) + gather(kv)
        return LatentSeconds(up + gather(rope), up + scatter(query) + scatter(kv) + scatter(rope))
    # By columns every projection gathers its own input: the hidden rows once for queries and once for keys and
    # values, then the latents twice, since they are split along the sequence for their norms in between.
    forward = 2.0 * gather(h) + gather(kv + rope) + gather(kv)
    backward = 2.0 * (gather(h) + scatter(h)) + 2.0 * gather(kv) + scatter(kv)
    if mla.q_lora_rank is not None:
        forward = forward + 2.0 * gather(query)
        backward = backward + 2.0 * gather(query) + scatter(query)
    return LatentSeconds(np.asarray(forward), np.asarray(backward))
