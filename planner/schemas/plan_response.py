"""What a plan request is answered with: ranked plans, how they were found, and why the rest were not."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from planner.schemas.base import ContractModel
from planner.schemas.evaluation import Evaluation, Reason
from planner.schemas.strategy import StrategyInput

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
SCHEMA_VERSION = 1


class RankedPlan(ContractModel):
    """One plan. Plans of a tie group cannot be told from its first by what is known."""

    rank: int
    strategy: StrategyInput
    evaluation: Evaluation
    tie_group: int
    variant_of: int | None = None
    """Rank of a better plan with the same degrees and micro-batch: they differ only in a knob."""
    folded_under: int | None = None
    """Rank of such a plan whose step is as long to within what two runs of one plan differ by."""
    against_next: str | None = None
    """What it gains and loses by term against the next plan that is not folded under the same one."""


class Tie(ContractModel):
    """Plans that the model cannot tell apart, and the two whose measurement says most."""

    tie_group: int
    ranks: list[int]
    measure: list[int]


class Proof(ContractModel):
    """How sure it is that nothing better lies in the searched space."""

    optimal: bool
    gap: float | None
    """(best - lower bound) / best; 0 when optimal, null without a plan."""
    lower_bound_s: float | None


class SearchReport(ContractModel):
    """How the plans were found."""

    methods: list[str]
    space: dict[str, list[Any]]
    """Values that each axis took."""
    evaluated: int
    feasible: int
    elapsed_s: float
    proof: Proof


class NearestInfeasible(ContractModel):
    """A strategy that just fails, and the smallest change that would make it work."""

    strategy: StrategyInput
    reasons: list[Reason]
    smallest_change: str


class InexpressibleBest(ContractModel):
    """A faster strategy that this framework and version cannot be told to run."""

    strategy: StrategyInput
    reasons: list[Reason]
    step_time_s: float
    gain_fraction: float
    """Step time saved over the best plan, as a share of it."""


class PlanResponse(ContractModel):
    """The answer. `plans` is empty when nothing fits; the reasons are then in `rejected` and `nearest_infeasible`."""

    id: str
    status: Status
    created_at: str
    """RFC 3339, UTC."""
    product_version: str
    model_revision: str | None = None
    """Digest of the cost models and the planner that computed the answer; another revision may price otherwise. Null before."""
    schema_version: int = SCHEMA_VERSION
    request: dict[str, Any]
    """The request with presets resolved and defaults filled."""
    plans: list[RankedPlan]
    ties: list[Tie] = Field(default_factory=list)
    search: SearchReport | None
    rejected: dict[str, int]
    """Strategies ruled out, by reason code (the first rule that was broken)."""
    nearest_infeasible: list[NearestInfeasible]
    inexpressible_best: InexpressibleBest | None = None
    pareto: list[dict[str, Any]] = Field(default_factory=list)
    what_if: list[dict[str, Any]] = Field(default_factory=list)
    warnings: list[str]
    request_digest: str
