"""Strategies at the boundary: the contract's defaults, each reported; what cannot be built, refused with the fix."""

from __future__ import annotations

import pytest

from builders import dense_model, job_of, with_experts
from cost_models.strategies.fields import Recompute, RecomputeMethod, Schedule
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict

DENSE = dense_model(30, num_attention_heads=16, num_key_value_heads=8)
MOE = with_experts(DENSE)


def job_for(framework="megatron", model=DENSE, **training):
    return job_of(model, framework, num_nodes=2, seq_length=4096, **training)


def resolved(given, framework="megatron", model=DENSE, **training):
    return resolve_strategies(job_for(framework, model, **training), [StrategyInput(**given)])


def row_of(given, framework="megatron", model=DENSE, **training):
    found = resolved(given, framework, model, **training)
    assert found.problems == ([],)
    return found.strategies


def refusal(given, framework="megatron", model=DENSE):
    found = resolved(given, framework, model)
    assert found.strategies is None
    return found.problems[0]


def test_dp_defaults_to_the_gpus_left_and_micro_batches_follow():
    """16 GPUs / (tp 2 x pp 2 x cp 1) = dp 4; batch 64 / (dp 4 x micro-batch 2) = 8 micro-batches."""
    row = row_of({"tp": 2, "pp": 2, "micro_batch_size": 2})
    assert (row.dp[0], row.num_micro_batches[0], row.world[0]) == (4, 8, 16)


def test_defaults_are_reported_and_given_values_are_not():
    found = resolved({"tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "zero": 0, "micro_batch_size": 1})
    assert found.assumed[0]["dp"] == 8
    assert found.assumed[0]["sequence_parallel"] is True
    assert "tp" not in found.assumed[0]
    assert "zero" not in found.assumed[0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, False),
        ({"cp_comm": "a2a"}, False),  # one rank a context sends nothing
        ({"cp": 2}, True),
        ({"cp": 2, "cp_comm": "p2p"}, False),
    ],
)
def test_a_transport_is_assumed_where_there_is_something_to_carry(given, named):
    assumed = resolved({"micro_batch_size": 1, **given}).assumed[0]
    assert ("cp_comm" in assumed) is named
    assert "moe_dispatcher" not in assumed


def test_more_ranks_than_gpus_is_refused_naming_both():
    (reason,) = refusal({"tp": 8, "pp": 4, "micro_batch_size": 1})
    assert reason["code"] == "world-exceeds-gpus"
    assert "= 32" in reason["message"]
    assert "16 GPUs" in reason["message"]


def test_degrees_that_do_not_divide_the_gpus_need_dp():
    (reason,) = refusal({"tp": 1, "pp": 3, "micro_batch_size": 1})
    assert reason["code"] == "gpus-not-divisible"
    assert row_of({"tp": 1, "pp": 3, "dp": 4, "micro_batch_size": 1}).world[0] == 12


def test_a_batch_that_no_replica_count_divides_is_refused():
    """dp 8 x micro-batch 3 = 24 does not divide 64."""
    (reason,) = refusal({"tp": 2, "micro_batch_size": 3})
    assert reason["code"] == "batch-not-divisible"
    assert "24" in reason["message"]


def test_micro_batch_size_is_required():
    (reason,) = refusal({"tp": 2})
    assert (reason["code"], "micro_batch_size" in reason["message"]) == ("missing-field", True)


def test_megatron_refuses_layers_that_do_not_divide_and_names_a_legal_split():
    """30 layers over 4 stages: 7.5 each."""
    (reason,) = refusal({"pp": 4, "micro_batch_size": 1})
    assert reason["code"] == "layers-not-divisible"
    assert "[7, 8, 8, 7]" in reason["hint"]
    assert row_of({"pp": 4, "micro_batch_size": 1, "layers_per_stage": [7, 8, 8, 7]}).layouts.table[0].layers == (
        7,
        8,
        8,
        7,
    )


