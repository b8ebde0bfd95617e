"""Runs launch files that `meshwright export` wrote, on made-up tokens, as a trial: what is measured is what will run.

It takes a folder and the row that the files say, and knows no framework: steps and peaks of memory are read from what the launch prints.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.errors import InvalidInputError, MeasurementError, Problem
from profiler.logs.exported import ExportedReader
from profiler.logs.read import read_log
from profiler.logs.reading import Line
from profiler.trial.attempt import Attempt, Run, attempt
from profiler.trial.record import TrialRecord, largest
from profiler.trial.terms import of_step, terms_of_trace, waits_least
from profiler.trial.watch import Heard

SCRIPT, PLAN = "mock.sh", "plan.json"
# What tells how many steps a launch runs, by a file of the launch that only those of one kind have.
_STEPS: Mapping[str, tuple[str, ...]] = {
    "hf_model.py": ("--steps", "{all}", "--warmup", "{warm_up}"),
    "train_plan.json": ("--steps", "{all}"),
    "plan_steps.py": ("--training.steps", "{all}"),
}
_STEPS_BY_OPTION = "--train-iters"
_TORCH_ADAM, _TRACE = "--torch-adam", "--trace"
_REPLACED = f"The optimizer was PyTorch's AdamW ({_TORCH_ADAM}), because DeepSpeed compiles its own at the first start, which would outlast a trial."
_MODULE = re.compile(r"(?:^|\s)-m\s+([A-Za-z_][\w.]*)")
# Modules whose packages are called otherwise.
_PACKAGES = {"flash_attn": "flash-attn", "liger_kernel": "liger-kernel"}


def run_export(
    folder: Path,
    row: Mapping[str, Any],
    *,
    world: int | None = None,
    options: Sequence[str] = (),
    trace: bool | None = None,
    **how: Any,
) -> TrialRecord:
    """The trial of an evaluate row by its exported launch files, on devices of this machine.

    Their step times are those that the launch prints, and it prints peaks of memory for all ranks together.

    Args:
        folder: what `meshwright export` wrote; the launch may write into it.
        row: the row that was exported.
        world: number of processes, which must be the plan's; by default that.
        options: further words for the launch, such as `--torch-adam`.
        trace: whether one more step is traced for its terms, by launch files that can; by default on GPUs.
        how: fields of `Run`, of which `deadline_s` is needed.

    Raises:
        InvalidInputError: the files are of another plan, or it cannot run on this machine.
        MeasurementError: there is no launch in the folder, a package that it imports is not installed, a GPU is not there or in use, or
            a share of GPU memory was asked for, which launch files cannot keep to.
    """
    run = Run(**how)
    if run.limits is not None and run.limits.gpu_fraction is not None:
        message = "launch files take all memory of a GPU that they need, and a share of it was asked for"
        raise MeasurementError(message, hint="Leave gpu_fraction out, or run PyTorch's own parallelism.")
    _require_launch(folder, row)
    with attempt(row, "export", run, world=world) as trial:
        limits = trial.limits
        # Until the first step a launch tells nothing of its phases.
        trial.limits = replace(limits, start_s=limits.start_s + limits.build_s + limits.warm_up_s)
        wanted = run.device == "cuda" if trace is None else trace
        return _run(folder.resolve(), row, trial, options, trace=wanted)


def _run(folder: Path, row: Mapping[str, Any], trial: Attempt, options: Sequence[str], *, trace: bool) -> TrialRecord:
    run, output = trial.run, trial.folder / "output.txt"
    if _compiles_adam(folder) and _TORCH_ADAM not in options:
        options = [*options, _TORCH_ADAM]
        trial.note(_REPLACED)
    traces = trial.folder / "traces"
    if trace := trace and _traces(folder):
        traces.mkdir()
        options = [*options, _TRACE, str(traces)]
    guard = [sys.executable, "-m", "profiler.trial.guard"]
    command = [*guard, "bash", str(folder / SCRIPT), *_arguments(folder, run), *options]
    # The programs beside this Python are those whose packages were looked for.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    trial.processes.start(command, environment={**trial.environment(), "PATH": path}, output=output)
    steps = _Steps(trial)
    step_s = trial.watch([output], steps.hear)
    if not step_s:
        return _read_afterwards(output, row, trial)
    counted = step_s[run.warm_up :]
    complete = len(step_s) >= run.warm_up + run.steps or trial.ended_early
    if not counted or not complete:
        return trial.record(measured=None, machine=_software(), step_s=step_s)
    measured: dict[str, Any] = {
        "step_time_s": median(counted),
        "peak_allocated_bytes": largest(steps.allocated[run.warm_up :]),
        "peak_reserved_bytes": largest(steps.reserved[run.warm_up :]),
        "peak_device_bytes": largest(steps.device),
    }
    if trace and not trial.ended_early:
        measured["terms_s"] = _terms(traces, row, trial.ranks, measured["step_time_s"])
        if measured["terms_s"] is None:
            trial.note("the step was not traced to its end")
    return trial.record(measured=measured, machine=_software(), step_s=step_s)


def _traces(folder: Path) -> bool:
    """Whether the launch files can trace a step; those of earlier exports, and of frameworks with loops of their own, cannot."""
    scripts = (folder / name for name in _STEPS)
    beside = [script if script.suffix == ".py" else folder / "train.py" for script in scripts if script.exists()]
    return any(script.exists() and _TRACE in script.read_text() for script in beside)


def _terms(traces: Path, row: Mapping[str, Any], ranks: int, step_time_s: float) -> dict[str, float] | None:
    """Seconds of the step by term, of the rank that waits least; None where not every rank left a whole trace."""
    strategy = row["strategy"]
    degrees = {name: int(strategy.get(name) or 1) for name in ("tp", "pp")}
    spans_all = next((name for name, degree in degrees.items() if 1 < degree == ranks), None)
    found = []
    for rank in range(ranks):
        try:
            events = json.loads((traces / f"rank{rank}.json").read_bytes())["traceEvents"]
        except (OSError, ValueError):
            return None
        own = terms_of_trace(events, pipeline=degrees["pp"] > 1, spans_all=spans_all)
        if strategy.get("recompute", "none") == "none" and "recompute" in own:
            # Frameworks copy and scale gradients on the way back, which looks like a forward that is done again.
            own["elementwise"] = own.get("elementwise", 0.0) + own.pop("recompute")
        found.append(own)
    return of_step(waits_least(found), step_time_s=step_time_s)


class _Steps:
    """What the lines of a launch tell of each step."""

    def __init__(self, trial: Attempt) -> None:
        self._trial = trial
        self.allocated: list[int | None] = []
        self.reserved: list[int | None] = []
        self.device: list[int | None] = []

    def hear(self, line: str) -> Heard | None:
        if not any(mark in line for mark in ExportedReader.marks):
            return None
        reader = ExportedReader()
        reader.take(Line(line, None, is_whole=True))
        if not reader.found.samples:
            return None
        peaks = {counter: int(value) for (counter, _), value in reader.found.peaks.items()}
        self.allocated.append(peaks.get("allocated"))
        self.reserved.append(peaks.get("reserved"))
        self.device.append(self._trial.device_bytes())
        return Heard(step_s=reader.found.samples[-1].seconds)


def _read_afterwards(output: Path, row: Mapping[str, Any], trial: Attempt) -> TrialRecord:
    """The record of a launch that prints steps in its framework's own way."""
    measured: dict[str, Any] | None = None
    if not any(trial.codes):
        try:
            with output.open("rb") as log:
                reading = read_log(log, row=row)
        except InvalidInputError:
            # The record says that it ended and told no steps.
            pass
        else:
            peaks = reading.peaks_bytes
            measured = {"step_time_s": reading.step_time_s} | {
                f"peak_{counter}_bytes": int(peaks[counter]) for counter in peaks
            }
            return trial.record(measured=measured, machine=_software(), step_s=reading.samples_s, warm_up=0)
    return trial.record(measured=None, machine=_software(), step_s=())


