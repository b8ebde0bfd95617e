"""The program that runs one trial on a node for an agent: python -m app.cli.agent.trial_program TRIAL.json --out=RECORD.json

It is a process of its own, so that the agent never loads torch. Whatever the plan does, there is a record of it; only where this machine
cannot run it just now does the program fail, with the reason as its last words.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from app.tuning.backends import STEPS, WARM_UP, PyTorchBackend, until_hopeless
from cost_models.errors import InvalidInputError, MeshwrightError
from planner.search.standing import are_hopeless
from profiler.state_file import write_whole
from profiler.trial.record import TrialMachine, TrialRecord, one_line

FAILED = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trial; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    # The processes of a trial are ended by whoever has started them, on the way out of this one.
    signal.signal(signal.SIGTERM, _leave)
    what = json.loads(asked.trial.read_text(encoding="utf-8"))
    try:
        record: dict[str, Any] = _run(what)
    except InvalidInputError as error:
        # No machine will run this plan; that is how the trial ended.
        record = _refused(what, error).to_json()
    except MeshwrightError as error:
        sys.stderr.write(f"error: {error.message}\n  {error.hint}\n")
        return FAILED
    write_whole(asked.out, json.dumps(record, allow_nan=False))
    return 0


def _run(what: Mapping[str, Any]) -> dict[str, Any]:
    row, deadline_s = what["row"], what["deadline_s"]
    hopeless = partial(are_hopeless, above_s=what["hopeless_above_s"])
    if what["backend"] == "pytorch":
        return PyTorchBackend(what["device"]).run(row, deadline_s=deadline_s, hopeless=hopeless)
    from profiler.trial.exported import run_export

    how = {"deadline_s": deadline_s, "device": what["device"], "warm_up": WARM_UP, "steps": STEPS}
    goes_on = until_hopeless(hopeless, warm_up=WARM_UP)
    return run_export(Path(what["folder"]), row, world=what["gpus"], goes_on=goes_on, **how).to_json()


def _refused(what: Mapping[str, Any], error: InvalidInputError) -> TrialRecord:
    gpu = what["row"]["cluster"]["gpu"]
    return TrialRecord(
        row=what["row"],
        backend=what["backend"],
        status="crash",
        reason=one_line(f"{error.message}. {error.hint}") or "the plan was refused",
        took_s=0.0,
        gpu_seconds=0.0,
        machine=TrialMachine(gpu=gpu["name"] if isinstance(gpu, Mapping) else gpu, gpus=what["gpus"]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
