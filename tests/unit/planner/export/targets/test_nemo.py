"""NeMo 2's script of a plan, what it cannot say, and scripts, recipes and overrides that somebody else wrote."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from cost_models.errors import NotExpressibleError
from planner.export.export import export_row
from planner.export.formats.arguments import read_words
from planner.export.formats.python_module import read_module
from planner.export.imported_row import Overrides
from planner.export.judge.judge import judge
from planner.export.settings import InputFile, Settings
from planner.export.target import RowParts
from planner.export.targets import TARGETS

RECIPE = """
from nemo.collections import llm
import nemo_run as run
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

TP = 4
recipe = llm.llama3_70b.pretrain_recipe(dir="/x", name="y", num_nodes=4, num_gpus_per_node=8)
recipe.trainer.strategy.tensor_model_parallel_size = TP
recipe.trainer.strategy.sequence_parallel = True
recipe.trainer.strategy.ddp.use_distributed_optimizer = True
recipe.trainer.devices = 8
recipe.trainer.num_nodes = 4
recipe.data.global_batch_size = 256
recipe.model.config.recompute_granularity = "full"
recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True, overlap_grad_reduce=False))
"""


def row(
    model: str = "llama-3.1-70b", *, nodes: int = 8, training: dict[str, Any] | None = None, **strategy: Any
) -> dict[str, Any]:
    return {
        "model": {"preset": model}, "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {
            "seq_length": 8192, "global_batch_size": 512, "precision": "bf16", "framework": "megatron", "framework_version": "0.16",
            **(training or {}),
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip


def calls(script: str) -> dict[str, dict[str, str]]:
    """The keyword arguments of every call in a script, as they are written."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            found.setdefault(name, {}).update({each.arg: ast.unparse(each.value) for each in node.keywords if each.arg})
    return found


def written(*given: Any, version: str | None = None, **named: Any) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    files = {file.path: file.content for file in export_row(row(*given, **named), "nemo", framework_version=version)}
    return calls(files["train.py"]), files


def read(script: str, words: str = "") -> tuple[RowParts, list[str]]:
    found = [*read_module(InputFile("train.py", script)), *read_words(words, "run.sh")]
    settings = Settings(found)
    reader = TARGETS["nemo"].read
    assert reader is not None
    return reader(settings), [each.key for each in settings.unknown()]


def test_the_worked_example():
    """64 GPUs, interleaved, with context parallelism: arguments of NeMo's classes."""
    script, files = written(tp=4, pp=4, vpp=5, cp=2, recompute="selective", overlap={"tp_comm": True})
    said = {
        "MegatronStrategy": {
            "tensor_model_parallel_size": "4", "pipeline_model_parallel_size": "4", "virtual_pipeline_model_parallel_size": "5",
            "context_parallel_size": "2", "sequence_parallel": "True",
        },
        "MockDataModule": {"micro_batch_size": "1", "global_batch_size": "512", "seq_length": "8192"},
        "PreTrainingDataModule": {"micro_batch_size": "1", "global_batch_size": "512", "seq_length": "8192"},
        "DistributedDataParallelConfig": {"use_distributed_optimizer": "True", "overlap_param_gather": "True"},
        "MegatronMixedPrecision": {"precision": "'bf16-mixed'", "params_dtype": "torch.bfloat16"},
        "MegatronCommOverlapCallback": {"tp_comm_overlap": "True", "overlap_grad_reduce": "True"},
        "Trainer": {"devices": "8", "num_nodes": "8"}, "GPTConfig": {"recompute_granularity": "'selective'", "activation_func": "F.silu"},
    }  # fmt: skip
    for name, values in said.items():
        assert {key: script[name][key] for key in values} == values
    assert "train.py --mock-data" in " ".join(files["mock.sh"].split())


def test_a_user_is_told_where_new_work_belongs():
    _, files = written(tp=8, pp=4)
    for path in ("train.py", "launch.sh"):
        assert "deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge" in " ".join(
            files[path].split()
        )


def test_the_release_of_the_plans_core_is_taken():
    _, files = written(tp=8, pp=4, training={"framework_version": "0.15"})
    assert "nemo_toolkit 2.6 " in files["launch.sh"]


