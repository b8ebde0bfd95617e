"""`meshwright collectives`: what it prints is what plans are priced with, with every algorithm and the measured points beside."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from app.cli.main import run

TABLE = Path(__file__).resolve().parents[4] / "data" / "reference" / "nccl_curves.csv"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(*arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("COLUMNS", "140")
        assert run(["collectives", *arguments]) == code
        out, err = capsys.readouterr()
        assert (out == "") == (code != 0)
        return out or err

    return of


def test_between_nodes_every_algorithm_of_nccl_stands_beside_what_plans_take(said: Any) -> None:
    """64 ranks on 8 DGX H100, 64 KiB: rings pay 2 x 56 x 1 + 14 x 2.7 + 6.6 = 156.4 us of latency, trees 6.8 + 2 (7 x 0.6 + 3 x 5) = 45.2."""
    document = json.loads(said("--cluster", "dgx-h100", "--num-nodes", "8", "--json"))
    assert (document["num_ranks"], document["num_nodes"], document["library"]) == (64, 8, "nccl")
    place = document["size_bytes"].index(2.0**16)
    curves = {curve["algorithm"]: curve for curve in document["algorithms"]}
    assert set(curves) == {"ring", "tree", "nvls-tree", "collnet"}  # NVLS does not leave a node
    assert [name for name, curve in curves.items() if not curve["taken"]] == ["collnet"]
    assert curves["ring"]["latency_s"][place] == pytest.approx(156.4e-6)
    assert curves["tree"]["latency_s"][place] == pytest.approx(45.2e-6)
    assert (curves["ring"]["protocol"][place], curves["tree"]["protocol"][place]) == ("LL", "LL")
    priced = document["priced"]
    assert (priced["algorithm"][place], priced["protocol"][place]) == ("tree", "LL")
    assert document["measured"] is None


def test_inside_a_measured_node_plans_take_the_measured_points(said: Any) -> None:
    """All-gathers of 8 H100 of the public table: every measured point is the median of its rows, and is what plans pay."""
    document = json.loads(said("--cluster", "dgx-h100", "--op", "all-gather", "--ranks", "8", "--json"))
    rows = [
        (float(row["size_bytes"]), float(row["time_us"]) * 1e-6)
        for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())
        if (row["gpu"], row["op"], row["ranks"]) == ("H100-SXM-80GB", "all_gather", "8")
        and row["source"].startswith("aiconfigurator")
    ]
    measured = dict(zip(document["measured"]["size_bytes"], document["measured"]["seconds"], strict=True))
    priced = dict(zip(document["size_bytes"], document["priced"]["seconds"], strict=True))
    for size in (2.0**20, 2.0**24, 2.0**28):
        expected = median(time_s for row_size, time_s in rows if row_size == size)
        assert measured[size] == pytest.approx(expected)
        assert priced[size] == pytest.approx(expected)
    assert set(document["priced"]["algorithm"]) == {"measured"}


def test_the_textbook_is_shown_where_it_is_asked_for(said: Any) -> None:
    """1 KiB over 4 nodes of 8: a torus waits 14 x 2 us near and 6 x 2.7 us far; a ring of MSCCL 62 x 2.7."""
    document = json.loads(said("--cluster", "dgx-h100", "--num-nodes", "4", "--library", "msccl", "--json"))
    latency_us = {curve["algorithm"]: curve["latency_s"][0] * 1e6 for curve in document["algorithms"]}
    assert latency_us == pytest.approx({
        "ring": 62 * 2.7, "halving-doubling": 6 * 2 + 4 * 2.7, "hierarchical": 6 * 2 + 6 * 2.7, "torus-2d": 14 * 2 + 6 * 2.7,
    })  # fmt: skip
    assert {curve["library"] for curve in document["algorithms"]} == {"msccl"}
    every = json.loads(said("--cluster", "dgx-h100", "--library", "all", "--json"))
    assert {curve["library"] for curve in every["algorithms"]} == {"nccl", "gloo", "msccl"}


def test_the_table_and_the_page_tell_the_same(said: Any, tmp_path: Path) -> None:
    page = tmp_path / "curves.html"
    arguments = ("--cluster", "dgx-h100", "--num-nodes", "1")
    text = said(*arguments, "--html", str(page))
    document = json.loads(said(*arguments, "--json"))
    assert text.startswith("All-reduce of 8 ranks on one node of dgx-h100")
    row = next(line.split() for line in text.splitlines() if line.strip().startswith("16 MiB"))
    place = document["size_bytes"].index(2.0**24)
    ring = next(curve for curve in document["algorithms"] if curve["algorithm"] == "ring")
    assert float(row[2]) == pytest.approx(ring["seconds"][place] * 1e6, rel=5e-3)
    drawn = page.read_text("utf-8")
    assert drawn.count("<polyline") == len(document["algorithms"]) + 1  # and what plans are priced with
    measured = re.search(r'<g class="way measured" data-series="measured">(.*?)</g>', drawn)
    assert measured is not None
    assert len(re.findall("<circle", measured.group(1))) == sum(
        document["size_bytes"][0] <= size <= document["size_bytes"][-1] for size in document["measured"]["size_bytes"]
    )
    assert "http://" not in drawn.replace("http://www.w3.org", "")
    assert "is there already" in said(*arguments, "--html", str(page), code=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cluster", "dgx-h100", "--op", "allreduce"), "all_reduce"),
        (("--cluster", "dgx-h100", "--ranks", "9", "--num-nodes", "1"), "does not fit on 8 GPUs"),
        (("--cluster", "dgx-h100", "--library", "rccl"), "does not run on H100"),
        (("--cluster", "dgx-h200x"), "dgx-h200"),
    ],
)
def test_what_cannot_be_shown_is_refused(said: Any, arguments: tuple[str, ...], told: str) -> None:
    assert told in said(*arguments, code=2)
