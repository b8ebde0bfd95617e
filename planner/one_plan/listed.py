"""The ranked plans of a response as one batch, with the job that they were priced for: what any price asked again starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.errors import InvalidInputError, Problem
from cost_models.job import PooledJob
from cost_models.pools.time import pooled_step_time
from cost_models.specs.method import Method
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Floats, Strategies
from planner.one_plan.given import other_revision
from planner.one_plan.neighbours import SAME_PRICE
from planner.request.job import Documents, resolve_pooled_job
from planner.request.methods import job_with
from planner.schemas.method import method_of
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools

Document = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ListedPlans:
    """Ranked plans that can be priced again."""

    pooled: PooledJob
    strategies: Strategies
    """One row for each plan; layouts keep every stage."""
    plans: tuple[Document, ...]
    """The ranked plans in the order of the rows."""
    methods: tuple[Method, ...]
    """How the replicas of each stay together."""

    @property
    def ranks(self) -> list[int]:
        """Rank of each row's plan."""
        return [int(plan["rank"]) for plan in self.plans]

    def step_s(self, pooled: PooledJob) -> Floats:
        """Seconds of a step of each plan on this job, shape (N,)."""
        if pooled.cluster.lists_pools:
            return pooled_step_time(pooled, self.strategies).total_s
        # Plans of several methods are priced method by method, each on its own job.
        found = np.empty(len(self.strategies))
        for method in dict.fromkeys(self.methods):
            rows = np.array([own == method for own in self.methods])
            found[rows] = step_time(job_with(pooled.jobs[0], method), self.strategies.take(rows)).total_s
        return found


def job_of_response(response: Document, *, extra: Documents | None = None, allow_files: bool = False) -> PooledJob:
    """The job that a response answers.

    Raises:
        InvalidInputError: another product or revision of the models wrote the response, which would price it differently.
    """
    if other := other_revision(response):
        hint = "Show it with the version that wrote it, or plan again with this one."
        message = f"the response was written by {other}: its plans cannot be priced as it had them"
        raise InvalidInputError([Problem("/model_revision", message, hint, "other-revision")])
    return resolve_pooled_job(response["request"], extra=extra, allow_files=allow_files, states_version=True)


def listed_plans(
    response: Document, plans: Sequence[Document], *, extra: Documents | None = None, allow_files: bool = False
) -> ListedPlans:
    """These plans of a response, checked to be priced as they were.

    Args:
        response: a plan response.
        plans: those of its `plans` that are wanted, at least one.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    Raises:
        InvalidInputError: the response is of another revision, or its calibration is no longer the one that it was priced with.
    """
    pooled = job_of_response(response, extra=extra, allow_files=allow_files)
    # A response has every field filled in, so that no default can have changed since.
    given = [StrategyInput.model_validate(plan["strategy"]) for plan in plans]
    resolved = resolve_on_pools([pooled] * len(given), given)
    if resolved.strategies is None or len(resolved.strategies) < len(given):
        reasons = [reason for problems in resolved.problems for reason in problems]
        raise InvalidInputError([Problem("/plans", each["message"], each["hint"], each["code"]) for each in reasons])
    methods = tuple(method_of(each.sync, each.compression) for each in given)
    listed = ListedPlans(pooled, resolved.strategies, tuple(plans), methods)
    then = np.array([plan["evaluation"]["step_time_s"] for plan in plans])
    # The revision covers formulas and shipped data, but not a calibration that lies in a file or was uploaded.
    if (np.abs(listed.step_s(pooled) - then) > SAME_PRICE * then).any():
        message = "the plans are not priced as they were: the calibration has changed since"
        hint = "Give the calibration that it was planned with, or plan again."
        raise InvalidInputError([Problem("/request/cluster/calibration", message, hint, "other-price")])
    return listed
