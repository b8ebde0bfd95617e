"""What a framework and version can be told to run: which splits of the layers, and whether stages may recompute differently."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.strategy import Strategies
from planner.rules import active_rules, violations

SPLIT_CODES = frozenset({"split-unsupported"})
"""Codes of the rules that a split other than the framework's own may break."""


@lru_cache(maxsize=512)
def splits_freely(job: Job) -> bool:
    """Whether this framework and version can be told any list of layers per stage."""
    restricted = any(rule.code in SPLIT_CODES for rule in active_rules(job))
    return job.framework.splits.told is not None and not restricted


def inexpressible_reasons(job: Job, row: Strategies) -> list[dict[str, str]]:
    """Why this framework cannot launch the split or the recomputation of a strategy (a batch of one): the contract's reasons."""
    layout = row.layouts.table[int(row.layout[0])]
    name = f"{job.training.framework} {job.training.framework_version}"
    found: list[dict[str, Any]] = []
    if layout.recompute_per_stage is not None:
        message = (
            f"{name} recomputes the same number of layers on every stage, unlike {list(layout.recompute_per_stage)}"
        )
        hint = "Count the layers of each stage in the model's own forward, or take the best launchable plan."
        found.append({"code": "recompute-per-stage-mismatch", "message": message, "hint": hint})
    if not violations(job, row).only(SPLIT_CODES).legal[0]:
        message = f"{name} has no setting for layers_per_stage {list(layout.layers)}"
        able = " or ".join(sorted(frameworks_where(lambda facts: facts.splits.told is not None)))
        hint = f"Use a recent release of {able}, or take the best launchable plan."
        found.append({"code": "split-unsupported", "message": message, "hint": hint})
    return found