def _arguments(folder: Path, run: Run) -> list[str]:
    values = {"all": run.warm_up + run.steps, "warm_up": run.warm_up}
    for file, words in _STEPS.items():
        if (folder / file).exists():
            return [word.format(**values) for word in words]
    if _STEPS_BY_OPTION in (folder / SCRIPT).read_text():
        return [_STEPS_BY_OPTION, str(values["all"])]
    return []


def _compiles_adam(folder: Path) -> bool:
    """Whether the launch runs an Adam of DeepSpeed's own on GPUs, and could run PyTorch's, which does the same work.

    On the host it could not: there PyTorch's takes far longer.
    """
    config = folder / "ds_config.json"
    if not config.exists() or not (folder / "hf_model.py").exists():
        return False
    said = json.loads(config.read_text())
    offloaded = said.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    return bool(said.get("optimizer", {}).get("type") == "AdamW" and offloaded == "none")


def _require_launch(folder: Path, row: Mapping[str, Any]) -> None:
    script, plan = folder / SCRIPT, folder / PLAN
    if not script.exists():
        raise MeasurementError(f"{folder} holds no {SCRIPT}", hint="Give the folder that `meshwright export` wrote.")
    if plan.exists():
        exported = json.loads(plan.read_text())
        for degree in ("tp", "pp", "cp", "dp"):
            said, asked = exported["strategy"].get(degree, 1), row["strategy"].get(degree, 1)
            if said != asked:
                message = f"{degree} is {asked}, but the launch files in {folder} say {said}"
                raise InvalidInputError([Problem(f"/strategy/{degree}", message, "Export this plan, and run that.")])
    missing = sorted(
        {_PACKAGES.get(name, name) for name in _imported(folder) if importlib.util.find_spec(name) is None}
    )
    if missing:
        raise MeasurementError(
            f"the launch files import {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here",
            hint=f"Install what the first lines of {SCRIPT} name, beside this Python: {sys.executable}.",
        )


def _imported(folder: Path) -> Iterator[str]:
    """Packages that the launch imports whatever it runs: at the top of its modules, and the program that it starts."""
    names = []
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module)
    own = {path.stem for path in folder.glob("*.py")}
    yield from (root for name in names if (root := name.partition(".")[0]) not in own)
    for found in _MODULE.finditer((folder / SCRIPT).read_text()):
        yield found[1].partition(".")[0]


def _software() -> dict[str, str]:
    """Versions of what is installed, which the launch's own processes do not tell."""
    try:
        return {"torch": version("torch")}
    except PackageNotFoundError:
        return {}
