"""Runs one trial with PyTorch's own parallelism, and says how it ended: measured, out of memory, hung or crashed.

What is wrong with the plan or the machine is an error before anything starts; what happens afterwards is a result, and the next trial
starts on GPUs that are free again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from typing import Any

from cost_models.errors import InvalidInputError, MeasurementError, Problem
from cost_models.inputs.fields import validated
from profiler.rig import INSTALL
from profiler.trial.attempt import Attempt, Run, attempt
from profiler.trial.plan import trial_plan
from profiler.trial.processes import free_port
from profiler.trial.record import RankPeaks, TrialRecord, largest
from profiler.trial.watch import Heard


def run_trial(
    row: Mapping[str, Any],
    *,
    world: int | None = None,
    learning_rate: float | None = None,
    trace: bool | None = None,
    **how: Any,
) -> TrialRecord:
    """The trial of an evaluate row on devices of this machine.

    Args:
        row: an evaluate row whose strategy states every degree.
        world: number of processes, which must be the plan's; by default that.
        learning_rate: of the optimizer; by default that of `profiler.trial.steps`.
        trace: whether one more step is traced for its terms; by default on GPUs.
        how: fields of `Run`, of which `deadline_s` is needed.

    Raises:
        InvalidInputError: the row cannot be run by this back end, or not on this machine.
        MeasurementError: a GPU is not there, or in use, or PyTorch is not installed.
    """
    run = Run(**how)
    if importlib.util.find_spec("torch") is None:
        # Every rank would end with it, and each plan in turn would be taken for one that does not run.
        raise MeasurementError("trials run with PyTorch, which is not installed here", hint=INSTALL)
    # For its refusals: what this back end would leave out is told here, rather than by every rank.
    plan = trial_plan(row)
    if run.device == "cpu" and plan.attention_kernel == "flex":
        message = "attention_kernel is flex; FlexAttention is trained on GPUs only"
        raise InvalidInputError([Problem("/training/attention_kernel", message, "Set it to sdpa.")])
    with attempt(row, "pytorch", run, world=world) as trial:
        arguments = ["--device", run.device, "--warm-up", str(run.warm_up), "--steps", str(run.steps)]
        if learning_rate is not None:
            arguments += ["--learning-rate", str(learning_rate)]
        if trial.limits.gpu_fraction is not None:
            arguments += ["--gpu-fraction", str(trial.limits.gpu_fraction)]
        if trace or (trace is None and run.device == "cuda"):
            arguments += ["--trace"]
        return _run(row, trial, arguments)


def _run(row: Mapping[str, Any], trial: Attempt, arguments: list[str]) -> TrialRecord:
    path, stop = trial.folder / "row.json", trial.folder / "stop"
    path.write_text(json.dumps(row))
    command = [sys.executable, "-W", "ignore", "-m", "profiler.trial.child", str(path), "--stop", str(stop), *arguments]
    outputs = [trial.folder / f"rank{rank}.txt" for rank in range(trial.ranks)]
    port = free_port()
    # Not torchrun, whose own start takes seconds.
    for rank, output in enumerate(outputs):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": trial.ranks, "LOCAL_WORLD_SIZE": trial.ranks}
        variables = {name: str(value) for name, value in place.items()}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        trial.processes.start(command, environment={**trial.environment(), **variables}, output=output)
    said: dict[str, Any] = {}

    def hear(line: str) -> Heard | None:
        told = _told(line)
        if told is None:
            return None
        # The first of several ranks that ran out of memory is as good as any other.
        said.update({name: value for name, value in told.items() if name not in said})
        return Heard(told.get("phase"), told.get("seconds"))

    step_s = trial.watch(outputs, hear, stop=stop.touch)
    if "--trace" in arguments and "result" in said and "terms_s" not in said:
        # What was timed before it stays true.
        trial.note(
            f"the step was not traced to its end: {trial.first_error or said.get('out_of_memory') or 'no reason was given'}"
        )
    return trial.record(
        measured=_measured(said), out_of_memory=said.get("out_of_memory"), machine=said.get("machine"), step_s=step_s
    )


def _measured(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of a record that a measured trial has."""
    result = said.get("result")
    if result is None:
        return None
    ranks = tuple(validated(RankPeaks, rank, pointer="/ranks") for rank in result["ranks"])
    return {
        "step_time_s": result["step_time_s"], "ranks": ranks, "terms_s": said.get("terms_s"),
        "peak_allocated_bytes": largest(rank.peak_allocated_bytes for rank in ranks),
        "peak_reserved_bytes": largest(rank.peak_reserved_bytes for rank in ranks),
        "peak_device_bytes": largest(rank.device_bytes for rank in ranks),
    }  # fmt: skip


def _told(line: str) -> dict[str, Any] | None:
    """What a line of ours tells; None of any other line."""
    start = line.find("{")
    if start < 0:
        return None
    try:
        found = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
