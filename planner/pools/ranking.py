"""The k best plans of a search on pools, and the best that the framework cannot be told to run."""

from __future__ import annotations

from bisect import insort

import numpy as np

from cost_models.job import PooledJob
from cost_models.strategies.strategy import Strategies
from planner.pools.found import Plan, PoolsFound
from planner.rules import violations
from planner.rules.expressible import SPLIT_CODES
from planner.search.objective import Goal
from planner.splits.gaps import TOLERANCE


class Ranking:
    """Keeps what is found in its place."""

    def __init__(self, pooled: PooledJob, found: PoolsFound, *, goal: Goal, top_k: int, one_each: bool) -> None:
        """`found` is where plans are kept; with `one_each` the best split of every family alone is ranked."""
        self.pooled, self.found, self.goal = pooled, found, goal
        self.top_k, self.one_each = top_k, one_each
        self._counted = set[tuple[object, ...]]()

    @property
    def limit(self) -> float:
        """Value above which nothing counts: the k-th best."""
        best = self.found.best
        return best[-1].value * (1.0 + TOLERANCE) if len(best) == self.top_k else np.inf

    @property
    def best_value(self) -> float:
        """The best value of all, launchable or not."""
        known = [*self.found.best[:1], *([self.found.inexpressible] if self.found.inexpressible else [])]
        return min((plan.value for plan in known), default=np.inf)

    def keep(self, row: Strategies, weight: float, *, step_s: float, counted: bool = False) -> bool:
        """Ranks a plan that fits, or keeps it apart where the framework cannot be told its split; false where it is too slow.

        With `counted` the plan's family counts as priced, once.
        """
        found, value = self.found, float(self.goal.value_of_world(np.array([weight]), np.array([step_s]))[0])
        if value > self.limit or not self.goal.reached(np.array([step_s]))[0]:
            return False
        plan = Plan(row, step_s, value)
        if all(violations(job, row).only(SPLIT_CODES).legal[0] for job in self.pooled.whole):
            if counted and plan.family not in self._counted:
                self._counted.add(plan.family)
                found.evaluated, found.feasible = found.evaluated + 1, found.feasible + 1
            self._insert(plan)
        elif found.inexpressible is None or plan.order < found.inexpressible.order:
            found.inexpressible = plan
        return True

    def _insert(self, plan: Plan) -> None:
        best = self.found.best
        # Near-copies that differ in their split alone would fill the ranking.
        if self.one_each:
            same = next((at for at, each in enumerate(best) if each.family == plan.family), None)
            if same is not None and best[same].order <= plan.order:
                return
            if same is not None:
                del best[same]
        insort(best, plan, key=_order)
        del best[self.top_k :]


def _order(plan: Plan) -> tuple[object, ...]:
    return plan.order
