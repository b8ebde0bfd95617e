"""Rules on optimizers beside Adam: which framework has them, from which release on, and with which ZeRO stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import numpy as np

from cost_models.frameworks import precedes
from cost_models.frameworks.optimizers import OPTIMIZERS, OptimizerSupport, overlaps_whole_gradients
from cost_models.job import Job
from cost_models.layers.expert_loop import GROUPED_EXPERTS_SINCE
from cost_models.specs.training import Framework, Optimizer
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, always, one_of, only

_OLDER: frozenset[Optimizer] = frozenset({"adam", "sgd", "adam-8bit"})
"""Optimizers that `states` has a row for."""


def _support(job: Job) -> OptimizerSupport | None:
    return OPTIMIZERS[job.training.framework].get(job.training.optimizer)


def _absent(job: Job) -> bool:
    return job.training.optimizer not in _OLDER and _support(job) is None


def _stage(job: Job, s: Strategies) -> Bools:
    support = _support(job)
    assert support is not None
    return ~one_of(s.zero, support.stages(job.training.framework_version))


def optimizer_depends_on_stage(job: Job) -> bool:
    """Whether the framework has the job's optimizer, though not with every ZeRO stage."""
    support = _support(job)
    if job.training.optimizer in _OLDER or support is None or support.zero == (0, 1, 2, 3):
        return False
    return support.since is None or not precedes(job.training.framework_version, support.since)


# Megatron raises where its emerging optimizers meet fp16; the other frameworks' run in it.
def _refuses_half(job: Job) -> bool:
    support = _support(job)
    return job.training.precision == "fp16" and support is not None and support.without_half


def _split_matrices(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.tp > 1)


def _whole_overlapped(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero == 0) & s.overlap_grad_reduce)


def _partial_groups(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 1) & (s.zero_shard_size != s.dp_cp))


def _refuses_groups(job: Job) -> bool:
    support = _support(job)
    return support is not None and not support.takes_groups


def _refuses_overlap(job: Job) -> bool:
    return not overlaps_whole_gradients(job.training)


def _refuses_parts(job: Job) -> bool:
    support = _support(job)
    return support is not None and not support.takes_parts


# A stack of experts is a tensor of three dimensions, of which torch.optim.Muon's constructor takes none.
def _refuses_stacks(job: Job) -> bool:
    support = _support(job)
    stacked = job.training.software_date >= GROUPED_EXPERTS_SINCE or not job.has_hf_modules
    return support is not None and not support.takes_stacks and job.model.moe is not None and stacked


def _of(framework: Framework) -> Mapping[Optimizer, OptimizerSupport]:
    return OPTIMIZERS[framework]


def _either(names: list[str]) -> str:
    """Names in quotes as alternatives, such as "'a', 'b' or 'c'"."""
    *most, last = [f"'{name}'" for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def _is(name: Optimizer) -> Callable[[Job], bool]:
    return lambda job: job.training.optimizer == name


def _since_rules() -> tuple[Rule, ...]:
    """A rule for each optimizer that came with a release of its framework."""
    return tuple(
        Rule(
            "optimizer-unsupported", always, f"{{framework}} {{version}} does not have optimizer '{name}', which came with {support.since}",
            f"Set optimizer to 'adam', or use version {support.since}.", support.source, frameworks=only(framework), until=support.since,
            when=_is(name),
        )
        for framework in get_args(Framework)
        for name, support in _of(framework).items()
        if support.since is not None
    )  # fmt: skip


OPTIMIZER_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            "optimizer-unsupported", always, "{framework} does not have optimizer '{optimizer}'",
            f"Set optimizer to {_either(list(_of(framework)))}.", "cost_models/frameworks/optimizers.py names the file of each that it has",
            frameworks=only(framework), when=_absent,
        )
        for framework in get_args(Framework)
    ),
    *_since_rules(),
    # Emerging optimizers take neither of Megatron's FSDPs; DeepSpeed's Muon trains with plain SGD at stage 0; what is sharded
    # by elements has no whole rows that Adafactor could add up.
    Rule(
        "optimizer-unsupported", _stage, "{framework} {version} cannot combine optimizer '{optimizer}' with zero {zero}",
        "Set zero to {optimizer_zeros}, or optimizer to 'adam'.", "cost_models/frameworks/optimizers.py", when=optimizer_depends_on_stage,
    ),
    Rule(
        "optimizer-unsupported", always, "{framework} trains with optimizer '{optimizer}' in bf16 or fp32, not in fp16",
        "Set precision to 'bf16'.", "megatron/core/optimizer/__init__.py", when=_refuses_half,
    ),
    Rule(
        "overlap-unsupported", _whole_overlapped,
        "{framework} {version} cannot reduce gradients beside the backward (overlap.grad_reduce) with optimizer '{optimizer}' and zero 0",
        "Set zero to 1, or overlap.grad_reduce to false.", "megatron/training/arguments.py of 0.17 (Muon optimizer check)",
        when=_refuses_overlap, smallest_change="overlap.grad_reduce true -> false",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_groups,
        "{framework} deals the matrices of optimizer '{optimizer}' out to all dp x cp = {dp_cp} ranks, not to groups of {zero_shard_size}",
        "Leave zero_shard_size out, or set optimizer to 'adam'.",
        "megatron/core/optimizer/layer_wise_optimizer.py of 0.19.2 (dp_cp; asserts one optimizer instance)",
        when=_refuses_groups, smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "optimizer-unsupported", _split_matrices,
        "{framework} has no layout for optimizer '{optimizer}' on matrices that tensor parallelism splits (tp {tp})",
        "Set tp to 1.", "torchtitan/distributed/flex_shard/dist_muon.py", when=_refuses_parts, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "optimizer-unsupported", always,
        "{framework}'s optimizer '{optimizer}' takes matrices alone, and the experts of a layer are one tensor of three dimensions",
        "Set optimizer to 'adam', or choose a framework whose optimizer takes them.", "torch/optim/_muon.py; transformers/integrations/moe.py",
        when=_refuses_stacks,
    ),
)  # fmt: skip
"""Their order is that of the causes: no such optimizer, not yet, not with this stage."""
