"""The contract models: closed lists equal what the code can produce, examples are valid, surprises are refused."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from cost_models.errors import InvalidInputError
from cost_models.inputs.fields import validated
from planner.answer.evaluation import invalid_dict
from planner.rules import rule_codes
from planner.schemas import EvaluateRow, Evaluation, PlanRequest, PlanResponse, ReasonCode, StrategyInput, strategy
from planner.schemas.evaluation import MemoryTerm, PeakMoment, TierName, TimeTerm
from planner.schemas.plan_request import EXAMPLE_REQUEST
from planner.schemas.row import EXAMPLE_ROW
from planner.schemas.strategy import AllowedValues

NOT_RULES = {
    "invalid-json", "invalid-field", "unknown-field", "missing-field", "invalid-input", "not-modelled", "calibration",
    "unknown-preset", "unknown-model-type", "pools-not-supported", "precision-not-supported",  # the specification was refused
    "pool-unknown", "pool-per-stage-mismatch", "pool-exceeded", "unequal-data-parallel-shares",  # stages on pools
    "gpus-not-divisible", "layers-not-divisible", "layers-per-stage-mismatch", "recompute-count-mismatch",
    "recompute-per-stage-mismatch",  # no strategy could be built
    "out-of-memory", "at-risk-of-memory", "unstated-fact", "host-memory", "host-memory-unknown", "nvme-capacity",
    "misses-target",  # it was priced
}  # fmt: skip


def test_every_reason_code_has_one_origin():
    assert set(get_args(ReasonCode)) == NOT_RULES | set(rule_codes())
    assert not NOT_RULES & set(rule_codes())


def test_closed_lists_of_an_evaluation_hold_the_contract_s_names():
    time = ["gemm", "attention", "elementwise", "launch", "embedding", "head", "loss", "recompute", "grad_accumulation",
            "tp_comm", "cp_comm", "ep_comm", "pp_comm", "pp_bubble", "dp_comm", "tied_embedding_comm", "optimizer",
            "offload", "jitter"]  # fmt: skip
    memory = ["parameters", "main_parameters", "gradients", "optimizer_states", "activations", "layer_transient",
              "logits_and_loss", "parameter_gather", "gradient_reduce", "comm_workspace", "optimizer_transient",
              "library_workspace"]  # fmt: skip
    assert list(get_args(TimeTerm)) == time
    assert list(get_args(MemoryTerm)) == memory
    assert get_args(PeakMoment) == ("loss", "layer_backward", "head", "optimizer_step")
    assert get_args(TierName) == ("measured", "interpolated", "extrapolated", "nominal")


SPELLED = {
    "grad_sync": ["last", "each"],
    "recompute": ["none", "selective", "full"],
    "recompute_method": ["block", "uniform"],
    "schedule": ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe-v"],
    "cp_comm": ["p2p", "a2a", "allgather", "a2a+p2p"],
    "moe_dispatcher": ["allgather", "alltoall", "flex"],
    "flex_backend": ["deepep", "hybridep"],
}
"""The contract's values of each choice, and a2a+p2p, which came later."""


@pytest.mark.parametrize("field", SPELLED)
def test_choices_take_the_contract_s_values(field):
    one, several = (
        model.model_json_schema()["properties"][field]["anyOf"][0] for model in (StrategyInput, AllowedValues)
    )
    assert one["enum"] == several["items"]["enum"] == SPELLED[field]


def test_every_strategy_field_is_described():
    for model in (StrategyInput, strategy.OverlapInput, strategy.OffloadInput):
        assert all(described["description"] for described in model.model_json_schema()["properties"].values()), model


@pytest.mark.parametrize(("model", "example"), [(PlanRequest, EXAMPLE_REQUEST), (EvaluateRow, EXAMPLE_ROW)])
def test_examples_in_the_openapi_document_are_valid(model, example):
    assert example in model.model_json_schema()["examples"]
    assert model.model_validate(json.loads(json.dumps(example)))


def test_specifications_are_described_by_their_own_models():
    schema = PlanRequest.model_json_schema()

    def properties(name):
        described = schema["properties"][name]
        return (
            schema["$defs"][described["$ref"].rpartition("/")[2]]["properties"]
            if "$ref" in described
            else described["properties"]
        )

    assert "num_attention_heads" in properties("model")
    assert "nvlink_domain_gpus" in properties("cluster")
    assert "global_batch_tokens" in properties("training")
    assert "num_experts" in schema["$defs"]["MoeInput"]["properties"]


