"""Sections on ranks, layers, flip conditions and other strategies: their figures are read back and compared with what they show."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from app.report.build import build_report
from app.report.figures.flips import Bar, flips_figure
from app.report.figures.layers import layers_figure
from app.report.figures.mesh import node_figure
from app.report.report import Report
from app.report.sections.flips import flip_sentences, flips
from app.report.sections.layers import layers
from app.report.sections.mesh import mesh, ranks_told
from app.report.sections.why_not import answer_markup, answer_told, form_markup, posted_strategy, why_not
from cost_models.errors import InvalidInputError
from example_plans import example_plan
from planner.why_not import why_not as planner_why_not

REQUESTS = Path(__file__).resolve().parents[4] / "examples" / "requests"


@cache
def report(name: str) -> Report:
    return build_report(example_plan(name))


def marked(markup: str) -> dict[str, list[int]]:
    """The ranks that carry each group's mark, over all nodes drawn."""
    found: dict[str, list[int]] = {}
    for group, ranks in re.findall(r'data-group="(\w+)" data-ranks="([\d ]+)"', markup):
        found.setdefault(group, []).extend(int(rank) for rank in ranks.split())
    return found


def test_a_pool_is_told_its_own_groups() -> None:
    """Plan 1 of two pools: stage 0 on one, with ranks 0 to 63, and stage 1 on the other; eight groups of eight on each."""
    shown = report("llama-3.1-70b-two-pools")
    assert (shown.plans[0].strategy["tp"], shown.plans[0].strategy["pp"]) == (8, 2)
    rows = re.findall(r'<tr data-group="tp">.*?</tr>', str(mesh(shown, shown.plans[0]).body))
    told = [re.sub(r"<[^>]+>", "|", row).replace("||", "|").split("|")[2:5] for row in rows]
    assert told == [["8", "8", "0 to 7"], ["8", "8", "64 to 71"]]


def texts(markup: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", markup)


def test_a_node_marks_the_ranks_that_share_a_group() -> None:
    shared = {"tp": [8, 9], "dp": [8, 16, 24]}
    drawn = node_figure([1, 1, 2, -1], first_rank=8, shared=shared, chosen=8, name="n", caption="node 1")
    assert marked(drawn) == {"tp": [8, 9], "dp": [8]}
    assert texts(drawn) == ["node 1", "8", "9", "10", "idle"]
    # Strips of a stage lie over its own cells: cells are 40 apart, and the first begins at 8.
    strips = dict(re.findall(r'd="([^"]+)" class="mesh-stage-\d" data-stage="(\d+)"', drawn))
    at = {stage: [float(x) for x in re.findall(r"M([\d.]+) ", path)] for path, stage in strips.items()}
    assert at == {"1": [8, 48], "2": [88]}


def test_nodes_shown_hold_the_groups_of_rank_0() -> None:
    """Plan 1 of 70B on 16 nodes: tp 8, dp 8 and pp 2 put ranks 0 to 7 on node 0, rank 8 on node 1 and rank 64 on node 8."""
    view = report("llama-3.1-70b").plan(1)
    assert [view.strategy[name] for name in ("tp", "dp", "pp", "cp")] == [8, 8, 2, 1]
    body = mesh(report("llama-3.1-70b"), view).body
    assert marked(body) == {"tp": [*range(8)], "dp": [0, 8], "pp": [0, 64]}
    assert body.count("more nodes alike") == 2
    row = re.search(r'<tr data-group="dp">.*?</tr>', body)
    assert row
    cells = re.findall(r"<t[hd][^>]*>([^<]*)", row.group())
    # ZeRO 2 shards over the same ranks, and cp is 1: neither has a row of its own.
    assert cells[:6] == ["data parallel (dp) and ZeRO shards of one copy", "8", "16", "0, 8, 16 … 56", "8", "8"]
    assert re.findall(r'<tr data-group="(\w+)"', body) == ["tp", "dp", "pp"]
    assert "send nothing: context parallel (cp)." in body


def test_ranks_in_few_words() -> None:
    assert ranks_told([3]) == "3"
    assert ranks_told([0, 1, 2, 3]) == "0 to 3"
    assert ranks_told([0, 64]) == "0, 64"
    assert ranks_told([0, 1]) == "0, 1"
    assert ranks_told([*range(0, 8000, 1000)]) == "0, 1,000, 2,000 … 7,000"


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "llama-3.1-70b-two-pools", "llama-3.1-8b-qlora"])
def test_strips_hold_each_layer_once(name: str) -> None:
    for view in report(name).plans:
        body = layers(report(name), view).body
        held: dict[int, list[int]] = {}
        for stage, runs in re.findall(r'data-stage="(\d+)" data-layers="([^"]+)"', body):
            for first, last in re.findall(r"(\d+)-(\d+)", runs):
                held.setdefault(int(stage), []).extend(range(int(first), int(last) + 1))
        counts, pp = view.strategy["layers_per_stage"], view.strategy["pp"]
        if pp == 1:
            assert not held
            continue
        assert sorted(layer for its in held.values() for layer in its) == [*range(1, sum(counts) + 1)]
        assert {stage: len(its) for stage, its in held.items()} == {n: sum(counts[n::pp]) for n in range(pp)}
        assert re.findall(r'data-holds="(\w+)" data-stage="(\d+)"', body) == [("embedding", "0"), ("head", str(pp - 1))]


