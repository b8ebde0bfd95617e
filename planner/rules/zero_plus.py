"""Rules on ZeRO++'s quantised gathers and gradient exchanges, which are DeepSpeed's."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.frameworks.deepspeed import HPZ_SINCE
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.step.zero_plus import WEIGHT_MULTIPLE, layer_matrices, vocabulary_matrix
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, version_stated

_CODE = "zero-quantized-unsupported"
_WEIGHTS, _GRADIENTS = "zero_quantized_weights", "zero_quantized_gradients"
_HAVE_IT = frameworks_where(lambda facts: facts.ever("param_shard_group_stages"))
_CONFIG = "deepspeed/runtime/zero/config.py"
_EXCHANGE = "deepspeed/runtime/comm/coalesced_collectives.py (all_to_all_quant_reduce)"


def _weights(_job: Job, s: Strategies) -> Bools:
    return s.zero_quantized_weights


def _gradients(_job: Job, s: Strategies) -> Bools:
    return s.zero_quantized_gradients


def _weights_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero_quantized_weights & (s.zero != 3))


def _gradients_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero_quantized_gradients & (s.zero != 3))


def _odd_shares(job: Job, s: Strategies) -> Bools:
    """Where a rank's share of some matrix, of which the last one is filled up, is no multiple of eight."""
    # Norms and biases are smaller than what stage 3 shards at all (param_persistence_threshold), so that matrices alone count.
    kinds = job.model.distinct_kinds
    units = [layer_matrices(job, kind, routed=routed) for kind in kinds for routed in (False, True)]
    found = np.zeros(len(s), np.bool_)
    for elements in {each for unit in (*units, vocabulary_matrix(job)) for each in unit.elements}:
        for ranks in (s.zero_shard_size, s.zero_param_shard_size):
            found |= np.ceil(elements / s.tp / ranks) % WEIGHT_MULTIPLE != 0
    return np.asarray(s.zero_quantized_weights & found)


def _not_over_all_ranks(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero_quantized_gradients & (s.zero_shard_size != s.world))


def _nodes_in_part(job: Job, s: Strategies) -> Bools:
    # Groups that fill nodes unevenly have fewer members on some node than the product says.
    state = groups(s, job.cluster).zero_shard
    return np.asarray(s.zero_quantized_gradients & (state.per_island * state.islands != state.ranks))


def _experts_spread(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero_quantized_gradients & (s.ep * s.etp > 1))


_OF_BOTH: tuple[Rule, ...] = tuple(
    rule
    for name, asked, below in (
        (_WEIGHTS, _weights, _weights_below_three),
        (_GRADIENTS, _gradients, _gradients_below_three),
    )
    for rule in (
        Rule(
            _CODE, asked, f"{{framework}} cannot quantise what ZeRO sends ({name})", f"Set {name} to false.",
            f"{_CONFIG} ({name}); no such key elsewhere",
            frameworks=frameworks_where(lambda facts: not facts.ever("param_shard_group_stages")), rare=name,
            smallest_change=f"{name} true -> false",
        ),
        Rule(
            _CODE, asked, f"{{framework}} {{version}} does not have {name}, which came with ZeRO++ in {HPZ_SINCE}",
            f"Set {name} to false, or use version {HPZ_SINCE}.", f"{_CONFIG} ({name})", frameworks=_HAVE_IT,
            until=HPZ_SINCE, when=version_stated, rare=name, smallest_change=f"{name} true -> false",
        ),
        # Below stage 3 parameters are not gathered layer by layer, and gradients go through another optimizer's buckets.
        Rule(
            _CODE, below, f"{name} needs zero 3, but zero is {{zero}}", f"Use zero 3, or set {name} to false.",
            "deepspeed/runtime/zero/stage3.py (the only optimizer that reads it)", rare=name, smallest_change="zero {zero} -> 3",
        ),
    )
)  # fmt: skip

ZERO_PLUS_RULES: tuple[Rule, ...] = (
    *_OF_BOTH,
    Rule(
        _CODE, _odd_shares,
        f"zero_quantized_weights needs a multiple of {WEIGHT_MULTIPLE} elements of every weight matrix on a rank, which "
        "zero_shard_size {zero_shard_size} and zero_param_shard_size {zero_param_shard_size} do not leave",
        "Shard over a number of ranks that divides the matrices into such parts, often a power of 2, or set zero_quantized_weights to false.",
        "deepspeed/runtime/zero/partition_parameters.py (CUDAQuantizer.quantize asserts it)", rare=_WEIGHTS,
        smallest_change="zero_quantized_weights true -> false",
    ),
    # The two all-to-alls are among all ranks of the job, whatever the group is that shares the gradients.
    Rule(
        _CODE, _not_over_all_ranks,
        "zero_quantized_gradients exchanges gradients among all {world} ranks, but zero_shard_size is {zero_shard_size}",
        "Use ZeRO over all ranks (tp, pp and cp 1, zero_shard_size dp), or set zero_quantized_gradients to false.",
        f"{_EXCHANGE}: dist.get_world_size()", rare=_GRADIENTS, smallest_change="zero_quantized_gradients true -> false",
    ),
    Rule(
        _CODE, _nodes_in_part,
        "zero_quantized_gradients needs as many ranks on every node, but {world} ranks do not fill whole nodes",
        "Use whole nodes, or set zero_quantized_gradients to false.",
        f"{_EXCHANGE}: the ranks are local ranks times nodes", rare=_GRADIENTS,
        smallest_change="zero_quantized_gradients true -> false",
    ),
    Rule(
        _CODE, _experts_spread, "zero_quantized_gradients does not go with expert parallelism (ep {ep}, etp {etp})",
        "Set ep to 1, or zero_quantized_gradients to false.",
        "deepspeed/runtime/engine.py (AutoEP with ZeRO Stage 3 does not support zero_quantized_gradients yet)", rare=_GRADIENTS,
        smallest_change="ep {ep} -> 1",
    ),
)  # fmt: skip
