"""A planner's answer, split into what a list shows, what a plan shows, and the detail of each rank, as JSON texts.

The detail of every pipeline stage makes up most of an answer, and few clients read it; so it is stored apart, some ranks at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.service.db.packing import blocks_of, packed

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a finished planning job leaves behind.

    It is compressed where it is made, in the worker's process: the service would have to hold the database's lock while it does.
    """

    response: bytes
    """The answer without stages, a packed JSON text."""
    headline: str
    """The few facts that a list shows, as JSON."""
    ranked: tuple[bytes, ...]
    """The ranked plans with per-stage detail, best first, in packed blocks of JSON texts."""
    gap: float | None = None
    """How far the best plan may be from the bound, as a share; None without a plan."""

    @classmethod
    def of_texts(cls, *, response: str, headline: str, ranked: Sequence[str], gap: float | None = None) -> PlanResult:
        """The result with these JSON texts, one for each ranked plan."""
        return cls(packed(response), headline, blocks_of(ranked), gap)

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes at rest."""
        return len(self.response) + len(self.headline) + sum(map(len, self.ranked))


def split_response(response: Document) -> PlanResult:
    """The response without stages, its headline, and its ranked plans with all their detail."""
    ranked = [encoded(entry) for entry in response["plans"]]
    summaries = {
        name: [{**entry, "evaluation": without_stages(entry["evaluation"])} for entry in response[name]]
        for name in ("plans", "changed_plans")
        if name in response
    }
    summary = encoded({**response, **summaries})
    search = response.get("search") or {}
    gap = search.get("proof", {}).get("gap")
    return PlanResult.of_texts(response=summary, headline=encoded(_headline(response)), ranked=ranked, gap=gap)


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
