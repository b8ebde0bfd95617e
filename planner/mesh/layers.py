"""Which layers each pipeline stage holds: chunks in model order, dense and expert layers, embedding and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from cost_models.job import Job
from cost_models.strategies.fields import V_SHAPED
from cost_models.strategies.layouts import Layout

Document = dict[str, Any]
_FOLDED = frozenset(schedule.label for schedule in V_SHAPED)


def stage_layers(job: Job, strategy: Mapping[str, Any]) -> Document:
    """The layers of every stage.

    Args:
        job: the job on any of its pools.
        strategy: in the contract's names, with every field filled in.

    Returns:
        `num_layers`, `has_experts`, `mtp_layers` (multi-token-prediction modules, which the stage of the head holds, or stage `mtp_stage`) and `stages`. A stage
        has `stage`, `pool`, `layers`, `dense`, `experts` (numbers of decoder layers), and `chunks`: each with `chunk` (its place on the
        stage, from 0), `first` and `last` (decoder layers, from 1; null where it holds none), `kinds` (runs of `[is_expert, number]` in
        model order), `embedding` and `head`.
    """
    pp, vpp = int(strategy["pp"]), int(strategy.get("vpp") or 1)
    # Frameworks without pipelines have no split to fill in.
    counts = tuple(strategy.get("layers_per_stage") or ())
    if len(counts) != pp * vpp:
        counts = (job.model.num_layers,) if pp * vpp == 1 else ()
    assert counts, "a response has the layers of every stage filled in"
    folded = strategy.get("schedule") in _FOLDED
    # A layout of numbers instead of counts: which virtual stages a rank holds, by the rule of layouts.
    places = Layout(pp, vpp, tuple(range(pp * vpp)), folded=folded)
    before = [sum(counts[:place]) for place in range(pp * vpp)]
    is_expert = [kind.is_moe for kind in job.model.layer_kinds]
    pools = strategy.get("pool_per_stage") or [None] * pp
    stages = []
    for stage in range(pp):
        chunks: list[Document] = [
            _chunk(number, counts[place], before[place], is_expert)
            | {"embedding": place == 0, "head": place == pp * vpp - 1}
            for number, place in enumerate(places.chunks_on_stage(stage))
        ]
        held = [run for chunk in chunks for run in chunk["kinds"]]
        stages.append(
            {
                "stage": stage,
                "pool": pools[stage],
                "layers": sum(count for _, count in held),
                "dense": sum(count for kind, count in held if not kind),
                "experts": sum(count for kind, count in held if kind),
                "chunks": chunks,
            }
        )
    return {
        "num_layers": job.model.num_layers,
        "has_experts": job.model.moe is not None,
        "mtp_layers": job.mtp_num_layers,
        **({"mtp_stage": strategy["mtp_stage"] % pp} if strategy.get("mtp_stage") else {}),
        "stages": stages,
    }


def _chunk(number: int, layers: int, before: int, is_expert: Sequence[bool]) -> Document:
    kinds = [[kind, len(list(run))] for kind, run in groupby(is_expert[before : before + layers])]
    first, last = (before + 1, before + layers) if layers else (None, None)
    return {"chunk": number, "first": first, "last": last, "kinds": kinds}
