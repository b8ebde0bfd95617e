"""Legality as data: what each framework and version refuses to run, used by search and evaluation alike.

A batch of strategies is tested against every rule that applies to the job (`Violations`). A broken rule never raises an exception: illegal strategies are an answer.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from cost_models.job import Job
from cost_models.specs.training import Framework
from cost_models.strategies.strategy import Ints, Strategies
from planner.rules.adapters import ADAPTER_RULES
from planner.rules.degrees import DEGREE_RULES
from planner.rules.experts import EXPERT_RULES
from planner.rules.hardware import HARDWARE_RULES
from planner.rules.hybrids import HYBRID_RULES
from planner.rules.offload import OFFLOAD_RULES
from planner.rules.offload_places import OFFLOAD_PLACE_RULES
from planner.rules.optimizers import OPTIMIZER_RULES
from planner.rules.pipeline import PIPELINE_RULES
from planner.rules.recompute import RECOMPUTE_RULES
from planner.rules.replicas import REPLICA_RULES
from planner.rules.rule import Rule, facts, rule_fields
from planner.rules.sparse import SPARSE_RULES
from planner.rules.states import STATE_RULES
from planner.rules.towers import TOWER_RULES
from planner.rules.violations import BITS, Violations
from planner.rules.zero_plus import ZERO_PLUS_RULES

# The order is part of the answer: a strategy that breaks several rules is counted under the first, and that one's change is
# suggested. Hardware comes first, since it rules out the whole job; then what is commonest and easiest to understand (ranks,
# batch, heads); offload and ways of keeping replicas together come last, since few
# requests ask for them.
RULES: tuple[Rule, ...] = (
    *HARDWARE_RULES,
    *DEGREE_RULES,
    *PIPELINE_RULES,
    *EXPERT_RULES,
    *STATE_RULES,
    *ADAPTER_RULES,
    *RECOMPUTE_RULES,
    *OFFLOAD_RULES,
    *REPLICA_RULES,
    *ZERO_PLUS_RULES,
    *OFFLOAD_PLACE_RULES,
    *HYBRID_RULES,
    *TOWER_RULES,
    *SPARSE_RULES,
    *OPTIMIZER_RULES,
)

__all__ = [
    "RULES",
    "Rule",
    "Violations",
    "active_rules",
    "first_violations",
    "reasons",
    "rule_codes",
    "smallest_change",
    "violations",
]


_DERIVED = frozenset({"num_micro_batches"})
"""Strategy fields that follow from the degrees and the micro-batch size."""


@lru_cache(maxsize=2048)
def active_rules(job: Job) -> tuple[Rule, ...]:
    """The rules that this job's framework, version, model and cluster are subject to."""
    training = job.training
    rules = _rules_of(training.framework, training.framework_version)
    return tuple(rule for rule in rules if rule.when is None or rule.when(job))


Numbered = tuple[tuple[int, Rule], ...]


@lru_cache(maxsize=2048)
def _numbered(job: Job) -> tuple[Numbered, Numbered]:
    """The job's rules with their bits: those on the usual columns, and those on rare ones, which most batches skip together."""
    every = tuple(enumerate(active_rules(job)))
    return tuple(each for each in every if not each[1].rare), tuple(each for each in every if each[1].rare)


@lru_cache(maxsize=2048)
def _rules_of(framework: Framework, version: str) -> tuple[Rule, ...]:
    """The rules of a framework's version; mixed rows bring a job each, but only a few versions."""
    return tuple(rule for rule in RULES if rule.holds_in(framework, version))


def violations(job: Job, strategies: Strategies) -> Violations:
    """Which of the job's rules each strategy breaks."""
    active = active_rules(job)
    words = [np.zeros(len(strategies), dtype=np.int64)]
    usual, rare = _numbered(job)
    for bit, rule in (*usual, *rare) if strategies.uses_rare else usual:
        if rule.rare and not strategies.uses(rule.rare):
            continue
        broken = rule.violated(job, strategies)
        if np.count_nonzero(broken):  # for few rows quicker than any()
            while len(words) <= bit // BITS:  # few jobs have so many rules, and few strategies break the last ones
                words.append(np.zeros(len(strategies), dtype=np.int64))
            words[bit // BITS][broken] |= 1 << bit % BITS
    return Violations(tuple(words), active)


def first_violations(job: Job, strategies: Strategies, *, fields: frozenset[str] | None = None) -> Ints:
    """Index into `rule_codes()` of the first rule each strategy breaks, -1 where it breaks none; shape (N,).

    Args:
        job: what is planned.
        strategies: the batch, N rows.
        fields: where given, only the rules that read no other strategy field are tested.
    """
    first = np.full(len(strategies), -1, dtype=np.int64)
    if not len(strategies):
        return first
    number = {code: index for index, code in enumerate(rule_codes())}
    # Later rules are written first, so that earlier ones overwrite them.
    for rule in reversed(active_rules(job)):
        if rule.rare and not strategies.uses(rule.rare):
            continue
        if fields is None or rule_fields(rule, job, strategies.take(np.zeros(1, dtype=np.int64))) <= fields | _DERIVED:
            broken = rule.violated(job, strategies)
            if broken.any():
                first[broken] = number[rule.code]
    return first


def reasons(job: Job, strategies: Strategies, index: int, *, found: Violations | None = None) -> list[dict[str, str]]:
    """Why strategy `index` is illegal: for every broken rule its code, a message with the value, and a hint what to do."""
    broken = (found or violations(job, strategies)).broken(index)
    known = facts(job, strategies, index) if broken else {}
    return [
        {"code": rule.code, "message": rule.message.format_map(known), "hint": rule.hint.format_map(known)}
        for rule in broken
    ]


def smallest_change(job: Job, strategies: Strategies, index: int, *, found: Violations | None = None) -> str:
    """The change that would satisfy the first rule that strategy `index` breaks; empty where it breaks none."""
    broken = (found or violations(job, strategies)).broken(index)
    if not broken:
        return ""
    return (broken[0].smallest_change or broken[0].hint).format_map(facts(job, strategies, index))


@cache
def rule_codes() -> tuple[str, ...]:
    """Every code that a rule can give, in the order of `RULES`."""
    return tuple(dict.fromkeys(rule.code for rule in RULES))
