"""The knobs that a search leaves alone are named, with a reason."""

from __future__ import annotations

import pytest

from builders import job_of, tiny_model, with_experts
from cost_models.strategies.fields import FIELDS
from planner.answer.not_searched import not_searched
from planner.schemas import Constraints
from planner.strategies.axes import build_space, searched_values

ALWAYS_DECIDED = {
    "recompute_per_stage",
    "pool_per_stage",
    "cp_a2a_size",
    "mtp_stage",
    *(each.name for each in FIELDS if each.group == "offload"),
}
"""Of these the search has no choice: no framework is told counts by stage, pools are for several kinds of node, offload is one entry,
the inner level of a2a+p2p is named with the transport, cp_comm, and a search leaves multi-token prediction where it lies anyway."""


@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron"])
@pytest.mark.parametrize("mixture", [False, True])
def test_every_field_that_a_framework_has_is_searched_or_named(framework, mixture) -> None:
    model = with_experts(tiny_model()) if mixture else tiny_model()
    job = job_of(model, framework, num_nodes=1, seq_length=1024, global_batch_size=8)
    space = build_space(job, Constraints())
    named = not_searched(space, on_pools=False, splits_are_open=False)
    searched, choices = set(searched_values(space)), job.framework.choices
    absent = {
        "zero_param_shard_size": not job.framework.param_shard_group_stages,
        "grad_sync": not job.framework.accumulates_unreduced,
        "zero_quantized_weights": not job.framework.param_shard_group_stages,
        "zero_quantized_gradients": not job.framework.param_shard_group_stages,
        "cp_comm": len(choices.cp_comms) < 2,
        "moe_dispatcher": not mixture or len(choices.dispatchers) < 2,
        "flex_backend": not mixture or len(choices.dispatchers) < 2,
        "recompute_method": not choices.recompute_counts,
        "recompute_modules": not choices.recompute_modules,
        "overlap.moe_all_to_all": not (mixture and choices.expert_overlap),
        "overlap.tp_comm": not choices.tp_overlap,
        **{f"overlap.{name}": not job.framework.overlaps.get(name) for name in ("grad_reduce", "param_gather", "p2p")},
    }
    for field in FIELDS:
        if field.name not in ALWAYS_DECIDED and not absent.get(field.name, False):
            group = field.name in named or field.outermost in named
            assert field.name in searched or group or field.name == "sequence_parallel", field.name


def test_what_the_request_lists_is_not_named() -> None:
    job = job_of(tiny_model(), "megatron", num_nodes=1, seq_length=1024, global_batch_size=8)
    space = build_space(job, Constraints.model_validate({"allowed": {"cp_comm": ["p2p", "a2a"]}}))
    assert "cp_comm" not in not_searched(space, on_pools=False, splits_are_open=True)
    assert "layers_per_stage" not in not_searched(space, on_pools=False, splits_are_open=True)
    assert "schedule" in not_searched(space, on_pools=True, splits_are_open=True)


@pytest.mark.parametrize(
    ("layers", "allowed", "named"),
    [
        (6, {}, True),  # 3 layers a stage: vpp 2 and 4 (with the two ends as stages of their own) are not tried
        (6, {"vpp": [1, 2, 3, 4]}, False),
        (2, {"pp": [1]}, False),
    ],
)
def test_numbers_of_virtual_stages_that_are_left_out_are_named(layers: int, allowed: dict, named: bool) -> None:
    job = job_of(tiny_model(layers), "megatron", num_nodes=1, seq_length=1024, global_batch_size=8)
    space = build_space(job, Constraints.model_validate({"allowed": {"pp": [2], **allowed}}))
    assert ("vpp" in not_searched(space, on_pools=False, splits_are_open=False, given=allowed)) is named
    assert "vpp" not in not_searched(space, on_pools=False, splits_are_open=True, given=allowed)
