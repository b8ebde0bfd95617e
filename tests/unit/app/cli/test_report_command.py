"""`meshwright report`: the file that it writes, what it takes, and what it refuses."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import meshwright
from app.cli.main import run

ROW = {
    "id": "tp2",
    "model": {"preset": "gpt3-1.3b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "strategy": {"tp": 2, "micro_batch_size": 4},
}


@pytest.fixture(scope="module")
def response() -> dict[str, Any]:
    request = {name: ROW[name] for name in ("model", "cluster", "training")} | {"top_k": 3}
    return meshwright.plan(request)


def _written(document: dict[str, Any], folder: Path, *options: str) -> tuple[int, Path]:
    source, page = folder / "response.json", folder / "plan.html"
    source.write_text(json.dumps(document), "utf-8")
    return run(["report", str(source), "--html", str(page), *options]), page


def test_the_page_is_written_and_named_on_stdout(response, tmp_path, capsys) -> None:
    code, page = _written(response, tmp_path)
    assert code == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text("utf-8")
    assert 'id="ranking"' in text
    assert "<script>" in text


def test_without_scripts_the_page_holds_none(response, tmp_path) -> None:
    code, page = _written(response, tmp_path, "--no-scripts")
    assert code == 0
    assert "<script>" not in page.read_text("utf-8")


def test_nothing_is_overwritten_without_force(response, tmp_path, capsys) -> None:
    (tmp_path / "plan.html").write_text("mine")
    code, page = _written(response, tmp_path)
    assert code == 2
    assert "plan.html is there already" in capsys.readouterr().err
    assert page.read_text() == "mine"
    code, page = _written(response, tmp_path, "--force")
    assert code == 0
    assert page.read_text() != "mine"


def test_a_page_outlives_a_write_that_fails(response, tmp_path) -> None:
    """A limit on the size of files stands for a full disk: the old page is there as it was, and no other file."""
    source, folder = tmp_path / "response.json", tmp_path / "pages"
    source.write_text(json.dumps(response))
    folder.mkdir()
    page = folder / "plan.html"
    page.write_text("the page of yesterday")
    command = [sys.executable, "-m", "meshwright", "report", str(source), "--html", str(page), "--force"]
    most = (1000, resource.RLIM_INFINITY)
    done = subprocess.run(
        command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, most),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert page.read_text() == "the page of yesterday"
    assert [path.name for path in folder.iterdir()] == ["plan.html"]


def test_a_device_is_written_into_and_stays_a_device(response, tmp_path) -> None:
    source, pipe = tmp_path / "response.json", tmp_path / "pipe"
    source.write_text(json.dumps(response))
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(pipe.read_text)
        assert run(["report", str(source), "--html", str(pipe), "--force"]) == 0
        assert reader.result(timeout=60).startswith("<!doctype html>")
    assert pipe.is_fifo()


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(response, tmp_path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "plan.html").symlink_to(tmp_path / "outside")
    code, page = _written(response, tmp_path, "--force")
    assert code == 0
    assert not page.is_symlink()
    assert (tmp_path / "outside").read_text() == "mine"


@pytest.mark.parametrize(("html", "told"), [("folder", "is a folder"), ("missing/plan.html", "is not a folder")])
def test_places_that_hold_no_file_are_refused(response, tmp_path, capsys, html, told) -> None:
    (tmp_path / "folder").mkdir()
    source = tmp_path / "response.json"
    source.write_text(json.dumps(response), "utf-8")
    assert run(["report", str(source), "--html", str(tmp_path / html), "--force"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("field", ["product_version", "model_revision"])
def test_another_product_or_revision_is_refused_with_a_hint(response, tmp_path, capsys, field) -> None:
    code, page = _written({**response, field: "0.0.9"}, tmp_path)
    assert code == 2
    assert not page.exists()
    told = capsys.readouterr().err
    assert "0.0.9" in told
    assert "plan again" in told


def test_a_summary_without_stages_is_completed(response, tmp_path) -> None:
    """GET /v1/plans/{id} leaves the stages out; the page draws them all the same, as large as the planner found them."""
    summary = copy.deepcopy(response)
    for plan in summary["plans"]:
        plan["evaluation"]["memory"]["stages"] = None
    code, page = _written(summary, tmp_path)
    assert code == 0
    drawn = re.findall(r'data-stage="0" data-allocated="(\d+)"', page.read_text("utf-8"))
    leaders = [plan for plan in response["plans"] if plan["folded_under"] is None]
    stages = [plan["evaluation"]["memory"]["stages"][0] for plan in leaders]
    assert [int(size) for size in drawn] == [round(stage["peak_allocated_bytes"]) for stage in stages]


def test_an_evaluation_is_reported_from_standard_input(tmp_path, monkeypatch) -> None:
    (evaluation,) = meshwright.evaluate([ROW])
    text = json.dumps(evaluation)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    page = tmp_path / "plan.html"
    assert run(["report", "-", "--html", str(page)]) == 0
    written = page.read_text("utf-8")
    assert "Evaluation of tp2" in written
    assert f'data-allocated="{evaluation["memory"]["peak_allocated_bytes"]:.0f}"' in written


def test_an_evaluation_that_cannot_run_says_why(tmp_path) -> None:
    (evaluation,) = meshwright.evaluate([{**ROW, "strategy": {"tp": 3}}])
    code, page = _written(evaluation, tmp_path)
    assert code == 0
    assert evaluation["reasons"][0]["message"].replace("'", "&#39;") in page.read_text("utf-8")


def test_a_ranked_plan_stands_alone(response, tmp_path) -> None:
    code, page = _written(response["plans"][1], tmp_path)
    assert code == 0
    assert "<h1>Plan 2</h1>" in page.read_text("utf-8")


@pytest.mark.parametrize("document", [{}, {"plans": [], "request": {}, "status": "queued"}, {"rank": 1, "x": 2}])
def test_other_documents_are_bad_input(document, tmp_path, capsys) -> None:
    code, page = _written(document, tmp_path)
    assert code == 2
    assert not page.exists()
    assert capsys.readouterr().err.startswith("error: ")


def test_the_response_itself_is_never_replaced(response, tmp_path, capsys) -> None:
    source = tmp_path / "response.json"
    source.write_text(json.dumps(response), "utf-8")
    (tmp_path / "link.json").symlink_to(source)
    for target in ("response.json", "link.json"):
        assert run(["report", str(source), "--html", str(tmp_path / target), "--force"]) == 2
        assert "is the response itself" in capsys.readouterr().err
    assert json.loads(source.read_text("utf-8")) == response


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("-", "no file's name"),
        ("", "a folder"),
        (".", "a folder"),
        ("--no", "--html --no begins with a dash, as options do\n  Give --html a name such as plan.html"),
    ],
)
def test_what_is_no_path_of_a_page_is_refused(target, told, response, tmp_path, monkeypatch, capsys) -> None:
    source = tmp_path / "response.json"
    source.write_text(json.dumps(response), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(source), "--html", target]) == 2
    assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["response.json"]


def test_an_empty_file_is_called_empty(tmp_path, capsys) -> None:
    (tmp_path / "empty.json").write_text("\n")
    assert run(["report", str(tmp_path / "empty.json"), "--html", str(tmp_path / "plan.html")]) == 2
    assert "empty.json is empty\n  The program that should have written it" in capsys.readouterr().err
