"""Reinforcement learning on the trainer's GPUs is refused, with what can be planned and how."""

from __future__ import annotations

from typing import Any

import pytest

from builders import job_of, tiny_model
from cost_models.errors import NotModelledError


@pytest.mark.parametrize(
    ("framework", "training", "pointer"),
    [
        ("verl", {}, "/training/framework"),
        ("OpenRLHF", {}, "/training/framework"),
        ("fsdp", {"rollout": {"tensor_parallel": 2}}, "/training/rollout"),
        ("megatron", {"reference_model": "colocated"}, "/training/reference_model"),
    ],
)
def test_rollouts_beside_the_trainer_are_refused(framework: str, training: dict[str, Any], pointer: str) -> None:
    with pytest.raises(NotModelledError) as caught:
        job_of(tiny_model(), framework, **training)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert problem.code == "not-modelled"
    assert problem.hint.startswith("Plan the trainer alone")
    assert "cluster.reserved_memory_gib" in problem.hint


def test_the_trainer_alone_is_planned_in_the_memory_that_is_left() -> None:
    """The driver offers a process less by what the rollout engine keeps."""
    whole, beside = (job_of(tiny_model(), "fsdp", cluster={"reserved_memory_gib": kept}) for kept in (0, 30))
    assert whole.cluster.capacity_bytes - beside.cluster.capacity_bytes == 30 * 2**30
