"""What the page tells whoever launches a plan: hashes of the very files that are written, and where a run has to stop."""

from __future__ import annotations

import json
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

import meshwright
from app.report.build import build_report
from app.report.report import Report
from app.report.sections.launch import expected_band, launch

GIB = 2**30
REQUESTS = Path(__file__).resolve().parents[4] / "examples" / "requests"


@cache
def _report(name: str) -> Report:
    return build_report(meshwright.plan(json.loads((REQUESTS / f"{name}.json").read_text("utf-8"))))


def test_the_band_and_the_stop_rule_are_the_ends_of_the_ranges() -> None:
    evaluation = {
        "step_time_range_s": [3.9, 4.6],
        "memory": {"peak_device_range_bytes": [60 * GIB, 71 * GIB], "capacity_bytes": 79 * GIB},
    }
    band = expected_band(evaluation, tokens_per_step=4096 * 256)
    assert band.step_s == (3.9, 4.6)
    # 1,048,576 tokens in 4.6 s and in 3.9 s.
    assert [round(rate) for rate in band.tokens_per_s] == [227_951, 268_866]
    assert (band.stop_above_s, band.stop_above_bytes) == (4.6, 71 * GIB)


def test_no_rule_asks_for_more_memory_than_the_card_has() -> None:
    evaluation = {
        "step_time_range_s": [3.9, 4.6],
        "memory": {"peak_device_range_bytes": [70 * GIB, 81 * GIB], "capacity_bytes": 79 * GIB},
    }
    assert expected_band(evaluation, tokens_per_step=1.0).stop_above_bytes == 79 * GIB


def test_hashes_are_those_of_the_files_that_export_writes() -> None:
    report = _report("llama-3.1-70b")
    body = str(launch(report, report.plans[0]).body)
    for target in ("megatron", "megatron-bridge", "nemo"):
        shown = body.partition(f'data-target="{target}"')[2].partition("</details>")[0]
        files = meshwright.export(report.response, target, plan=1)
        for path, content in files.items():
            row = re.search(rf"<code>{re.escape(path)}</code></th><td[^>]*>([\d,]+)</td><td><code>(\w+)</code>", shown)
            assert row is not None
            assert row.groups() == (f"{len(content.encode()):,}", sha256(content.encode()).hexdigest())
        assert shown.count("<tr>") == len(files) + 1


def test_a_target_that_cannot_say_the_plan_says_why() -> None:
    report = _report("mixtral-8x7b")
    body = str(launch(report, report.plans[0]).body)
    refused = body.partition('data-refused="nemo"')[2].partition("</p>")[0]
    assert "overlap.moe_all_to_all" in refused


def test_the_rule_is_told_with_its_numbers() -> None:
    report = _report("llama-3.1-70b")
    evaluation = report.plans[0].evaluation
    body = str(launch(report, report.plans[0]).body)
    stop = re.search(r'data-stop-s="([\d.]+)" data-stop-bytes="(\d+)"', body)
    assert stop is not None
    assert abs(float(stop[1]) / evaluation["step_time_range_s"][1] - 1) < 1e-5
    assert int(stop[2]) == round(evaluation["memory"]["peak_device_range_bytes"][1])
    assert "If after 20 steps the median is above" in body