def test_torchtitan_counts_the_ends_as_a_layer_each():
    """28 + 2 = 30 over 4 stages: 8, 8, 7, 7 with the ends, so 7, 8, 7, 6 layers."""
    model = {**DENSE, "num_layers": 28}
    assert row_of({"pp": 4, "micro_batch_size": 1}, "torchtitan", model).layouts.table[0].layers == (7, 7, 7, 7)
    found = resolved({"pp": 4, "micro_batch_size": 1}, "torchtitan")
    assert found.strategies.layouts.table[0].layers == (7, 8, 8, 7)
    assert found.assumed[0]["layers_per_stage"] == [7, 8, 8, 7]


def test_nanotron_splits_by_cost():
    """A layer costs 4*1024^2 + 3*4096*1024 = 16.8 M, the head 32000*1024 = 32.8 M = 1.95 layers.

    Half of 31.95 layers is 15.98: the 16th layer passes it, so the first stage holds 16 and the second 14.
    """
    assert row_of({"pp": 2, "micro_batch_size": 1}, "nanotron").layouts.table[0].layers == (16, 14)


def test_deepspeed_puts_the_larger_parts_first():
    assert row_of({"pp": 4, "micro_batch_size": 1}, "deepspeed").layouts.table[0].layers == (8, 8, 7, 7)


@pytest.mark.parametrize(("split", "what"), [([10, 10, 9], "3 stages"), ([10, 10, 5, 4], "29 layers")])
def test_a_split_must_list_every_stage_and_sum_to_the_layers(split, what):
    (reason,) = refusal({"pp": 4, "micro_batch_size": 1, "layers_per_stage": split})
    assert reason["code"] == "layers-per-stage-mismatch"
    assert what in reason["message"]


def test_the_schedule_follows_virtual_stages():
    assert row_of({"pp": 2, "micro_batch_size": 1}).schedule[0] == Schedule.ONE_F_ONE_B
    assert row_of({"pp": 2, "vpp": 3, "micro_batch_size": 1}).schedule[0] == Schedule.INTERLEAVED


def test_sequence_parallelism_is_off_without_tensor_parallelism_and_says_so():
    found = resolved({"tp": 1, "sequence_parallel": True, "micro_batch_size": 1})
    assert not found.strategies.sequence_parallel[0]
    assert found.assumed[0]["sequence_parallel"] is False


@pytest.mark.parametrize(
    ("given", "method", "count"),
    [
        ({}, RecomputeMethod.EVERY, 0),
        ({"recompute_num_layers": 4}, RecomputeMethod.BLOCK, 4),
        ({"recompute_num_layers": 4, "recompute_method": "block"}, RecomputeMethod.BLOCK, 4),
        ({"recompute_num_layers": 2, "recompute_method": "uniform"}, RecomputeMethod.UNIFORM, 2),
        ({"recompute_method": "uniform"}, RecomputeMethod.UNIFORM, 1),
    ],
)
def test_full_recompute_is_block_where_a_count_is_given_else_every_layer(given, method, count):
    row = row_of({"micro_batch_size": 1, "recompute": "full", **given})
    assert (row.recompute[0], row.recompute_method[0], row.recompute_num_layers[0]) == (Recompute.FULL, method, count)


@pytest.mark.parametrize(
    "given", [{"recompute_num_layers": 4}, {"recompute": "selective", "recompute_method": "block"}]
)
def test_recompute_counts_need_full(given):
    (reason,) = refusal({"micro_batch_size": 1, **given})
    assert reason["code"] == "recompute-count-mismatch"


def test_recompute_defaults_by_framework():
    assert row_of({"micro_batch_size": 1}).recompute[0] == Recompute.NONE
    assert row_of({"micro_batch_size": 1}, "torchtitan").recompute[0] == Recompute.SELECTIVE


def test_expert_tensor_parallelism_defaults_to_tp_in_megatron_only():
    given = {"tp": 2, "ep": 4, "micro_batch_size": 1}
    assert row_of(given, model=MOE).etp[0] == 2
    assert row_of(given, "torchtitan", MOE).etp[0] == 1
    assert row_of({"tp": 2, "micro_batch_size": 1}).etp[0] == 1  # a dense model has no experts to split


def test_gradients_are_reduced_each_micro_batch_from_zero_2_on_unless_said_otherwise():
    assert not row_of({"zero": 1, "micro_batch_size": 1}).grad_sync_each[0]
    assert row_of({"zero": 2, "micro_batch_size": 1}).grad_sync_each[0]
    assert not row_of({"zero": 3, "grad_sync": "last", "micro_batch_size": 1}).grad_sync_each[0]


