"""`meshwright tune` before anything is measured: what is refused, with the option or field that is wrong and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from builders import UNIT_GPU, dense_model, request_of


def _refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, framework: str, **model: Any
) -> tuple[int, str]:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(request_of(dense_model(4, **model), framework, cluster={"gpus_per_node": 2})))
    code = run(["tune", str(request), *options])
    printed = capsys.readouterr()
    assert not printed.out
    return code, printed.err


@pytest.mark.parametrize(
    ("framework", "options", "code", "said"),
    [
        ("deepspeed", ["--backend", "pytorch"], 2, "the plans are for deepspeed"),
        ("deepspeed", ["--device", "cpu"], 2, "only plans for torchtitan can be tried on processors"),
        ("torchtitan", ["--device", "cpu", "--backend", "export"], 2, "Leave --backend out"),
        ("torchtitan", ["--target", "torchtitan"], 2, "Add --backend export"),
        ("torchtitan", ["--budget", "soon"], 2, "--budget"),
        ("torchtitan", ["--trial-time", "0s"], 2, "--trial-time"),
        ("torchtitan", ["--max-trials", "0"], 2, "max-trials"),
        ("torchtitan", ["--gpu-hours", "0"], 2, "--gpu-hours is 0; it must be a number above 0"),
        ("torchtitan", ["--gpu-hours", "inf"], 2, "--gpu-hours is inf; it must be a number above 0"),
        ("torchtitan", ["--gpu-hours", "nan"], 2, "gpu-hours"),
        ("torchtitan", ["--out", "/nowhere/at/all.json"], 2, "is not a folder"),
        ("torchtitan", ["--out", "--json"], 2, "begins with a dash"),
    ],
)
def test_what_cannot_be_done_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], framework: str, options: list[str], code: int, said: str
) -> None:
    found, error = _refused(tmp_path, capsys, *options, framework=framework)
    assert found == code
    assert said in error


def test_the_request_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    code, error = _refused(tmp_path, capsys, "--out", str(request), framework="torchtitan")
    assert (code, json.loads(request.read_text())["training"]["framework"]) == (2, "torchtitan")
    assert f"--out {request} is one of the files that are read" in error


def test_a_number_of_plans_that_is_none_is_left_for_the_planner_to_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    request.write_text(
        json.dumps(request_of(dense_model(4), "torchtitan", cluster={"gpus_per_node": 2}) | {"top_k": True})
    )
    assert run(["tune", str(request)]) == 2
    assert "top_k is true; it must be a whole number" in capsys.readouterr().err


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_machine_without_gpus_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = _refused(tmp_path, capsys, framework="torchtitan")
    assert code == 5
    assert "names no GPU" in error
    assert "--device cpu" in error


def test_a_request_that_no_plan_fits_has_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The embedding alone has 32000 x 8192 parameters, 3 GB with their optimizer state; the GPUs have 0.1 GiB each.
    request = tmp_path / "request.json"
    asked = request_of(
        dense_model(4) | {"hidden_size": 8192}, "torchtitan", gpu=UNIT_GPU | {"memory_gib": 0.1}, cluster={"gpus_per_node": 2}
    )  # fmt: skip
    request.write_text(json.dumps(asked))
    assert run(["tune", str(request), "--device", "cpu"]) == 3
    assert "no plan fits" in capsys.readouterr().err


def test_plans_that_the_back_end_cannot_run_are_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    asked = request_of(
        dense_model(4, position_embedding="alibi"), "torchtitan", cluster={"gpus_per_node": 2},
        cross_entropy="unfused", compile=False,
    )  # fmt: skip
    request.write_text(json.dumps(asked))
    assert run(["tune", str(request), "--device", "cpu"]) == 5
    error = capsys.readouterr().err
    assert "no trial was run" in error
    assert "positions other than rope" in error or "alibi" in error


def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    code, error = _refused(
        tmp_path, capsys, "--device", "cpu", "--storage", f"sqlite:///{path}", framework="torchtitan"
    )
    assert code == 2
    assert "belongs to something else" in error
    assert path.read_bytes() == before
