"""Sets of modules that a search lets Megatron's selective recomputation repeat."""

from __future__ import annotations

import pytest

from builders import job_of, tiny_model, with_experts
from cost_models.strategies.fields import FIELD
from planner.plan import plan
from planner.schemas import Constraints
from planner.strategies.axes import build_space, searched_values


def tried(model, **given) -> list[list[str]] | None:
    job = job_of(
        model, **{"framework": "megatron", "num_nodes": 1, "seq_length": 1024, "global_batch_size": 8, **given}
    )
    return searched_values(build_space(job, Constraints())).get("recompute_modules")


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        # With fused attention the core saves next to nothing, and Transformer Engine's layers take in a dense layer's norms.
        (tiny_model(), {}, [["core_attn"], ["mlp"]]),
        (tiny_model(), {"attention": "math"}, [["core_attn"], ["mlp"], ["core_attn", "mlp"]]),
        (tiny_model(), {"framework_version": "0.11"}, [["core_attn"]]),
        (tiny_model(), {"framework": "torchtitan"}, None),
        (tiny_model(), {"framework": "deepspeed"}, None),
    ],
)  # fmt: skip
def test_what_is_tried_saves_something(model, given, expected) -> None:
    assert tried(model, **given) == expected


def test_a_mixture_layer_is_not_named_beside_its_own_parts() -> None:
    sets = tried(with_experts(tiny_model()))
    assert sets is not None
    assert sets[0] == ["core_attn"]
    assert ["moe"] in sets
    assert ["moe_act"] in sets
    assert not any("moe" in each and {"moe_act", "shared_experts"} & set(each) for each in sets)


REQUEST = {
    "model": {"preset": "mixtral-8x7b"},
    "cluster": {"preset": "dgx-a100-80gb", "num_nodes": 8},
    "training": {"seq_length": 4096, "global_batch_size": 512, "precision": "bf16", "framework": "megatron"},
}


def test_a_search_finds_what_listing_its_sets_finds() -> None:
    """The sets are combined with selective recomputation alone; listed, they are combined with every mode, and rejected there."""
    fixed = {"tp": 2, "pp": 1, "cp": 1, "moe_dispatcher": "alltoall", "overlap": {"moe_all_to_all": False}}
    own = plan({**REQUEST, "constraints": {"fixed": {**fixed, "recompute": "selective"}}})
    sets = own["search"]["space"]["recompute_modules"]
    listed = plan({
        **REQUEST, "constraints": {"fixed": {**fixed, "recompute": "selective"}, "allowed": {"recompute_modules": sets}},
    })  # fmt: skip
    steps = [[each["evaluation"]["step_time_s"] for each in found["plans"]] for found in (own, listed)]
    assert steps[0] == steps[1]
    default = plan(
        {**REQUEST, "constraints": {"fixed": {**fixed, "recompute": "selective", "recompute_modules": ["core_attn"]}}}
    )
    assert steps[0][0] < default["plans"][0]["evaluation"]["step_time_s"]
    assert own["plans"][0]["strategy"]["recompute_modules"] in sets


def test_a_given_set_is_the_only_one() -> None:
    job = job_of(tiny_model(), "megatron", num_nodes=1, seq_length=1024, global_batch_size=8)
    given = Constraints.model_validate({"fixed": {"recompute": "selective", "recompute_modules": ["mlp"]}})
    assert build_space(job, given).knobs["recompute_modules"] == (FIELD["recompute_modules"].encoded(["mlp"]),)
    assert searched_values(build_space(job, given))["recompute_modules"] == [["mlp"]]
