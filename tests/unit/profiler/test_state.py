"""Nothing measured is lost: the state file of a stopped run, whole writes, the outbox of a service that was away."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from app.errors import ServiceUnreachableError, UnauthorizedError
from cost_models.calibration import CalibrationDocument
from cost_models.errors import MeasurementError
from cost_models.hardware import shipped_document
from profiler.outbox import Outbox
from profiler.state_file import State, digest_of, save, state_path, write_whole

MACHINE = {"gpu": "H100-SXM-80GB", "torch": "2.11"}
FOUND = {"gemm": [{"m": 8, "n": 8, "k": 8, "time_s": 1e-5}]}
SERVER = "http://127.0.0.1:8000"


@pytest.fixture
def document() -> CalibrationDocument:
    shipped = shipped_document("h100x4-nvls-off-2026")
    assert shipped is not None
    return shipped


def test_a_rerun_continues_what_was_finished(tmp_path: Path) -> None:
    path = state_path(tmp_path / "node.json")
    State(path, MACHINE, started_at="2026-11-27T10:00:00+00:00").add("gemm/1", FOUND)
    again = State(path, MACHINE, started_at="2026-11-27T11:00:00+00:00")
    assert again.findings == {"gemm/1": FOUND}
    assert again.started_at == "2026-11-27T10:00:00+00:00"


def test_files_of_this_release_are_of_format_1(tmp_path: Path) -> None:
    """Written out by hand: a header, a finished part, and a record of something that this release does not know."""
    path = tmp_path / "x.partial"
    header = {"format": 1, "fingerprint": digest_of(MACHINE), "started_at": "then"}
    records = [header, {"key": "a", "findings": FOUND}, {"other": 1}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    state = State(path, MACHINE, started_at="now")
    assert (state.findings, state.started_at, state.was_continued) == ({"a": FOUND}, "then", True)
    path.write_text(json.dumps(header | {"format": 2}) + "\n")
    with pytest.raises(MeasurementError, match="another release"):
        State(path, MACHINE, started_at="now")


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path: Path) -> None:
    """kill -9 while writing: everything before it is kept, and the next line is not swallowed."""
    path = tmp_path / "x.partial"
    State(path, MACHINE, started_at="t").add("a", FOUND)
    with path.open("a") as file:
        file.write('{"key": "b", "findings": {"gemm": [{"m"')
    State(path, MACHINE, started_at="t").add("c", FOUND)
    assert set(State(path, MACHINE, started_at="t").findings) == {"a", "c"}


def test_a_state_of_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.partial"
    State(path, MACHINE, started_at="t").add("a", FOUND)
    with pytest.raises(MeasurementError, match="another machine"):
        State(path, {**MACHINE, "torch": "2.12"}, started_at="t")


@pytest.mark.parametrize("content", ["", "no json", '{"format": 99, "fingerprint": "x"}', "[1]"])
def test_a_file_that_is_no_state_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.partial"
    path.write_text(content)
    with pytest.raises(MeasurementError):
        State(path, MACHINE, started_at="t")
    assert path.read_text() == content


def test_a_full_disk_keeps_measuring_in_memory(tmp_path: Path) -> None:
    """/dev/full answers every write with `No space left on device`."""
    state = State(tmp_path / "x.partial", MACHINE, started_at="t")
    state.path = Path("/dev/full")
    state.add("a", FOUND)
    assert state.problem == "No space left on device"
    assert state.findings == {"a": FOUND}


def test_a_calibration_that_does_not_fit_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    path, problem = save(tmp_path / "missing" / "node.json", "{}")
    assert path == spare / "node.json"
    assert path.read_text() == "{}"
    assert problem == "No such file or directory"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.json"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# --- outbox -----------------------------------------------------------------------------------------------------------


def test_what_a_service_did_not_take_waits_and_is_sent_later(tmp_path: Path, document: CalibrationDocument) -> None:
    outbox = Outbox(tmp_path)
    outbox.put(document, server=SERVER)

    def away(_content: dict[str, Any]) -> str:
        raise ServiceUnreachableError("nobody there")

    delivery = outbox.deliver(SERVER, away)
    assert (delivery.sent, delivery.waiting) == ((), (document.id,))
    assert isinstance(delivery.problem, ServiceUnreachableError)
    received: list[dict[str, Any]] = []

    def here(content: dict[str, Any]) -> str:
        received.append(content)
        return str(content["id"])

    assert outbox.deliver(SERVER, here).sent == (document.id,)
    assert received == [json.loads(document.file_text())]
    assert list(outbox.waiting(SERVER)) == []


def test_a_wrong_token_keeps_the_calibration(tmp_path: Path, document: CalibrationDocument) -> None:
    outbox = Outbox(tmp_path)
    outbox.put(document, server=SERVER)

    def refuses(_content: dict[str, Any]) -> str:
        raise UnauthorizedError("this key is not valid")

    assert outbox.deliver(SERVER, refuses).waiting == (document.id,)


def test_a_damaged_file_stops_nobody(tmp_path: Path, document: CalibrationDocument) -> None:
    """A truncated file is named and left; the other one arrives."""
    outbox = Outbox(tmp_path)
    path = outbox.put(document, server=SERVER)
    damaged = path.with_name("0.json")
    damaged.write_text(document.file_text()[:100])
    delivery = outbox.deliver(SERVER, lambda content: str(content["id"]))
    assert delivery.damaged == (damaged,)
    assert delivery.sent == (document.id,)
    assert damaged.exists()


def test_services_do_not_share_an_outbox(tmp_path: Path, document: CalibrationDocument) -> None:
    outbox = Outbox(tmp_path)
    outbox.put(document, server=SERVER)
    assert list(outbox.waiting("https://other.example")) == []
