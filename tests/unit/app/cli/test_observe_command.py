"""`meshwright observe`: a log or numbers in, an observation on stdout, and what it says on stderr."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from planner.schemas.observation import Observation

LOGS = Path(__file__).resolve().parents[4] / "examples" / "logs"
LOG, ROW = LOGS / "megatron.log", str(LOGS / "megatron-row.json")


def observed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], list[str]]:
    assert run(["observe", *arguments, "--row", ROW]) == 0
    said = capsys.readouterr()
    document: dict[str, Any] = json.loads(said.out)
    Observation.model_validate(document)
    return document, said.err.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["observe", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()[0]


def test_a_log_is_read_beside_its_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    document, said = observed(capsys, str(LOG))
    # Five intervals of ten steps are left of six: 5266.3, 5268.9, 5270.7, 5271.2, 5274.0 ms.
    assert document["measured"] == {
        "step_time_s": 5.2707, "peak_memory_gib": 13742.18 / 1024, "memory_counter": "allocated", "memory_rank": "worst",
        "kind": "interval_mean", "num_steps": 50, "digits": 5, "resolution_fraction": pytest.approx(0.0001 / 5.2707),
    }  # fmt: skip
    assert document["source"]["log_sha256"] == hashlib.sha256(LOG.read_bytes()).hexdigest()
    assert document["row"] == json.loads(Path(ROW).read_text())
    assert (document["used"], document["flags"]) == (True, [])
    (line,) = said
    assert line.startswith("5.271 s a step (50 steps), 13.42 GiB allocated; predicted ")


def test_numbers_take_the_place_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    document, _ = observed(capsys, "--step-time", "5.27", "--peak-memory-gib", "13.4")
    assert document["source"] == {"format": "numbers", "log_sha256": None, "lines": []}
    assert (document["measured"]["step_time_s"], document["measured"]["peak_memory_gib"]) == (5.27, 13.4)
    _, said = observed(capsys, "--step-time", "5270")
    assert said[1:] == [
        "note: The measured time or memory is more than 50 times off the prediction. Check the unit and the row.",
        "Predictions are not corrected by this observation.",
    ]


def test_logs_come_as_a_shell_of_windows_writes_them_and_through_a_pipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = observed(capsys, str(LOG))
    wide = tmp_path / "wide.log"
    wide.write_bytes(LOG.read_text().replace("\n", "\r\n").encode("utf-16"))
    assert observed(capsys, str(wide))[0]["measured"] == plain["measured"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LOG.read_bytes()))))  # type: ignore[arg-type]
    assert observed(capsys, "-")[0]["id"] == plain["id"]


def test_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert refused(capsys, "--row", ROW) == "error: give either a log or --step-time"
    assert refused(capsys, str(LOG), "--row", ROW, "--step-time", "1") == "error: give either a log or --step-time"
    assert refused(capsys, "-", "--row", "-") == "error: the log and the row cannot both come from standard input"
    missing = tmp_path / "missing.log"
    assert refused(capsys, str(missing), "--row", ROW) == f"error: {missing} cannot be read: No such file or directory"
    assert refused(capsys, str(LOG), "--row", ROW, "--format", "nemo").startswith(
        "error: /format: the log has no step of NeMo"
    )
    for given in ("inf", "1e308", "1e-300", "5e-324", "0"):
        assert refused(capsys, "--row", ROW, "--step-time", given).endswith("it must be a number from 1e-06 to 1e+07")
    assert "peak_memory_gib is inf" in refused(capsys, "--row", ROW, "--step-time", "5", "--peak-memory-gib", "inf")
    # JSON knows no largest number, and Python's whole numbers have none.
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"step": 10**400, "train_runtime": 10**400, "train_loss": 1}]}))
    assert refused(capsys, str(state), "--row", ROW).startswith("error: /log: ")
    binary = tmp_path / "core"
    binary.write_bytes(bytes(range(256)) * 1000)
    assert refused(capsys, str(binary), "--row", ROW) == "error: /log: the log is not text"
    assert refused(capsys, str(tmp_path), "--row", ROW).endswith("Is a directory")
    row = tmp_path / "row.json"
    row.write_text(json.dumps({**json.loads(Path(ROW).read_text()), "model": {"preset": "llama-9"}}))
    assert refused(capsys, str(LOG), "--row", str(row)).startswith("error: /row: ")
    row.write_text('{"training": {}}')
    assert refused(capsys, str(LOG), "--row", str(row)).startswith("error: /row/training/seq_length: ")
