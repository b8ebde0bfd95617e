"""The frameworks as plain data: releases, every default, what each can spell, and the rules it is judged by.

What `GET /v1/presets/frameworks` shows. Messages and hints of rules are templates over the strategy that breaks them.
"""

from __future__ import annotations

from typing import Any

from cost_models.frameworks.facts import RUNTIMES, FrameworkFacts
from cost_models.frameworks.training_defaults import RELEASES, STATE_DTYPES, TRAINING_DEFAULTS, Row
from cost_models.layers.parameters import VOCAB_MULTIPLE_PER_TP
from cost_models.strategies.strategy import NAMES
from planner.rules import RULES
from planner.rules.degrees import CP_COMM
from planner.rules.pipeline import SCHEDULES
from planner.rules.rule import Rule
from planner.strategies.defaults import STRATEGY_DEFAULTS, default_zero

Document = dict[str, Any]


def framework_documents() -> list[Document]:
    """One document per framework: name, versions, defaults, what can be spelled, rules."""
    return [_document(framework) for framework in RUNTIMES.values()]


def _document(framework: FrameworkFacts) -> Document:
    name = framework.framework
    own = STRATEGY_DEFAULTS[name]
    return {
        "name": name,
        "default_version": framework.default_version,
        "versions": [{"version": version, "released": month} for version, month in RELEASES[name]],
        "strategy_defaults": {
            "zero": framework.default_zero,
            "zero_in_pipelines": default_zero(framework, 2),
            "sequence_parallel": framework.default_sequence_parallel,
            "etp": "tp" if framework.etp_defaults_to_tp else 1,
            "recompute": NAMES["recompute"][own.recompute],
            "cp_comm": NAMES["cp_comm"][own.cp_comm],
            "moe_dispatcher": NAMES["moe_dispatcher"][own.moe_dispatcher],
            "layers_per_stage": framework.split_rule,
            "overlap": dict(framework.overlaps),
            "overlap_from_zero": framework.overlaps_from_zero,
        },
        "training_defaults": {
            **{field: _choices(rows, name) for field, rows in TRAINING_DEFAULTS.items()},
            **STATE_DTYPES[name],
        },
        "choices": {
            "zero": list(framework.supports_zero),
            "schedule": [NAMES["schedule"][schedule] for schedule in SCHEDULES[name]],
            "cp_comm": [NAMES["cp_comm"][comm] for comm in CP_COMM[name]],
            "vpp": framework.has_interleaving,
        },
        "vocabulary_multiple_per_tp": VOCAB_MULTIPLE_PER_TP[name],
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


def _choices(rows: tuple[Row, ...], framework: str) -> object:
    """The rows that can hold for this framework; the bare value where only one does and it always does."""
    mine = [row for row in rows if row.frameworks is None or framework in row.frameworks]
    shown = [{"value": row.value, "when": _conditions(row)} for row in mine]
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
