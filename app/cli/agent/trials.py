"""Trials of tunings on this node: what is written down for the program that runs one, its command, and its result."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cost_models.errors import MeasurementError

Document = dict[str, Any]
_DESCRIBED = ".trial.json"
PROGRAM = "app.cli.agent.trial_program"


def prepare_trial(job: Mapping[str, Any], *, out: Path, device: str) -> Path:
    """The file that says what is to be run, written beside where the record will be; launch files lie in a folder beside it.

    Raises:
        MeasurementError: the service names a file that would lie outside of that folder.
    """
    trial = job["trial"]
    # Of an attempt that was cut off; its scripts may differ from those of this one.
    folder = files_of(out)
    shutil.rmtree(folder, ignore_errors=True)
    # An agent runs what its service says. It writes nothing outside of its own folder all the same.
    for name, content in (trial["files"] or {}).items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise MeasurementError(
                f"the service names the launch file {name!r}, which lies outside of its folder",
                hint="Ask whoever runs the service whether somebody has changed it.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")
        path.chmod(0o700)
    what = {
        "row": trial["row"], "backend": trial["backend"], "gpus": trial["gpus"], "deadline_s": trial["deadline_s"],
        "hopeless_above_s": trial.get("hopeless_above_s"),  # services of earlier releases say nothing of it
        "folder": str(folder), "device": device,
        "lease": job["lease"],
    }  # fmt: skip
    described = out.with_suffix(_DESCRIBED)
    described.write_text(json.dumps(what), encoding="utf-8")
    return described


def trial_command(described: Path, out: Path, *, launcher: str | None, python: str = sys.executable) -> list[str]:
    """The command that runs a trial.

    Args:
        described: what is to be run, see `prepare_trial`.
        out: where the record is written.
        launcher: words put before the program, such as `srun --ntasks 1 --gpus 2`.
        python: the interpreter.
    """
    return [*shlex.split(launcher or ""), python, "-m", PROGRAM, str(described), f"--out={out}"]


def files_of(out: Path) -> Path:
    """The folder with the launch files of the trial whose record is written to `out`."""
    return out.with_suffix(".files")


def clear_trial(out: Path) -> None:
    """Removes what was written for a trial."""
    shutil.rmtree(files_of(out), ignore_errors=True)
    out.with_suffix(_DESCRIBED).unlink(missing_ok=True)


def finished_trials(folder: Path) -> Iterator[tuple[Path, Document]]:
    """Records that were written while nobody waited for them any more, because the agent had just been killed, each with its result."""
    for described in sorted(folder.glob(f"*{_DESCRIBED}")):
        out = described.with_name(described.name.removesuffix(_DESCRIBED) + ".json")
        try:
            what, record = (json.loads(path.read_text(encoding="utf-8")) for path in (described, out))
        except (OSError, ValueError):
            continue
        yield out, {"lease": what["lease"], "outcome": "measured", "trial": record}
