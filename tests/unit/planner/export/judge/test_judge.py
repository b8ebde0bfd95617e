"""A configuration judged: the best plan, what each change gains alone, and a diff that says the best plan."""

from __future__ import annotations

import json
from copy import deepcopy
from textwrap import dedent
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.export.imported_row import Overrides
from planner.export.judge.judge import judge
from planner.export.settings import InputFile
from planner.rows import evaluate_rows

CLUSTER = {"preset": "dgx-h100"}
SCRIPT = """\
    #!/bin/bash
    GPUS=8
    TP=2   # within a node
    MODEL=(
        --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
        --num-attention-heads 32 --group-query-attention --num-query-groups 8
        --max-position-embeddings 8192 --position-embedding-type rope
        --normalization RMSNorm --swiglu --disable-bias-linear
        --untie-embeddings-and-output-weights --vocab-size 128256
    )
    RUN=(
        --tensor-model-parallel-size $TP
        --pipeline-model-parallel-size 2
        --micro-batch-size 1
        --global-batch-size 128   # sequences
        --seq-length 4096
        --bf16
        --attention-dropout 0 --hidden-dropout 0
        --use-distributed-optimizer
        --lr 3e-4
    )
    torchrun --nnodes 2 --nproc-per-node $GPUS pretrain_gpt.py "${MODEL[@]}" "${RUN[@]}" --mock-data
    """


def judged(*files: tuple[str, str], **options: Any) -> dict[str, Any]:
    given = Overrides(cluster=options.pop("cluster", CLUSTER), **options)
    return judge([InputFile(path, dedent(content)) for path, content in files], given=given)


@pytest.fixture(scope="module")
def of_script() -> dict[str, Any]:
    return judged(("run.sh", SCRIPT))


def step_s(row: dict[str, Any], **strategy: Any) -> float:
    changed = deepcopy(row)
    changed["strategy"] |= strategy
    (evaluation,) = evaluate_rows([changed])
    return float(evaluation["step_time_s"])


def test_every_change_gains_what_the_changed_row_saves(of_script: dict[str, Any]) -> None:
    row = of_script["import"]["row"]
    assert row["strategy"]["dp"] == 4
    before = step_s(row)
    assert of_script["current"]["step_time_s"] == before
    gains = {each["field"]: each["time_gain_s"] for each in of_script["changes"] if each["time_gain_s"] is not None}
    best = of_script["best"]["strategy"]
    # On 16 GPUs dp follows from the degrees, 16 / (tp * pp); the rest of their row stays.
    assert best["tp"] == 1
    assert gains["tp"] == pytest.approx(before - step_s(row, tp=1, dp=8, sequence_parallel=None))
    assert best["pp"] == 1
    assert gains["pp"] == pytest.approx(before - step_s(row, pp=1, dp=8))
    total = before - of_script["best"]["evaluation"]["step_time_s"]
    assert sum(gains.values()) + of_script["interaction_s"] == pytest.approx(total)
    assert of_script["gain_fraction"] == pytest.approx(total / before)
    low, high = of_script["gain_range"]
    assert low < of_script["gain_fraction"] < high


def test_the_diff_is_one_of_their_own_file(of_script: dict[str, Any]) -> None:
    lines = of_script["diff"].splitlines()
    assert lines[:2] == ["--- run.sh", "+++ run.sh"]
    # The value stands at the variable, whose comment stays.
    assert "-TP=2   # within a node" in lines
    assert "+TP=1   # within a node" in lines
    assert "-    --pipeline-model-parallel-size 2" in lines
    changed = {each["line"]: (each["old"], each["new"]) for each in of_script["changes"] if each["old"] and each["new"]}
    assert changed[3] == ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1")
    # Neither the job nor what does not matter to it is touched.
    assert not [line for line in lines if line[0] in "+-" and ("seq-length" in line or "--lr" in line)]


def test_an_added_setting_stands_in_the_array(of_script: dict[str, Any]) -> None:
    added = [line for line in of_script["diff"].splitlines() if line.startswith("+    --")]
    assert "+    --overlap-grad-reduce" in added or "+    --use-megatron-fsdp" in added


