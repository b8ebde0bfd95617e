"""Sets of modules that a search lets Megatron's selective recomputation repeat."""

from __future__ import annotations

from itertools import combinations

import pytest

from builders import job_of, tiny_model, with_experts
from cost_models.strategies.fields import FIELD
from planner.answer.not_searched import not_searched
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
        # Transformer Engine's layers take in a dense layer's norms, which therefore save nothing. The core saves little with fused
        # attention, but no other set saves as much as both in as little time.
        (tiny_model(), {}, [["core_attn"], ["mlp"], ["core_attn", "mlp"]]),
        (tiny_model(), {"attention": "math"}, [["core_attn"], ["mlp"], ["core_attn", "mlp"]]),
        (tiny_model(), {"framework_version": "0.11"}, [["core_attn"]]),
        (tiny_model(), {"framework": "torchtitan"}, None),
        (tiny_model(), {"framework": "deepspeed"}, None),
    ],
)  # fmt: skip
def test_what_is_tried_is_all_that_no_other_set_beats(model, given, expected) -> None:
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


@pytest.mark.parametrize("preset", ["mixtral-8x7b", "gpt-oss-120b", "gpt3-13b"])
def test_no_set_is_faster_than_those_tried_where_something_must_be_repeated(preset) -> None:
    """Every set of modules listed, against the search's own choice, with selective recomputation fixed."""
    names = ["core_attn", "mlp", "layernorm", *(["moe", "moe_act"] if preset != "gpt3-13b" else [])]
    every = [list(some) for count in range(1, len(names) + 1) for some in combinations(names, count)]
    request = {
        **REQUEST,
        "model": {"preset": preset},
        "training": {**REQUEST["training"], "seq_length": 2048},
        "top_k": 1,
    }
    fixed = {"cp": 1, "micro_batch_size": 1, "zero": 1, "recompute": "selective"}
    own = plan({**request, "constraints": {"fixed": fixed}})
    listed = plan({**request, "constraints": {"fixed": fixed, "allowed": {"recompute_modules": every}}})
    best_s, least_s = (found["plans"][0]["evaluation"]["step_time_s"] for found in (own, listed))
    assert own["search"]["proof"]["optimal"]
    assert best_s <= least_s * (1 + 2e-6)


def test_sets_that_are_left_out_for_their_number_are_named() -> None:
    """Experts with latent attention have six modules beside whole mixture layers."""
    job = job_of({"preset": "deepseek-v2"}, framework="megatron", num_nodes=8, seq_length=1024, global_batch_size=64)
    space = build_space(job, Constraints())
    assert "recompute_modules" in not_searched(space, on_pools=False, splits_are_open=False)
    assert "recompute_modules" not in not_searched(
        space, on_pools=False, splits_are_open=False, given=["recompute_modules"]
    )
