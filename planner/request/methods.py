"""From what a strategy says of its replicas to the job that prices it so."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cost_models.errors import Problem
from cost_models.job import Job, PooledJob
from cost_models.specs.method import Method
from planner.rules.replicas import COMPRESSION_SOURCES, SYNC_SOURCES, able
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
    # Naming the plain method asks for nothing new, but costs little to look at.
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    return any(each is not None for each in (fixed.sync, fixed.compression, allowed.sync, allowed.compression))


# A fixed method that rounds is what the request wants of every plan, as a fixed precision would be.
def job_of_request(pooled: PooledJob, asked: PlanRequest) -> PooledJob:
    """The job whose exact or rounded plans a request asks for. A fixed method that changes the mathematics never stands among them, so
    that the job's own plans stay, as what it is compared with.
    """
    own = job_of(pooled, asked.constraints.fixed)
    return pooled if own.jobs[0].method.mathematics == "changed" else own


def methods_not_run(asked: PlanRequest, pooled: PooledJob) -> list[Problem]:
    """Problems with ways that a request lists or fixes and that its framework does not run at all, whatever the degrees are."""
    # Refused before the search, since no degrees would help and a search would only count all of its strategies as rejected.
    framework, fixed, allowed = pooled.jobs[0].training.framework, asked.constraints.fixed, asked.constraints.allowed
    given = [(f"allowed/sync/{at}", each.method) for at, each in enumerate(allowed.sync or ())]
    given += [(f"allowed/compression/{at}", each.kind) for at, each in enumerate(allowed.compression or ())]
    if fixed.sync is not None:
        given.append(("fixed/sync", fixed.sync.method))
    if fixed.compression is not None:
        given.append(("fixed/compression", fixed.compression.kind))
    choices = pooled.jobs[0].framework.choices
    # No name stands in both tables, so that one look-up serves either field.
    sources = {str(name): told for name, told in (*SYNC_SOURCES.items(), *COMPRESSION_SOURCES.items())}
    found = []
    for where, name in given:
        if name in ("every-step", "none"):
            continue
        at, field = f"/constraints/{where}", where.split("/")[1]
        if pooled.cluster.lists_pools:
            message = f"{field} {name!r} is not modelled on a cluster that lists pools"
            found.append(Problem(at, message, "Plan each pool as a cluster of its own.", "not-modelled"))
        elif name not in choices.syncs and name not in choices.compressions:
            message = f"{framework} does not run {field} {name!r} ({sources[name]})"
            found.append(Problem(at, message, able(name), f"{field}-unsupported"))
    return found


def pool_problems(pooled: PooledJob) -> list[Reason]:
    """That no method but the plain one is priced where stages lie on several kinds of node."""
    if not pooled.cluster.lists_pools or pooled.jobs[0].method.is_plain:
        return []
    message = "strategy.sync and strategy.compression are not modelled on a cluster that lists pools"
    return [{"code": "not-modelled", "message": message, "hint": "Plan each pool as a cluster of its own."}]
