"""How each framework splits decoder layers over pipeline stages when nobody tells it to, and legal splits to suggest.

A split lists the layers of each of the pp*vpp virtual stages in model order. `default_split` returns None where the
framework refuses; `legal_split` then finds one that can be spelled, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cost_models.frameworks.facts import SplitRule
from cost_models.frameworks.training_defaults import precedes
from cost_models.job import Job
from planner.strategies.defaults import STRATEGY_DEFAULTS

Split = tuple[int, ...]
ENDS = 2
"""Virtual stages that need no layer: the first, which holds the embedding, and the last, which holds the head."""
ANY_MEGATRON_SPLIT_SINCE = "0.13"
"""Before --pipeline-model-parallel-layout Megatron's first and last stages alone could differ from the others."""
_LEAST_DIFFERENCE_SINCE = {"deepspeed": "0.12.5", "megatron-deepspeed": "2024"}
"""DeepSpeed's release whose partition_balanced keeps parts nearly equal, and the first Megatron-DeepSpeed that ran on it."""


def default_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split over pp*vpp virtual stages, None where it refuses."""
    stages = pp * vpp
    return (job.model.num_layers,) if stages == 1 else _RULES[job.framework.split_rule](job, stages)


def legal_split(job: Job, *, pp: int, vpp: int) -> Split | None:
    """The framework's own split, else a nearly even one that this version can be told, None where there is neither."""
    found = default_split(job, pp=pp, vpp=vpp)
    told = STRATEGY_DEFAULTS[job.training.framework].any_split and pp * vpp <= job.model.num_layers + (
        ENDS if vpp > 1 else 0
    )
    if found is not None or not told:
        return found
    version = job.training.framework_version
    if job.training.framework == "megatron" and precedes(version, ANY_MEGATRON_SPLIT_SINCE):
        return _smaller_ends(job.model.num_layers, pp) if vpp == 1 else even_split(job.model.num_layers, pp * vpp)
    return suggested_split(job.model.num_layers, pp * vpp)


def even_split(num_layers: int, stages: int) -> Split | None:
    """The same number of layers everywhere, None where they don't divide."""
    return (num_layers // stages,) * stages if num_layers % stages == 0 else None


def suggested_split(num_layers: int, stages: int) -> Split:
    """A nearly even split whose ends, which also hold the embedding and the head, are the smaller ones."""
    base, extra = divmod(num_layers, stages)
    from_the_middle = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))
    return tuple(base + (stage in from_the_middle[:extra]) for stage in range(stages))


def _smaller_ends(num_layers: int, stages: int) -> Split | None:
    """A split whose stages between the ends are alike, the ends as near to them as can be and rather smaller.

    Source: megatron/training/arguments.py before core 0.13: --decoder-first-pipeline-num-layers and its twin for the last
    stage; what they leave must divide by the other stages.
    """
    middle = num_layers // stages
    for each in (middle + 1, middle):
        rest = num_layers - (stages - ENDS) * each
        if rest >= ENDS:
            return (rest - rest // 2, *[each] * (stages - ENDS), rest // 2)
    return None


def _even(job: Job, stages: int) -> Split | None:
    return even_split(job.model.num_layers, stages)


def _torchtitan(job: Job, stages: int) -> Split | None:
    """Even where it divides, else with the embedding and the head counted as one layer each.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part with its default weights; an
    even split is what `*_less_layers = 0` gives.
    """
    even = even_split(job.model.num_layers, stages)
    if even is not None:
        return even
    base, extra = divmod(job.model.num_layers + ENDS, stages)
    if base == 0:
        return None
    with_ends = [base + (stage < extra) for stage in range(stages)]
    return (with_ends[0] - 1, *with_ends[1:-1], with_ends[-1] - 1)


def _nanotron(job: Job, stages: int) -> Split | None:
    """Blocks go to a stage until its share of the summed block cost is passed; there is no way to say otherwise. None where
    a stage would hold no parameters, which nanotron refuses (a large head ends the pipeline before its last stage).

    Source: nanotron/models/base.py (build_model, check_model_has_grad) and get_block_compute_costs of its models: a layer
    costs 4*heads*(hidden//heads)*hidden + 3*ffn*hidden, the head vocab*hidden, everything else nothing.
    """
    model = job.model
    width = model.intermediate_size or (model.moe.expert_intermediate_size * model.moe.top_k if model.moe else 0)
    attention = 4 * model.num_attention_heads * (model.hidden_size // model.num_attention_heads) * model.hidden_size
    layer, head = attention + 3 * width * model.hidden_size, model.vocab_size * model.hidden_size
    embedding_layers_norm_head = [0, *[layer] * model.num_layers, 0, head]
    total = sum(embedding_layers_norm_head)
    split, filled = [0] * stages, [False] * stages
    stage = placed = 0
    for block, cost in enumerate(embedding_layers_norm_head):
        filled[stage] = True
        split[stage] += 1 <= block <= model.num_layers
        placed += cost
        stage += placed > total * ((stage + 1) / stages)
    return tuple(split) if all(filled) else None


def _deepspeed(job: Job, stages: int) -> Split | None:
    """The transformer layers in nearly equal parts, larger ones first; before DeepSpeed 0.12.5 every part as large as the
    largest until none are left. None where a stage that holds no end of the model would hold no layer.

    Source: deepspeed/runtime/utils.py, partition_balanced on weights of one per transformer layer, which is
    Megatron-DeepSpeed's partition method `type:transformer`. It minimises largest minus smallest part; among equals its
    `>=` keeps the shortest last part. Before, `_lprobe` filled parts up to the least largest part (0.12.4).
    """
    layers, training = job.model.num_layers, job.training
    base, extra = divmod(layers, stages)
    split = [base + (stage < extra) for stage in range(stages)]
    if precedes(training.framework_version, _LEAST_DIFFERENCE_SINCE[training.framework]):
        largest = max(split)
        split = [min(largest, max(layers - stage * largest, 0)) for stage in range(stages)]
    return tuple(split) if all(split[:-1]) and base else None


_RULES: Mapping[SplitRule, Callable[[Job, int], Split | None]] = {
    "even": _even,
    "torchtitan": _torchtitan,
    "nanotron": _nanotron,
    "deepspeed": _deepspeed,
}