def test_layers_are_as_long_as_their_number_and_many_stages_are_folded() -> None:
    chunk = {"first": 1, "last": 30, "kinds": [[False, 10], [True, 20]], "embedding": True, "head": True}
    drawn = layers_figure([{"stage": 0, "chunks": [chunk]}], num_layers=30, name="l", description="")
    lengths = [float(width) for width in re.findall(r"M[\d.]+ 0h([\d.]+)v", drawn)]
    # Each strip is shorter by one unit, the gap between layers.
    assert (lengths[1] + 1) / (lengths[0] + 1) == pytest.approx(2.0, rel=0.01)
    many = [
        {"stage": n, "chunks": [{**chunk, "first": n + 1, "kinds": [[False, 1]], "embedding": False, "head": False}]}
        for n in range(100)
    ]
    folded = layers_figure(many, num_layers=100, name="l", description="")
    shown = {int(stage) for stage in re.findall(r'class="layer-dense" data-stage="(\d+)"', folded)}
    assert shown == {*range(27), 96, 97, 98, 99}
    assert "… 69 more stages" in texts(folded)


def test_bars_of_facts_lie_on_a_logarithmic_axis() -> None:
    drawn = flips_figure([Bar("network", ((0.25, 0.5, 2), (0.5, 1.0, 1), (1.0, 2.0, 1)))], name="f", description="")
    found = re.findall(r'<rect x="([\d.]+)" y="16" width="([\d.]+)"[^>]*data-rank="(\d)"', drawn)
    widths = [float(width) for _, width, _ in found]
    assert widths == pytest.approx([widths[0]] * 3, abs=0.02)  # each is a doubling
    assert [rank for *_, rank in found] == ["2", "1", "1"]


def fact(name: str, **given: Any) -> dict[str, Any]:
    return {
        "name": name, "assumed": [{"pool": None, "value": 400e9, "tier": "nominal"}], "low": 0.3, "high": 2.0, "matters": True,
        "below": [], "above": [], "step_time_s": {"factors": [0.3, 2.0], "by_rank": {1: [5.0, 4.0]}}, **given,
    }  # fmt: skip


