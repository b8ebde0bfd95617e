"""What a legality rule is: data with a vectorised test, and the words that name the offending value and its remedy.

Messages and hints are templates, filled with the `facts` of the strategy at hand. `source` names the framework's file that
enforces the rule, so that a reader can check it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from cost_models.frameworks import precedes
from cost_models.frameworks.optimizers import OPTIMIZERS
from cost_models.job import Job
from cost_models.specs.training import Framework, Training
from cost_models.strategies.fields import FIELD, NAMES
from cost_models.strategies.strategy import ARRAY_FIELDS, Bools, Codes, Floats, Strategies
from planner.rules.elsewhere import or_another

Violated = Callable[[Job, Strategies], Bools]
# Values that a hint lists before it breaks off with "…"; the divisors of the usual numbers of heads all fit.
_LISTED = 12
# Candidates for a divisor that are tried in one array, 8 MiB. Sizes come from users, and a square root may be large.
_TRIED_AT_ONCE = 1 << 20
# Length of the table in `one_of`: more than any enumeration of strategy choices has members.
_CODES = 8
_FIELDS = frozenset(ARRAY_FIELDS)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a framework would not run a strategy."""

    code: str
    """Closed list: `planner.schemas.evaluation.ReasonCode`; several rules may share one."""
    violated: Violated
    """Tells which strategies break the rule, shape (N,)."""
    message: str
    hint: str
    source: str
    frameworks: frozenset[Framework] | None = None
    """Frameworks that have the rule; None where all have it."""
    since: str | None = None
    """First framework version with the rule; None where all have it. Two numbers stand for their newest patch (`precedes`)."""
    until: str | None = None
    """First framework version without the rule, read in the same way."""
    when: Callable[[Job], bool] | None = None
    """Whether this job can break the rule at all, decided without looking at a strategy."""
    rare: str = ""
    """Column of `RARE` at whose default no strategy breaks the rule; batches that do not use it skip the test."""
    smallest_change: str | None = None
    """The change of one field that would satisfy the rule; the hint stands in where there is none."""

    def applies(self, job: Job) -> bool:
        """Whether this job's framework, version and model are subject to the rule."""
        training = job.training
        return self.holds_in(training.framework, training.framework_version) and (self.when is None or self.when(job))

    def holds_in(self, framework: Framework, version: str) -> bool:
        """Whether a framework has the rule in this version."""
        if self.frameworks is not None and framework not in self.frameworks:
            return False
        if self.since is not None and precedes(version, self.since):
            return False
        return self.until is None or precedes(version, self.until)


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, comparable: "core_v0.13.1" is (0, 13, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def version_stated(job: Job) -> bool:
    """Whether the framework's version is a fact: a plan states it, and so does an evaluated row, unless it gives a date alone.

    Rules that only a release bounds do not refuse those rows. The software of a run that is known only by its date may
    carry what the release of that date did not have; InternEvo's published runs are an example.
    """
    assumed = job.training.assumed
    return job.states_version or "framework_version" not in assumed or "software_date" in assumed


def only(*frameworks: Framework) -> frozenset[Framework]:
    """These frameworks."""
    return frozenset(frameworks)


def indivisible(total: Floats | float, by: Floats | float) -> Bools:
    """Where `by` does not divide `total`."""
    # A division and a floor are several times faster than NumPy's remainder, and exact: both are integers below 2**53.
    quotient = np.asarray(total / by)
    return np.asarray(quotient != np.floor(quotient), np.bool_)


def always(_job: Job, strategies: Strategies) -> Bools:
    """Every strategy, for rules that `when` alone decides."""
    return np.ones(len(strategies), np.bool_)


def one_of(codes: Codes, allowed: Sequence[int]) -> Bools:
    """Where a code is one of these."""
    # A table look-up is several times faster than `np.isin` on the small integers that codes are.
    table = np.zeros(_CODES, np.bool_)
    table[list(allowed)] = True
    return table[codes]


class _Recorder(Strategies):
    """A batch that notes which of its fields are read.

    The search needs to know which rules look only at the degrees, and a list kept by hand would go stale unnoticed.
    """

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
    """What a template may name: the strategy's fields, the job's sizes, and values that would satisfy a rule."""
    row = {name: _plain(getattr(strategies, name)[index].item()) for name in ARRAY_FIELDS}
    for name, spellings in NAMES.items():
        column = FIELD[name].column
        row[column] = spellings[row[column]]
    model, training, cluster, moe = job.model, job.training, job.cluster, job.model.moe
    experts = moe.num_experts if moe else 0
    tp, ep = row["tp"], row["ep"]
    fitting_tp = [t for t in divisors(model.num_attention_heads) if _fits(job, t)]
    mixer_heads, mixer_groups = (model.recurrent.num_heads, model.recurrent.num_groups) if model.recurrent else (0, 0)
    mixer_tp = [t for t in divisors(mixer_groups) if mixer_heads % t == 0 and t in fitting_tp]
    return {
        **row,
        "framework": training.framework, "version": training.framework_version, "precision": training.precision,
        "seq": training.seq_length, "batch": training.global_batch_size, "optimizer": training.optimizer,
        "recipe": training.fp8_recipe, "kernel": training.attention_kernel, "attention": training.attention,
        "quantized_base": training.adapter.quantized_base if training.adapter else "none",
        "gpu": cluster.gpu.name, "gpus": cluster.num_gpus,
        "layers": model.num_layers, "heads": model.num_attention_heads, "kv_heads": model.num_key_value_heads,
        "width": model.intermediate_size, "experts": experts,
        "expert_width": moe.expert_intermediate_size if moe else 0,
        "world": int(strategies.world[index]), "dp_cp": int(strategies.dp_cp[index]),
        "tp_cp_dp": int(strategies.tp[index] * strategies.dp_cp[index]), "ep_etp": ep * row["etp"],
        "zeros": ", ".join(map(str, job.framework.choices.zero)),
        "tp_options": listed(fitting_tp), "tp_fit": max((t for t in fitting_tp if t <= tp), default=1),
        "ep_options": listed(divisors(experts)), "ep_fit": max((e for e in divisors(experts) if e <= ep), default=1),
        "mixer": model.recurrent.kind if model.recurrent else "a single block",
        "mixer_heads": mixer_heads, "mixer_groups": mixer_groups, "mixer_tp_options": listed(mixer_tp),
        "mixer_tp_fit": max((t for t in mixer_tp if t <= tp), default=1),
        "or_another": or_another(job), "or_adapted": or_another(job, adapted=True),
        "optimizer_zeros": _stages_with_optimizer(training),
        "layers_per_stage": list(strategies.layouts.table[row["layout"]].layers),
    }  # fmt: skip


def _stages_with_optimizer(training: Training) -> str:
    """ZeRO stages with which this release runs the job's optimizer, such as "1 or 2"; empty where it has none."""
    support = OPTIMIZERS[training.framework].get(training.optimizer)
    stages = () if support is None else support.stages(training.framework_version)
    *most, last = [str(stage) for stage in stages] or [""]
    return f"{', '.join(most)} or {last}" if most else last


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(job: Job, tp: int) -> bool:
    return job.model.mla is not None or job.model.num_key_value_heads % tp == 0


def divisors(number: int) -> list[int]:
    """All divisors of a number in rising order; an empty list for 0."""
    small: list[int] = []
    last = isqrt(number)
    for start in range(1, last + 1, _TRIED_AT_ONCE):
        tried = np.arange(start, min(start + _TRIED_AT_ONCE, last + 1))
        small += tried[number % tried == 0].tolist()
    return sorted({*small, *(number // d for d in small)})


def listed(values: list[int]) -> str:
    """The first few values, written for a message."""
    return ", ".join(map(str, values[:_LISTED])) + (", …" if len(values) > _LISTED else "")
