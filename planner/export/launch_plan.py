"""What a launch has to say: one plan on its cluster, every field filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import validated
from cost_models.job import Job, PooledJob
from cost_models.replicas.groups import group_job, num_groups, within_group
from cost_models.strategies.strategy import Strategies
from planner.request.job import Documents, resolve_pooled_job
from planner.request.methods import job_of, pool_problems
from planner.request.resolved import model_document, training_document
from planner.schemas.method import method_document
from planner.schemas.plan_request import MOST_PLANS
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools
from planner.strategies.told import strategy_dict


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind that a plan uses."""

    pool: str
    """Name of the pool; the cluster's name where there is only one kind."""
    num_nodes: int
    ranks_per_node: int
    """GPUs of each node that the plan uses."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """One legal strategy with its job."""

    pooled: PooledJob
    row: Strategies
    """A batch of one that keeps every stage."""
    groups: int = 1
    """Launches that train together, of which this is one."""

    def of_one_group(self) -> LaunchPlan:
        """The launch of one group of replicas, where each group is started by itself; else this one."""
        job = self.pooled.jobs[0]
        if not (job.method.is_local and job.framework.choices.replica_groups):
            return self
        # The method stays, since the launch has to say it; only the cluster is that of one group.
        own = replace(job, cluster=group_job(job).cluster)
        count = int(num_groups(job, self.row)[0])
        return LaunchPlan(PooledJob.of_one_kind(own), within_group(job, self.row), groups=count)

    @property
    def job(self) -> Job:
        """The job on the first pool that the plan uses; pools share the model, and the training but for what follows from the GPU."""
        pools = self.strategy.get("pool_per_stage")
        return self.pooled.jobs[self.pooled.names.index(pools[0]) if pools else 0]

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The model in the contract's names, with every field that says something."""
        return model_document(self.job.model)

    @cached_property
    def training(self) -> Mapping[str, Any]:
        """The training in the contract's names, with every field that says something."""
        return training_document(self.job.training)

    @cached_property
    def strategy(self) -> Mapping[str, Any]:
        """The strategy in the contract's names, with everything filled in; `overlap` and `offload` are objects."""
        return strategy_dict(self.row, 0) | method_document(self.pooled.jobs[0].method)

    @property
    def world_size(self) -> int:
        """Ranks that are started: tp * pp * cp * dp."""
        named = self.strategy
        return int(named["tp"] * named["pp"] * named["cp"] * named["dp"])

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of each replica in a step."""
        at_once = self.groups * self.strategy["dp"] * self.strategy["micro_batch_size"]
        return int(self.training["global_batch_size"] // at_once)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Decoder layers of each of the pp * vpp virtual stages, in model order."""
        return tuple(self.strategy["layers_per_stage"])

    @property
    def generation(self) -> str:
        """Architecture of the GPU of the first stage, such as "hopper"."""
        return self.job.cluster.gpu.generation

    @cached_property
    def nodes(self) -> tuple[NodeGroup, ...]:
        """The nodes in the order of their ranks: pool by pool, as the stages lie on them."""
        pools = self.strategy.get("pool_per_stage") or [self.pooled.names[0]] * self.strategy["pp"]
        stage_ranks = self.world_size // self.strategy["pp"]
        found = []
        for pool, stages in groupby(pools):
            ranks = stage_ranks * len(list(stages))
            # Ranks fill nodes one after the other; only a group of less than a node leaves GPUs of its node idle.
            per_node = self.pooled.jobs[self.pooled.names.index(pool)].cluster.gpus_per_node
            name = pool if self.pooled.cluster.lists_pools else self.job.cluster.name
            found.append(NodeGroup(name, -(-ranks // per_node), min(ranks, per_node)))
        return tuple(found)


def launch_plan(row: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False) -> LaunchPlan:
    """The plan of an evaluate row.

    Args:
        row: `{"model", "cluster", "training", "strategy"}`.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    Raises:
        InvalidInputError: a field is wrong, or the framework would refuse the strategy; every reason is listed.
    """
    pooled = resolve_pooled_job(row, calibration=None, extra=extra or {}, allow_files=allow_files)
    given = validated(StrategyInput, row.get("strategy", {}), pointer="/strategy")
    pooled = job_of(pooled, given)
    resolved = resolve_on_pools([pooled], [given])
    reasons = [*pool_problems(pooled), *resolved.problems[0]]
    if resolved.strategies is not None and not reasons:
        broken = violations_on_pools(pooled, resolved.strategies)
        reasons = [] if broken.legal[0] else broken.reasons(0)
    if resolved.strategies is None or reasons:
        raise InvalidInputError([Problem("/strategy", each["message"], each["hint"], each["code"]) for each in reasons])
    return LaunchPlan(pooled, resolved.strategies)


def _how_to_get(response: Mapping[str, Any], rank: int, *, changed: bool) -> str:
    """What to do about a rank that a response lacks; a table may name one that a saved answer was not asked for."""
    count, asked = len(plans_of(response, changed=changed)), response["request"].get("top_k")
    if not count and changed:
        return "It has none: list ways under constraints.allowed.sync or constraints.allowed.compression."
    if not count:
        return "It has none, because no plan fits."
    ranks = f"Ranks: 1 to {count}."
    # A response with fewer plans than were asked for holds all that there are.
    if not 1 <= rank <= MOST_PLANS or (isinstance(asked, int) and count < asked):
        return ranks
    return f"{ranks} Plan again with --top {rank} --json, or over HTTP with a top_k of {rank}."


def plans_of(response: Mapping[str, Any], *, changed: bool) -> Sequence[Mapping[str, Any]]:
    """The ranked plans of a response, or those that change the mathematics, which older responses do not have."""
    found: Sequence[Mapping[str, Any]] = response.get("changed_plans", ()) if changed else response["plans"]
    return found


def row_of_plan(
    response: Mapping[str, Any], rank: int, *, framework_version: str | None = None, changed: bool = False
) -> dict[str, Any]:
    """The evaluate row of one ranked plan of a response.

    Args:
        response: what `plan` returned.
        rank: rank of the plan, from 1.
        framework_version: takes the place of the request's version.
        changed: whether the rank is one of `changed_plans`.

    Raises:
        InvalidInputError: the response has no plan of this rank.
    """
    request, plans = response["request"], plans_of(response, changed=changed)
    plan = next((each for each in plans if each["rank"] == rank), None)
    if plan is None:
        raise InvalidInputError(
            [
                Problem(
                    "/changed_plans" if changed else "/plans",
                    f"the response has no {'changed ' * changed}plan {rank}",
                    _how_to_get(response, rank, changed=changed),
                    "unknown-plan",
                )
            ]
        )
    # The request of a response has every default filled in, so the row prices as it was planned.
    training = dict(request["training"])
    if framework_version is not None:
        training["framework_version"] = framework_version
    return {
        "model": request["model"],
        "cluster": request["cluster"],
        "training": training,
        "strategy": plan["strategy"],
        **({"corrections": request["corrections"]} if request.get("corrections") else {}),
    }
