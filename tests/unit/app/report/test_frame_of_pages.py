"""The frame around a report's sections: one file that fetches nothing, or served pages that link what they need."""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.report.build import build_report
from app.report.pages import plan_page, report_file, report_page
from app.report.report import Report
from planner.plan import plan

REQUESTS = Path(__file__).resolve().parents[4] / "examples" / "requests"
ADDRESS = "/plans/plan_1"


@cache
def _report(name: str) -> Report:
    response: dict[str, Any] = plan(json.loads((REQUESTS / f"{name}.json").read_text("utf-8")))
    # What a user names must not become markup.
    response["request"]["model"]["name"] = "<img src=x onerror=alert(1)>"
    return build_report(response)


def _leaders(report: Report) -> list[int]:
    return [view.rank for view in report.plans if view.plan["folded_under"] is None]


def test_a_file_holds_every_plan_but_near_copies_and_opens_the_first() -> None:
    report = _report("llama-3.1-70b")
    text = report_file(report)
    assert [int(rank) for rank in re.findall(r'<details id="plan-(\d+)"', text)] == _leaders(report)
    assert re.findall(r'<details id="(plan-\d+)"[^>]* open>', text) == ["plan-1"]


def test_ids_are_unique_and_headings_skip_no_level() -> None:
    for name in ("llama-3.1-70b", "too-small"):
        text = report_file(_report(name))
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        levels = [int(level) for level in re.findall(r"<h(\d)", text)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        for target in re.findall(r'href="#([^"]+)"', text):
            assert target in ids


def test_a_file_allows_nothing_but_its_own_style_and_scripts() -> None:
    text = report_file(_report("llama-3.1-70b"))
    # A script may spell markup that it never writes; what the page itself holds may not.
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#|data:)', markup)
    assert "<img" not in markup
    assert " style=" not in markup
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none';")
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        for inline in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            digest = b64encode(sha256(inline.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy.partition(kind)[2].partition(";")[0]


def test_a_file_without_scripts_says_the_same() -> None:
    report = _report("llama-3.1-70b")
    main = re.compile(r"<main.*</main>", re.DOTALL)
    with_scripts, without = (main.search(report_file(report, scripts=wanted)) for wanted in (True, False))
    assert with_scripts is not None
    assert without is not None
    assert with_scripts[0] == without[0]
    assert "<script>" not in report_file(report, scripts=False)


def test_links_lead_to_places_of_a_file_and_to_pages_of_a_service() -> None:
    report = _report("llama-3.1-70b")
    copy = next(view for view in report.plans if view.plan["folded_under"] is not None)
    assert report.link(1) == "#plan-1"
    assert report.link(copy.rank) == f"#plan-{copy.plan['folded_under']}"
    assert replace(report, address=ADDRESS).link(copy.rank) == f"{ADDRESS}/ranked/{copy.rank}"


def test_served_pages_link_their_assets_and_hold_no_script_of_their_own() -> None:
    report = replace(_report("llama-3.1-70b"), address=ADDRESS)
    for text in (report_page(report, assets="/a"), plan_page(report, 2, assets="/a")):
        assert "<style" not in text
        assert "<script>" not in text
        assert " style=" not in text
        assert '<link rel="stylesheet" href="/a/report.css">' in text
        assert '<script src="/a/sort.js" defer></script>' in text
    page = plan_page(report, 2)
    assert f'href="{ADDRESS}"' in page
    assert f'href="{ADDRESS}/ranked/1"' in page
    assert f'href="{ADDRESS}/ranked/3"' in page
