"""What changes with the number of GPUs, the micro-batch and the sequence length, read back from the curves."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from app.report.figures.curves import Panel, curves
from app.report.report import Report
from app.report.sections.what_if import what_if


def drawing(markup: str, name: str) -> ET.Element:
    start = markup.index(f'aria-labelledby="{name}-title')
    begin = markup.rindex("<svg", 0, start)
    return ET.fromstring(markup[begin : markup.index("</svg>", start) + 6])


def test_a_point_is_as_high_as_its_value_and_a_missing_one_breaks_the_curve() -> None:
    panel = Panel("step_time_s", "Seconds", (4.0, 2.0, None, 1.0), ("4", "2", "", "1"), limit=4.0)
    drawn = ET.fromstring(
        curves(
            ["1", "2", "4", "8"], [panel], asked=1, told=["a", "b", "no plan; it does not fit", "d"],
            axis="GPUs", name="x", title="t", description="d",
        )
    )  # fmt: skip
    marks = {mark.get("data-variant"): float(mark.get("cy", "")) for mark in drawn.iter("circle")}
    base = next(float(line.get("y1", "")) for line in drawn.iter("line") if line.get("class") == "grid")
    assert base - marks["1"] == pytest.approx(2 * (base - marks["2"]), abs=0.02)
    assert base - marks["1"] == pytest.approx(4 * (base - marks["8"]), abs=0.03)
    (limit,) = [line for line in drawn.iter("line") if line.get("class") == "limit"]
    assert float(limit.get("y1", "")) == pytest.approx(marks["1"])
    # Of three pieces only that between the first two is there: the third variant has no plan.
    (piece,) = [line for line in drawn.iter("line") if line.get("class") == "curve"]
    assert [float(piece.get(name, "")) for name in ("y1", "y2")] == [marks["1"], marks["2"]]
    (gap,) = drawn.iter("path")
    assert gap.findtext("title") == "4: no plan; it does not fit"


def test_a_limit_strikes_through_no_value() -> None:
    """61.5 of 79 GiB lie 15 units under the limit, where the label's letters are: it is written under its point."""
    panel = Panel("peak_device_gib", "GiB", (61.5, 30.0, 79.0), ("61.5", "30.0", "79.0"), limit=79.0)
    drawn = ET.fromstring(
        curves(
            ["1", "2", "4"], [panel], asked=0, told=["a", "b", "c"], axis="GPUs", name="x", title="t", description="d"
        )
    )
    (limit,) = [float(line.get("y1", "")) for line in drawn.iter("line") if line.get("class") == "limit"]
    baselines = {text.text: float(text.get("y", "")) for text in drawn.iter("text") if text.get("class") == "value"}
    points = {mark.get("data-variant"): float(mark.get("cy", "")) for mark in drawn.iter("circle")}
    # Letters of 11 units stand on their baseline.
    assert all(not y - 11 <= limit <= y + 2 for y in baselines.values())
    assert baselines["61.5"] > points["1"]
    assert baselines["30.0"] < points["2"]


@pytest.mark.parametrize(
    ("name", "field", "per_value", "asked"),
    [
        ("what-if-num-nodes", "cluster.num_nodes", 8, "8"),
        ("what-if-micro-batch-size", "strategy.micro_batch_size", 1, "8"),
        ("what-if-seq-length", "training.seq_length", 1, "2,048"),
    ],
)
def test_curves_hold_the_answers(analysed: Report, name: str, field: str, per_value: int, asked: str) -> None:
    found = what_if(analysed)
    assert found is not None
    drawn = drawing(found.body, name)
    told = {(m.get("data-variant"), m.get("data-kind")): float(m.get("data-value", "")) for m in drawn.iter("circle")}
    answers = [answer for answer in analysed.response["what_if"] if answer["field"] in (field, "as asked")]
    expected = {}
    for answer in answers:
        variant = asked if answer["value"] is None else f"{answer['value'] * per_value:,}"
        if answer["plan"] is not None:
            expected[variant, "step_time_s"] = answer["step_time_s"]
            expected[variant, "tokens_per_s_per_gpu"] = answer["tokens_per_s_per_gpu"]
            expected[variant, "peak_device_gib"] = answer["peak_device_bytes"] / 2**30
    assert told == pytest.approx(expected, rel=1e-5)
    crosses = len(list(drawn.iter("path")))
    assert crosses == 3 * sum(answer["plan"] is None for answer in answers)


def test_a_variant_without_a_plan_says_why_in_figure_and_table(analysed: Report) -> None:
    found = what_if(analysed)
    assert found is not None
    assert "8,192: no plan; " in found.body
    assert (
        "No plan: /training/seq_length: seq_length 8192 is more than the model&#39;s 4096 learned positions"
        in found.body
    )


def test_it_is_left_out_where_it_was_not_asked_for(analysed: Report) -> None:
    assert what_if(replace(analysed, response={**analysed.response, "what_if": []})) is None
