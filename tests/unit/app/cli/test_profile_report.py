"""A calibration as tables, plots and a cluster: rates and sizes worked out from samples that are all different."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.cli.rendering.profile_plots import plots_of, svg, write_html
from app.cli.rendering.profile_tables import cluster_of, print_report, size_text
from cost_models.calibration import CalibrationDocument
from cost_models.hardware import document_of

GIB = 2**30
FIT = {
    "op": "all_reduce", "ranks": 4, "ranks_per_node": 4, "size_bytes": [2.0**20, 2.0**24, 2.0**30],
    "time_s": [20e-6, 125e-6, 5e-3], "residual_fraction": 0.034,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-27",
    "fingerprint": {"gpu": "H100-SXM-80GB", "gpus_per_node": 4, "num_nodes": 2, "driver": "580", "torch": "2.11"},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
    "gemm": [
        {"m": 1000, "n": 1000, "k": 1000, "time_s": 10e-6, "spread_fraction": 0.01},  # 2e9 / 10 us: 200 TFLOP/s
        {"m": 10000, "n": 5000, "k": 5000, "time_s": 1e-3, "spread_fraction": 0.02},  # 5e11 / 1 ms: 500
        {"m": 10000, "n": 10000, "k": 5000, "time_s": 2.5e-3, "spread_fraction": 0.06},  # 1e12 / 2.5 ms: 400
        {"m": 100, "n": 100, "k": 1000, "batch": 50, "time_s": 10e-6},  # 1e9 / 10 us: 100
    ],
    "collective_fits": [
        FIT,
        {**FIT, "ranks": 8, "op": "all_gather", "time_s": [1e-4, 1e-3, 10e-3]},
        {**FIT, "concurrent_groups": 2, "ranks": 2, "ranks_per_node": 2},
    ],
    "gemm_fits": [
        {"dtype": "bf16", "residual_fraction": 0.045, "m_range": [1, 2], "n_range": [1, 2], "k_range": [1, 2]},
    ],
    "attention": [
        {"kernel": "fa2", "direction": way, "sequences": 2, "heads": 10, "kv_heads": 5, "q_length": 1000,
         "kv_length": 1000, "d_qk": 100, "d_v": 100, "time_s": time_s}
        for way, time_s in (("forward", 16e-6), ("backward", 50e-6))
    ],
    "memory_bandwidth": [{"kind": "host_to_device", "size_bytes": 2.0**28, "bytes_per_s": 5.5e10}],
    "memory": {"capacity_bytes": 79.25 * GIB, "allocator_slack_fraction": 0.125},
    "host": {
        "eager_op_s": 12.5e-6,
        "layers": {"transformers-zero3-recompute": {"forward_s": 4.25e-3, "backward_s": 6e-3, "spread": 0.07}},
    },
    "overlap": [
        {"op": "all_gather", "ranks": 4, "size_bytes": 2.0**26, "m": 8192, "n": 8192, "k": 8192,
         "compute_slowdown_fraction": 0.12, "communication_slowdown_fraction": 0.34},
    ],
    "devices": [{"rank": 3, "sm_clock_hz": [1.2e9, 1.98e9], "power_w": [400.0, 695.0], "throttle": ["power"]}],
    "notes": ["by hand"],
}  # fmt: skip


@pytest.fixture
def document() -> CalibrationDocument:
    return document_of(DOCUMENT)


def cells(text: str, start: str) -> list[str]:
    """Cells of the printed row that starts so."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    (row,) = [row for row in rows if " | ".join(row).startswith(f"{start} | ")]
    return row


