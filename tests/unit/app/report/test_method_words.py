"""How ways of keeping replicas together are told on the terminal and on pages."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.rendering.plan_footer import footer
from app.cli.rendering.plan_table import columns_of
from app.report.build import build_report
from app.report.method_words import changed_rows, method_in_words
from app.report.pages import report_file
from planner.plan import plan


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    return plan({
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {"preset": "dgx-h200", "num_nodes": 2, "nic_gbit_per_s": 10},
        "training": {
            "seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": "fsdp", "param_dtype": "fp32",
            "grad_reduce_dtype": "fp32",
        },
        "constraints": {
            "fixed": {"zero": 0}, "num_nodes": {"min": 2},
            "allowed": {"compression": [{"kind": "bf16"}, {"kind": "powersgd", "rank": 4}]},
        },
        "top_k": 2,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({}, ""),
        ({"sync": {"method": "diloco", "sync_every": 100, "fragments": 1, "quantize": "none"}}, "diloco, every 100 steps"),
        ({"sync": {"method": "diloco", "sync_every": 96, "fragments": 8, "quantize": "fp8"}}, "diloco, every 96 steps, 8 fragments, in fp8"),
        ({"sync": {"method": "parameter-server", "servers": 4}}, "parameter-server, 4 servers"),
        ({"compression": {"kind": "powersgd", "rank": 4}}, "powersgd of rank 4"),
        ({"compression": {"kind": "bf16"}}, "bf16"),
        ({"offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}, "ZenFlow"),
        ({"offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "pipelined"}}, ""),
    ],
)  # fmt: skip
def test_a_method_in_words(strategy: dict[str, Any], words: str) -> None:
    assert method_in_words(strategy) == words


def test_the_table_labels_rounded_plans_and_the_footer_lists_changed_ones(answer: dict[str, Any]) -> None:
    (column,) = (each for each in columns_of(answer["request"], answer["plans"]) if each.heading == "mathematics")
    assert "rounded: bf16" in {column.cell(each) for each in answer["plans"]}
    told = "\n".join(line.plain for line in footer(answer, answer["plans"]))
    assert "Plans that change the mathematics, ranked apart:" in told
    extra = answer["changed_plans"][0]["break_even_extra_steps"]
    assert "1. powersgd of rank 4: " in told
    assert f"pays below {extra:.0%} more steps" in told


def test_a_table_of_exact_plans_has_no_such_column(answer: dict[str, Any]) -> None:
    exact = [each for each in answer["plans"] if each["evaluation"]["mathematics"] == "exact"]
    assert "mathematics" not in {each.heading for each in columns_of(answer["request"], exact)}


def test_a_plan_that_is_slower_never_pays(answer: dict[str, Any]) -> None:
    slow = {**answer["changed_plans"][0], "break_even_extra_steps": -0.2}
    alone = {**answer["changed_plans"][0], "break_even_extra_steps": None}
    cells = [row[-1] for row in changed_rows({"changed_plans": [slow, alone]})]
    assert cells == ["never: it is slower", "no exact plan to compare with"]


def test_as_many_changed_plans_are_listed_as_of_the_others(answer: dict[str, Any]) -> None:
    """A table asks for more plans than it shows, since near-copies are left out of it."""
    assert len(answer["changed_plans"]) == 2
    told = "\n".join(line.plain for line in footer(answer, answer["plans"], most=1))
    size = answer["changed_plans"][0]["strategy"]["micro_batch_size"]
    assert "1. powersgd of rank 4: " in told
    assert f" mb{size}; pays below" in told
    assert "2. powersgd" not in told


def test_the_page_has_a_section_of_its_own_for_them(answer: dict[str, Any]) -> None:
    page = report_file(build_report(answer), scripts=False)
    assert "Plans that change the mathematics" in page
    assert "powersgd of rank 4" in page
    assert "nothing is said of the quality" in page
