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


def test_a_framework_that_nobody_plans_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "run", "--out", str(tmp_path / "x.json"), "--framework", "horovod"]) == 2
    assert "torchtitan" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["soon", "0s", "-5", "100d", "nan"])
def test_a_budget_that_is_no_time_is_refused(budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "run", "--out", str(tmp_path / "x.json"), "--budget", budget]) == 2
    assert "60s, 5m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "is_time"),
    [
        ("1s", True), ("1", True), ("0.9s", False), ("0.999", False), ("24h", True), ("24.1h", False), ("86400", True),
        ("86401s", False), ("1440m", True), ("1441m", False), (" 5 m ", True), ("0.02m", True), ("0.01m", False),
        ("0.0003h", True), ("0.0002h", False), ("5d", False), ("m", False),
    ],
)  # fmt: skip
def test_a_budget_is_between_a_second_and_a_day(
    budget: str, is_time: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the output, which is missing, is only looked for once the budget is understood."""
    assert run(["profile", "run", "--out", str(tmp_path / "no" / "x.json"), "--budget", budget]) == (
        5 if is_time else 2
    )
    assert ("is not a time between 1s and 24h" in capsys.readouterr().err) != is_time


@pytest.mark.parametrize(("count", "accepted"), [("0", False), ("1", True)])
def test_a_cluster_has_at_least_one_node(count: str, accepted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "show", NAME, "--cluster", "--num-nodes", count]) == (0 if accepted else 2)
    assert not accepted or json.loads(capsys.readouterr().out)["num_nodes"] == 1


def cuda_torch(*names: str, memory: float = 79.2, nccl: bool = True) -> SimpleNamespace:
    """A PyTorch of a machine with these GPUs, and without the driver's library."""
    found = [SimpleNamespace(name=name, total_memory=memory * 2**30) for name in names]
    cuda = SimpleNamespace(
        is_available=lambda: bool(found),
        device_count=lambda: len(found),
        get_device_properties=lambda index: found[index],
    )
    distributed = SimpleNamespace(is_nccl_available=lambda: nccl)
    return SimpleNamespace(
        __version__="2.11.0", version=SimpleNamespace(cuda="12.8"), cuda=cuda, distributed=distributed
    )


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("torch", "stops"),
    [
        (cuda_torch(H100), {}),
        (cuda_torch(H100, H100), {}),
        (cuda_torch(H100, "NVIDIA H100 PCIe"), {"GPUs": "of different kinds: NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe"}),
        (cuda_torch(H100, H100, nccl=False), {"NCCL": "has no NCCL"}),
        (cuda_torch(H100, nccl=False), {}),  # one GPU needs none
        (cuda_torch("GeForce GTX 1080", memory=8.0), {"GPU 0": "GeForce GTX 1080, 8.0 GiB, matches no preset"}),
    ],
)
def test_doctor_looks_at_every_gpu(
    torch: SimpleNamespace, stops: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=2**40, free=2**40))
    found = examine(device="cuda", out=tmp_path / "x.json", environment={})
    told = {f.subject: f.message for f in found if f.level == "stop"}
    assert told.keys() == stops.keys()
    assert all(words in told[subject] for subject, words in stops.items())
    assert [f.level for f in found if f.subject == "NVML"] == ["warning"]


@pytest.mark.parametrize(("cuda", "words"), [("12.8", "no GPU is visible"), (None, "was built without CUDA")])
def test_doctor_says_why_there_is_no_gpu(
    cuda: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_of("2.11.0", cuda=cuda))
    found = {f.subject: f for f in examine(device="cuda", out=tmp_path / "x.json", environment={})}
    assert words in found["GPU"].message
    assert f"CUDA {cuda or 'none'}" in found["PyTorch"].message


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("environment", "level", "message"),
    [
        ({}, "ok", "none; one process measures one device"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "ok", "torchrun: rank 1 of 4 on 2 nodes"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "stop", "4 processes cannot fill nodes of 4 evenly (this is rank 4)"),
    ],
)
def test_doctor_says_which_launcher_it_sees(
    environment: dict[str, str], level: str, message: str, tmp_path: Path
) -> None:
    found = {f.subject: f for f in examine(device="cpu", out=tmp_path / "x.json", environment=environment)}
    assert (found["launcher"].level, found["launcher"].message) == (level, message)


@pytest.mark.usefixtures("without_torch")
def test_doctor_ends_with_5_where_something_stops_and_hints_at_nothing_that_is_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert run(["profile", "doctor", "--out", str(tmp_path / "x.json")]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("stop     PyTorch: measuring needs PyTorch")
    assert lines[1].startswith("         pip install")
    warned = next(place for place, line in enumerate(lines) if line.startswith("warning  NCCL_ALGO: is set to 'Ring'"))
    assert lines[warned + 1].startswith("         Unset it")
    in_order = next(place for place, line in enumerate(lines) if line.startswith("ok       output"))
    assert in_order == len(lines) - 1 or not lines[in_order + 1].startswith(" ")


def test_doctor_ends_with_0_where_nothing_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_of("2.11.0"))
    assert run(["profile", "doctor", "--device", "cpu", "--out", str(tmp_path / "x.json")]) == 0


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", NAME, "--html", "--png"], "--html --png"),
        (["show", NAME, "--png", "--cluster"], "--png --cluster"),
        (["run", "--out", "--fresh", "--device", "cpu"], "--out --fresh"),
        (["doctor", "--out", "--device"], "--out --device"),
    ],
)
def test_an_output_that_looks_like_an_option_is_refused(arguments, named, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["profile", *arguments]) == 2
    assert f"{named} begins with a dash" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
