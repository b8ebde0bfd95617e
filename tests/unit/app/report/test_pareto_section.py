"""The front as points: each lies where its time and memory are, and opens its plan or its line of the table."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from app.report.figures.scatter import SHADES, Point, distinct, scatter, shade
from app.report.frame import STYLE, asset
from app.report.report import Report
from app.report.sections.pareto import pareto


def points_of(markup: str) -> list[tuple[ET.Element, ET.Element, int]]:
    """Each link with its circle and its number of GPUs."""
    drawing = ET.fromstring(re.search(r"<svg.*?</svg>", markup, re.DOTALL)[0])  # type: ignore[index]
    return [
        (link, link.find("circle"), int(group.get("data-gpus", "")))  # type: ignore[misc]
        for group in drawing.iter("g")
        for link in group.iter("a")
    ]


def point(time_s: float, gib: float, gpus: int, *, rank: int | None = None) -> Point:
    return Point(time_s, gib * 2**30, gpus, "3 GPU hours per billion tokens", f"#{time_s:g}", rank, "tp2 z1", 0)


def test_points_lie_where_their_numbers_say() -> None:
    """10 s and 40 s on a logarithmic axis: 20 s lies halfway. 80 GiB are twice as high above the base line as 40 GiB."""
    drawn = scatter(
        [point(10, 80, 8), point(20, 40, 4), point(40, 20, 2)],
        name="x", title="t", description="d", capacity_bytes=0.0,
    )  # fmt: skip
    at = {circle.get("data-s"): circle for _, circle, _ in points_of(drawn)}
    xs = [float(at[key].get("cx", "")) for key in ("10", "20", "40")]
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.11)
    base = float(re.search(r'y2="([\d.]+)" class="grid"/><text x="[\d.]+" y="[\d.]+" text-anchor="middle"', drawn)[1])  # type: ignore[index]
    heights = [base - float(at[key].get("cy", "")) for key in ("10", "20", "40")]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert heights[1] == pytest.approx(2 * heights[2], abs=0.2)
    # More GPUs, larger points.
    sizes = [float(at[key].get("r", "")) for key in ("10", "20", "40")]
    assert sizes[0] > sizes[1] > sizes[2]


def test_the_limit_is_drawn_at_the_cards_memory() -> None:
    drawn = scatter([point(1, 40, 8)], name="x", title="t", description="d", capacity_bytes=80 * 2**30)
    limit = ET.fromstring(drawn).find(".//line[@class='limit']")
    _, circle, _ = points_of(drawn)[0]
    assert limit is not None
    assert limit.get("data-limit-gib") == "80.0"
    zero = 338.0
    assert zero - float(limit.get("y1", "")) == pytest.approx(2 * (zero - float(circle.get("cy", ""))), abs=0.2)


def test_points_in_a_strip_are_spread_and_the_axis_says_where_it_begins() -> None:
    """60 to 70 GiB of a card of 80 would lie in a seventh of an axis from 0."""
    points = [point(1, 60, 8), point(2, 70, 8)]
    drawn = scatter(points, name="x", title="t", description="d", capacity_bytes=80 * 2**30)
    low, high = (float(circle.get("cy", "")) for _, circle, _ in points_of(drawn))
    assert low - high > 292 / 4
    (name,) = re.findall(r">GiB on the fullest GPU([^<]*)<", drawn)
    assert name == ", from 55 upwards"
    wide = scatter([*points, point(3, 9, 8)], name="x", title="t", description="d", capacity_bytes=80 * 2**30)
    assert ">GiB on the fullest GPU<" in wide


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_points_stand_out_from_the_page_in_both_schemes() -> None:
    """WCAG 2 asks for a contrast of 3 of what a figure is made of."""
    style = asset(STYLE)
    pages = re.findall(r"--page: (#\w{6})", style)
    for shade_of in range(SHADES):
        for page, colour in zip(pages, re.findall(rf"--gpus-{shade_of}: (#\w{{6}})", style), strict=True):
            darker, lighter = sorted((luminance(page), luminance(colour)))
            assert (lighter + 0.05) / (darker + 0.05) >= 3.0
    drawn = scatter([point(1, 40, 2), point(2, 40, 8)], name="x", title="t", description="d", capacity_bytes=80 * 2**30)
    assert min(float(circle.get("r", "")) for _, circle, _ in points_of(drawn)) >= 4.0


def test_numbers_of_gpus_share_colours_only_where_there_are_many() -> None:
    assert [shade(gpus, [8, 16, 32]) for gpus in (8, 16, 32)] == [0, 3, 6]
    assert shade(8, [8]) == 6
    many = list(range(1, 15))
    assert [shade(gpus, many) for gpus in many] == sorted(shade(gpus, many) for gpus in many)


def test_every_point_holds_its_numbers_and_leads_somewhere(analysed: Report) -> None:
    front = analysed.response["pareto"]
    found = pareto(analysed)
    assert found is not None
    drawn = points_of(found.body)
    told = {(c.get("data-s"), c.get("data-gib"), gpus) for _, c, gpus in drawn}
    expected = {
        (f"{e['step_time_s']:.5g}", f"{e['peak_device_bytes'] / 2**30:.5g}", int(e["num_gpus"])) for e in front
    }  # fmt: skip
    assert told <= expected
    assert len(told) == len(drawn) > 20
    rows = set(re.findall(r'<tr id="(front-\d+)">', found.body))
    plans = {f"#plan-{view.rank}" for view in analysed.plans}
    assert all(link.get("href") in plans or link.get("href", "")[1:] in rows for link, _, _ in drawn)
    assert len(rows) == len(drawn)
    assert f"{len(front)} plans in time" in found.body


def test_only_points_that_would_lie_on_another_are_left_out() -> None:
    """The axis of 10 to 20 s takes 462 units less its margins, so that 0.01 s is far less than a point, and 1 s far more."""
    points = [
        point(10, 40, 8),
        point(10.01, 40, 8),
        point(11, 40, 8),
        point(10.01, 40, 4),
        point(10.01, 40, 8, rank=3),
        point(20, 9, 8),
    ]
    kept = distinct(points, capacity_bytes=0.0)
    # Listed plans are taken first, so that the plan of rank 3 stands for its two neighbours on as many GPUs.
    assert kept == [points[place] for place in (2, 3, 4, 5)]


def test_listed_plans_of_the_front_open_their_plan_and_can_be_reached_by_keyboard(analysed: Report) -> None:
    listed = [
        view.rank for view in analysed.plans if view.strategy in [e["strategy"] for e in analysed.response["pareto"]]
    ]
    found = pareto(replace(analysed, address="/plans/p"))
    assert found is not None
    reached = [link for link, _, _ in points_of(found.body) if link.get("tabindex") != "-1"]
    assert sorted(int(link.get("data-rank", "")) for link in reached) == listed
    assert {link.get("href") for link in reached} == {f"/plans/p/ranked/{rank}" for rank in listed}
    assert 1 in listed  # the fastest plan is on the front


def test_cost_is_in_gpu_hours_or_in_money(analysed: Report) -> None:
    """The fastest plan on 8 GPUs: its seconds times 8 over the step's tokens."""
    best = analysed.response["pareto"][0]
    hours = best["step_time_s"] * 8 / (64 * 2048) * 1e9 / 3600
    found = pareto(analysed)
    assert found is not None
    assert f"{hours:,.0f} GPU hours per billion tokens" in found.body
    request = {**analysed.request, "cluster": {**analysed.request["cluster"], "price_per_gpu_hour": 3.6}}
    entries = [{**e, "cost_per_token": e["cost_per_token"] * 3.6 / 3600} for e in analysed.response["pareto"]]
    priced = pareto(replace(analysed, response={**analysed.response, "request": request, "pareto": entries}))
    assert priced is not None
    assert f"{hours * 3.6 / 1000:,.3g} per million tokens" in priced.body


def test_without_a_front_the_listed_plans_are_shown_and_how_to_ask_is_told(analysed: Report) -> None:
    found = pareto(replace(analysed, response={**analysed.response, "pareto": []}))
    assert found is not None
    # Near-copies would lie on the plans that stand for them.
    leaders = [view.rank for view in analysed.plans if view.plan["folded_under"] is None]
    assert len(leaders) < len(analysed.plans)
    assert sorted(int(link.get("data-rank", "")) for link, _, _ in points_of(found.body)) == leaders
    assert "&#34;include&#34;: [&#34;pareto&#34;]" in found.body or '"include": ["pareto"]' in found.body
    best = analysed.plans[0].evaluation
    hours = best["step_time_s"] * best["num_gpus_used"] / (64 * 2048) * 1e9 / 3600
    assert f"{hours:,.0f} GPU hours per billion tokens" in found.body


def test_nothing_is_shown_where_nothing_fits(analysed: Report) -> None:
    assert pareto(replace(analysed, response={**analysed.response, "pareto": []}, plans=())) is None
