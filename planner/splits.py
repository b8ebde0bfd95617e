"""How each framework splits decoder layers over pipeline stages when nobody tells it to, and legal splits to suggest.

A split lists the layers of each of the pp*vpp virtual stages in model order. `default_split` returns None where the
framework refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cost_models.job import Job
from cost_models.runtimes import SplitRule
from cost_models.specs.model import Model

Split = tuple[int, ...]


def default_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split over pp*vpp virtual stages, None where it refuses."""
    stages = pp * vpp
    return (job.model.num_layers,) if stages == 1 else _RULES[job.runtime.split_rule](job.model, stages)


def even_split(num_layers: int, stages: int) -> Split | None:
    """The same number of layers everywhere, None where they don't divide."""
    return (num_layers // stages,) * stages if num_layers % stages == 0 else None


def suggested_split(num_layers: int, stages: int) -> Split:
    """A nearly even split whose ends, which also hold the embedding and the head, are the smaller ones."""
    base, extra = divmod(num_layers, stages)
    from_the_middle = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))
    return tuple(base + (stage in from_the_middle[:extra]) for stage in range(stages))


def _even(model: Model, stages: int) -> Split | None:
    return even_split(model.num_layers, stages)


def _torchtitan(model: Model, stages: int) -> Split | None:
    """Even where it divides, else with the embedding and the head counted as one layer each.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part with its default weights; an
    even split is what `*_less_layers = 0` gives.
    """
    even = even_split(model.num_layers, stages)
    if even is not None:
        return even
    base, extra = divmod(model.num_layers + 2, stages)
    if base == 0:
        return None
    with_ends = [base + (stage < extra) for stage in range(stages)]
    return (with_ends[0] - 1, *with_ends[1:-1], with_ends[-1] - 1)


def _nanotron(model: Model, stages: int) -> Split | None:
    """Blocks go to a stage until its share of the summed block cost is passed; there is no way to say otherwise.

    Source: nanotron/models/base.py (build_model) and get_block_compute_costs of its models: a layer costs
    4*heads*head_dim*hidden + 3*ffn*hidden, the head vocab*hidden, everything else nothing.
    """
    width = model.intermediate_size or (model.moe.expert_intermediate_size * model.moe.top_k if model.moe else 0)
    layer = 4 * model.num_attention_heads * model.head_dim * model.hidden_size + 3 * width * model.hidden_size
    total = layer * model.num_layers + model.vocab_size * model.hidden_size
    split = [0] * stages
    stage = 0
    for index in range(model.num_layers):
        split[stage] += 1
        if (index + 1) * layer > total * (stage + 1) / stages:
            stage += 1
    return tuple(split)


def _deepspeed(model: Model, stages: int) -> Split | None:
    """The transformer layers in nearly equal parts, larger ones first.

    Source: deepspeed/runtime/utils.py, partition_balanced on weights of one per transformer layer, which is
    Megatron-DeepSpeed's partition method `type:transformer`. It minimises largest minus smallest part; among equals its
    `>=` keeps the shortest last part.
    """
    base, extra = divmod(model.num_layers, stages)
    return tuple(base + (stage < extra) for stage in range(stages)) if base else None


_RULES: Mapping[SplitRule, Callable[[Model, int], Split | None]] = {
    "even": _even,
    "torchtitan": _torchtitan,
    "nanotron": _nanotron,
    "deepspeed": _deepspeed,
}
