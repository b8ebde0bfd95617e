"""From what a strategy says of its replicas to the job that prices it so."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cost_models.job import Job, PooledJob
from cost_models.specs.method import Method
from planner.schemas.method import method_of
from planner.schemas.plan_request import PlanRequest
from planner.schemas.strategy import StrategyInput

Reason = dict[str, str]


def with_method(pooled: PooledJob, method: Method) -> PooledJob:
    """The job with another way of keeping its replicas together: the same object for the same two, and the job itself where nothing is
    said.
    """
    if all(job.method == method for job in pooled.jobs):
        return pooled
    if pooled.cluster.lists_pools:
        return replace(pooled, jobs=tuple(job_with(job, method) for job in pooled.jobs))
    return job_with(pooled.jobs[0], method).as_only_pool


@lru_cache(maxsize=512)
def job_with(job: Job, method: Method) -> Job:
    """The job with this method: one object for each pair, since tables are kept by job."""
    return replace(job, method=method)


def job_of(pooled: PooledJob, strategy: StrategyInput) -> PooledJob:
    """The job as this strategy prices it."""
    if strategy.sync is None and strategy.compression is None:
        return pooled
    return with_method(pooled, method_of(strategy.sync, strategy.compression))


def asks_methods(asked: PlanRequest) -> bool:
    """Whether a request allows or fixes any way but the framework's own."""
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    return any(each is not None for each in (fixed.sync, fixed.compression, allowed.sync, allowed.compression))


def job_of_request(pooled: PooledJob, asked: PlanRequest) -> PooledJob:
    """The job whose exact or rounded plans a request asks for. A fixed method that changes the mathematics never stands among them, so
    that the job's own plans stay, as what it is compared with.
    """
    own = job_of(pooled, asked.constraints.fixed)
    return pooled if own.jobs[0].method.mathematics == "changed" else own


def pool_problems(pooled: PooledJob) -> list[Reason]:
    """That no method but the plain one is priced where stages lie on several kinds of node."""
    if not pooled.cluster.lists_pools or pooled.jobs[0].method.is_plain:
        return []
    message = "strategy.sync and strategy.compression are not modelled on a cluster that lists pools"
    return [{"code": "not-modelled", "message": message, "hint": "Plan each pool as a cluster of its own."}]
