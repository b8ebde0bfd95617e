"""What a strategy computes otherwise than its framework's plain step: `mathematics` and `changes` of the contract."""

from __future__ import annotations

from cost_models.specs.method import Method
from cost_models.strategies.fields import OptimizerOverlap
from cost_models.strategies.strategy import Strategies
from planner.answer.methods import changes_of_method

Change = dict[str, str]
_KINDS = ("exact", "rounded", "changed")
"""From the least to what outweighs the others."""
_WEIGHTS: Change = {
    "what": "Parameters are gathered in 8 bits, with one scale for each group of up to 8,000 (ZeRO++ qwZ).",
    "effect": "Forward and backward compute with weights rounded to 8 bits; bf16 weights pass through fp16 on the way. The stored weights are "
    "not rounded.",
    "source": "ZeRO++ (Wang et al. 2023, arXiv 2306.10209) section 3.1; deepspeed/runtime/zero/partition_parameters.py (CUDAQuantizer)",
}
_GRADIENTS: Change = {
    "what": "Gradients are exchanged in 4 bits, rounded once inside a node and once more between nodes (ZeRO++ qgZ).",
    "effect": "The averaged gradients are rounded twice, without error feedback.",
    "source": "ZeRO++ (Wang et al. 2023, arXiv 2306.10209) section 3.3; deepspeed/runtime/comm/coalesced_collectives.py",
}
_ZENFLOW: Change = {
    "what": "The host updates all but the largest gradients some steps later, beside the steps in between (ZenFlow).",
    "effect": "Most parameters are updated with gradients of earlier steps, a bounded number of them.",
    "source": "deepspeed/runtime/zenflow/zenflow_config.py (topk_ratio, update_interval)",
}


def mathematics(strategies: Strategies, index: int, *, method: Method) -> tuple[str, list[Change]]:
    """Whether strategy `index` of a job whose replicas stay together by this method is "exact", "rounded" or "changed", and each thing that it does otherwise.

    The training's types are the user's own choice, which counts as exact.
    """
    rounded = [
        change
        for column, change in (("zero_quantized_weights", _WEIGHTS), ("zero_quantized_gradients", _GRADIENTS))
        if strategies.uses(column) and getattr(strategies, column)[index]
    ]
    # What is changed outweighs what is rounded, and both are told.
    changed = []
    if strategies.uses("offload_optimizer_overlap"):
        changed = [_ZENFLOW] * int(strategies.offload_optimizer_overlap[index] == OptimizerOverlap.ZENFLOW)
    kind = "changed" if changed else "rounded" if rounded else "exact"
    return max(kind, method.mathematics, key=_KINDS.index), [*changes_of_method(method), *rounded, *changed]
