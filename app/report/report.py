"""What the pages are made from: a plan response, checked, with every plan completed by what follows from its request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.request.job import Documents

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlanView:
    """One ranked plan in full."""

    plan: Json
    """The ranked plan as the response holds it."""
    row: Json
    """Its evaluate row."""
    evaluation: Json
    """Its evaluation with every stage."""
    layers: list[list[list[int]]] | None
    """The decoder layers of each stage, counted from 1, as [first, last] of each of its chunks."""

    @property
    def rank(self) -> int:
        return int(self.plan["rank"])

    @property
    def strategy(self) -> Json:
        """The strategy with every field filled in."""
        result: Json = self.plan["strategy"]
        return result

    def name(self, figure: str) -> str:
        """A name for a figure of this plan that is unique on a page with several plans."""
        return f"{figure}-{self.rank}"


@dataclass(frozen=True, slots=True)
class Report:
    """A response and its plans in full, as pages show them."""

    response: Json
    plans: tuple[PlanView, ...]
    """Those that get pages of their own, best first; near-copies are among them."""
    address: str | None = None
    """Path of the served report, such as "/plans/plan_12ab"; None in a file, where everything stands on one page."""
    allow_files: bool = False
    """Whether the request's `cluster.calibration` may be a path."""
    calibrations: Documents = field(default_factory=dict)
    """The reader's own calibration documents that the request may name, by id and name."""

    @property
    def request(self) -> Json:
        """The request with every default filled in."""
        result: Json = self.response["request"]
        return result

    def plan(self, rank: int) -> PlanView:
        """The plan of a rank, which must be listed."""
        return next(view for view in self.plans if view.rank == rank)

    def leader(self, rank: int) -> int:
        """The plan that stands for a plan: that of which it is a near-copy, else itself."""
        folded = self.plan(rank).plan.get("folded_under")
        return rank if folded is None else int(folded)

    def link(self, rank: int) -> str:
        """Where a plan is told in full: its page, or its place in the file, where a near-copy has none of its own."""
        if self.address is not None:
            return f"{self.address}/ranked/{rank}"
        return f"#plan-{self.leader(rank)}"
