"""What a trial with PyTorch's own parallelism would leave out, or PyTorch cannot run, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.trial_forms.forms import DENSE, FORMS, MIXTURE, job
from cost_models.errors import InvalidInputError
from profiler.trial.launch import run_trial
from profiler.trial.plan import trial_plan


def _row(strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {**DENSE, **model},
        "training": {"seq_length": 32, "global_batch_size": 8, **training},
        "strategy": {"micro_batch_size": 2, **strategy},
    }


TENSOR = {"tp": 2, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("strategy", "model", "training", "said"),
    [
        ({"schedule": "dualpipe"}, {}, {}, "/strategy/schedule: schedule is dualpipe"),
        ({"recompute_method": "uniform"}, {}, {}, "/strategy/recompute_method"),
        ({"recompute_modules": ["mlp"]}, {}, {}, "/strategy/recompute_modules"),
        ({"offload": {"optimizer_fraction": 1.0}}, {}, {}, "/strategy/offload/optimizer_fraction"),
        ({"overlap": {"tp_comm": True}}, {}, {}, "/strategy/overlap/tp_comm"),
        ({"dp": 2, "zero": 3, "overlap": {"param_gather": False}}, {}, {}, "/strategy/overlap/param_gather"),
        ({"tp": 2}, {}, {}, "/strategy/sequence_parallel"),
        ({"tp": 4, "sequence_parallel": True}, {}, {}, "/strategy/tp: tp 4 does not divide"),
        ({**TENSOR, "dp": 2, "zero": 1}, {}, {}, "/strategy/zero: zero is 1; PyTorch's ZeroRedundancyOptimizer"),
        ({"pp": 2, "dp": 2, "zero": 1}, {}, {}, "/strategy/zero: zero is 1"),
        ({"dp": 4, "zero": 1, "zero_shard_size": 2}, {}, {}, "/strategy/zero_shard_size"),
        ({"dp": 4, "zero": 3, "zero_shard_size": 3}, {}, {}, "/strategy/zero_shard_size: .* 3 does not divide"),
        ({"dp": 4, "zero": 3, "zero_param_shard_size": 2}, {}, {}, "/strategy/zero_param_shard_size"),
        ({"dp": 2, "grad_sync": "each"}, {}, {}, "/strategy/grad_sync"),
        ({"cp": 2, "zero": 3}, {}, {"seq_length": 30}, "/training/seq_length: .* not a multiple of 4"),
        ({"cp": 2, "cp_comm": "a2a"}, {}, {}, "/strategy/cp_comm"),
        ({"cp": 2, "zero": 3}, {}, {"attention_kernel": "flex"}, "/training/attention_kernel: .* share a sequence"),
        ({"pp": 2}, {"tie_word_embeddings": True}, {}, "/strategy/pp: .* stages share no weights"),
        ({"vpp": 2}, {}, {}, "/strategy/vpp"),
        ({"pp": 2, "vpp": 2, "schedule": "1f1b"}, {}, {}, "/strategy/vpp"),
        ({"pp": 2, "schedule": "zb-v"}, {}, {}, "/strategy/vpp"),
        ({"pp": 4, "micro_batch_size": 4}, {}, {}, "/strategy/schedule: .* at least 4 micro-batches"),
        ({"pp": 2, "layers_per_stage": [1, 2]}, {}, {}, "/strategy/layers_per_stage"),
        ({"pp": 4, "micro_batch_size": 1}, {}, {}, "/strategy/layers_per_stage: .* without anything to train"),
        ({"pp": 2, "schedule": "zb-h1"}, {}, {"compile": True}, "/training/compile"),
        ({"ep": 2}, {}, {}, "/strategy/ep: ep is 2, but the model has no experts"),
        ({"dp": 2, "ep": 2}, {"moe": MIXTURE["moe"]}, {}, "/strategy/zero: .* expert parallelism"),
        ({"dp": 3, "zero": 3, "ep": 3}, {"moe": MIXTURE["moe"]}, {"global_batch_size": 6}, "/strategy/ep: ep 3 does not divide 8"),
        ({"dp": 4, "zero": 3, "zero_shard_size": 2, "ep": 4}, {"moe": MIXTURE["moe"]}, {}, "/strategy/ep"),
        ({"dp": 2, "zero": 3, "ep": 2, "etp": 2}, {"moe": MIXTURE["moe"]}, {}, "/strategy/etp"),
        ({"dp": 2, "zero": 3, "ep": 2, "moe_dispatcher": "flex"}, {"moe": MIXTURE["moe"]}, {}, "/strategy/moe_dispatcher"),
        ({}, {"moe": {**MIXTURE["moe"], "capacity_factor": 1.25}}, {}, "drop tokens"),
        ({}, {"sliding_window": 16}, {}, "a sliding window"),
        ({}, {"qk_norm": "full"}, {}, "norms of whole queries"),
        ({}, {}, {"optimizer": "adam-8bit"}, "/training/optimizer"),
        ({}, {}, {"param_dtype": "bf16", "grad_dtype": "fp32"}, "/training/grad_dtype"),
        ({}, {}, {"param_dtype": "bf16", "precision": "fp32"}, "/training/param_dtype"),
    ],
)  # fmt: skip
def test_what_a_trial_would_leave_out_is_refused(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        trial_plan(_row(strategy, model, training))


def test_flex_attention_on_processors_is_refused_before_anything_starts() -> None:
    row = _row({}, {}, {"attention_kernel": "flex"})
    assert trial_plan(row).attention_kernel == "flex"
    with pytest.raises(InvalidInputError, match=r"/training/attention_kernel: .* on GPUs only"):
        run_trial(row, deadline_s=60, device="cpu")


def test_every_form_is_a_plan_of_its_number_of_processes() -> None:
    for world, forms in FORMS.items():
        for name, strategy in forms.items():
            assert trial_plan(job(name, strategy, world=world, layers=4)["row"]).world == world, name


def test_what_an_answer_spells_out_is_run_where_it_is_what_pytorch_does() -> None:
    """The strategy of a plan names every field, most of them at their defaults."""
    spelled = {
        "tp": 1, "pp": 1, "dp": 6, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "zero": 3, "zero_shard_size": 6, "zero_param_shard_size": 6,
        "grad_sync": "each", "sequence_parallel": False, "micro_batch_size": 4, "recompute": "none", "schedule": "1f1b",
        "layers_per_stage": [4], "cp_comm": "allgather", "moe_dispatcher": "alltoall",
        "overlap": {"grad_reduce": True, "param_gather": True, "tp_comm": False, "p2p": False, "moe_all_to_all": False},
        "offload": {"optimizer_fraction": 0.0, "parameters": False, "activation_layers": 0},
    }  # fmt: skip
    plan = trial_plan(_row(spelled, {}, {"global_batch_size": 24}))
    assert (plan.world, plan.num_micro_batches, plan.shard_size, plan.grad_sync_each) == (6, 1, 6, True)
