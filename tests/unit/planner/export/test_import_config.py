"""Files that somebody has as an evaluate row: what is understood, what is listed, and what is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.export.import_config import Imported, import_config
from planner.export.imported_row import Overrides
from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.export.settings import InputFile
from tests.launch_imports import CONFIGURATIONS, files_of, row_of

CLUSTER = {"preset": "dgx-h100"}
MEGATRON = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --max-position-embeddings 2048 --vocab-size 50000 --seq-length 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16"
)


def imported(*files: tuple[str, str], cluster: dict[str, Any] | None = None, **options: Any) -> Imported:
    given = Overrides(cluster=cluster or CLUSTER, **{name: options.pop(name) for name in ("model", "training", "strategy") if name in options})  # fmt: skip
    return import_config([InputFile(path, content) for path, content in files], given=given, **options)


def megatron(words: str, **options: Any) -> Imported:
    return imported(("run.sh", f"torchrun pretrain_gpt.py {MEGATRON} {words}"), **options)


def texts(found: Imported) -> list[tuple[int, str]]:
    return [(each["line"], each["text"]) for each in found.unknown]


def refusal(*files: tuple[str, str], **options: Any) -> str:
    with pytest.raises(InvalidInputError) as error:
        imported(*files, **options)
    return error.value.problems[0].message


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_our_own_launch_files_come_back_whole(case: str) -> None:
    found = import_config(files_of(case), given=Overrides(cluster=CLUSTER))
    assert (found.unknown, found.missing, found.notes) == ([], (), ())
    assert found.target.name == case.split(" ", maxsplit=1)[0]
    # The cluster was given without its nodes, of which the files start two.
    assert found.row["cluster"] == {"preset": "dgx-h100", "num_nodes": 2}
    told, again = (Quantities(launch_plan(row), target="", version="") for row in (row_of(case), found.row))
    names = [name for name in told if told.matters(name) and name != "model.name"]
    assert {name: again.peek(name) for name in names} == {name: told.peek(name) for name in names}


def test_without_a_cluster_the_row_lacks_nothing_else() -> None:
    found = import_config(files_of("megatron"))
    assert found.missing == ("/cluster",)
    assert found.row["strategy"]["dp"] == 4  # 16 ranks / (tp 2 * pp 2)


def test_what_is_not_understood_is_listed_with_its_line() -> None:
    found = imported(
        ("run.sh", f"torchrun pretrain_gpt.py {MEGATRON} \\\n  --lr-dcay-style cosine \\\n  --lr 1e-4 --new-switch\n")
    )
    assert texts(found) == [(2, "--lr-dcay-style cosine"), (3, "--new-switch")]
    assert not found.missing


def test_a_degree_that_only_a_shell_could_tell_is_asked_for() -> None:
    found = megatron("--tensor-model-parallel-size $TP")
    assert found.missing == ("/strategy/tp",)
    assert texts(found) == [(1, "--tensor-model-parallel-size $TP")]
    assert not {"tp", "dp"} & found.row["strategy"].keys()
    assert megatron("--tensor-model-parallel-size $TP", strategy={"tp": 4}).row["strategy"]["dp"] == 2


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("--optimizer soap", "/training/optimizer"),
        ("--recompute-granularity some", "/strategy/recompute"),
        ("--position-embedding-type mrope", "/model/position_embedding"),
        ("--fp8-format $FMT", "/training/precision"),
    ],
)
def test_a_value_without_a_word_in_a_row_is_not_replaced_by_a_default(words: str, missing: str) -> None:
    assert missing in megatron(words).missing


def test_a_script_that_is_handed_arguments_is_read_without_them() -> None:
    found = megatron('"$@"')
    assert (found.unknown, found.missing) == ([], ())


def test_ranks_of_the_environment_follow_from_the_cluster() -> None:
    launch = "torchrun --nproc-per-node 8 --nnodes $NNODES --master-addr $HEAD pretrain_gpt.py " + MEGATRON
    found = imported(("run.sh", launch), cluster={"preset": "dgx-h100", "num_nodes": 4})
    assert found.row["strategy"]["dp"] == 32
    assert found.unknown == []
    assert "--nnodes" in found.notes[0]


def test_arguments_override_the_files() -> None:
    found = imported(
        ("run.sh", f"torchrun x.py {MEGATRON} --tensor-model-parallel-size 2"),
        megatron_args="--tensor-model-parallel-size 4",
    )
    assert (found.row["strategy"]["tp"], found.row["strategy"]["dp"]) == (4, 2)


def test_branches_that_disagree_leave_a_value_open() -> None:
    script = (
        f"if [ $X -gt 8 ]; then\n TP=2\nelse\n TP=4\nfi\ntorchrun x.py {MEGATRON} --tensor-model-parallel-size $TP\n"
    )
    assert imported(("run.sh", script)).missing == ("/strategy/tp",)


def test_a_vocabulary_alone_is_laid_over_the_files_model() -> None:
    script = ("run.sh", "torchrun x.py " + MEGATRON.replace("--vocab-size 50000 ", ""))
    assert imported(script).missing == ("/model/vocab_size",)
    found = imported(script, model={"vocab_size": 32000})
    assert found.missing == ()
    assert found.row["model"] | {"vocab_size": 32000, "num_layers": 32} == found.row["model"]


def test_a_model_that_is_not_the_files_is_refused() -> None:
    message = refusal(("run.sh", f"\ntorchrun x.py {MEGATRON}"), model={"preset": "llama-3.1-70b"})
    assert message == "run.sh, line 2: the model given beside the files has num_layers 80, and the files say 32"


def _deepspeed(**sizes: Any) -> tuple[str, str]:
    return "ds.json", json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, **sizes}, indent=1)


JOB = {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_length": 4096}}


@pytest.mark.parametrize(
    ("sizes", "cluster", "expected"),
    [
        # runtime/config.py, _set_batch_related_parameters: batch = micro-batch * accumulation * replicas, by 16 GPUs here
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 2, (64, 2, 16)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 2, (64, 2, 16)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, 2, (96, 3, 16)),
        ({"train_batch_size": 64}, 2, (64, 4, 16)),
        ({"train_micro_batch_size_per_gpu": 3}, 2, (48, 3, 16)),
        # all three tell the replicas: 8 of the 16
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            2,
            (64, 2, 8),
        ),
    ],
)
def test_sizes_of_batches_follow_from_each_other(
    sizes: dict[str, int], cluster: int, expected: tuple[int, int, int]
) -> None:
    row = imported(_deepspeed(**sizes), cluster={"preset": "dgx-h100", "num_nodes": cluster}, **JOB).row
    assert (
        row["training"]["global_batch_size"],
        row["strategy"]["micro_batch_size"],
        row["strategy"]["dp"],
    ) == expected


def test_batches_that_contradict_the_ranks_are_refused_with_their_lines() -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}
    launch = ("run.sh", "deepspeed --num_gpus 8 train.py --deepspeed ds.json")
    message = refusal(_deepspeed(**sizes), launch, **JOB)
    assert message.startswith("ds.json, line 8; ds.json, line 9; ds.json, line 10; run.sh, line 1: ")
    assert message.endswith(
        "the global batch of 64 sequences is not micro-batch 2 * dp 8 * 8 accumulated micro-batches"
    )


def test_degrees_that_contradict_the_ranks_are_refused() -> None:
    launch = f"torchrun --nproc-per-node 8 x.py {MEGATRON} --tensor-model-parallel-size 3"
    assert "8 ranks are started, which do not fit tp = 3" in refusal(("run.sh", launch))


def test_more_ranks_than_gpus_are_refused() -> None:
    launch = f"torchrun --nproc-per-node 8 --nnodes 4 x.py {MEGATRON}"
    assert "32 ranks, and the cluster has 8 GPUs" in refusal(("run.sh", launch), cluster={**CLUSTER, "num_nodes": 1})


def test_what_the_trainer_fills_in_says_nothing() -> None:
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    found = imported(_deepspeed(**auto), **JOB)
    assert found.unknown == []
    assert set(found.missing) == {
        "/training/precision", "/training/global_batch_size", "/strategy/micro_batch_size",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "zero", "size"),
    [
        ("FULL_SHARD", 3, None),
        ("SHARD_GRAD_OP", 2, None),
        ("NO_SHARD", 0, None),
        ("HYBRID_SHARD", 3, 8),
        ("HYBRID_SHARD_ZERO2", 2, 8),
        (1, 3, None),
        (2, 2, None),
    ],
)
def test_strategies_of_the_first_fsdp(said: str | int, zero: int, size: int | None) -> None:
    # torch/distributed/fsdp/api.py, ShardingStrategy: hybrid ones shard inside a node, of which there are two with 8 ranks
    yaml = f"distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n  fsdp_sharding_strategy: {said}\n"  # fmt: skip
    found = imported(("a.yaml", yaml), strategy={"micro_batch_size": 1}, **JOB | {"training": {"seq_length": 4096, "global_batch_size": 64}})  # fmt: skip
    assert (found.row["strategy"]["zero"], found.row["strategy"].get("zero_shard_size")) == (zero, size)
    assert (found.unknown, found.missing) == ([], ())
    assert found.notes == ("The files are for FSDP1, which is priced as FSDP2.",)


@pytest.mark.parametrize(
    "line", ["fsdp_auto_wrap_policy: SIZE_BASED_WRAP", "fsdp_backward_prefetch: BACKWARD_POST", "fsdp_forward_prefetch: true"]
)  # fmt: skip
def test_settings_that_cost_something_and_have_no_field_are_listed(line: str) -> None:
    found = imported(("a.yaml", f"distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  {line}\n"), **JOB)
    assert texts(found) == [(4, f"fsdp_config.{line}")]


def test_files_of_nobody_and_of_several_are_refused() -> None:
    assert refusal(("a.json", "{}")) == "a.json: nothing in it tells which framework it is for"
    both = ("ds.json", '{"zero_optimization": {"stage": 2}}'), ("run.sh", "torchrun x.py " + MEGATRON)
    assert refusal(*both) == "ds.json, run.sh could be files for megatron or deepspeed"
    assert imported(*both, framework="megatron").target.name == "megatron"


def test_a_program_is_listed_as_not_read() -> None:
    program = ("train.py", "TENSOR_PARALLEL = 8\n")
    found = imported(("run.sh", "torchrun train.py " + MEGATRON), program)
    assert found.unknown == [{"file": "train.py", "line": 1, "text": "a Python program, of which nothing is read"}]


def test_a_registry_of_configurations_is_refused_with_its_line() -> None:
    one = "def {}():\n    return Trainer.Config(training=TrainingConfig(seq_len=8))\n"
    text = "from torchtitan.trainer import Trainer\n" + one.format("small") + one.format("large")
    assert refusal(("configs.py", text)) == "configs.py, line 4 holds 2 configurations: small, large"
