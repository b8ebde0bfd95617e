"""A pipeline of dozens of stages, each a little lighter than the one before: its file stays small and leaves no stage out."""

from __future__ import annotations

import re
from functools import cache

from app.report.build import build_report
from app.report.pages import report_file
from app.report.report import Report
from app.report.sections.memory import MOST_BARS, memory
from cost_models.units import GIB
from planner.plan import plan

PLAIN_BYTES = 250_000
"""Largest file without interaction."""
STAGES = 63


@cache
def deep() -> Report:
    """Two of 126 layers on each of 63 stages; interleaved, so that each stage holds other activations than its neighbours."""
    fixed = {
        "pp": STAGES, "tp": 8, "vpp": 2, "cp": 1, "dp": 1, "micro_batch_size": 1, "zero": 0, "recompute": "selective",
    }  # fmt: skip
    return build_report(
        plan(
            {
                "model": {"preset": "llama-3.1-405b"},
                "cluster": {"preset": "dgx-h100", "num_nodes": STAGES},
                "training": {
                    "seq_length": 8192, "global_batch_size": 504, "precision": "bf16", "framework": "megatron",
                },
                "constraints": {"fixed": fixed},
            }
        )
    )  # fmt: skip


def test_its_file_without_interaction_is_small() -> None:
    assert len(report_file(deep(), scripts=False).encode()) <= PLAIN_BYTES


def test_the_ends_and_the_fullest_are_drawn_and_the_table_has_every_stage() -> None:
    report = deep()
    view = report.plans[0]
    held = view.evaluation["memory"]
    assert view.strategy["pp"] == len(held["stages"]) == STAGES
    found = memory(report, view)
    assert found is not None
    drawn = [int(stage) for stage in re.findall(r'data-stage="(\d+)"', found.body)]
    fullest = max(held["stages"], key=lambda stage: stage["peak_allocated_bytes"])["stage"]
    assert len(drawn) <= MOST_BARS
    assert {0, STAGES - 1, fullest} <= set(drawn)
    (first, last), *rest = re.findall(r"<b>Stages (\d+) to (\d+)</b>", found.body)
    assert not rest
    assert sorted([*drawn, *range(int(first), int(last) + 1)]) == list(range(STAGES))
    table = re.findall(r'<tr><th scope="row">(\d+)</th>.*?>([\d.]+)</td></tr>', found.body)
    assert table == [(str(s["stage"]), f"{s['peak_allocated_bytes'] / GIB:.1f}") for s in held["stages"]]
