"""The page of a tuning: its sentences, its figures and its tables say what the document says, and nothing where it says nothing."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import tuned
from app.cli.main import run
from app.report.figures.agreement import Pair, agreement
from app.report.figures.slopes import Slope, slopes
from app.report.tuning.document import read_tuning
from app.report.tuning.page import tuning_file
from app.report.tuning.words import accuracy, duration, moves, nothing_ran, ordinal, outcome, share, signed, spent
from cost_models.errors import InvalidInputError

FAILED: dict[str, Any] = {"step_time_s": None, "peak_allocated_bytes": None}


def words(document: dict[str, Any]) -> str:
    """The text of the page, without tags and with single spaces."""
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", tuning_file(document), flags=re.DOTALL)
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", text).split()))


def test_the_verdict_compares_the_best_with_the_first() -> None:
    """0.8 s against 1.0 s of plan 1 saves a fifth."""
    tuning = tuned.small([tuned.trial(0, step_time_s=1.0), tuned.trial(1)])
    told = "Plan 2 is the fastest that was measured: 0.800 s a step, 20.0% less than plan 1, which was predicted to be the fastest."
    assert outcome(read_tuning(tuning)) == told
    assert told in words(tuning)


def test_the_verdict_where_the_first_is_the_best_or_was_not_measured() -> None:
    first = tuned.small([tuned.trial(0), tuned.trial(1, step_time_s=0.9)])
    assert outcome(read_tuning(first)) == (
        "Plan 1 was predicted to be the fastest, and is the fastest that was measured: 0.800 s a step."
    )
    unknown = tuned.small([tuned.trial(0, status="oom", reason="out of memory", **FAILED), tuned.trial(1)])
    assert outcome(read_tuning(unknown)).endswith(
        "0.800 s a step. Plan 1, which was predicted to be the fastest, ran out of memory."
    )
    untried = tuned.small([tuned.trial(1)])
    assert outcome(read_tuning(untried)).endswith("Plan 1, which was predicted to be the fastest, was not measured.")


def test_errors_are_of_the_measured_value() -> None:
    """1.0 s predicted for 0.8 s is 1 / 0.8 - 1 = 25 % too much; 40 GiB for 50 GiB is 20 % too little."""
    (trial,) = read_tuning(tuned.small([tuned.trial(0)])).trials
    assert trial.error_fraction == pytest.approx(0.25)
    assert trial.memory_error_fraction == pytest.approx(-0.2)
    assert trial.is_in_range is False
    text = words(tuned.small([tuned.trial(0)]))
    assert "+25.0%" in text
    assert "-20.0%" in text
    assert "not in 0.900 to 1.10" in text


def test_accuracy_leaves_out_trials_before_which_nothing_was_learnt() -> None:
    """Errors of 25 % and 0 % have the median 12.5 %; only the second was corrected: 0.9 s for 1.0 s is 10 % off, 0 % without."""
    tuning = read_tuning(
        tuned.small(
            # A study rounds what it believes before the first trial.
            [
                tuned.trial(0, corrected_step_time_s=1.0 + 1e-12),
                tuned.trial(1, step_time_s=1.0, corrected_step_time_s=0.9),
            ]
        )
    )
    assert list(accuracy(tuning)) == [
        "Predicted times were off by 12.5% (median of 2); 1 of 2 lies inside the 80 % range.",
        "Corrected by what earlier trials had taught, they were off by 10.0% (one trial), and by 0.0% without that.",
        "Predicted allocated memory was off by 20.0% (median of 2).",
    ]


def test_where_nothing_ran_every_reason_is_listed() -> None:
    reasons = ["CUDA out of memory. Tried to allocate 2.00 GiB", "nothing came for 60 s after 0 steps"]
    document = tuned.small(
        [
            tuned.trial(0, status="oom", reason=reasons[0], **FAILED),
            tuned.trial(1, status="hang", reason=reasons[1], **FAILED),
            tuned.trial(2, status="oom", reason=reasons[0], **FAILED),
        ]
    )
    tuning = read_tuning(document)
    assert (
        nothing_ran(tuning)
        == "No step of any of the 3 trials was measured: 2 ran out of memory and 1 did not end in time."
    )
    text = words(document)
    assert all(reason in text for reason in reasons)
    page = tuning_file(document)
    assert re.findall(r'<section id="(\w+)"', page) == ["verdict", "failed", "spent"]
    assert 'class="figure"' not in page
    assert outcome(read_tuning(tuned.small([]))) == "No trial was made, so nothing was measured."


def test_a_tuning_that_goes_on_counts_what_has_not_ended_as_no_failure() -> None:
    waits = tuned.trial(1, status="running", took_s=None, gpu_seconds=0.0, **FAILED)
    text = words(tuned.small([tuned.trial(0), waits], status="running", stopped=None))
    assert "1 measured, 1 not ended" in text
    assert "What did not run" not in text
    assert "No trial has ended yet." in words(tuned.small([waits], status="running", stopped=None, request=None))


def test_what_was_spent_stands_beside_its_limit() -> None:
    """Two trials of 30 s; two GPUs for a minute are 2 / 60 GPU hours."""
    tuning = tuned.small([tuned.trial(0), tuned.trial(1)])
    assert spent(read_tuning(tuning)) == "2 trials of 8, 60 s of 10.0 min, 0.0333 GPU hours"
    # Each record has steps of 2.0 + 0.8 + 0.8 s among the 30 s of its trial: 12 %.
    assert "Of the trials' own time, 12% were training steps" in words(tuning)


def test_the_term_that_was_furthest_off_is_named() -> None:
    """0.4 s of communication predicted and 0.2 s traced in a step of 0.8 s: a quarter of it too much."""
    traced = {"gemm": 0.6, "dp_comm": 0.2}
    text = words(tuned.small([tuned.trial(0, terms_s=traced), tuned.trial(1, terms_s=traced)]))
    assert (
        "Exposed data-parallel communication: 0.400 s of a step were predicted and 0.200 s traced, "
        "25.0% of the step more than there was (the mean of 2 trials)." in text
    )
    assert "+0.200" in text


def test_a_correction_says_whether_and_why_it_is_kept() -> None:
    learnt = [
        {"term": "dp_comm", "factor": 0.5, "kept": True, "error_before": 0.25, "error_after": 0.05, "gpu": "H200-SXM-141GB"},
        {"term": "gemm", "factor": 1.1, "kept": False, "reason": "fewer than three trials"},
        {"term": "launch", "factor": 1.2, "kept": True, "enabled": False},
    ]  # fmt: skip
    page = tuning_file(tuned.small([tuned.trial(0)], corrections=learnt))
    assert re.findall(r'data-correction="(\w+)" data-kept="([\w ]+)"', page) == [
        ("dp_comm", "kept"), ("gemm", "not kept"), ("launch", "switched off"),
    ]  # fmt: skip
    text = words(tuned.small([tuned.trial(0)], corrections=learnt))
    assert "exposed data-parallel communication 0.500 kept 25.0% 5.0%" in text
    assert "fewer than three trials" in text
    assert "No step was traced" in text


def ranked(before: int, after: int | None, **known: Any) -> dict[str, Any]:
    strategy = {"dp": 2, "zero": 1, "micro_batch_size": before}
    return {"strategy": strategy, "rank_before": before, "rank_after": after, "predicted_step_time_s": 1.0} | known


def test_the_order_before_and_after() -> None:
    ranking = [ranked(1, 2), ranked(2, 1, measured_step_time_s=0.8), ranked(3, 3, corrected_step_time_s=0.9)]
    document = tuned.small([tuned.trial(0)], ranking=ranking)
    assert moves(read_tuning(document)) == (
        "Plan 2 is now first, and plan 1 is 2nd. 2 of 3 plans have another place than predicted."
    )
    page = tuning_file(document)
    drawn = re.findall(r'<circle[^>]*class="(mark|ring)"/></g>|data-before="(\d)" data-after="(\d)"', page)
    assert ("", "2", "1") in drawn
    # Only the measured plan ends in a full point.
    assert len(re.findall(r'r="4" class="mark"', page)) == 1
    lost = tuned.small([tuned.trial(0)], ranking=[ranked(1, None), ranked(2, 1), ranked(3, 2)])
    assert moves(read_tuning(lost)) == (
        "Plan 2, which was not measured, is now first. 2 of 3 plans have another place than predicted. "
        "1 plan has none now, having failed or needing more memory than one that did."
    )
    assert "none 1 dp2 z1 mb1" in words(lost)
    nowhere = tuned.small([tuned.trial(0, status="oom", **FAILED)], ranking=[ranked(1, None)])
    assert 'id="slopes-title"' not in tuning_file(nowhere)
    stays = tuned.small([tuned.trial(0)], ranking=[ranked(1, 1), ranked(2, 2)])
    assert moves(read_tuning(stays)) == "What was measured leaves the order as it was predicted."


def test_places_count_the_plans_of_a_tuning_only() -> None:
    """Ranks of the response have gaps, where near-copies and plans that no trial can run are left out."""
    stays = tuned.small([tuned.trial(0)], ranking=[ranked(2, 1), ranked(5, 2), ranked(9, 3)])
    assert moves(read_tuning(stays)) == "What was measured leaves the order as it was predicted."
    turned = tuned.small([tuned.trial(0)], ranking=[ranked(2, 1), ranked(5, 3), ranked(9, 2)])
    assert moves(read_tuning(turned)) == (
        "Plan 2, which was not measured, stays first. 2 of 3 plans have another place than predicted."
    )
    fallen = tuned.small([tuned.trial(0)], ranking=[ranked(2, 3), ranked(5, 1), ranked(9, 2)])
    assert moves(read_tuning(fallen)) == (
        "Plan 5, which was not measured, is now first, and plan 2 is 3rd. 3 of 3 plans have another place than predicted."
    )


def test_more_plans_than_the_figure_has_room_for_are_counted() -> None:
    document = tuned.small([tuned.trial(0)], ranking=[ranked(place, place) for place in range(1, 16)])
    assert "3 plans stand in the table alone." in words(document)
    assert len(re.findall(r"<tr data-before=", tuning_file(document))) == 15


def test_a_point_that_was_predicted_rightly_lies_on_the_diagonal() -> None:
    """The drawing is square: as far from its left edge as from its bottom, in shares of the two axes."""
    pairs = [Pair("1", "", 1.0, 1.0, 0.5, 2.0, 1.5), Pair("2", "", 2.0, 1.0)]
    drawn = str(agreement(pairs, unit="s", name="n", title="t", description="d"))
    (line,) = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="agree"', drawn)
    left, bottom, right, top = map(float, line)
    rings = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="5" class="ring"', drawn)
    ]
    shares = [((x - left) / (right - left), (bottom - y) / (bottom - top)) for x, y in rings]
    assert shares[0][0] == pytest.approx(shares[0][1], abs=1e-3)
    # Predicted twice as long as measured: right of the line, at the same height.
    assert shares[1][0] > shares[0][0]
    assert shares[1][1] == pytest.approx(shares[0][1], abs=1e-3)
    assert 'data-corrected="1.5"' in drawn


def test_labels_of_the_figure_do_not_lie_on_each_other() -> None:
    close = [Pair(str(number), "", 1.0 + 0.001 * number, 1.0) for number in range(5)]
    drawn = str(agreement([*close, Pair("far", "", 2.0, 2.0)], unit="s", name="n", title="t", description="d"))
    assert re.findall(r'class="rank">(\w+)<', drawn) == ["0", "far"]


def test_a_slope_that_rises_is_told_apart_from_one_that_falls() -> None:
    entries = [Slope(1, 2, "a", "1 s", "", is_measured=True), Slope(2, 1, "b", "2 s", "", is_measured=False)]
    drawn = str(slopes(entries, before="x", after="y", name="n", title="t", description="d"))
    assert re.findall(r'class="slope (\w+)( first)?"', drawn) == [("down", ""), ("up", " first")]
    # The second is first because the first is gone: no other plan was overtaken.
    alone = str(slopes(entries[1:], before="x", after="y", name="n", title="t", description="d"))
    assert re.findall(r'class="slope (\w+)( first)?"', alone) == [("same", " first")]


def test_knobs_of_the_winner_are_shown_with_their_gain() -> None:
    """0.98 s against 1.0 s with the defaults is 2 % less."""
    knobs = {
        "best": {"values": {"reduce_bucket_size": 500}, "step_time_s": 0.98, "arguments": ["--bucket", "500"]},
        "default_step_time_s": 1.0,
        "gain_fraction": 0.02,
    }
    text = words(tuned.small([tuned.trial(0)], knobs=knobs))
    assert "0.980 s a step with these values, 2.0% less than with the framework's defaults (1.00 s)." in text
    assert "--bucket 500" in text
    assert "Run-time knobs" not in words(tuned.small([tuned.trial(0)], knobs={"best": None}))


def test_what_a_document_holds_is_text_and_never_markup() -> None:
    evil = '<script>alert(1)</script>"><b>'
    document = tuned.small(
        [tuned.trial(0, status="crash", reason=evil, **FAILED)],
        next=[{"rank": 2, "strategy": {"tp": 2}, "why": evil}],
        warnings=[evil],
        stopped={"reason": "failed", "message": evil},
    )
    page = tuning_file(document, scripts=False)
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") >= 4


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"request": 3}, "/request"),
        ({"trials": {}}, "/trials"),
        ({"trials": [tuned.trial(0, step_time_s=-1.0)]}, "/trials/0/step_time_s"),
        ({"trials": [tuned.trial(0, step_time_s="fast")]}, "/trials/0/step_time_s"),
        ({"trials": [tuned.trial(0, strategy={"tp": "two"})]}, "/trials/0/strategy"),
        ({"trials": [tuned.trial(0, predicted_step_time_range_s=[2.0, 1.0])]}, "/trials/0/predicted_step_time_range_s"),
        ({"ranking": [{"strategy": {}, "predicted_step_time_s": 1.0}]}, "/ranking/0/rank_before"),
    ],
)
def test_a_document_that_is_no_tuning_names_its_field(changed: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        read_tuning(tuned.small([]) | changed)
    assert raised.value.problems[0].pointer == pointer


def test_the_report_command_recognises_a_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = tmp_path / "tuning.json", tmp_path / "tuning.html"
    source.write_text(json.dumps(tuned.studied()), "utf-8")
    assert run(["report", str(source), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text("utf-8")
    assert "Tuning of llama-3.2-3b on 2 GPUs" in text
    for name in ("verdict", "order", "trials", "terms", "failed", "next", "spent"):
        assert f'<section id="{name}"' in text
    source.write_text(json.dumps(tuned.studied() | {"trials": 1}), "utf-8")
    assert run(["report", str(source), "--html", str(page), "--force"]) == 2
    assert "/trials" in capsys.readouterr().err


def test_short_numbers() -> None:
    assert [duration(value) for value in (0.4, 45.0, 99.6, 600.0, 5_400.0)] == [
        "0 s", "45 s", "1.7 min", "10.0 min", "90.0 min",
    ]  # fmt: skip
    assert duration(7_200.0) == "2.0 h"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th",
    ]  # fmt: skip
    assert (signed(-0.0001), signed(0.0504), signed(None), share(-0.054)) == ("+0.0%", "+5.0%", "", "5.4%")
