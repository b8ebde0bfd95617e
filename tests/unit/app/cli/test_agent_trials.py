"""What an agent writes down for a trial: only in its own folder, and so that nothing is lost when it is killed at any moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.agent.trials import clear_trial, finished_trials, prepare_trial, trial_command
from cost_models.errors import MeasurementError

JOB: dict[str, Any] = {
    "lease": "trial-lease-1",
    "trial": {"row": {"strategy": {"tp": 1}}, "backend": "export", "gpus": 2, "deadline_s": 60.0, "files": {"mock.sh": "true"}},
}  # fmt: skip


def test_a_record_that_was_written_without_its_agent_is_taken_up(tmp_path: Path) -> None:
    out, cut_off = tmp_path / "tuning-a-trial-1-1.json", tmp_path / "tuning-a-trial-2-1.json"
    for path in (out, cut_off):
        prepare_trial(JOB, out=path, device="cuda")
    assert list(finished_trials(tmp_path)) == [], "nothing has been measured yet"
    out.write_text('{"status": "ok"}')
    cut_off.write_text('{"status": "o')
    expected = {"lease": "trial-lease-1", "outcome": "measured", "trial": {"status": "ok"}}
    assert list(finished_trials(tmp_path)) == [(out, expected)]
    clear_trial(out)
    assert list(finished_trials(tmp_path)) == []


def test_launch_files_are_written_into_a_folder_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    described = prepare_trial(JOB, out=out, device="cpu")
    what = json.loads(described.read_text())
    script = Path(what["folder"]) / "mock.sh"
    assert (script.read_text(), script.stat().st_mode & 0o100, what["device"]) == ("true", 0o100, "cpu")
    command = trial_command(described, out, launcher="srun --gpus 2", python="python3")
    assert command[:3] == ["srun", "--gpus", "2"]
    assert command[-2:] == [str(described), f"--out={out}"]
    # Files of an attempt that was cut off are gone before those of the next are written.
    (script.parent / "old.sh").write_text("")
    prepare_trial(JOB, out=out, device="cpu")
    assert [path.name for path in script.parent.iterdir()] == ["mock.sh"]


@pytest.mark.parametrize("name", ["../mock.sh", "/tmp/mock.sh", "a/../../mock.sh"])
def test_a_launch_file_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    job = {**JOB, "trial": {**JOB["trial"], "files": {name: "true"}}}
    with pytest.raises(MeasurementError, match="outside of its folder"):
        prepare_trial(job, out=tmp_path / "t.json", device="cuda")
    assert not list(tmp_path.parent.glob("mock.sh"))
