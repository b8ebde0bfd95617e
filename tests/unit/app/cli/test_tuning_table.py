"""A tuning on the terminal: one line a trial, the fastest first, and what follows from them below."""

from __future__ import annotations

from typing import Any

import pytest

import tuned
from app.cli.rendering.tuning_table import print_tuning, trial_line

FAILED: dict[str, Any] = {"step_time_s": None, "peak_allocated_bytes": None, "status": "oom"}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def text(document: dict[str, Any], *, width: int = 120, quiet: bool = False) -> tuple[list[str], str]:
        monkeypatch.setenv("COLUMNS", str(width))
        print_tuning(document, quiet=quiet)
        captured = capsys.readouterr()
        return [line.rstrip() for line in captured.out.splitlines()], captured.err

    return text


def test_trials_are_lines_with_the_fastest_first(printed: Any) -> None:
    document = tuned.small(
        [
            tuned.trial(0),
            tuned.trial(1, step_time_s=0.5),
            tuned.trial(2, reason="CUDA out of memory", **FAILED),
        ]
    )
    lines, _ = printed(document)
    assert lines[0].startswith("model (3.21B parameters) on 1 x 2 H200-SXM-141GB")
    rows = [line.split() for line in lines if line.lstrip()[:1].isdigit()]
    assert rows[0] == ["1", "2", "dp2", "z3", "mb2", "0.500", "1.00", "0.900-1.10!", "+100.0%", "1.00", "+100.0%", "50.0", "-20.0%", "60"]  # fmt: skip
    assert rows[1][:7] == ["0", "1", "dp2", "z3", "mb1", "0.800", "1.00"]
    assert rows[2][:8] == ["2", "3", "dp2", "z3", "mb3", "out", "of", "memory"]
    assert "  plan 3, out of memory: CUDA out of memory" in lines
    assert "Stopped: All 8 trials were made." in lines


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
def test_no_line_is_wider_than_the_terminal(printed: Any, width: int) -> None:
    document = tuned.studied()
    lines, _ = printed(document, width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    # The first plan has failed, so that another one is the fastest; which one follows from the prices of today.
    best = min((each for each in document["trials"] if each["step_time_s"]), key=lambda each: each["step_time_s"])
    assert best["rank"] > 1
    assert f"Plan {best['rank']} is the fastest that was measured" in text
    # The split and both times are what a narrow terminal keeps.
    split = "dp{dp} z{zero} mb{micro_batch_size}".format(**best["strategy"])
    assert sum(f"{best['step_time_s']:.2f}" in line and split in line for line in lines) == 1


def test_warnings_go_to_stderr_unless_quiet(printed: Any) -> None:
    document = tuned.small([tuned.trial(0)], warnings=["Two plans were left out."])
    assert "warning: Two plans were left out." in printed(document)[1]
    assert printed(document, quiet=True)[1] == ""
    on_processors = tuned.small([tuned.trial(0, record={"machine": {"gpu": "CPU", "gpus": 2}})])
    assert "say nothing of GPUs" in " ".join(printed(on_processors)[1].split())


def test_what_is_learnt_and_next_is_listed_to_a_bound(printed: Any) -> None:
    learnt = [{"term": "gemm", "factor": 1.0 + each / 100, "kept": True} for each in range(7)]
    why = [{"strategy": {"tp": 2}, "why": "It may be as fast as the best."}]
    lines, _ = printed(tuned.small([tuned.trial(0)], corrections=learnt, next=why))
    assert "  matrix products × 1.00, kept" in lines
    assert "  and 2 more in --json" in lines
    assert "  tp2 z0 mb1: It may be as fast as the best." in lines


def test_one_trial_in_one_line() -> None:
    assert trial_line(tuned.trial(0)) == "trial 0, plan 1 (dp2 z3 mb1): 0.800 s a step, 1.00 s predicted (+25.0%)"
    assert trial_line(tuned.trial(0, rank=None, reason="no room", **FAILED)) == (
        "trial 0, (dp2 z3 mb1): out of memory: no room"
    )
