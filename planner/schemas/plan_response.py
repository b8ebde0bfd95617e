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
    """Number of the plan in the ranking; 1 is the best."""
    strategy: StrategyInput
    """How the job is split, with everything filled in; it can be sent back as it is."""
    evaluation: Evaluation
    """What the strategy costs."""
    tie_group: int
    """Number of the group of plans that are too close to call."""
    variant_of: int | None = None
    """Rank of a better plan with the same degrees and micro-batch, from which this one differs only in knobs."""
    folded_under: int | None = None
    """Rank of such a plan whose step takes equally long, to within what two runs of the same plan differ by."""
    against_next: str | None = None
    """What it gains and loses, term by term, against the next plan that is not folded under the same one."""


class Tie(ContractModel):
    """Plans that are too close to call, and the two whose measurement would tell the most."""

    tie_group: int
    """Number of the group."""
    ranks: list[int]
    """Ranks of its plans."""
    measure: list[int]
    """Ranks of the two plans to measure first."""


class Proof(ContractModel):
    """How sure it is that the searched space holds nothing better."""

    optimal: bool
    """Whether nothing in the searched space is better than the first plan."""
    gap: float | None
    """How far the best plan may be from the bound, as a share: (best - lower bound) / best. 0 if optimal, null without a
    plan."""
    lower_bound_s: float | None
    """Seconds of a step that no strategy of the searched space can undercut."""


class SearchReport(ContractModel):
    """How the plans were found."""

    methods: list[str]
    """The searches that ran."""
    space: dict[str, list[Any]]
    """The values that each axis took."""
    not_searched: dict[str, str] = Field(default_factory=dict)
    """The reason for every other field that the framework has: why it cannot gain, or how to have it searched."""
    total: int
    """Number of strategies of the searched space: `bounded`, those in `rejected`, `feasible` and `unsearched` add up to it.
    Open splits count as far as they are ranked; on pools one strategy on one placement stands for all splits of its
    layers."""
    bounded: int
    """Number of strategies that were not priced because a bound of their time excludes them, or because they only repeat
    another one."""
    evaluated: int
    """Number of strategies that were priced. Those that are not feasible miss a target and are among the rejected."""
    feasible: int
    """Number of strategies that were priced and could be ranked: they fit and meet the targets."""
    unsearched: int
    """Number of strategies that are left because the search was stopped or, on pools, because its work on virtual stages is
    limited."""
    rejected_by_methods: int | None = None
    """Number of strategies, of `total`, that were ruled out under a sync or compression of constraints.allowed; `rejected` does not
    count them. Given where there are any."""
    elapsed_s: float
    """Seconds that the search took."""
    proof: Proof
    """How sure the first place is."""


class NearestInfeasible(ContractModel):
    """A strategy that only just fails, and the smallest change that would make it work."""

    strategy: StrategyInput
    """The strategy."""
    reasons: list[Reason]
    """Why it fails."""
    smallest_change: str
    """The smallest change that makes it work, as a sentence."""


class InexpressibleBest(ContractModel):
    """A faster strategy that this framework and version cannot be told to run."""

    strategy: StrategyInput
    """The strategy."""
    reasons: list[Reason]
    """What the framework or its version lacks."""
    step_time_s: float
    """Seconds of one of its steps."""
    gain_fraction: float
    """The step time that it would save, as a share of the best plan's."""


class ChangedPlan(ContractModel):
    """One plan that changes the mathematics of training. What it costs in quality, or in steps, is not known."""

    rank: int
    """Number of the plan among the changed ones; 1 is the best."""
    strategy: StrategyInput
    """How the job is split, with everything filled in; it can be sent back as it is."""
    evaluation: Evaluation
    """What the strategy costs."""
    tie_group: int
    """Number of the group of plans that are too close to call; plans of two methods never share one."""
    break_even_extra_steps: float | None
    """Share of extra steps at which it stops being faster than the fastest exact plan: 0.34 means that it wins only if it needs fewer than
    34 % more steps. Null where there is no exact plan."""
    stated_time_ratio: float | None = None
    """Its time over that of the fastest exact plan, as a ratio, with the steps_factor that the request states; null without one."""


class ParetoPoint(ContractModel):
    """A strategy that no other one beats in all of its four figures."""

    strategy: StrategyInput
    """How the job is split; it can be sent back as it is."""
    step_time_s: float
    """Seconds of a step."""
    peak_device_bytes: float
    """Bytes that the fullest GPU holds at most."""
    num_gpus: float
    """Number of GPUs used."""
    cost_per_token: float
    """Cost of a token: in the currency of `price_per_gpu_hour`, or in GPU-seconds where no price is given."""
    method: Literal["exhaustive", "nsga-ii"]
    """How the front was found: exhaustively, or sampled because there are too many strategies."""


