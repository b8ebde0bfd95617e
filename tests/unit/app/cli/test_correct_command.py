"""`meshwright correct` on the trials of two H200, and what `evaluate` then says of them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from benchmarks.correction_holdout import trial_records

TRIALS = trial_records()


def written(path: Path, documents: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    return str(path)


def test_corrections_of_measured_trials_make_their_predictions_better(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The trials themselves: how well others are predicted is what `benchmarks/correction_holdout.py` measures."""
    out = tmp_path / "corrections.json"
    assert run(["correct", written(tmp_path / "trials.jsonl", TRIALS), "--out", str(out)]) == 0
    told = capfd.readouterr().err
    assert "corrections are kept" in told
    failed = sum(trial["status"] != "ok" for trial in TRIALS)
    assert failed > 0
    assert told.count("left out:") >= failed
    measured = [trial for trial in TRIALS if trial["status"] == "ok"]
    rows = written(tmp_path / "rows.jsonl", [trial["row"] for trial in measured])
    errors = []
    for options in ([], ["--corrections", str(out)]):
        assert run(["evaluate", rows, *options]) == 0
        answers = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        errors.append(
            statistics.median(
                abs(answer["step_time_s"] / trial["step_time_s"] - 1.0)
                for answer, trial in zip(answers, measured, strict=True)
                if answer["verdict"] != "invalid"
            )
        )
    # Without corrections the median error of these trials was 10 % when 6 % was asked for here, and is 5.4 % now.
    assert errors[1] < 0.04
    assert errors[1] < 0.7 * errors[0]


def test_the_trials_of_a_tuning_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tuning = {
        "id": "t",
        "trials": [{"number": n, "record": trial} for n, trial in enumerate(TRIALS)] + [{"number": 99}],
    }
    out = tmp_path / "corrections.json"
    assert run(["--quiet", "correct", written(tmp_path / "tuning.json", [tuning]), "--out", str(out)]) == 0
    assert any(each["kept"] for each in json.loads(out.read_text())["corrections"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"row": TRIALS[0]["row"], "status": "oom"}], "the only run cannot be used"),
        ([{"plans": []}], "the only run cannot be used"),
    ],
)
def test_nothing_to_learn_from_is_an_error_that_says_so(
    content: list[dict[str, Any]], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corrections.json"
    assert run(["correct", written(tmp_path / "runs.jsonl", content), "--out", str(out)]) == 2
    assert message in capfd.readouterr().err
    assert not out.exists()


def test_one_plan_alone_is_no_ground_for_a_correction(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """None can be left out to check a factor, and the reader is told what to do about it."""
    measured = next(trial for trial in TRIALS if trial["status"] == "ok")
    out = tmp_path / "corrections.json"
    assert run(["correct", written(tmp_path / "runs.jsonl", [measured]), "--out", str(out)]) == 0
    said = " ".join(capfd.readouterr().err.split())
    listed = json.loads(out.read_text())["corrections"]
    assert f"0 of {len(listed)} corrections are kept, learnt from 1 run." in said
    assert "measure another plan, too" in said
    assert said.endswith("Plans stay as they are until a correction is kept.")


def test_what_was_measured_is_never_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = Path(written(tmp_path / "runs.jsonl", TRIALS[:1]))
    before = runs.read_bytes()
    assert run(["correct", str(runs), "--out", str(runs), "--force"]) == 2
    assert f"--out {runs} is one of the files that are read" in capfd.readouterr().err
    assert runs.read_bytes() == before


def test_a_file_is_not_overwritten_unasked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "corrections.json"
    out.write_text("mine")
    assert run(["correct", written(tmp_path / "runs.jsonl", TRIALS[:1]), "--out", str(out)]) == 2
    assert "exists already" in capfd.readouterr().err
    assert out.read_text() == "mine"