def test_the_report_gives_rates_by_kind_and_size(
    document: CalibrationDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(document)
    out = capsys.readouterr().out
    # Median of 200, 400 and 500; of those of 1 ms and longer 450; spread 2 %. A batched product has no residual.
    assert cells(out, "forward bf16") == ["forward bf16", "3", "400", "450", "500", "2.0 %", "4.5 %"]
    assert cells(out, "batched bf16") == ["batched bf16", "1", "100", "-", "100", "0.0 %", "-"]
    # nccl-tests' bus bandwidth: 2 (n - 1) / n of size over time for all-reduce, (n - 1) / n for all-gather.
    # 1 MiB in 20 us: 1.5 x 52.4 = 78.6 GB/s; 16 MiB in 125 us: 201.3; 1 GiB in 5 ms: 322.1.
    assert cells(out, "all_reduce | 4 x 1")[1:] == [
        "4 x 1", "-", "78.6", "201.3", "-", "322.1", "20", "1M-1G", "3.4 %",
    ]  # fmt: skip
    assert cells(out, "all_gather | 4 x 2")[1:4] == ["4 x 2", "-", f"{7 / 8 * 2**20 / 1e-4 / 1e9:.1f}"]
    assert cells(out, "all_reduce | 2 x 1 c2")[1] == "2 x 1 c2"
    # The visible half of two products of 1000 x 1000 x 100 for 20 heads: 4e9 in 16 us, and 2.5 times that in 50 us.
    assert cells(out, "fa2") == ["fa2", "100", "1000", "250", "200"]
    assert "host to device" in out
    assert "256M: 55 GB/s" in out
    assert cells(out, "capacity") == ["capacity", "79.25 GiB"]
    assert cells(out, "allocator slack") == ["allocator slack", "12.5 %"]
    assert cells(out, "eager op") == ["eager op", "12.5 us"]
    assert "4250 us, 6000 us (± 7 %)" in out
    assert "12 %, 34 % longer" in out
    assert cells(out, "3") == ["3", "1200-1980", "400-695", "-", "power", "-"]
    assert "note: by hand" in out
    assert "2 x 4 H100-SXM-80GB" in out


def test_plots_show_the_largest_groups_first_and_every_single_product(document: CalibrationDocument) -> None:
    """Groups that ran beside others are left out; x is bytes, or 10^12 operations in a product."""
    gather, reduce, products = plots_of(document)
    assert [plot.title for plot in (gather, reduce)] == [
        "Collectives of 8 ranks, 4 a node", "Collectives of 4 ranks, 4 a node",
    ]  # fmt: skip
    (curve,) = reduce.lines
    assert curve.points == tuple(
        (size, pytest.approx(1.5 * size / time_s / 1e9))
        for size, time_s in zip(FIT["size_bytes"], FIT["time_s"], strict=True)
    )
    (cloud,) = products.lines
    assert cloud.is_cloud
    assert cloud.points == tuple(
        (pytest.approx(operations), pytest.approx(rate))
        for operations, rate in ((2e-3, 200.0), (0.5, 500.0), (1.0, 400.0))
    )


def test_a_curve_rises_to_the_right_and_fills_its_axes(document: CalibrationDocument) -> None:
    """Sizes of 2^20, 2^24 and 2^30 lie at 0, 4/10 and all of the way; the highest rate is 1/1.05 of the axis."""
    drawn = svg(plots_of(document)[1])
    (points,) = re.findall(r'polyline points="([^"]+)"', drawn)
    x, y = zip(*[tuple(map(float, point.split(","))) for point in points.split()], strict=True)
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(0.4, abs=1e-3)
    base, top = 320 - 40, 10
    rates = [value for _, value in plots_of(document)[1].lines[0].points]
    for height, rate in zip(y, rates, strict=True):
        assert (base - height) / (base - top) == pytest.approx(rate / max(rates) / 1.05, abs=1e-3)
    assert ">1M<" in drawn
    assert ">1G<" in drawn


def test_the_page_holds_every_plot_and_escapes_names(document: CalibrationDocument, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_html(document.model_copy(update={"name": "<b>mine</b>"}), page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 3
    assert "<b>mine" not in text
    assert "&lt;b&gt;mine" in text


def test_a_cluster_of_the_measured_machine_is_priced_with_it(document: CalibrationDocument) -> None:
    assert cluster_of(document, num_nodes=None, reference="mine.json") == {
        "gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 4, "calibration": "mine.json",
    }  # fmt: skip
    assert cluster_of(document, num_nodes=16, reference="x")["num_nodes"] == 16
    unknown = document_of({**DOCUMENT, "fingerprint": {**DOCUMENT["fingerprint"], "gpu": "Prototype"}})
    gpu = cluster_of(unknown, num_nodes=1, reference="x")["gpu"]
    assert (gpu["name"], gpu["memory_gib"]) == ("Prototype", pytest.approx(79.25))
    assert gpu["peak_tflops"] == {"bf16": pytest.approx(989.4)}
    assert gpu["memory_bandwidth_gb_per_s"] == pytest.approx(3352.0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1023, "1023"),
        (1024, "1K"),
        (2**20 - 1, "1024K"),
        (2**20, "1M"),
        (2**24, "16M"),
        (2**30, "1G"),
        (3 * 2**30, "3G"),
    ],
)
def test_sizes_are_written_in_whole_binary_units(size: float, text: str) -> None:
    assert size_text(float(size)) == text


def row_texts(document: CalibrationDocument, capsys: pytest.CaptureFixture[str]) -> str:
    print_report(document)
    return capsys.readouterr().out


def with_fields(**fields: Any) -> CalibrationDocument:
    return document_of({**DOCUMENT, **fields})


def test_collectives_are_listed_by_operation_from_the_largest_group_with_its_stride_and_siblings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fits = [
        FIT | {"ranks": 2, "ranks_per_node": 2, "stride": 2, "concurrent_groups": 2}, FIT | {"ranks": 2, "ranks_per_node": 2},
        FIT | {"ranks": 2, "ranks_per_node": 2, "stride": 2}, FIT | {"ranks": 6, "ranks_per_node": 2}, FIT | {"op": "all_gather"},
    ]  # fmt: skip
    out = row_texts(with_fields(collective_fits=fits), capsys)
    rows = [re.split(r"\s{2,}", line.strip())[:2] for line in out.splitlines() if re.match(r" *all_[a-z]+  ", line)]
    assert rows == [
        ["all_gather", "4 x 1"], ["all_reduce", "2 x 3"], ["all_reduce", "2 x 1"], ["all_reduce", "2 x 1 s2"],
        ["all_reduce", "2 x 1 s2 c2"],
    ]  # fmt: skip


def test_a_size_counts_for_its_column_if_it_is_within_one_percent(capsys: pytest.CaptureFixture[str]) -> None:
    """8 KiB less 0.9 % and 1 MiB less 1.1 %; columns are 8 KiB, 1, 16 and 256 MiB, and 1 GiB. 1.5 x 0.991 x 8192 bytes in 1 us."""
    fit = FIT | {"size_bytes": [8192 * 0.991, 2.0**20 * 0.989, 2.0**28 * 1.005], "time_s": [1e-6, 1e-3, 1e-2]}
    out = row_texts(with_fields(collective_fits=[fit]), capsys)
    assert cells(out, "all_reduce")[2:7] == ["12.2", "-", "-", f"{1.5 * 2**28 * 1.005 / 1e-2 / 1e9:.1f}", "-"]
    assert "8K" in out.partition("all_reduce")[0]


def test_attention_is_told_apart_by_width_and_length_and_its_repeats_are_the_middle(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2 x 10 heads x 1000 x 1000 x 200 are 4e9 operations; in 10, 16 and 40 us the middle is 250 TFLOP/s."""
    first = DOCUMENT["attention"][0]
    samples = [first | {"time_s": time_s} for time_s in (10e-6, 16e-6, 40e-6)]
    longer = first | {"q_length": 2000, "kv_length": 500, "sequences": 4, "d_v": 300, "direction": "backward"}
    out = row_texts(with_fields(attention=[*samples, longer]), capsys)
    assert cells(out, "fa2 | 100 | 1000")[3:] == ["250", "-"]
    # 4 x 10 x 2000 x 500 x (100 + 300) = 1.6e10 forward, 2.5 times that backward, in 16 us.
    assert cells(out, "fa2 | 100 | 2000")[3:] == ["-", "2500"]


def test_every_fact_of_memory_and_of_the_host_has_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "capacity_bytes": 79.25 * GIB, "context_bytes": 0.5 * GIB, "communicator_bytes": 1.25 * GIB,
        "p2p_neighbour_bytes": 0.0625 * GIB,
    }  # fmt: skip
    adam = [{"ranks": 4, "parameters": 1000, "threads": 8, "bytes_per_s": 123.4e9}]
    out = row_texts(with_fields(memory=facts, host_adam=adam), capsys)
    assert cells(out, "context") == ["context", "0.50 GiB"]
    assert cells(out, "communicator") == ["communicator", "1.25 GiB"]
    assert cells(out, "neighbour") == ["neighbour", "0.06 GiB"]
    assert "allocator slack" not in out
    assert cells(out, "Adam on the host, 4 ranks of 8 threads")[1] == "123 GB/s"
    assert "all_gather 64M beside 8192^3: product, collective" in out


def test_what_was_not_measured_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    none: dict[str, Any] = {
        name: []
        for name in ("gemm", "gemm_fits", "collective_fits", "attention", "memory_bandwidth", "overlap", "devices")
    }
    out = row_texts(with_fields(**none, memory={}, host={}), capsys)
    assert not any(title in out for title in ("Matrix", "Collectives", "attention", "Memory", "Host", "Devices"))
    assert "mine (measured)" in out


def test_products_into_fp32_and_of_other_layouts_are_kinds_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Only forward products are what a residual was computed of."""
    first = DOCUMENT["gemm"][0]
    samples = [first, first | {"layout": "wgrad", "output_dtype": "fp32"}, first | {"layout": "wgrad"}]
    out = row_texts(with_fields(gemm=samples), capsys)
    assert cells(out, "forward bf16 | 1")[-1] == "4.5 %"
    assert cells(out, "wgrad bf16 into fp32")[1:] == ["1", "200", "-", "200", "1.0 %", "-"]
    assert cells(out, "wgrad bf16 | 1")[-1] == "-"


@pytest.mark.parametrize(("days", "is_old"), [(90, False), (91, True)])
def test_a_document_of_more_than_ninety_days_is_said_to_be_old(
    days: int, is_old: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made = datetime.now(UTC) - timedelta(days=days) + timedelta(hours=1 if days == 90 else -1)
    out = row_texts(with_fields(created_at=made.isoformat()), capsys)
    shown = days - 1 if days == 90 else days
    assert f"({shown} days ago" in out
    assert ("too old to be merged: the limit is 90 days" in out) == is_old


def test_software_is_named_as_far_as_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    known = DOCUMENT["fingerprint"] | {"cpu": "EPYC", "environment": {"NCCL_ALGO": "Ring", "B": "2"}}
    lines = row_texts(with_fields(fingerprint=known), capsys).splitlines()
    assert lines[2] == "driver 580, torch 2.11; EPYC"
    assert lines[3] == "environment: NCCL_ALGO=Ring B=2"
    bare = {"gpu": "H100-SXM-80GB", "gpus_per_node": 4, "num_nodes": 2, "cpu": "EPYC"}
    assert row_texts(with_fields(fingerprint=bare), capsys).splitlines()[2] == "; EPYC"
    assert "driver 580, torch 2.11\n" in row_texts(with_fields(), capsys)


def test_ecc_errors_and_unknown_clocks_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"rank": 0, "throttle": [], "ecc_uncorrected": 2, "temperature_celsius": [40.0, 71.0]}]
    out = row_texts(with_fields(devices=devices), capsys)
    assert cells(out, "0") == ["0", "-", "-", "40-71", "-", "2"]


def test_the_cluster_of_an_unknown_gpu_has_its_measured_figures() -> None:
    """A GPU without a stated memory is taken to have 16 GiB."""
    fingerprint = {**DOCUMENT["fingerprint"], "gpu": "Prototype"}
    cluster = cluster_of(with_fields(fingerprint=fingerprint, memory={}), num_nodes=None, reference="x")
    assert cluster["gpu"]["memory_gib"] == 16.0
    assert cluster["gpu"]["pcie_gb_per_s"] == pytest.approx(450.0)
    assert (cluster["num_nodes"], cluster["gpus_per_node"], cluster["intra_node"]) == (2, 4, "pcie")
    assert cluster["pcie"] == {"gpus_per_socket": 4}


def test_names_stand_on_the_left_figures_on_the_right_and_no_line_is_wider_than_150(
    document: CalibrationDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"capacity_bytes": 179.25 * GIB, "context_bytes": 0.5 * GIB}
    lines = row_texts(with_fields(memory=facts, notes=["word " * 60]), capsys).splitlines()
    wide, narrow = (next(line for line in lines if line.strip().startswith(name)) for name in ("capacity", "context"))
    assert wide.index("capacity") == narrow.index("context")
    assert len(wide.rstrip()) == len(narrow.rstrip())
    assert 145 <= max(map(len, lines)) <= 150