@pytest.mark.parametrize(
    ("framework", "training", "given", "each", "said"),
    [
        ("fsdp", {}, {"zero": 3}, False, "last"),
        ("fsdp", {"model_impl": "liger"}, {"zero": 2}, False, "last"),
        ("fsdp", {}, {"zero": 3, "grad_sync": "each"}, True, None),
        # A loop of one's own reduces in every backward unless it says otherwise, as PyTorch does.
        ("fsdp", {"model_impl": "native"}, {"zero": 3}, True, None),
        # With one micro-batch there is nothing to wait for.
        ("fsdp", {}, {"zero": 3, "micro_batch_size": 4}, True, None),
        ("deepspeed", {}, {"zero": 3}, True, None),
        ("torchtitan", {}, {"zero": 3}, True, None),
        ("fsdp", {}, {"zero": 0}, False, None),
    ],
)
def test_accelerate_leaves_gradients_unreduced_until_the_last_micro_batch(framework, training, given, each, said):
    """accelerate/accelerator.py (accumulate: no_sync unless sync_each_batch) and transformers' Trainer; 64 sequences over 16
    replicas are four micro-batches.
    """
    found = resolved({"micro_batch_size": 1, **given}, framework, **training)
    assert found.strategies.grad_sync_each[0] == each
    assert found.assumed[0].get("grad_sync") == said


def test_sharded_state_covers_all_replicas_by_default():
    row = row_of({"tp": 2, "cp": 2, "micro_batch_size": 1})
    assert (row.dp_cp[0], row.zero_shard_size[0], row.zero_param_shard_size[0]) == (8, 8, 8)


def test_overlaps_that_cannot_exist_are_off():
    """Stage-to-stage overlap needs virtual stages in Megatron; gathering parameters needs sharded ones."""
    row = row_of({"pp": 2, "zero": 0, "micro_batch_size": 1, "overlap": {"p2p": True, "param_gather": True}})
    assert not row.overlap_p2p[0]
    assert not row.overlap_param_gather[0]
    assert row.overlap_grad_reduce[0]
    assert row_of({"pp": 2, "vpp": 3, "micro_batch_size": 1}).overlap_p2p[0]


def test_switching_gradient_overlap_off_takes_parameter_overlap_along():
    row = row_of({"micro_batch_size": 1, "overlap": {"grad_reduce": False}})
    assert not row.overlap_param_gather[0]


def test_one_bad_input_leaves_the_others():
    inputs = [StrategyInput(micro_batch_size=3), StrategyInput(micro_batch_size=1), StrategyInput(micro_batch_size=2)]
    found = resolve_strategies(job_for(), inputs)
    assert found.index.tolist() == [1, 2]
    assert found.strategies.micro_batch_size.tolist() == [1, 2]
    assert [len(problems) for problems in found.problems] == [1, 0, 0]


@pytest.mark.parametrize(
    "given",
    [
        {"micro_batch_size": 1},
        {"tp": 2, "pp": 2, "vpp": 3, "micro_batch_size": 2, "recompute": "full", "recompute_num_layers": 2},
        {"tp": 2, "cp": 2, "micro_batch_size": 1, "zero": 3, "zero_shard_size": 4, "recompute": "selective",
         "recompute_modules": ["core_attn", "mlp"], "overlap": {"tp_comm": True}},
        {"pp": 4, "micro_batch_size": 1, "layers_per_stage": [6, 8, 8, 8], "recompute": "full",
         "recompute_per_stage": [6, 4, 2, 0], "offload": {"optimizer_fraction": 0.5}},
    ],
)  # fmt: skip
def test_a_rendered_strategy_resolves_to_itself(given):
    job = job_for()
    first = resolve_strategies(job, [StrategyInput(**given)])
    rendered = strategy_dict(first.strategies, 0)
    again = resolve_strategies(job, [StrategyInput.model_validate(rendered)])
    assert again.problems == ([],)
    assert strategy_dict(again.strategies, 0) == rendered
    assert {name: rendered[name] for name in given if name not in ("overlap", "offload")} == {
        name: value for name, value in given.items() if name not in ("overlap", "offload")
    }
