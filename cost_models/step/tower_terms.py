"""Seconds per micro-batch that the towers take on the first stage, by the same terms as the text model's layers. [F-17]

The layers of a tower are priced as those of a small model (`Job.tower_jobs`); the products around them, such as the embedding of patches
and the projector, are added here. Array suffixes: J layer kinds; arrays of shape (N,) over strategies have none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS, LayerCosts, matmul_s
from cost_models.layers.shapes import Gemm
from cost_models.layers.tower_parameters import passes_of_ends, split_by_tensor
from cost_models.specs.tower import TowerUse
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import summed


def tower_terms_s(
    job: Job,
    strategies: Strategies,
    use: TowerUse,
    *,
    own: Job,
    layers: LayerCosts,
    waits_JN: Floats,
    again_JN: Floats,
    fsdp_JN: Floats,
    accumulation_JN: Floats,
) -> dict[str, Floats]:
    """Seconds per micro-batch of one tower, by time term, shape (N,) each. [F-17]

    Args:
        job: the whole job.
        strategies: as they are for the text model, shape (N,).
        use: the tower.
        own: the tower's own job.
        layers: costs of its layers under its own strategies.
        waits_JN: seconds in which the device waits for the host in one layer of each kind.
        again_JN: seconds that repeating one of them takes; 0 where nothing is repeated.
        fsdp_JN: exposed traffic of sharded parameters of one of them.
        accumulation_JN: seconds of adding up its gradients.
    """
    counts = [float(own.model.layer_kinds.count(kind)) for kind in own.model.distinct_kinds]

    def over_layers(each_JN: Floats) -> Floats:
        return summed(count * each for count, each in zip(counts, each_JN, strict=True))

    terms = {
        name: over_layers(layers.cases.spread(layers.parts_JPU[:, position]))
        for position, name in enumerate(LAYER_PARTS)
    }
    # The waits of the table know nothing of what stands around layers for data parallelism; these do.
    terms["launch"] = over_layers(waits_JN)
    terms["recompute"] = over_layers(again_JN)
    terms["grad_accumulation"] = over_layers(accumulation_JN)
    terms["dp_comm"] = over_layers(fsdp_JN)
    terms["gemm"] = terms["gemm"] + _ends_s(job, strategies, use, own=own)
    return terms


def _ends_s(job: Job, strategies: Strategies, use: TowerUse, *, own: Job) -> Floats:
    """Seconds of the products in front of a tower's layers and of its projector, shape (N,)."""
    towers = job.training.towers
    assert towers is not None
    rows = strategies.micro_batch_size * use.rows
    tp = strategies.tp if split_by_tensor(job, use) else np.ones(len(strategies))
    one = np.ones(len(strategies))
    seconds = np.zeros(len(strategies))
    passes = passes_of_ends(towers, use)
    for matrices, each in zip((use.tower.stem, use.tower.projector), passes, strict=True):
        for matrix, (data, weight) in zip(matrices, each, strict=True):
            shape = Gemm("tower", rows * matrix.per_row, matrix.outputs / tp, matrix.inputs * one, one, one, "tower")
            found = matmul_s(own, [shape])
            seconds = seconds + found.forward_s + data * found.dgrad_s + weight * found.wgrad_s
    return seconds


def added_up(all_terms: list[dict[str, Floats]]) -> Mapping[str, Floats]:
    """The terms of all towers together."""
    return {name: summed(terms[name] for terms in all_terms) for name in all_terms[0]} if all_terms else {}