def test_the_best_of_deepspeed_by_its_json_alone() -> None:
    config = """\
        {
          "train_batch_size": 128,
          "gradient_accumulation_steps": 8,
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 3}
        }
        """
    job = {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_length": 4096}}
    answer = judged(("ds.json", config), cluster={**CLUSTER, "num_nodes": 2}, **job)
    assert answer["import"]["format"] == "deepspeed"
    best = answer["best"]["strategy"]
    assert best["zero"] < 3
    assert f'+  "zero_optimization": {{"stage": {best["zero"]}' in answer["diff"]
    # No key of DeepSpeed's says what the user's program recomputes; it was priced with DeepSpeed's default, which recomputes nothing.
    assert {each["file"] for each in answer["changes"]} <= {"ds.json", None}


def test_settings_of_one_line_are_told_apart() -> None:
    """One of them is taken out; the others keep their place, and a new one joins them instead of opening the part a second time."""
    config = """\
        {
          "train_batch_size": 256,
          "train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
          "bf16": {"enabled": true}
        }
        """
    job = {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_length": 4096}}
    answer = judged(("ds_config.json", config), cluster={**CLUSTER, "num_nodes": 2}, **job)
    [line] = [line for line in answer["diff"].splitlines() if line.startswith("+") and "zero_optimization" in line]
    part = json.loads("{" + line.strip("+ ,") + "}")["zero_optimization"]
    assert part == {"stage": 2, "overlap_comm": True, "offload_optimizer": {}}
    assert all(change["file"] for change in answer["changes"])


def test_what_the_trainer_fills_in_gets_a_value_in_its_place() -> None:
    config = """\
        {
          "train_batch_size": "auto",
          "train_micro_batch_size_per_gpu": "auto",
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2}
        }
        """
    job = {
        "model": {"preset": "llama-3.2-1b"}, "training": {"seq_length": 2048, "global_batch_size": 256},
        "strategy": {"micro_batch_size": 1},
    }  # fmt: skip
    answer = judged(("ds.json", config), cluster={**CLUSTER, "num_nodes": 1}, **job)
    size = answer["best"]["strategy"]["micro_batch_size"]
    assert size > 1
    assert f'+  "train_micro_batch_size_per_gpu": {size},' in answer["diff"]
    assert '-  "train_micro_batch_size_per_gpu": "auto",' in answer["diff"]
    assert [each["field"] for each in answer["changes"] if each["file"] is None] == []


def test_a_first_fsdp_is_changed_in_its_own_words() -> None:
    config = """\
        distributed_type: FSDP
        mixed_precision: bf16
        num_machines: 2
        num_processes: 16
        fsdp_config:
          fsdp_sharding_strategy: FULL_SHARD  # the default
          fsdp_activation_checkpointing: true
        """
    job = {
        "model": {"preset": "llama-3.1-8b"}, "training": {"seq_length": 4096, "global_batch_size": 128},
        "strategy": {"micro_batch_size": 1},
    }  # fmt: skip
    answer = judged(("a.yaml", config), **job)
    assert answer["best"]["strategy"]["zero"] == 2
    assert "+  fsdp_sharding_strategy: SHARD_GRAD_OP  # the default" in answer["diff"]
    assert "reshard_after_forward" not in answer["diff"]


def test_plans_that_the_target_cannot_say_are_passed_over() -> None:
    # DeepSpeed itself would split this model's layers over GPUs; Accelerate hands whole models to it.
    config = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
    job = {
        "model": {"preset": "llama-3.1-70b"}, "training": {"seq_length": 4096, "global_batch_size": 256},
        "strategy": {"micro_batch_size": 1},
    }  # fmt: skip
    answer = judged(("a.yaml", config), cluster={**CLUSTER, "num_nodes": 8}, **job)
    best = answer["best"]["strategy"]
    assert (best["tp"], best["pp"], best["cp"]) == (1, 1, 1)


def test_what_does_not_run_is_shown_beside_the_best_plan() -> None:
    # Megatron splits 32 heads over 3 ranks in no way.
    words = "torchrun --nproc-per-node 3 x.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 50304 --seq-length 2048 --bf16 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 3\n"
    answer = judged(("run.sh", words))
    assert answer["current"]["verdict"] == "invalid"
    assert answer["best"] is not None
    assert (answer["gain_fraction"], answer["tie"], answer["changes"]) == (None, False, [])


def test_a_run_on_half_a_node_is_judged_on_half_a_node() -> None:
    words = (
        SCRIPT.replace("GPUS=8", "GPUS=4")
        .replace("--nnodes 2", "--nnodes 1")
        .replace("model-parallel-size 2", "model-parallel-size 1")
    )
    answer = judged(("run.sh", words), cluster={**CLUSTER, "num_nodes": 1})
    best = answer["best"]["strategy"]
    assert best["tp"] * best["pp"] * best["cp"] * best["dp"] == 4
    assert answer["best"]["evaluation"]["num_gpus_used"] == 4


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInputError) as error:
        judged(("a.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n"))
    assert [each.pointer for each in error.value.problems] == [
        "/model", "/training/seq_length", "/training/global_batch_size", "/strategy/micro_batch_size",
    ]  # fmt: skip


def test_a_plan_that_needs_another_environment_says_so() -> None:
    answer = judged(("run.sh", SCRIPT.replace("GPUS=8", "GPUS=8\n    export CUDA_DEVICE_MAX_CONNECTIONS=1")))
    zero = answer["best"]["strategy"]["zero"]
    changed = {each["field"]: each["new"] for each in answer["changes"]}
    # Megatron-FSDP refuses one connection (megatron/training/arguments.py).
    assert ("$CUDA_DEVICE_MAX_CONNECTIONS" in changed) == (zero >= 2)
    if zero >= 2:
        assert "+export CUDA_DEVICE_MAX_CONNECTIONS=8" in answer["diff"]