class WhatIfVariant(ContractModel):
    """The job with one thing changed, and its best plan. The first entry is the job as it was asked."""

    field: str
    """The field that is changed, or "as asked"."""
    value: int | None = None
    """Number that the field has in this variant; null for the job as it was asked."""
    num_gpus: int | None = None
    """Number of GPUs of the variant's best plan."""
    step_time_s: float | None = None
    """Seconds of a step."""
    tokens_per_s: float | None = None
    """Tokens per second of the whole job."""
    tokens_per_s_per_gpu: float | None = None
    """Tokens per second and GPU."""
    mfu: float | None = None
    """Share of the dense peak that the model's operations reach, from 0 to 1."""
    peak_device_bytes: float | None = None
    """Bytes that the fullest GPU holds at most."""
    plan: StrategyInput | None = None
    """The strategy of the best plan; null where the variant has none."""
    proof: Proof | None = None
    """How sure it is that the variant has no better plan."""
    speedup: float | None = None
    """Step time of the job as asked over that of the variant, as a ratio."""
    scaling_efficiency: float | None = None
    """Tokens per second and GPU over those of the job as asked, as a ratio."""
    reason: str | None = None
    """Why the variant has no plan, where it has none."""


class Asynchrony(ContractModel):
    """The best plan if its replicas did not wait for each other at every step, from a simulation. No framework here runs it."""

    staleness: int | None
    """Number of steps that a replica may be ahead of the slowest; null where nobody ever waits."""
    num_workers: int
    """Number of replicas that are simulated."""
    step_time_s: float
    """Seconds of a step."""
    saved_fraction: float
    """Share of the step that is saved, from 0 to 1; one slow GPU is not left behind, so that it is little on GPUs of one kind."""
    noise_fraction: float
    """Standard deviation of a replica's step from step to step, as a share of the step."""
    spread_fraction: float
    """Standard deviation of the replicas' own speeds, as a share of the step."""


class PlanResponse(ContractModel):
    """The answer. `plans` is empty if nothing fits; `rejected` and `nearest_infeasible` then tell why."""

    id: str
    """Id of the plan."""
    status: Status
    """State of the job; plans are there once it is `succeeded`."""
    created_at: str
    """RFC 3339, UTC."""
    product_version: str
    """Release of meshwright that answered."""
    model_revision: str | None = None
    """Digest of the cost models and the planner that computed the answer, since another revision may price differently. Null until
    the answer is computed."""
    schema_version: int = SCHEMA_VERSION
    """Version of this document's form."""
    plans: list[RankedPlan]
    """The ranked plans, best first. Over HTTP they come without the memory of every stage, which `/ranked/{rank}` has."""
    ties: list[Tie] = Field(default_factory=list)
    """Groups of plans that are too close to call."""
    search: SearchReport | None
    """How the plans were found and how sure it is that nothing is better. Null until the job is done."""
    rejected: dict[str, int]
    """Number of strategies that were ruled out, by reason code; one that breaks several rules counts under the first."""
    nearest_infeasible: list[NearestInfeasible]
    """Strategies that only just fail, where no plan fits."""
    inexpressible_best: InexpressibleBest | None = None
    """A better strategy that the framework cannot be told to run, where there is one."""
    changed_plans: list[ChangedPlan] = Field(default_factory=list)
    """The best plans of the methods under constraints.allowed.sync and constraints.allowed.compression that change the mathematics, best
    first, in a ranking of their own."""
    warnings: list[str]
    """Sentences and codes that qualify the whole answer."""
    pareto: list[ParetoPoint] = Field(default_factory=list)
    """Plans that no other one beats in time, memory, GPUs and cost at once; given for `include: ["pareto"]`."""
    what_if: list[WhatIfVariant] = Field(default_factory=list)
    """The best plans of the same job on other numbers of nodes, with other micro-batches and with other sequence lengths; given for
    `include: ["what_if"]`."""
    asynchrony: list[Asynchrony] = Field(default_factory=list)
    """What stale-synchronous and asynchronous updates would save the best plan; given for `include: ["what_if"]`. They change the
    mathematics."""
    request_digest: str
    """Digest of the request, the models' revision and the calibration: the same digest has the same answer."""
    request: dict[str, Any]
    """The request with presets resolved and defaults filled in."""
