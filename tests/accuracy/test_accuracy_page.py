"""The page that users read says what the code and the rows give today."""

from __future__ import annotations

import re

import pytest

from benchmarks.accuracy.measured_rows import MEASURED_ROWS
from benchmarks.accuracy.stacks import GPU_KINDS, HEADLINES, gpu_kind, headline_table, stacks
from benchmarks.accuracy.state import evaluate_state
from benchmarks.accuracy_page import FRONT_PAGE, PAGE, tables
from cost_models import presets


@pytest.mark.skipif(not (MEASURED_ROWS / "share_alike").exists(), reason="a source distribution has fewer rows")
def test_the_pages_are_current() -> None:
    """`python -m benchmarks.accuracy_page --write` makes them so."""
    state = evaluate_state()
    assert PAGE.text() == PAGE.with_tables(tables(state))
    assert FRONT_PAGE.text() == FRONT_PAGE.with_tables(headline_table(state))


def test_the_front_page_counts_the_runs_of_every_model_code() -> None:
    """A stack's runs are those of all cells of its lines in the long table, several of which may be of one kind of GPU."""
    for name, (framework, layers) in HEADLINES.items():
        lines = re.findall(rf"^\| {framework} \| \w+ \| {layers} \|(.* inside\).*)$", PAGE.text(), re.MULTILINE)
        runs = [int(each) for line in lines for each in re.findall(r"\((\d+) runs?,", line)]
        (told,) = re.findall(rf"^\| {name} \|[^|]*\|[^|]*\| (\d+) \|", FRONT_PAGE.text(), re.MULTILINE)
        assert int(told) == sum(runs)


def test_every_gpu_of_the_presets_has_a_kind() -> None:
    assert {gpu_kind(name) for name in presets.names("gpus")} <= set(GPU_KINDS)
    assert gpu_kind("A100-SXM-40GB") == gpu_kind("A800-SXM-80GB") == "A100, A800"
    assert gpu_kind("A100-PCIe-80GB") == "PCIe cards"
    assert gpu_kind("H100-96GB-HBM2e-500W") == "H100"
    assert gpu_kind("MI325X-256GB") == "AMD MI"
    assert gpu_kind("Trainium2") == "other"


def test_other_peoples_modules_are_a_choice_where_they_are_the_default() -> None:
    found = stacks()
    assert ("fsdp", "liger", "experts") in found
    assert ("megatron", "native", "dense") in found
    assert ("megatron", "transformers", "dense") not in found
