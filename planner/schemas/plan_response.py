"""The answer to a plan request: ranked plans, how they were found, and why the others were ruled out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from planner.schemas.base import SCHEMA_VERSION, ContractModel
from planner.schemas.evaluation import Evaluation, Reason
from planner.schemas.strategy import StrategyInput

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class RankedPlan(ContractModel):
    """One plan. The plans of a tie group are too close to call against its first one."""

    rank: int
    strategy: StrategyInput
    evaluation: Evaluation
    tie_group: int
    variant_of: int | None = None
    """Rank of a better plan with the same degrees and micro-batch, from which this one differs only in knobs."""
    folded_under: int | None = None
    """Rank of such a plan whose step takes equally long, to within what two runs of the same plan differ by."""
    against_next: str | None = None
    """What it gains and loses, term by term, against the next plan that is not folded under the same one."""


class Tie(ContractModel):
    """Plans that are too close to call, and the two whose measurement would tell the most."""

    tie_group: int
    ranks: list[int]
    measure: list[int]


class Proof(ContractModel):
    """How sure it is that the searched space holds nothing better."""

    optimal: bool
    gap: float | None
    """(best - lower bound) / best; 0 if optimal, null without a plan."""
    lower_bound_s: float | None


class SearchReport(ContractModel):
    """How the plans were found."""

    methods: list[str]
    space: dict[str, list[Any]]
    """The values that each axis took."""
    not_searched: dict[str, str] = Field(default_factory=dict)
    """The reason for every other field that the framework has: why it cannot gain, or how to have it searched."""
    total: int
    """Strategies of the searched space: `bounded`, those in `rejected`, `feasible` and `unsearched` add up to it. Open splits count as
    far as they are ranked; on pools one strategy on one placement stands for all splits of its layers."""
    bounded: int
    """Strategies that were not priced because a bound of their time excludes them, or because they only repeat another one."""
    evaluated: int
    """Strategies that were priced. Those that are not feasible miss a target and are among the rejected."""
    feasible: int
    """Strategies that were priced and could be ranked: they fit and meet the targets."""
    unsearched: int
    """Strategies that are left because the search was stopped or, on pools, because its work on virtual stages is limited."""
    elapsed_s: float
    proof: Proof


class NearestInfeasible(ContractModel):
    """A strategy that only just fails, and the smallest change that would make it work."""

    strategy: StrategyInput
    reasons: list[Reason]
    smallest_change: str


class InexpressibleBest(ContractModel):
    """A faster strategy that this framework and version cannot be told to run."""

    strategy: StrategyInput
    reasons: list[Reason]
    step_time_s: float
    gain_fraction: float
    """The step time that it would save, as a share of the best plan's."""


class PlanResponse(ContractModel):
    """The answer. `plans` is empty if nothing fits; `rejected` and `nearest_infeasible` then tell why."""

    id: str
    status: Status
    created_at: str
    """RFC 3339, UTC."""
    product_version: str
    model_revision: str | None = None
    """Digest of the cost models and the planner that computed the answer, since another revision may price differently. Null until
    the answer is computed."""
    schema_version: int = SCHEMA_VERSION
    request: dict[str, Any]
    """The request with presets resolved and defaults filled in."""
    plans: list[RankedPlan]
    ties: list[Tie] = Field(default_factory=list)
    search: SearchReport | None
    rejected: dict[str, int]
    """How many strategies were ruled out, by reason code; one that breaks several rules counts under the first."""
    nearest_infeasible: list[NearestInfeasible]
    inexpressible_best: InexpressibleBest | None = None
    pareto: list[dict[str, Any]] = Field(default_factory=list)
    what_if: list[dict[str, Any]] = Field(default_factory=list)
    warnings: list[str]
    request_digest: str
