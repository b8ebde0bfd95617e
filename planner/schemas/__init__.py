"""What the planner is asked and answers, in the contract's names and human units, as Pydantic models.

The models validate what users send and document what they get (OpenAPI); the fast paths build plain dictionaries with
the same keys, and tests hold the two together. So `meshwright plan` never needs the models of answers: they are defined when the
service first asks for them, which saves the command 5 ms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from planner.schemas.plan_request import Constraints, PlanRequest
from planner.schemas.row import EvaluateRow
from planner.schemas.strategy import StrategyInput

if TYPE_CHECKING:
    from planner.schemas.evaluation import Evaluation, Memory, Provenance, Reason, ReasonCode, StageReport, Verdict
    from planner.schemas.plan_response import PlanResponse, RankedPlan

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


def __getattr__(name: str) -> Any:
    """A model of answers, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "plan_response" if name in ("PlanResponse", "RankedPlan") else "evaluation"
    return getattr(import_module(f"{__name__}.{home}"), name)
