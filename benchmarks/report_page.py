"""How large a report is, how long it takes to make, and how soon a browser shows it.

For a dense model, an expert model, two pools and a request that nothing fits: bytes of the file with and without scripts, CPU
seconds of completing the response and of writing the page, and Chromium's own time of the first paint, the median of several
visits in new contexts. The bound is for two quiet cores, with the file in the page cache.
Run: python -m benchmarks.report_page [VISITS]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from app.report.build import build_report
from app.report.pages import report_file
from benchmarks.record import ROOT, record
from planner.plan import plan

JOBS = {
    "llama_70b_128_h100": "llama-3.1-70b",
    "mixtral_8x7b_64_h100": "mixtral-8x7b",
    "llama_70b_two_pools": "llama-3.1-70b-two-pools",
    "nothing_fits": "too-small",
}
EVERY_ANALYSIS = ["pareto", "what_if"]
PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
  const painted = list.getEntriesByName("first-contentful-paint");
  if (painted.length) done(painted[0].startTime);
}).observe({type: "paint", buffered: true}))"""
"""Milliseconds of the first contentful paint, which may come a frame after the load."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def first_paints_s(browser: Browser, path: Path, *, visits: int) -> list[float]:
    """Seconds from the start of navigation to the first contentful paint of each visit, soonest first."""
    found: list[float] = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(path.as_uri())
        found.append(page.evaluate(PAINTED) / 1000.0)
        context.close()
    return sorted(found)


def measured(browser: Browser, folder: Path, name: str, *, visits: int) -> dict[str, Any]:
    """Everything that is told of one job."""
    request = json.loads((ROOT / "examples" / "requests" / f"{JOBS[name]}.json").read_text("utf-8"))
    # Without the analyses a report holds no charts, and would be smaller than what it may become.
    response = plan(request | {"include": [] if name == "llama_70b_two_pools" else EVERY_ANALYSIS})
    start_s = time.process_time()
    report = build_report(response)
    built_s = time.process_time()
    text = report_file(report)
    written_s = time.process_time()
    plain = report_file(report, scripts=False)
    result: dict[str, Any] = {
        "bytes": len(text.encode()),
        "bytes_without_scripts": len(plain.encode()),
        "plans": len(response["plans"]),
        "build_cpu_s": round(built_s - start_s, 3),
        "write_cpu_s": round(written_s - built_s, 3),
    }
    for kind, content in (("with", text), ("without", plain)):
        path = folder / f"{name}_{kind}.html"
        path.write_text(content, "utf-8")
        found = first_paints_s(browser, path, visits=visits)
        # The soonest is what the page costs; the median also tells of whatever else the machine did.
        result[f"first_paint_s_{kind}_scripts"] = {
            "median": round(statistics.median(found), 3),
            "soonest": round(found[0], 3),
        }
    return result


def main() -> None:
    visits = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "Chromium is not installed"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        jobs = {name: measured(browser, Path(folder), name, visits=visits) for name in JOBS}
        version = browser.version
        browser.close()
    for name, figures in jobs.items():
        print(name, figures)
    slowest = max(figures["first_paint_s_with_scripts"]["median"] for figures in jobs.values())
    record(
        "report_page",
        value=slowest,
        unit="s to first paint",
        goal="<= 0.5; files <= 1e6 bytes, <= 250e3 without scripts",
        chromium=version,
        visits=visits,
        load_average=round(os.getloadavg()[0], 1),
        jobs=jobs,
    )


if __name__ == "__main__":
    main()
