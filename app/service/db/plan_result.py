"""A planner's answer, split into what a list shows, what a plan shows, and the detail of each rank, as JSON texts.

The detail of every pipeline stage makes up most of an answer, and few clients read it; so it is stored apart, rank by rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a finished planning job leaves behind, as JSON texts."""

    response: str
    headline: str
    ranked: tuple[str, ...]
    """One document per rank, with per-stage detail, best first."""


def split_response(response: Document) -> PlanResult:
    """The response without stages, its headline, and its ranked plans with all their detail."""
    ranked = tuple(encoded(entry) for entry in response["plans"])
    summaries = [{**entry, "evaluation": without_stages(entry["evaluation"])} for entry in response["plans"]]
    return PlanResult(encoded({**response, "plans": summaries}), encoded(_headline(response)), ranked)


def without_stages(evaluation: Document) -> Document:
    """The evaluation without the stages of its memory."""
    memory = evaluation.get("memory")
    if not memory:
        return evaluation
    return {**evaluation, "memory": {**memory, "stages": None}}


def encoded(document: Any) -> str:
    """Compact JSON; raises for NaN and Infinity, which no answer may contain."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _headline(response: Document) -> Document:
    best = response["plans"][0]["evaluation"] if response["plans"] else {}
    return {
        "num_plans": len(response["plans"]),
        "step_time_s": best.get("step_time_s"),
        "tokens_per_s_per_gpu": best.get("tokens_per_s_per_gpu"),
        "num_gpus_used": best.get("num_gpus_used"),
    }
