"""What the passes of every virtual stage are made of, for whoever looks at a pipeline task by task. [P-2]

`stages.chunk_passes_s` gives a virtual stage's forward and backward; here are the parts of them: what is repeated, what a schedule
may postpone, and how much of both is exposed communication. Array suffixes: V virtual stages in model order, J layer kinds,
N strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.constants import WGRAD_SHARE
from cost_models.layers.costs import LAYER_PARTS
from cost_models.step.stage_costs import StageCosts
from cost_models.step.stage_parameters import over_kinds
from cost_models.step.stages import chunk_passes_s, move_to_mtp
from cost_models.strategies.recomputed_layers import recomputed_shares_by_chunk
from cost_models.strategies.strategy import Floats, Ints, Strategies


@dataclass(frozen=True, eq=False)
class ChunkSeconds:
    """Seconds of every virtual stage's passes of one micro-batch, shape (V, N) each."""

    forward: Floats
    backward: Floats
    repeated: Floats
    """Full recomputation, part of `backward`."""
    weight_gradient: Floats
    """What schedules may postpone, part of `backward`."""
    exposed: Mapping[str, Floats]
    """Exposed communication in both passes together, by name of a time term. In which pass it falls is not kept apart."""


def chunk_seconds(strategies: Strategies, costs: StageCosts, rows: Ints) -> ChunkSeconds:
    """Seconds of every virtual stage's passes and of their parts. [P-1] [P-2]

    Args:
        strategies: shape (M,).
        costs: of all these strategies.
        rows: positions of N of them, which have the same stages and chunks.
    """
    forward_VN, backward_VN = chunk_passes_s(strategies, costs, rows)
    per, layouts, chosen = costs.per, strategies.layouts, strategies.take(rows)
    held_JVN = np.stack([layouts.chunk_contents(index) for index in strategies.layout[rows].tolist()]).transpose(
        2, 1, 0
    )
    repeated_VN = recomputed_shares_by_chunk(chosen, held_JVN.sum(axis=0))
    repeated_VN = repeated_VN * over_kinds(held_JVN, per.again_JN[:, rows])
    repeated_VN[-1] += per.mtp_again[rows]
    # The modules of multi-token prediction lie beside the head, unless a layout says otherwise, and their layers are layers like others.
    every_JVN = held_JVN.copy()
    every_JVN[:, -1] += per.mtp_J1
    if layouts.moves_mtp:
        move_to_mtp(strategies, rows, repeated_VN, per.mtp_again[rows])
        for every_VN, modules in zip(every_JVN, per.mtp_J1[:, 0], strict=True):
            move_to_mtp(strategies, rows, every_VN, np.full(len(rows), modules))
    parts = {
        name: costs.layers.cases.at(rows).spread(costs.layers.parts_JPU[:, at]) for at, name in enumerate(LAYER_PARTS)
    }
    weights_VN = WGRAD_SHARE.value * over_kinds(every_JVN, parts["gemm"])
    layers_JN = {
        "tp_comm": parts["tp_comm"],
        "cp_comm": parts["cp_comm"],
        "ep_comm": parts["ep_comm"] + per.unpaired_JN[:, rows],
        "dp_comm": per.fsdp_JN[:, rows],
    }
    exposed = {name: over_kinds(every_JVN, each_JN) for name, each_JN in layers_JN.items()}
    # The ends' own collectives belong to the first and the last virtual stage, which in a folded pipeline lie on one rank.
    ends = costs.ends.cases.at(rows)
    exposed["tp_comm"][0] += ends.spread(costs.ends.embedding_comm)
    exposed["tp_comm"][-1] += ends.spread(costs.ends.head_comm)
    if layouts.moves_mtp:
        move_to_mtp(strategies, rows, exposed["tp_comm"], ends.spread(costs.ends.mtp_comm))
    exposed["dp_comm"][0] += per.root[rows]
    exposed["dp_comm"][-1] += per.head_link[rows]
    return ChunkSeconds(
        forward=forward_VN,
        backward=backward_VN,
        repeated=np.minimum(repeated_VN, backward_VN),
        weight_gradient=np.minimum(weights_VN, backward_VN - np.minimum(repeated_VN, backward_VN)),
        exposed=exposed,
    )
