"""Changes of one setting in a text that somebody wrote: the rest of it stays, comments and layout too."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from textwrap import dedent

import pytest

from planner.export.import_config import read_file
from planner.export.judge.edits import added, applied, removed, replaced, value_text
from planner.export.settings import InputFile

CONTINUED = """\
    torchrun --nproc-per-node 8 pretrain.py \\
        --tensor-model-parallel-size 2 \\
        --sequence-parallel \\
        --bf16 --lr 1e-4  # as in the paper
    """
ARRAY = """\
    TP=2 # within a node
    ARGS=(
        --tensor-model-parallel-size $TP  # first
        --sequence-parallel
        --bf16
    )
    torchrun pretrain.py "${ARGS[@]}"
    """
QUOTED = """\
    ARGS="
        --tensor-model-parallel-size 2 \\
        --sequence-parallel \\
        --bf16
    "
    torchrun pretrain.py $ARGS
    """
LINE = "torchrun pretrain.py --tensor-model-parallel-size=2 --sequence-parallel --bf16\n"
JSON = """\
    {
      "train_batch_size": 64, "bf16": {"enabled": true},
      "zero_optimization": {
        "stage": 3,
        "overlap_comm": true
      }
    }
    """
YAML = """\
    # my cluster
    distributed_type: FSDP  # not DDP
    fsdp_config:
      fsdp_version: 2
      fsdp_offload_params: false   # enough memory
    num_processes: 16
    """
TOML = """\
    [training]
    seq_len = 4096  # short
    local_batch_size = 1

    [parallelism]
    tensor_parallel_degree = 2
    """
PYTHON = """\
    import torchtitan
    config = Trainer.Config(
        training=TrainingConfig(seq_len=4096, local_batch_size=1),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=2,  # within a node
            pipeline_parallel_degree=1,
        ),
    )
    """
TP = "--tensor-model-parallel-size"
CASES = [
    ("run.sh", CONTINUED, "replace", TP, "4", (f"{TP} 2 \\", f"{TP} 4 \\")),
    ("run.sh", CONTINUED, "remove", "--sequence-parallel", "", ("    --sequence-parallel \\\n", "")),
    ("run.sh", CONTINUED, "remove", "--bf16", "", ("    --bf16 --lr", "    --lr")),
    ("run.sh", CONTINUED, "add after --sequence-parallel", "--fp8-recipe", "delayed", ("    --sequence-parallel \\\n", "    --sequence-parallel \\\n    --fp8-recipe delayed \\\n")),
    ("run.sh", ARRAY, "replace", TP, "4", ("TP=2 #", "TP=4 #")),
    ("run.sh", ARRAY, "remove", TP, "", (f"{TP} $TP  # first", "# first")),
    ("run.sh", ARRAY, "add after --sequence-parallel", "--use-flash-attn", "", ("    --sequence-parallel\n", "    --sequence-parallel\n    --use-flash-attn\n")),
    ("run.sh", QUOTED, "replace", TP, "4", (f"{TP} 2 \\", f"{TP} 4 \\")),
    ("run.sh", ARRAY, "remove", "--sequence-parallel", "", ("    --sequence-parallel\n", "")),
    ("run.sh", QUOTED, "remove", "--bf16", "", (" \\\n    --bf16\n", "\n")),
    ("run.sh", QUOTED, "remove", "--sequence-parallel", "", ("    --sequence-parallel \\\n", "")),
    ("run.sh", QUOTED, "add after --bf16", "--fp8-recipe", "delayed", ("    --bf16\n", "    --bf16 --fp8-recipe delayed\n")),
    ("run.sh", LINE, "replace", TP, "4", (f"{TP}=2", f"{TP}=4")),
    ("run.sh", LINE, "remove", TP, "", (f" {TP}=2", "")),
    ("run.sh", LINE, "add after --bf16", "--fp8-recipe", "delayed", ("--bf16\n", "--bf16 --fp8-recipe delayed\n")),
    ("ds.json", JSON, "replace", "zero_optimization.stage", "2", ('"stage": 3', '"stage": 2')),
    ("ds.json", JSON, "remove", "zero_optimization.stage", "", ('"stage": 3,\n    ', "")),
    ("ds.json", JSON, "remove", "zero_optimization.overlap_comm", "", (',\n    "overlap_comm": true', "")),
    ("ds.json", JSON, "remove", "bf16.enabled", "", ('"enabled": true', "")),
    ("ds.json", JSON, "add", "zero_optimization.round", "1", ("true\n  }", 'true,\n    "round": 1\n  }')),
    ("ds.json", JSON, "add", "tensor_parallel.autotp_size", "2", ('"train_batch_size": 64', '"train_batch_size": 64,\n  "tensor_parallel": {"autotp_size": 2}')),
    ("a.yaml", YAML, "replace", "distributed_type", "NO", ("FSDP  # not DDP", "NO  # not DDP")),
    ("a.yaml", YAML, "remove", "fsdp_config.fsdp_offload_params", "", ("  fsdp_offload_params: false   # enough memory\n", "")),
    ("a.yaml", YAML, "add", "fsdp_config.fsdp_reshard", "true", ("# enough memory\n", "# enough memory\n  fsdp_reshard: true\n")),
    ("a.yaml", YAML, "add", "dynamo_config.dynamo_backend", "INDUCTOR", ("num_processes: 16\n", "num_processes: 16\ndynamo_config:\n  dynamo_backend: INDUCTOR\n")),
    ("a.toml", TOML, "replace", "training.seq_len", "8192", ("4096  # short", "8192  # short")),
    ("a.toml", TOML, "remove", "training.seq_len", "", ("seq_len = 4096  # short\n", "")),
    ("a.toml", TOML, "add", "training.steps", "10", ("local_batch_size = 1\n", "local_batch_size = 1\nsteps = 10\n")),
    ("a.toml", TOML, "add", "compile.enable", "true", ("degree = 2\n", "degree = 2\n\n[compile]\nenable = true\n")),
    ("a.py", PYTHON, "replace", "training.seq_len", "8192", ("seq_len=4096", "seq_len=8192")),
    ("a.py", PYTHON, "remove", "training.seq_len", "", ("seq_len=4096, ", "")),
    ("a.py", PYTHON, "remove", "parallelism.pipeline_parallel_degree", "", ("        pipeline_parallel_degree=1,\n", "")),
    ("a.py", PYTHON, "add", "training.dtype", "'bfloat16'", ("local_batch_size=1", "local_batch_size=1, dtype='bfloat16'")),
    ("a.py", PYTHON, "add", "parallelism.context_parallel_degree", "2", ("pipeline_parallel_degree=1,", "pipeline_parallel_degree=1,\n        context_parallel_degree=2,")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text", "act", "key", "value", "expected"), CASES)
def test_one_setting_changes_and_the_rest_stays(
    path: str, text: str, act: str, key: str, value: str, expected: tuple[str, str]
) -> None:
    file = InputFile(path, dedent(text))
    settings = read_file(file)
    if act.startswith("add"):
        anchor = act.removeprefix("add after ")
        beside = [each for each in settings if act == "add" or each.key == anchor]
        (place,) = added(file, beside, [(key, value)])
    else:
        setting = next(each for each in settings if each.key == key)
        place = removed(file, setting) if act == "remove" else replaced(file, setting, value)
    assert place is not None
    changed = applied(file.content, [place])
    assert file.content.count(expected[0]) == 1
    assert changed == file.content.replace(*expected)
    # What was written can be read, and says what was meant.
    again = {each.key: value_text(each) for each in read_file(InputFile(path, changed))}
    assert again.get(key) == (None if act == "remove" else value or key)
    if path.endswith(".sh"):
        checked = subprocess.run(["bash", "-n"], input=changed, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_keys_of_a_part_that_is_missing_stand_in_it_together() -> None:
    further = [("a.b", "1"), ("a.c.d", "2"), ("e", "3")]
    for path, content, expected in (
        ("x.json", '{\n  "k": 0\n}\n', '{\n  "k": 0,\n  "a": {"b": 1, "c": {"d": 2}},\n  "e": 3\n}\n'),
        ("x.yaml", "k: 0\n", "k: 0\na:\n  b: 1\n  c:\n    d: 2\ne: 3\n"),
    ):
        file = InputFile(path, content)
        places = [each for each in added(file, read_file(file), further) if each is not None]
        assert applied(content, places) == expected


def test_a_key_that_was_renamed_is_changed_under_its_own_name() -> None:
    content = "[training]\ntensor_parallel_degree = 2\n"
    file = InputFile("old.toml", content)
    (found,) = read_file(file)
    today = replace(found, key="parallelism.tensor_parallel_degree", written=found.key)
    place = removed(file, today)
    assert place is not None
    assert applied(content, [place]) == "[training]\n"
    # A further key of today's part does not stand in the part of that time.
    (place,) = added(file, [today], [("parallelism.context_parallel_degree", "2")])
    assert place is not None
    assert applied(content, [place]) == content + "\n[parallelism]\ncontext_parallel_degree = 2\n"


def test_a_text_that_does_not_stand_at_its_place_is_left() -> None:
    # The value is computed from two variables, so that there is no one place to change it at.
    file = InputFile("run.sh", "A=2\nB=4\ntorchrun x.py --tensor-model-parallel-size $((A * B)) --bf16\n")
    setting = next(each for each in read_file(file) if each.key == TP)
    assert setting.value == "8"
    assert replaced(file, setting, "4") is None
