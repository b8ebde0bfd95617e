"""What the planner is asked and answers, in the contract's names and human units, as Pydantic models.

The models validate what users send and document what they get (OpenAPI); the fast paths build plain dictionaries with
the same keys, and tests hold the two together.
"""

from __future__ import annotations

from planner.schemas.evaluation import Evaluation, Memory, Provenance, Reason, ReasonCode, StageReport, Verdict
from planner.schemas.plan_request import Constraints, PlanRequest
from planner.schemas.plan_response import PlanResponse, RankedPlan
from planner.schemas.row import EvaluateRow
from planner.schemas.strategy import StrategyInput

__all__ = [
    "Constraints",
    "EvaluateRow",
    "Evaluation",
    "Memory",
    "PlanRequest",
    "PlanResponse",
    "Provenance",
    "RankedPlan",
    "Reason",
    "ReasonCode",
    "StageReport",
    "StrategyInput",
    "Verdict",
]
