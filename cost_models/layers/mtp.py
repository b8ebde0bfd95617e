"""Seconds of multi-token prediction's modules on the last stage, beside a decoder layer and another output projection each.

A module embeds the next token, joins it with the hidden state, projects both to the hidden size and runs a decoder layer like
the model's last one (DeepSeek-V3, section 2.2). The layer itself is priced with the stage's layers, the projection to logits
and the loss in `ends`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import EMBEDDING_PASSES, FINAL_NORM_PASSES
from cost_models.hardware.groups import StrategyPlacements
from cost_models.job import Job
from cost_models.layers.costs import matmul_s
from cost_models.layers.shapes import Gemm
from cost_models.operations import Op
from cost_models.strategies.strategy import Floats, Strategies

NORMS = 3.0
"""Norms of a module: of the token's embedding, of the hidden state, and of the module's output."""


@dataclass(frozen=True, slots=True)
class MtpSeconds:
    """Seconds per micro-batch of all modules, forward and backward together, shape (U,) each."""

    work: Floats
    """Projection, norms and embedding."""
    comm: Floats
    """Tensor-parallel collectives around these."""


def mtp_s(job: Job, rows: Strategies, *, tokens: Floats, vocab: Floats, placements: StrategyPlacements) -> MtpSeconds:
    """Seconds of the modules without their decoder layers and output projections. [F-6]

    The projection is column-parallel and its output is gathered. Under sequence parallelism its input of 2h is gathered in
    forward and again for the weight gradient, the input's gradient is scattered, and the gradient of what is split again is
    gathered.

    Args:
        job: model and prices.
        rows: shape (U,), as all that follows.
        tokens: tokens of a micro-batch on a rank.
        vocab: rows of the embedding on a rank.
        placements: groups of these rows.
    """
    modules = float(job.mtp_num_layers)
    if not modules:
        none = np.zeros(len(rows))
        return MtpSeconds(none, none)
    h, e = float(job.model.hidden_size), job.training.compute_bytes
    one = np.ones(len(rows))
    projection = matmul_s(job, [Gemm("eh_proj", tokens, h / rows.tp, 2.0 * h * one, one, one, "mtp")])
    rate, size = job.calibration.memory_bytes_per_s_effective.value, tokens * h * e
    # The modules' norms are outside of any layer, and priced like the final one.
    norms = NORMS * FINAL_NORM_PASSES.value * size / np.where(rows.sequence_parallel, rows.tp, 1.0) / rate
    embedding = (EMBEDDING_PASSES.value * size + vocab * h * 4.0) / rate
    work = projection.forward_s + projection.dgrad_s + projection.wgrad_s + norms + embedding
    if not (rows.tp > 1).any():
        return MtpSeconds(modules * work, np.zeros(len(rows)))

    def group_s(op: Op, bytes_: Floats) -> Floats:
        return job.calibration.collective_s(op, bytes_, placement=placements.tp).seconds

    gather, double = group_s("all_gather", size), group_s("all_gather", 2.0 * size)
    split = 2.0 * double + group_s("reduce_scatter", 2.0 * size) + 2.0 * gather
    split = split + group_s("reduce_scatter", size) + gather  # the embedding's
    whole = gather + group_s("all_reduce", 2.0 * size) + group_s("all_reduce", size)
    return MtpSeconds(modules * work, modules * np.where(rows.sequence_parallel, split, whole))
