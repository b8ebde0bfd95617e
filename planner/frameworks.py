"""The frameworks as plain data: releases, every default, the choices that each has, and the rules that apply to it.

This is what `GET /v1/presets/frameworks` returns. The messages and hints of rules are templates, which are filled in for the
strategy that breaks them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cost_models.frameworks import FRAMEWORKS, FrameworkFacts, default_rows
from cost_models.frameworks.training_defaults import USUAL, Row, Rows
from planner.rules import RULES
from planner.rules.rule import Rule
from planner.strategies.defaults import default_zero

Document = dict[str, Any]


def framework_documents() -> list[Document]:
    """One document per framework: its name, versions, defaults, choices and rules."""
    return [_document(framework) for framework in FRAMEWORKS.values()]


def _document(framework: FrameworkFacts) -> Document:
    name, own, choices = framework.name, framework.strategy, framework.choices
    states = asdict(framework.state_dtypes)
    del states["fp16_gradients"]
    return {
        "name": name,
        "default_version": framework.default_version,
        "versions": [{"version": version, "released": month} for version, month in framework.releases],
        "strategy_defaults": {
            "zero": framework.default_zero,
            "zero_in_pipelines": default_zero(framework, 2),
            "sequence_parallel": framework.default_sequence_parallel,
            "etp": "tp" if framework.etp_defaults_to_tp else 1,
            "recompute": own.recompute.label,
            "cp_comm": own.cp_comm.label,
            "moe_dispatcher": own.moe_dispatcher.label,
            "layers_per_stage": framework.splits.name,
            "overlap": dict(framework.overlaps),
            "overlap_from_zero": framework.overlaps_from_zero,
        },
        "training_defaults": {
            **{field: _choices(default_rows(name, field)) for field in USUAL},
            **states,
        },
        "choices": {
            "zero": list(choices.zero),
            "schedule": [schedule.label for schedule in choices.schedules],
            "cp_comm": [comm.label for comm in choices.cp_comms],
            "vpp": choices.vpp,
        },
        "vocabulary_multiple_per_tp": framework.vocab_multiple_per_tp,
        "rules": [_rule(rule) for rule in RULES if rule.frameworks is None or name in rule.frameworks],
    }


def _rule(rule: Rule) -> Document:
    return {
        "code": rule.code,
        "message": rule.message,
        "hint": rule.hint,
        "smallest_change": rule.smallest_change or rule.hint,
        "source": rule.source,
        "since": rule.since,
        "until": rule.until,
    }


def _choices(rows: Rows) -> object:
    """The rows up to the first one that always holds; its bare value where that is the very first."""
    # The first row whose conditions hold decides, so nothing behind a row without conditions can ever apply.
    shown = [{"value": row.value, "when": _conditions(row)} for row in rows]
    first_certain = next(i for i, entry in enumerate(shown) if not entry["when"])
    return shown[0]["value"] if first_certain == 0 else shown[: first_certain + 1]


def _conditions(row: Row) -> Document:
    conditions = {
        "since": row.since if row.since > "0000-00" else None,
        "before": row.before if row.before < "9999-99" else None,
        "gpu_generations": sorted(row.generations) if row.generations else None,
        "transformer_impl": row.impl,
        "precisions": sorted(row.precisions) if row.precisions else None,
        "compile": row.compiled,
        "framework_version": row.since_version or None,
        "recipe": row.recipe,
    }
    return {name: value for name, value in conditions.items() if value is not None}
