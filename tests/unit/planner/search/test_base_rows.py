"""What is known of meshes that a stopped search left out before it had bounds of them."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, request_of
from cost_models.step.total import step_time
from planner.plan import plan
from planner.rules import violations
from planner.schemas.plan_request import Constraints
from planner.search.base_rows import least_left_s
from planner.search.bounds import floors_s
from planner.strategies.axes import build_space


def test_what_was_left_out_is_bounded_by_more_than_its_floor() -> None:
    """On 32 GPUs, a part of which is left idle: nothing is faster than the bound, which lies far above the least floor."""
    job = job_of(dense_model(8), num_nodes=4, global_batch_size=32)
    space = build_space(job, Constraints())
    meshes = np.flatnonzero(space.degrees.worlds < 32)
    floors = floors_s(space)[meshes]
    found = least_left_s(space, meshes, floors_s=floors)
    rows = space.expand(space.base(meshes)).rows
    legal = rows.take(violations(job, rows).legal)
    assert 1.05 * floors.min() < found <= step_time(job, legal).total_s.min() * (1 + 1e-9)


def test_where_there_is_too_much_of_it_the_floors_count() -> None:
    job = job_of(dense_model(8), num_nodes=4, global_batch_size=32)
    space = build_space(job, Constraints())
    meshes = np.arange(len(space.degrees))
    floors = floors_s(space)
    assert least_left_s(space, meshes, floors_s=floors, most_rows=0) == floors.min()


@pytest.mark.parametrize(("framework", "version", "stages"), [
    ("torchtitan", "0.3", {2, 3}), ("deepspeed", "0.19", {1, 2, 3}), ("megatron", "0.17", {0, 1}), ("deepspeed", "0.18", {1, 2}),
])  # fmt: skip
def test_an_optimizer_that_some_stages_lack_is_planned_with_the_others(
    framework: str, version: str, stages: set[int]
) -> None:
    """The lowest stage, for which a base row stands first, is without Muon in torchtitan and DeepSpeed (their own documentation)."""
    asked = request_of(dense_model(4), framework, framework_version=version, optimizer="muon", global_batch_size=32)
    found = plan({**asked, "top_k": 50})
    assert {each["strategy"]["zero"] for each in found["plans"]} <= stages
    assert found["plans"]