def test_conditions_are_rounded_so_that_they_stay_true() -> None:
    """Plan 2 is better below a factor of 0.8279: at 82 % it is, at 83 % it is not."""
    facts = [
        fact("network_bandwidth", below=[{"factor": 0.8279, "rank": 2}], above=[{"factor": 1.2001, "rank": 3}]),
        fact("node_bandwidth"), fact("host", matters=False),
    ]  # fmt: skip
    memory = {
        "capacity_bytes": 80 * 2**30,
        "changes": [{"less_bytes": 2.1 * 2**30, "rank": 3}],
        "none_fits_from_less_bytes": 2**33,
    }
    told = flip_sentences({"compared": [1, 2, 3], "facts": facts, "memory": memory})
    assert told == [
        ("wins if the bandwidth between nodes is below 82 % of what is assumed (328 GB/s a node).", 2),
        ("wins if the bandwidth between nodes is above 121 % of what is assumed (484 GB/s a node).", 3),
        ("No other listed plan wins with the bandwidth between GPUs of a node at 30 to 200 % of what is assumed.", None),
        ("is the best that fits if the card offers 2.1 GiB less than the 80.0 GiB assumed.", 3),
        ("No listed plan is sure to fit if it offers 8.0 GiB less.", None),
        ("The speed at which the host launches kernels decides nothing here: no listed plan's time moves by 0.01 % with it.", None),
    ]  # fmt: skip


def test_a_plan_that_wins_in_between_is_told_with_both_ends() -> None:
    """Plan 2 from 111 % on, and plan 3 from 131 %; plan 4 below 60 %, and plan 5 below 41 %."""
    changes = {
        "below": [{"factor": 0.609, "rank": 4}, {"factor": 0.419, "rank": 5}],
        "above": [{"factor": 1.105, "rank": 2}, {"factor": 1.306, "rank": 3}],
    }
    told = flip_sentences({"compared": [1, 2], "facts": [fact("network_bandwidth", **changes)], "memory": None})
    start = "wins if the bandwidth between nodes is"
    assert told == [
        (f"{start} between 41 and 60 % of what is assumed.", 4),
        (f"{start} below 41 % of what is assumed (164 GB/s a node).", 5),
        (f"{start} between 111 and 131 % of what is assumed.", 2),
        (f"{start} above 131 % of what is assumed (524 GB/s a node).", 3),
    ]


def test_flips_of_a_report_are_drawn_as_they_are_told() -> None:
    section = flips(report("mixtral-8x7b"))
    assert section is not None
    told = re.findall(r'<a href="#plan-\d+">Plan (\d+)</a> wins if', section.body)
    drawn = re.findall(r'class="flip-other" data-fact="[^"]+" data-rank="(\d+)"', section.body)
    assert told
    assert sorted(told) == sorted(drawn)
    assert flips(report("too-small")) is None
    # Where no fact changes the order there is nothing to draw, and the sentences say so.
    steady = flips(report("llama-3.1-70b"))
    assert steady is not None
    assert "<svg" not in steady.body
    assert "No other listed plan wins with" in steady.body


def test_other_strategies_are_answered_in_sentences() -> None:
    body = why_not(report("llama-3.1-70b")).body
    assert re.findall(r'data-choice="(\w+)" data-verdict="([\w-]+)"', body)[:2] == [
        ("defaults", "oom"),
        ("zero_3", "fits"),
    ]
    assert "It does not fit" in body
    assert "longer than plan 1" in body
    assert "On pools" in why_not(report("llama-3.1-70b-two-pools")).body
    assert why_not(report("too-small")).body


def answer(**given: Any) -> dict[str, Any]:
    return {
        "strategy": {"tp": 8}, "verdict": "fits", "reasons": [], "excluded": [], "rank": None, "place": 2, "step_time_s": 12.0,
        "difference_s": 2.0, "too_close": False, "largest_terms_s": {"tp_comm": 1.5}, "peak_device_bytes": 2.0**35,
        "capacity_bytes": 2.0**36, **given,
    }  # fmt: skip