@pytest.mark.parametrize(
    ("named", "version", "field"),
    [
        ({}, "2.5", "training.framework_version"),
        ({"model": "mixtral-8x7b", "pp": 1, "tp": 1, "ep": 8, "etp": 1, "overlap": {"moe_all_to_all": True}}, "2.7", "overlap.moe_all_to_all"),
        ({"training": {"compile": True}}, "2.7", "training.compile"),
        ({"tp": 2, "cp": 8, "cp_comm": "a2a+p2p"}, "2.7", "cp_comm"),
        ({"training": {"frozen": ["embedding"]}}, "2.7", "training.frozen"),
        ({"training": {"adapter": {"rank": 8, "target_modules": ["q_proj"], "dora": True}}}, "2.7", "training.adapter"),
        ({"model": "gpt3-6.7b", "tp": 8, "pp": 1, "training": {"seq_length": 1024}}, "2.7", "model.max_position_embeddings"),
    ],
)  # fmt: skip
def test_what_it_cannot_say_is_refused_by_field(named: dict[str, Any], version: str, field: str):
    with pytest.raises(NotExpressibleError) as refused:
        written(version=version, **{"tp": 8, "pp": 4, **named})
    assert refused.value.context["field"] == field
    assert refused.value.context["target"] == "nemo"


def test_a_recipe_with_assignments_is_read():
    """What it calls stays unknown: its name says more than can be told without running it."""
    parts, unknown = read(RECIPE)
    assert (parts.world_size, parts.strategy["tp"], parts.strategy["zero"]) == (32, 4, 1)
    assert parts.training["global_batch_size"] == 256
    assert parts.strategy["recompute"] == "full"
    assert (parts.strategy["overlap"]["tp_comm"], parts.strategy["overlap"]["grad_reduce"]) == (True, False)
    assert set(unknown) == {
        "pretrain_recipe.dir",
        "pretrain_recipe.name",
        "pretrain_recipe.num_nodes",
        "pretrain_recipe.num_gpus_per_node",
        "TP",
    }


def test_overrides_on_the_command_line():
    parts, unknown = read(
        "", "nemo llm pretrain --factory llama3_8b trainer.strategy.context_parallel_size=2 data.micro_batch_size=4"
    )
    assert (parts.strategy["cp"], parts.strategy["micro_batch_size"]) == (2, 4)
    assert "trainer.strategy.context_parallel_size" not in unknown


@pytest.mark.parametrize(
    "line",
    [
        "recipe.trainer.strategy.tensor_paralel_size = 2", "recipe.trainer.strategy.tensor_model_parallel_size = 'two'",
        "recipe.trainer.strategy.tensor_model_parallel_size = count()[0]", "recipe.trainer.plugins.fp8 = 'e5m2'",
        "recipe.trainer.strategy.fsdp = 'pytorch'", "recipe.optim.config.exp_avg_dtype = torch.bfloat17", "recipe.data.seq_len = 4",
        "recipe.model.config.activation_func = F.relu",
    ],
)  # fmt: skip
def test_what_is_not_understood_stays_unknown(line: str):
    assert read(line)[1] == [line.partition(" =")[0]]


def test_a_module_is_read_without_running_it():
    """Names, constants and values with dots are told; what would have to be computed stays open, with its line."""
    found = read_module(
        InputFile(
            "x.py", "import os\nN = 2\nf(a=N, b=torch.float16, c=os.environ['X'], d=[1, (2,)])\nraise SystemExit\n"
        )
    )
    assert [(each.key, each.value, each.line, each.is_open) for each in found] == [
        ("N", 2, 2, False), ("f.a", 2, 3, False), ("f.b", "torch.float16", 3, False), ("f.c", None, 3, True), ("f.d", (1, (2,)), 3, False),
    ]  # fmt: skip


def test_a_script_is_judged_in_its_own_lines():
    """The best plan's settings take the place of theirs, as arguments of the same classes."""
    _, files = written("llama-3.2-1b", nodes=1, pp=1, tp=2, recompute="full", training={"global_batch_size": 64})
    given = Overrides(cluster={"preset": "dgx-h100", "num_nodes": 1})
    judged = judge([InputFile(path, files[path]) for path in ("train.py", "launch.sh")], given=given)
    assert judged["import"]["unknown"] == []
    changes = {(each["file"], each["old"], each["new"]) for each in judged["changes"]}
    assert ("train.py", "GPTConfig.recompute_granularity: 'full'", None) in changes
    assert (
        "train.py",
        "MegatronStrategy.tensor_model_parallel_size: 2",
        "MegatronStrategy.tensor_model_parallel_size: 1",
    ) in changes
    assert "+        tensor_model_parallel_size=1," in judged["diff"]


def test_texts_of_a_module_are_those_that_python_finds():
    """Several lines, letters of more than one byte, and other ends of lines."""
    text = "x.a = (1,\r\n  2)\r\nx.b = 'äö'; x.c = 3\n"
    wanted = [ast.get_source_segment(text, node.value) for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    found = [each.text for each in read_module(InputFile("x.py", text))]
    assert found == [str(each).replace("\r\n", "\n") for each in wanted] == ["(1,\n  2)", "'äö'", "3"]