def test_every_searched_field_of_a_strategy_can_be_listed_in_allowed():
    per_stage = {
        "recompute_per_stage",
        "pool_per_stage",
        "mtp_stage",
    }  # chosen by the planner itself, never from a list
    assert set(AllowedValues.model_fields) == set(StrategyInput.model_fields) - per_stage


def test_a_field_is_fixed_or_allowed_but_not_both():
    constraints = {"fixed": {"zero": 1}, "allowed": {"zero": [1, 2]}}
    with pytest.raises(ValueError, match="zero is given in both fixed and allowed"):
        PlanRequest.model_validate({**EXAMPLE_REQUEST, "constraints": constraints})


@pytest.mark.parametrize(
    ("document", "pointer", "code", "hint"),
    [
        ({"tpp": 2}, "/strategy/tpp", "unknown-field", "'tp'"),
        ({"tp": "2"}, "/strategy/tp", "invalid-field", ""),
        ({"tp": True}, "/strategy/tp", "invalid-field", ""),
        ({"tp": 0}, "/strategy/tp", "invalid-field", ""),
        ({"micro_batch_size": 1.5}, "/strategy/micro_batch_size", "invalid-field", ""),
        ({"zero": 4}, "/strategy/zero", "invalid-field", ""),
        ({"recompute": "ful"}, "/strategy/recompute", "invalid-field", "'full'"),
        ({"layers_per_stage": []}, "/strategy/layers_per_stage", "invalid-field", ""),
        ({"layers_per_stage": [1, -1]}, "/strategy/layers_per_stage/1", "invalid-field", ""),
        ({"overlap": {"p2pp": True}}, "/strategy/overlap/p2pp", "unknown-field", "'p2p'"),
        (
            {"offload": {"optimizer_fraction": float("nan")}},
            "/strategy/offload/optimizer_fraction",
            "invalid-field",
            "",
        ),
    ],
)
def test_a_bad_strategy_names_the_field_and_the_nearest_known_one(document, pointer, code, hint):
    with pytest.raises(InvalidInputError) as caught:
        validated(StrategyInput, document, pointer="/strategy")
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.code) == (pointer, code)
    assert hint in problem.hint


def test_whole_numbers_may_be_written_with_a_point():
    assert validated(StrategyInput, {"tp": 8.0}, pointer="").tp == 8


def test_an_evaluate_row_ignores_other_top_level_fields():
    row = EvaluateRow.model_validate({**EXAMPLE_ROW, "measured": {"step_time_s": 1.0}})
    assert row.strategy.tp == 4


def test_the_answer_to_an_invalid_row_is_an_evaluation_without_numbers():
    answer = invalid_dict([{"code": "missing-field", "message": "m", "hint": "h"}], row_id="a")
    # These are given only where not every parameter is trained, where replicas exchange something else than all gradients, and where
    # ZeRO-3 lowers what crosses nodes, and where towers are counted.
    absent = {"trainable_parameters", "stored_parameters", "exchange", "node_traffic", "towers"}
    assert set(answer) == set(Evaluation.model_fields) - absent
    assert Evaluation.model_validate(answer).step_time_s is None


def test_a_plan_response_documents_the_contract_s_fields_and_may_add_some():
    assert set(PlanResponse.model_fields) - {"ties", "model_revision", "changed_plans", "asynchrony"} == {
        "id", "status", "created_at", "product_version", "schema_version", "request", "plans", "search", "rejected",
        "nearest_infeasible", "inexpressible_best", "pareto", "what_if", "warnings", "request_digest",
    }  # fmt: skip


def test_a_wrong_entry_of_a_list_is_named_by_its_field_and_nothing_else_is_said():
    with pytest.raises(InvalidInputError) as caught:
        validated(AllowedValues, {"tp": ["x"], "zero": [], "layers_per_stage": [[1], 3]}, pointer="")
    said = {problem.pointer: problem.message for problem in caught.value.problems}
    assert said == {
        "/tp/0": "tp[0] is 'x'; it must be a whole number",
        "/zero": "zero is a list of 0 entries; it must be of at least 1 entries",
        "/layers_per_stage/1": "layers_per_stage[1] is 3; it must be a list",
    }
