"""`meshwright profile` where nothing can be measured: every message says what is wrong and what to do, nothing is written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli.main import run
from cost_models.calibration import CalibrationDocument
from cost_models.errors import CalibrationError
from cost_models.hardware import parse_document, shipped_document
from profiler.machine.device_state import DeviceLog
from profiler.machine.doctor import examine

NAME = "h100x4-nvls-off-2026-11-28"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def shipped() -> CalibrationDocument:
    document = shipped_document(NAME)
    assert document is not None
    return document


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_install_line_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "run", "--out", str(tmp_path / "x.json")]) == 5
    assert "pip install 'meshwright[profiler]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_torch")
def test_doctor_says_what_would_stop(tmp_path: Path) -> None:
    found = {f.subject: f for f in examine(device="cuda", out=tmp_path / "x.json", environment={})}
    assert found["PyTorch"].level == "stop"
    assert found["output"].level == "ok"


@pytest.mark.usefixtures("without_torch")
def test_doctor_names_variables_that_spoil_and_folders_that_are_missing(tmp_path: Path) -> None:
    spoilt = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0"}
    found = examine(device="cuda", out=tmp_path / "no" / "x.json", environment=spoilt)
    levels = {f.subject: f.level for f in found}
    assert levels["CUDA_LAUNCH_BLOCKING"] == "warning"
    assert levels["NCCL_P2P_DISABLE"] == "warning"
    assert "NCCL_IB_DISABLE" not in levels  # 0 is off
    assert levels["output"] == "stop"


def torch_of(version: str, *, cuda: str | None = "12.8") -> SimpleNamespace:
    """A PyTorch of this version on a machine without GPUs."""
    return SimpleNamespace(
        __version__=version, version=SimpleNamespace(cuda=cuda), cuda=SimpleNamespace(is_available=lambda: False)
    )


@pytest.mark.parametrize(
    ("version", "level"), [("2.3.1+cu121", "stop"), ("2.4.0", "ok"), ("2.10.0+cpu", "ok"), ("1.13.1", "stop")]
)
def test_doctor_refuses_a_pytorch_before_2_4(
    version: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    found = {f.subject: f for f in examine(device="cpu", out=tmp_path / "x.json", environment={})}
    assert found["PyTorch"].level == level


@pytest.mark.parametrize("mib", [63, 64])
def test_doctor_wants_64_mib_for_what_it_writes_and_for_processes_to_share(
    mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's shared memory is named only where there is too little: Docker's default is 64 MiB."""
    monkeypatch.setitem(sys.modules, "torch", torch_of("2.11.0"))
    usage = SimpleNamespace(total=mib * 2**20, free=mib * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    levels = {f.subject: f.level for f in examine(device="cuda", out=tmp_path / "x.json", environment={})}
    assert levels["output"] == ("stop" if mib < 64 else "ok")
    assert levels.get("shared memory") == ("stop" if mib < 64 and Path("/dev/shm").exists() else None)
    assert levels["GPU"] == "stop"


@pytest.mark.parametrize("budget", ["soon", "0s", "-5", "100d", "nan"])
def test_a_budget_that_is_no_time_is_refused(budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "run", "--out", str(tmp_path / "x.json"), "--budget", budget]) == 2
    assert "60s, 5m" in capsys.readouterr().err


def test_a_missing_folder_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "run", "--out", str(tmp_path / "no" / "x.json")]) == 5
    assert "does not exist" in capsys.readouterr().err


def test_show_prints_bandwidths_by_nccl_tests_definitions(
    shipped: CalibrationDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    """All-reduce of four ranks: bus bandwidth 2 (4 - 1) / 4 * 2^30 / t."""
    assert run(["profile", "show", NAME]) == 0
    printed = capsys.readouterr().out
    (fit,) = (
        f for f in shipped.collective_fits if (f.op, f.ranks, f.stride, f.concurrent_groups) == ("all_reduce", 4, 1, 1)
    )
    time_s = fit.time_s[fit.size_bytes.index(2.0**30)]
    row = next(line for line in printed.splitlines() if line.strip().startswith("all_reduce") and "4 x 1" in line)
    assert f"{1.5 * 2**30 / time_s / 1e9:.1f}" in row.split()


def test_show_gives_a_cluster_that_uses_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "show", NAME, "--cluster", "--num-nodes", "8"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 4, "calibration": NAME,
    }  # fmt: skip


def test_a_page_loads_nothing_and_runs_no_script(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["profile", "show", NAME, "--html", str(page)]) == 0
    text = page.read_text()
    assert text.count("<svg") >= 2
    assert "<script" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not complete JSON"),
        (lambda text: text.replace('"nvls":"off"', '"nvls":"on"'), "edited"),
        (lambda text: text.replace('"schema_version":1', '"schema_version":2'), "schema version 2"),
    ],
)
def test_a_damaged_calibration_is_refused(
    shipped: CalibrationDocument, change: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(change(shipped.file_text()))  # type: ignore[operator]
    assert run(["profile", "show", str(path)]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(CalibrationError, match=message):
        parse_document(path.read_text())


def test_throttling_and_memory_errors_are_warnings_and_the_power_cap_is_not() -> None:
    states = [
        {"rank": 0, "throttle": ["power cap"], "ecc_uncorrected": 0},
        {"rank": 1, "throttle": ["power cap", "thermal (hardware)"], "ecc_uncorrected": 0},
        {"rank": 2, "throttle": [], "ecc_uncorrected": 3},
        {},
    ]
    assert DeviceLog.warnings(states) == [
        "throttled: rank 1 was slowed by thermal (hardware)",
        "memory errors: rank 2 has 3 uncorrected ones",
    ]


def test_shipped_calibrations_are_no_default(shipped: CalibrationDocument) -> None:
    """Machine, date and NVLS are part of the name or the fingerprint."""
    assert shipped.kind == "measured"
    assert shipped.fingerprint.nvls == "off"
    assert shipped.name.endswith(shipped.created_at[:10])
    assert {s.spread_fraction for s in shipped.gemm} != {0.0}
