"""Two plans side by side: differences by term with their bars, memory, strategies, and whether the difference can be told."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from app.report.figures.difference import difference_bar
from app.report.report import Report
from app.report.sections.compare import compare, compare_page, short, signed
from cost_models.terms import TIME_TERMS
from planner.one_plan.pair import calibrations_of, pair

ROW = re.compile(
    r'<th scope="row">(?P<label>[^<]*)</th><td>(?P<bar>(?:<svg.*?</svg>)?)</td><td>(?P<difference>[^<]*)</td>'
    r"<td>(?P<share>[^<]*)</td><td>(?P<own>[^<]*)</td><td>(?P<its>[^<]*)</td>",
)


def pair_markup(markup: str, other: int) -> str:
    start = markup.index(f'id="compare-1-{other}"')
    return markup[start : markup.index("</details>", start)]


def number_of(text: str) -> float:
    return float(text.replace(",", "").rstrip("%"))


def test_a_bar_reaches_as_far_as_its_share_of_the_largest_and_to_the_side_of_its_sign() -> None:
    for value, x, width, kind in ((2.0, 0.0, 25.0, "more"), (-4.0, -50.0, 50.0, "less"), (0.0, 0.0, 0.0, "more")):
        drawn = ET.fromstring(difference_bar(value, largest=4.0))
        bar = drawn.find("rect")
        assert bar is not None
        assert (float(bar.get("x", "")), float(bar.get("width", "")), bar.get("class")) == (x, width, kind)
        assert float(drawn.get("data-difference", "")) == value
    hardly = ET.fromstring(difference_bar(1e-6, largest=4.0)).find("rect")
    assert hardly is not None
    assert float(hardly.get("width", "")) > 0.5  # still to be seen


def test_terms_add_up_to_the_difference_largest_first(analysed: Report) -> None:
    """Every number is read back from the page: rows add up to the sum, which is the difference of the two steps."""
    found = compare(analysed)
    assert found is not None
    best, other = analysed.plans[0].evaluation, analysed.plan(4).evaluation
    rows = list(ROW.finditer(pair_markup(found.body, 4)))
    end = next(place for place, row in enumerate(rows) if row["label"] == "The whole step")
    terms, total = rows[:end], rows[end]
    assert number_of(total["difference"]) == pytest.approx(other["step_time_s"] - best["step_time_s"], abs=1e-4)
    assert number_of(total["own"]) == pytest.approx(best["step_time_s"], abs=1e-4)
    assert number_of(total["its"]) == pytest.approx(other["step_time_s"], abs=1e-4)
    assert sum(number_of(row["difference"]) for row in terms) == pytest.approx(number_of(total["difference"]), abs=6e-4)
    sizes = [abs(number_of(row["difference"])) for row in terms if row["label"] != "Everything else"]
    assert sizes == sorted(sizes, reverse=True)
    by_words = {term.phrase[0].upper() + term.phrase[1:]: term.name for term in TIME_TERMS}
    for row in terms:
        if row["label"] in by_words:
            name = by_words[row["label"]]
            apart = other["time_breakdown_s"][name] - best["time_breakdown_s"][name]
            assert number_of(row["difference"]) == pytest.approx(apart, abs=6e-5)
            assert number_of(row["share"]) == pytest.approx(100 * apart / best["step_time_s"], abs=0.06)
            bar = re.search(r'data-difference="([^"]+)"', row["bar"])
            assert bar is not None
            assert float(bar[1]) == pytest.approx(apart, rel=1e-3)


def test_memory_is_that_of_the_fullest_stages(analysed: Report) -> None:
    found = compare(analysed)
    assert found is not None
    rows = {m["label"]: m for m in ROW.finditer(pair_markup(found.body, 4))}
    for key, view in (("own", analysed.plans[0]), ("its", analysed.plan(4))):
        peak = max(stage["peak_allocated_bytes"] for stage in view.evaluation["memory"]["stages"]) / 2**30
        assert number_of(rows["Allocated at its peak"][key]) == pytest.approx(peak, abs=0.02)


def test_fields_that_differ_are_told_and_no_others(analysed: Report) -> None:
    found = compare(analysed)
    assert found is not None
    part = pair_markup(found.body, 4)
    table = part[part.index("Where their strategies differ</p>") :]
    told = dict(re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', table[: table.index("</table>")]))
    one, other = analysed.plans[0], analysed.plan(4)
    expected = pair(
        {**one.plan, "evaluation": one.evaluation}, {**other.plan, "evaluation": other.evaluation}, calibrations=()
    )["strategy"]
    assert told == {field: short(own) for field, (own, _) in expected.items()}
    assert expected


def test_the_verdict_is_the_rankings(analysed: Report) -> None:
    """A tie with plan 1 is what the first tie group holds."""
    found = compare(analysed)
    assert found is not None
    others = [view for view in analysed.plans[1:] if view.plan["folded_under"] is None]
    assert others
    for view in others:
        tied = view.plan["tie_group"] == analysed.plans[0].plan["tie_group"]
        assert ("the range contains 0" in pair_markup(found.body, view.rank)) is tied


def test_where_the_calibration_lies_elsewhere_the_range_is_not_told(analysed: Report) -> None:
    cluster = {**analysed.request["cluster"], "calibration": "/nowhere/own.json"}
    response = {**analysed.response, "request": {**analysed.request, "cluster": cluster}}
    found = compare(replace(analysed, response=response))
    assert found is not None
    assert "is not here" in found.body
    assert "call" not in pair_markup(found.body, 4)


def test_a_page_compares_any_two_the_other_way_round_as_well(analysed: Report) -> None:
    served = replace(analysed, address="/plans/p")
    one, other = (compare_page(served, a, b).body for a, b in ((2, 4), (4, 2)))
    ends = [next(m for m in ROW.finditer(text) if m["label"] == "The whole step") for text in (one, other)]
    assert number_of(ends[0]["difference"]) == -number_of(ends[1]["difference"]) != 0
    assert 'action="/plans/p/compare"' in one
    assert re.findall(r"<option selected>(\d+)</option>", one) == ["2", "4"]
    assert 'href="/plans/p/ranked/4"' in one
    # Terms that hardly differ are told one by one there.
    assert "Matrix products" in one


def test_the_script_is_given_every_plan_and_the_width_of_every_difference(analysed: Report) -> None:
    found = compare(analysed)
    assert found is not None
    block = re.search(r'<script type="application/json">(.*?)</script>', found.body)
    assert block is not None
    data = json.loads(block[1])
    assert [plan["rank"] for plan in data["plans"]] == [view.rank for view in analysed.plans]
    for plan in data["plans"]:
        assert sum(plan["time"]) == pytest.approx(plan["step"], rel=1e-4)
        assert len(plan["memory"]) == len(data["memory"])
    calibrations = calibrations_of(analysed.request)
    views = [{**view.plan, "evaluation": view.evaluation} for view in analysed.plans]
    for a in range(len(views)):
        for b in range(a + 1, len(views)):
            low, high = pair(views[a], views[b], calibrations=calibrations)["difference_range_s"]
            assert data["widths"][a][b - a - 1] == pytest.approx((high - low) / 2, rel=1e-4)


def test_one_plan_has_nothing_to_be_compared_with(analysed: Report) -> None:
    assert compare(replace(analysed, plans=analysed.plans[:1])) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (False, "no"),
        ([4, 4, 5, 3], "4 (2 times), 5, 3"),
        ([], "none"),
        ("full", "full"),
        (2, "2"),
    ],
)
def test_values_are_short(value: object, text: str) -> None:
    assert short(value) == text


def test_differences_carry_their_sign_and_nothing_is_0() -> None:
    assert [signed(value, 2) for value in (1.234, -0.5, 0.001, -0.001, 1234.5)] == [
        "+1.23",
        "-0.50",
        "0",
        "0",
        "+1,234.50",
    ]
