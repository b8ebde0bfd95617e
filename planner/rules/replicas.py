"""Rules on how replicas stay together: which framework runs a method, what it asserts against, and what islands cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.frameworks.deepspeed import SIGNS_UNTIL
from cost_models.job import Job
from cost_models.replicas.groups import num_groups
from cost_models.specs.method import CompressionKind, SyncMethod
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, always, indivisible

_HOOKS = "torch/distributed/algorithms/ddp_comm_hooks"
_TORCHFT = "torchtitan experiments/ft: fault_tolerance.semi_sync_method"
SYNC_SOURCES: dict[SyncMethod, str] = {
    "local-sgd": f"{_HOOKS}/post_localSGD_hook.py; {_TORCHFT}",
    "diloco": _TORCHFT,
    "gossip": "BlueFog bluefog/torch/optimizers.py, around DistributedDataParallel",
    "parameter-server": "BytePS byteps/torch/__init__.py, around DistributedDataParallel",
    "async": "no framework here updates without waiting; include what_if tells what that could save",
}
"""By method: where it is said who runs it."""
COMPRESSION_SOURCES: dict[CompressionKind, str] = {
    "fp16": f"{_HOOKS}/default_hooks.py",
    "bf16": f"{_HOOKS}/default_hooks.py",
    "powersgd": f"{_HOOKS}/powerSGD_hook.py",
    "onebit": f"deepspeed/runtime/fp16/onebit/adam.py, gone since {SIGNS_UNTIL}",
    "zero-one": f"deepspeed/runtime/fp16/onebit/zoadam.py, gone since {SIGNS_UNTIL}",
    "topk": "no framework here has top-k sparsification; powersgd and onebit send little, too",
}
# Their wrappers change a training script's optimizer, and no target here writes a script around them.
UNWRITTEN: frozenset[SyncMethod] = frozenset({"gossip", "parameter-server"})
"""Methods of programs beside the frameworks (BlueFog, BytePS) for which no launch files are written."""


def able(name: str) -> str:
    """What to do where a framework does not run a method or compression of this name."""
    runs = frameworks_where(lambda facts: name in facts.choices.syncs or name in facts.choices.compressions)
    whole = frameworks_where(lambda facts: facts.choices.replica_groups)
    told = [framework if framework in whole else f"{framework} with zero 0" for framework in sorted(runs)]
    if name in ("onebit", "zero-one"):
        told.append(f"deepspeed before {SIGNS_UNTIL} (training.framework_version) with zero 0")
    return f"Use {' or '.join(told)}." if told else "Leave it out."


def _not_run_sync(method: SyncMethod) -> Callable[[Job], bool]:
    return lambda job: job.method.sync.method == method and method not in job.framework.choices.syncs


def _not_run_compression(kind: CompressionKind) -> Callable[[Job], bool]:
    return lambda job: job.method.compression.kind == kind and kind not in job.framework.choices.compressions


def _compresses(job: Job) -> bool:
    return job.method.compression.kind != "none"


def _whole_sync(job: Job) -> bool:
    """Whether a method of the job is written around DistributedDataParallel."""
    return job.method.sync.method in ("gossip", "parameter-server") or (
        job.method.sync.method == "local-sgd" and not job.framework.choices.replica_groups
    )


def _whole_replicas(job: Job) -> bool:
    return _compresses(job) or _whole_sync(job)


def _both(job: Job) -> bool:
    return job.method.sync.method != "every-step" and _compresses(job)


def _in_part(job: Job) -> bool:
    return not job.method.is_plain and (job.training.adapter is not None or bool(job.training.frozen))


def _among_islands(job: Job) -> bool:
    return job.cluster.islands is not None and not job.method.is_plain and not job.method.is_local


def _without_islands(job: Job) -> bool:
    return job.method.is_local and job.cluster.islands is None and job.framework.choices.replica_groups


def _by_node(job: Job) -> bool:
    return job.method.is_local and job.cluster.islands is None and not job.framework.choices.replica_groups


def _has_islands(job: Job) -> bool:
    return job.cluster.islands is not None


def _sharded(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero != 0)


def _split(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.tp > 1) | (s.pp > 1) | (s.cp > 1) | (s.ep > 1))


def _adam(job: Job) -> bool:
    return job.method.compression.kind in ("onebit", "zero-one") and job.training.optimizer != "adam"


def _cut(job: Job, s: Strategies) -> Bools:
    # With whole replicas on every island all other groups end inside one: ranks of a replica are neighbours, islands are equal.
    count = num_groups(job, s)
    per_group = s.dp / count
    inside = s.world / count
    ranks = s.tp * s.cp * per_group
    return np.asarray(
        (count > 1) & (indivisible(s.dp, count) | (inside > job.cluster.island_gpus) | indivisible(ranks, s.ep * s.etp))
    )


def _one_group(job: Job, s: Strategies) -> Bools:
    return np.asarray(num_groups(job, s) <= 1)


def _uneven_nodes(job: Job, s: Strategies) -> Bools:
    return indivisible(s.world, float(job.cluster.gpus_per_node))


# Whole jobs are ruled out first, since a strategy is counted under the first rule that it breaks.
REPLICA_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            "sync-unsupported", always, "{framework} does not run sync.method " + repr(method) + f" ({source})", able(method), source,
            when=_not_run_sync(method),
        )
        for method, source in SYNC_SOURCES.items()
    ),
    *(
        Rule(
            "compression-unsupported", always, "{framework} does not run compression.kind " + repr(kind) + f" ({source})", able(kind),
            source, when=_not_run_compression(kind),
        )
        for kind, source in COMPRESSION_SOURCES.items()
    ),
    Rule(
        "compression-unsupported", always, "sync.method and compression.kind are both given; no framework here runs the two together",
        "Leave one of them out.", "torch DDP takes one communication hook; DeepSpeed's 1-bit optimizers own their exchange", when=_both,
    ),
    Rule(
        "sync-unsupported", always, "sync and compression are priced only where the whole model is trained, without adapter and frozen parts",
        "Leave sync and compression out, or train the whole model.", "not modelled", when=_in_part,
    ),
    Rule(
        "sync-unsupported", always, "this exchange goes between all replicas at every step, which is not priced over cluster.islands",
        "Use local-sgd or diloco over islands, or leave cluster.islands out.", "not modelled", when=_among_islands,
    ),
    Rule(
        "compression-with-zero", _sharded, "compression of gradients is asserted against with ZeRO; zero is {zero}",
        "Set zero to 0.", "deepspeed/runtime/engine.py (1-bit optimizers); hooks of DistributedDataParallel", when=_compresses,
        smallest_change="zero 0",
    ),
    Rule(
        "sync-with-zero", _sharded, "this sync.method is written around replicas that hold the whole model; zero is {zero}",
        "Set zero to 0.", f"{_HOOKS}/post_localSGD_hook.py; BlueFog; BytePS", when=_whole_sync, smallest_change="zero 0",
    ),
    Rule(
        "sync-needs-whole-replicas", _split, "sync and compression of this kind need replicas of one GPU, but tp is {tp}, pp {pp}, cp {cp}, "
        "ep {ep}", "Set tp, pp, cp and ep to 1.", f"{_HOOKS}; deepspeed/runtime/fp16/onebit", when=_whole_replicas,
    ),
    Rule(
        "compression-unsupported", always, "1-bit and 0/1 Adam are optimizers of their own; training.optimizer is {optimizer}",
        "Set training.optimizer to 'adam'.", "deepspeed/runtime/fp16/onebit", when=_adam,
    ),
    Rule(
        "sync-needs-islands", always, "torchtitan's semi_sync_method works between replica groups, and nothing says which these are",
        "State cluster.islands: count is the number of replica groups, link_gbit_per_s the link between them.", _TORCHFT,
        when=_without_islands,
    ),
    Rule(
        "sync-needs-islands", _uneven_nodes, "local SGD averages within a node, and {world} GPUs are no whole nodes",
        "Use whole nodes.", f"{_HOOKS}/post_localSGD_hook.py (subgroup)", when=_by_node,
    ),
    Rule(
        "sync-needs-islands", _one_group, "{world} GPUs are one group, which has no other to synchronise with",
        "Use GPUs of several islands, or of several nodes.", f"{_HOOKS}/post_localSGD_hook.py; {_TORCHFT}",
        when=lambda job: job.method.is_local and not _without_islands(job),
    ),
    Rule(
        "island-cut", _cut, "tp {tp} x pp {pp} x cp {cp} x dp {dp} does not lie in whole replicas on cluster.islands: a tensor-, pipeline-, "
        "context- or expert-parallel group would cross the slow link", "Choose degrees with dp a multiple of islands.count, so that "
        "every replica lies on one island.", "docs/tasks/plan.md (islands)", when=_has_islands,
    ),
)  # fmt: skip