def test_answers_say_what_decides() -> None:
    response: dict[str, Any] = {"plans": [{"rank": 1}]}
    assert answer_told(answer(), response) == (
        "It fits with 32.0 of 64.0 GiB, and a step takes 12.0 s, 2.00 s (20.0%) longer than plan 1's "
        "(+1.5 s on exposed tensor-parallel communication)."
    )  # fmt: skip
    refused = [
        {"code": "c", "message": "tp 3 does not divide 8", "hint": "Use 2."},
        {"code": "d", "message": "M", "hint": "H"},
    ]
    assert (
        answer_told(answer(verdict="invalid", reasons=refused), response)
        == "It cannot run: tp 3 does not divide 8. Use 2."
    )
    assert answer_told(answer(rank=4), response) == "It is plan 4 of this list."
    assert "may not fit: 70 of 64 GiB. If it did, a step would take 12.0 s" in answer_told(
        answer(verdict="at-risk", reasons=[{"message": "70 of 64 GiB"}]), response
    )
    assert answer_told(answer(place=1, difference_s=-1.0), response).endswith("the search did not price it.")
    assert "<script>" not in answer_markup(
        answer(verdict="invalid", reasons=[{**refused[0], "message": "<script>"}]), response
    )


def test_a_posted_form_is_a_strategy() -> None:
    assert posted_strategy({"tp": "8", "pp": " 2 ", "dp": "", "more": '{"recompute": "full", "tp": 4}'}) == {
        "tp": 8, "pp": 2, "recompute": "full",
    }  # fmt: skip
    for wrong in ({"tp": "eight"}, {"tp": "-1"}, {"more": "[1]"}, {"more": "{"}, {"tp": "9" * 10}):
        with pytest.raises(InvalidInputError):
            posted_strategy(wrong)
    drawn = form_markup("/plans/plan_1/why-not", {"tp": 8})
    assert 'action="/plans/plan_1/why-not"' in drawn
    assert re.search(r'name="tp"[^>]*value="8"', drawn)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "qwen3-8b-fsdp", "llama-3.1-70b-two-pools"])
def test_a_form_filled_with_a_plan_asks_about_that_plan(name: str) -> None:
    """What the form leaves to the framework's defaults costs the best plan little or nothing, and what it does fill in comes back."""
    best = report(name).plan(1)
    drawn = form_markup("/x", best.strategy)
    fields = dict(re.findall(r'name="(\w+)"[^>]*value="(\d+)"', drawn))
    (more,) = re.findall(r"<textarea[^>]*>([^<]*)</textarea>", drawn)
    posted = posted_strategy({**fields, "more": unescape(more)})
    assert all(best.strategy[key] == value for key, value in posted.items())
    found = planner_why_not(report(name).response, posted)
    assert found["verdict"] in ("fits", "at-risk")
    assert abs(found["difference_s"]) < 0.25 * found["step_time_s"]


def test_a_posted_form_is_shown_as_it_was_posted() -> None:
    drawn = form_markup("/x", {"tp": "eight", "more": "{</textarea>"})
    assert 'value="eight"' in drawn
    assert "{&lt;/textarea&gt;</textarea>" in drawn


def test_a_served_report_leads_to_the_form() -> None:
    assert "/why-not" not in why_not(report("llama-3.1-70b")).body
    served = replace(report("llama-3.1-70b"), address="/plans/plan_1")
    assert 'href="/plans/plan_1/why-not"' in why_not(served).body


def test_sections_say_what_they_lack_where_a_calibration_is_gone() -> None:
    known = report("llama-3.1-70b")
    view = known.plan(1)
    cluster = {**known.request["cluster"], "calibration": "deleted since"}
    gone = replace(known, response={**known.response, "request": {**known.request, "cluster": cluster}})
    lacking = replace(view, row={**view.row, "cluster": cluster})
    made = [flips(gone), why_not(gone), mesh(gone, lacking), layers(gone, lacking)]
    for section in made:
        assert section is not None
        assert "there is no calibration &#39;deleted since&#39;" in section.body
