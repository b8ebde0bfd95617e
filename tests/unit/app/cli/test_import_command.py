"""`meshwright import`: the row on stdout, and on stderr what was not understood and which option gives what is missing."""

import json

import pytest

import meshwright
from app.cli.main import run
from tests.launch_imports import files_of

SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 \\\n"
SCRIPT += (
    "  --max-position-embeddings 2048 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --lr-dcay cosine\n"
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return str(path)


def test_the_row_can_be_evaluated(script, capsys):
    assert run(["import", script, "--cluster", "dgx-h100", "--vocab-size", "50000"]) == 0
    said = capsys.readouterr()
    assert said.err == f"not understood: {script}, line 2: --lr-dcay cosine\n"
    row = json.loads(said.out)
    assert row["strategy"]["dp"] == 8
    assert next(meshwright.evaluate([row]))["verdict"] != "invalid"


def test_what_is_missing_is_asked_for_by_option(script, capsys):
    assert run(["-q", "import", script]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "missing: model.vocab_size: give it with --vocab-size", "missing: cluster: give it with --cluster",
    ]  # fmt: skip
    assert json.loads(said.out)["training"]["seq_length"] == 2048


def test_the_whole_account_as_json(script, capsys):
    assert run(["import", script, "--json", "--cluster", "dgx-h100"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "megatron"
    assert found["unknown"] == [{"file": script, "line": 2, "text": "--lr-dcay cosine"}]
    assert found["missing"] == ["/model/vocab_size"]


def test_an_open_value_is_named_with_its_place(capsys):
    words = "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --tensor-model-parallel-size $TP"
    assert run(["import", "--megatron-args", words]) == 2
    expected = "missing: strategy.tp: --megatron-args, line 1 says '$TP', which is not understood; give it with --strategy tp=VALUE"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x" * (1 << 19), "is larger than 256 KiB"),
        (b"a: 1\nb: \xff\n", "line 2 is not UTF-8 text"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_cannot_be_read(content, message, tmp_path, capsys):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    assert run(["import", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_the_same_from_python():
    files = {file.path: file.content for file in files_of("deepspeed")}
    found = meshwright.import_config(files, cluster={"preset": "dgx-h100"})
    assert (found["format"], found["unknown"], found["missing"]) == ("deepspeed", [], [])
    assert found["row"]["strategy"]["zero"] == 3
