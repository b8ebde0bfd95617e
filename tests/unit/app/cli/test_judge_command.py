"""`meshwright judge`: a summary and a diff for people, or the whole judgement as JSON."""

import json

import pytest

from app.cli.main import run
from tests.launch_imports import files_of


@pytest.fixture
def script(tmp_path):
    (file,) = files_of("megatron")
    path = tmp_path / "launch.sh"
    path.write_text(file.content)
    return str(path)


def test_the_summary_and_the_diff(script, capsys):
    assert run(["judge", script, "--cluster", "dgx-h100"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].startswith("Yours: ")
    assert lines[0].endswith("fits (tp 2, pp 2, dp 4, zero 1, micro-batch 1)")
    assert lines[1].startswith("Best: ")
    assert lines[2].startswith("The best plan takes ")
    (changed,) = [
        line for line in lines if line.endswith(": --tensor-model-parallel-size 2 -> --tensor-model-parallel-size 1")
    ]
    assert f"  {script}:" in changed
    assert f"--- {script}\n+++ {script}\n" in said.out


def test_the_best_plan_has_nothing_to_change(script, tmp_path, capsys):
    assert run(["judge", script, "--cluster", "dgx-h100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    strategy = [f"--strategy={name}={json.dumps(value)}" for name, value in answer["best"]["strategy"].items()]
    assert run(["judge", script, "--cluster", "dgx-h100", *strategy]) == 0
    out = capsys.readouterr().out
    assert "Nothing that these files could say is faster." in out
    assert "---" not in out


def test_what_is_missing_is_asked_for(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: FSDP\nmixed_precision: bf16\n")
    assert run(["judge", str(path), "--cluster", "dgx-h100"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "missing: model: give it with --model" in said.err


def test_a_job_that_fits_nowhere(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    arguments = [
        "--cluster",
        "rtx4090-pcie-8",
        "--num-nodes",
        "1",
        "--model",
        "llama-3.1-405b",
        "--training",
        "seq_length=8192",
    ]
    assert run(["judge", str(path), *arguments]) == 3
    assert "Best: no plan for this job fits" in capsys.readouterr().out
