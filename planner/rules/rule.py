"""What a legality rule is: data with a vectorised test, and the words that name the value and the fix.

Messages and hints are templates over `facts` of the strategy at hand. `source` names the file that enforces the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from cost_models.frameworks.training_defaults import precedes
from cost_models.job import Job
from cost_models.specs.training import Framework
from cost_models.strategies.strategy import ARRAY_FIELDS, NAMES, Bools, Codes, Floats, Strategies

Violated = Callable[[Job, Strategies], Bools]
_LISTED = 12
_TRIED_AT_ONCE = 1 << 20
_CODES = 8
"""More than any choice has."""
_FIELDS = frozenset(ARRAY_FIELDS)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a framework would not run a strategy."""

    code: str
    """Closed list: `planner.schemas.evaluation.ReasonCode`; several rules may share one."""
    violated: Violated
    """Where it is broken, shape (N,)."""
    message: str
    hint: str
    source: str
    frameworks: frozenset[Framework] | None = None
    """None: every framework."""
    since: str | None = None
    """First framework version with this rule; None: all. A version of two numbers stands for its newest patch (`precedes`)."""
    until: str | None = None
    """First version without it, read likewise."""
    when: Callable[[Job], bool] | None = None
    """Whether the rule can be broken at all in this job, told without looking at a strategy."""
    smallest_change: str | None = None
    """The change of one field that would satisfy it; the hint where there is none."""

    def applies(self, job: Job) -> bool:
        """Whether this job's framework, version and model are subject to the rule."""
        if self.frameworks is not None and job.training.framework not in self.frameworks:
            return False
        version = job.training.framework_version
        if self.since is not None and precedes(version, self.since):
            return False
        if self.until is not None and not precedes(version, self.until):
            return False
        return self.when is None or self.when(job)


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, comparable: "core_v0.13.1" is (0, 13, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def version_stated(job: Job) -> bool:
    """Whether the version is a fact: a plan states it, and a row may. The stack of a row that is known only by its date may
    carry what its release did not (InternEvo's runs are such).
    """
    return job.states_version or "framework_version" not in job.training.assumed


def only(*frameworks: Framework) -> frozenset[Framework]:
    """These frameworks."""
    return frozenset(frameworks)


def indivisible(total: Floats | float, by: Floats | float) -> Bools:
    """Where `by` does not divide `total`; a division and a floor, several times faster than a remainder."""
    quotient = np.asarray(total / by)
    return np.asarray(quotient != np.floor(quotient), np.bool_)


def always(_job: Job, strategies: Strategies) -> Bools:
    """Every strategy: for rules that `when` decides."""
    return np.ones(len(strategies), np.bool_)


def one_of(codes: Codes, allowed: Sequence[int]) -> Bools:
    """Where a code is one of these; a table look-up, several times faster than `np.isin`."""
    table = np.zeros(_CODES, np.bool_)
    table[list(allowed)] = True
    return table[codes]


class _Recorder(Strategies):
    """A batch that notes which of its fields are read."""

    read: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


def rule_fields(rule: Rule, job: Job, strategies: Strategies) -> frozenset[str]:
    """The strategy fields that a rule's test reads in this job, found by watching it."""
    recorder = object.__new__(_Recorder)
    recorder.__dict__.update(vars(strategies), read=set())
    rule.violated(job, recorder)
    return frozenset(object.__getattribute__(recorder, "read"))


def facts(job: Job, strategies: Strategies, index: int) -> Mapping[str, Any]:
    """What a template may name: the strategy's fields, the job's sizes, and values that would fit."""
    row = {name: _plain(getattr(strategies, name)[index].item()) for name in ARRAY_FIELDS}
    for name, spellings in NAMES.items():
        row[name] = spellings[row[name]]
    model, training, cluster, moe = job.model, job.training, job.cluster, job.model.moe
    experts = moe.num_experts if moe else 0
    tp, ep = row["tp"], row["ep"]
    fitting_tp = [t for t in divisors(model.num_attention_heads) if _fits(job, t)]
    return {
        **row,
        "framework": training.framework, "version": training.framework_version, "precision": training.precision,
        "seq": training.seq_length, "batch": training.global_batch_size, "optimizer": training.optimizer,
        "recipe": training.fp8_recipe, "kernel": training.attention_kernel, "attention": training.attention,
        "gpu": cluster.gpu.name, "gpus": cluster.num_gpus,
        "layers": model.num_layers, "heads": model.num_attention_heads, "kv_heads": model.num_key_value_heads,
        "width": model.intermediate_size, "experts": experts,
        "expert_width": moe.expert_intermediate_size if moe else 0,
        "world": int(strategies.world[index]), "dp_cp": int(strategies.dp_cp[index]),
        "tp_cp_dp": int(strategies.tp[index] * strategies.dp_cp[index]), "ep_etp": ep * row["etp"],
        "zeros": ", ".join(map(str, job.framework.supports_zero)),
        "tp_options": listed(fitting_tp), "tp_fit": max((t for t in fitting_tp if t <= tp), default=1),
        "ep_options": listed(divisors(experts)), "ep_fit": max((e for e in divisors(experts) if e <= ep), default=1),
        "layers_per_stage": list(strategies.layouts.table[row["layout"]].layers),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(job: Job, tp: int) -> bool:
    return job.model.mla is not None or job.model.num_key_value_heads % tp == 0


def divisors(number: int) -> list[int]:
    """All divisors, ascending; none of 0."""
    small: list[int] = []
    last = isqrt(number)
    for start in range(1, last + 1, _TRIED_AT_ONCE):
        tried = np.arange(start, min(start + _TRIED_AT_ONCE, last + 1))
        small += tried[number % tried == 0].tolist()
    return sorted({*small, *(number // d for d in small)})


def listed(values: list[int]) -> str:
    """The first few values for a message."""
    return ", ".join(map(str, values[:_LISTED])) + (", …" if len(values) > _LISTED else "")
