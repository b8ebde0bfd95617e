"""The best plan for a job among those that a target can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InvalidInputError, MeshwrightError, NotExpressibleError
from planner.export.export import said, version_of
from planner.export.launch_plan import launch_plan, row_of_plan
from planner.export.nearest import apply_values
from planner.export.target import Target
from planner.plan import plan
from planner.request.job import Documents
from planner.rows import evaluate_rows
from planner.search.progress import Progress

Json = dict[str, Any]
TOP = 25
"""Plans that are looked through in one search."""
_MOST_SEARCHES = 8


@dataclass(frozen=True)
class BestPlan:
    """A ranked plan that the target can say."""

    ranked: Json
    row: Json
    """As an evaluate row."""
    version: str
    """Of the target."""


def best_plan(
    row: Mapping[str, Any],
    target: Target,
    *,
    extra: Documents | None = None,
    allow_files: bool = False,
    time_limit_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> BestPlan | None:
    """The best plan for the job of a row, on as many GPUs, that the target can say; None where there is none.

    Plans are taken in their order. Where the target says none of the first ones, the search is repeated with the values of the field
    that was refused which it can say.
    """
    allowed: dict[str, list[Any]] = {}
    asked = _on_as_many_gpus(row, extra=extra, allow_files=allow_files)
    version = version_of(target, None, launch_plan(row, extra=extra, allow_files=allow_files))

    def can_be_said(candidate: Json) -> None:
        said(launch_plan(candidate, extra=extra, allow_files=allow_files), target, version)

    def searched(*, idle: bool) -> Json:
        request = {
            **{part: asked[part] for part in ("model", "cluster", "training")},
            "constraints": {"allowed": _nested(allowed), "allow_idle_gpus": idle}, "top_k": TOP, "time_limit_s": time_limit_s,
        }  # fmt: skip
        return plan(
            request, calibrations=extra, allow_files=allow_files, on_progress=on_progress, should_stop=should_stop
        )

    for _ in range(_MOST_SEARCHES):
        # A launch starts a number of ranks that the files say in more than one place, so it is kept if it can be.
        response = searched(idle=False)
        if not response["plans"]:
            response = searched(idle=True)
        refused: NotExpressibleError | None = None
        for ranked in response["plans"]:
            candidate = row_of_plan(response, ranked["rank"])
            try:
                can_be_said(candidate)
            except NotExpressibleError as refusal:
                refused = refused or refusal
                continue
            if asked is not row:
                candidate["cluster"] = row["cluster"]
                ranked["evaluation"] = next(iter(evaluate_rows([candidate], extra=extra, allow_files=allow_files)))
            return BestPlan(ranked, candidate, version)
        further = _restricted(response, refused, can_be_said) if refused is not None else {}
        if not further or further.items() <= allowed.items():
            return None
        allowed |= further
    return None


def _on_as_many_gpus(row: Mapping[str, Any], *, extra: Documents | None, allow_files: bool) -> Mapping[str, Any]:
    """The row on a cluster of just the GPUs that its strategy uses, where these are the same number on every node."""
    plan_of_row = launch_plan(row, extra=extra, allow_files=allow_files)
    cluster, world = plan_of_row.pooled.cluster, plan_of_row.world_size
    if cluster.lists_pools or "dp" not in row["strategy"] or world == cluster.num_gpus:
        return row
    nodes = sum(group.num_nodes for group in plan_of_row.nodes)
    if world % nodes:
        return row
    cut = {**row, "cluster": {**row["cluster"], "num_nodes": nodes, "gpus_per_node": world // nodes}}
    try:
        launch_plan(cut, extra=extra, allow_files=allow_files)
    except InvalidInputError:
        # Nodes with switches and sockets of their own are no nodes of fewer GPUs.
        return row
    return cut


def _restricted(
    response: Json, refused: NotExpressibleError, can_be_said: Callable[[Json], None]
) -> dict[str, list[Any]]:
    """The values of the refused field that the target can say; empty where the search does not list its values."""
    name = str(refused.context.get("field"))
    values = response["search"]["space"].get(name, [])

    def can_say(value: Any) -> bool:
        changed = deepcopy(row_of_plan(response, 1))
        apply_values(changed, {name: value})
        try:
            can_be_said(changed)
        except NotExpressibleError as refusal:
            return bool(refusal.context.get("field") != name)
        except MeshwrightError:
            return True  # beside the other fields of this plan it is not legal; beside others it may be
        return True

    # Where every value is refused, or none, the field decides nothing and other plans have to be looked at.
    able = [value for value in values if can_say(value)]
    return {name: able} if 0 < len(able) < len(values) else {}


def _nested(allowed: Mapping[str, list[Any]]) -> Json:
    found: Json = {}
    for name, values in allowed.items():
        group, _, rest = name.rpartition(".")
        (found.setdefault(group, {}) if group else found)[rest] = values
    return found
