"""What came of a tuning: the verdict, what it spent, what did not run, what to measure next, and the knobs of the winner."""

from __future__ import annotations

import json
from collections.abc import Iterator

from app.plan_cells import seconds
from app.report.figures.bars import Part, bar
from app.report.section import Section, section
from app.report.tuning.document import Json, TunedTrial, Tuning
from app.report.tuning.words import (
    BACKENDS,
    HINTS,
    duration,
    ended,
    in_short,
    is_number,
    knobs_gain,
    median_corrected_error,
    median_error,
    notes,
    outcome,
    plan_name,
    share,
    spent,
)
from app.report.words import gib


def verdict(tuning: Tuning) -> Section:
    return section(
        "verdict",
        "What the tuning found",
        sentence=outcome(tuning),
        figures=list(_figures(tuning)),
        facts=list(_facts(tuning)),
        warnings=list(notes(tuning)),
    )


def _figures(tuning: Tuning) -> Iterator[tuple[str, str, str]]:
    """The figures that count most: name, value with its unit, and what belongs to it."""
    if tuning.best is not None:
        best = tuning.best
        first = next((each for each in tuning.measured if each.rank == 1), None)
        beside = (
            "measured" if first is None or best.rank == 1 else f"plan 1 takes {seconds(first.step_time_s or 0.0)} s"
        )
        yield "Fastest step", f"{seconds(best.step_time_s)} s", beside
        if best.gain_fraction is not None and best.rank != 1:
            yield "Saved", share(best.gain_fraction), "of the step of plan 1"
    # A trial that still runs has not failed.
    ended_how = [f"{len(tuning.measured):,} measured"]
    ended_how += [f"{len(tuning.failed):,} without a result"] if tuning.failed else []
    ended_how += [f"{len(tuning.open):,} not ended"] if tuning.open else []
    yield "Trials", f"{len(tuning.trials):,}", ", ".join(ended_how)
    if error := median_error(tuning):
        learnt = median_corrected_error(tuning)
        yield "Predicted times off by", error, f"{learnt} with what was learnt" if learnt else "at the median"
    gpu_hours = f"{tuning.used.gpu_hours:.3g} h"
    yield "GPU time", gpu_hours, f"in {duration(tuning.used.seconds)}"


def _facts(tuning: Tuning) -> Iterator[tuple[str, str]]:
    if tuning.best is not None:
        yield "Its strategy", in_short(tuning.best.strategy)
    if tuning.backend:
        ran_by = BACKENDS.get(tuning.backend, tuning.backend)
        yield "Steps run by", f"{ran_by}{_machine(tuning)}"
    if tuning.stopped is not None:
        yield "Why it ended", tuning.stopped.message or tuning.stopped.reason


def _machine(tuning: Tuning) -> str:
    """The machines of the trials, such as ", on 2 NVIDIA H200 with PyTorch 2.11.0"; empty where no trial says."""
    # Agents of a service may run the trials of one tuning on several nodes.
    told = dict.fromkeys(name for each in tuning.trials if (name := _machine_of(each)))
    return f", on {' and on '.join(told)}" if told else ""


def _machine_of(trial: TunedTrial) -> str:
    # What a record holds is not checked: it may come from another release.
    machine = (trial.record or {}).get("machine")
    if not isinstance(machine, dict) or not machine.get("gpu"):
        return ""
    number = f"{machine['gpus']} × " if machine.get("gpus") else ""
    versions = [f"{name} {machine[key]}" for key, name in (("torch", "PyTorch"), ("nccl", "NCCL")) if machine.get(key)]
    return f"{number}{machine['gpu']}" + (f" with {' and '.join(versions)}" if versions else "")


def time_spent(tuning: Tuning) -> Section | None:
    """Where the GPU time went, trial by trial, and what the limits were."""
    trials = [each for each in tuning.trials if each.gpu_seconds]
    if not trials:
        return None
    total = sum(each.gpu_seconds or 0.0 for each in trials)
    parts = [
        Part(
            "step" if each.is_measured else "count",
            each.gpu_seconds or 0.0,
            f"trial {each.number}, {plan_name(each.rank, each.strategy)}: {each.gpu_seconds or 0.0:.0f} GPU seconds, {ended(each)}",
        )
        for each in trials
    ]
    lost = sum(each.gpu_seconds or 0.0 for each in trials if not each.is_measured)
    # How little of a trial is steps tells whether longer trials would cost more.
    steps = [_steps_s(each) for each in trials]
    return section(
        "spent",
        "GPU time spent",
        sentence=f"{spent(tuning)}.",
        strip=bar(parts, until=total, height=26, data_gpu_seconds=f"{total:.6g}"),
        lost=f"{lost / total:.0%} of the GPU time went into trials without a result." if lost else "",
        steps=f"Of the trials' own time, {sum(steps) / _took_s(trials):.0%} were training steps; the rest is starting processes, building models and, where it was asked for, tracing a step."
        if all(steps) and _took_s(trials)
        else "",
        any_lost=bool(lost),
        any_measured=lost < total,
    )


def _steps_s(trial: TunedTrial) -> float:
    """Seconds that a trial's steps took together, 0 where its record does not say."""
    steps = (trial.record or {}).get("step_s")
    return sum(each for each in steps if is_number(each)) if isinstance(steps, list) else 0.0


def _took_s(trials: list[TunedTrial]) -> float:
    return sum(each.took_s or 0.0 for each in trials)


def failed(tuning: Tuning) -> Section | None:
    """Trials without a result, each with its reason, and what such an end means."""
    if not tuning.failed:
        return None
    # Ten trials without memory need one hint.
    kinds = dict.fromkeys(each.status for each in tuning.failed)
    return section(
        "failed",
        "What did not run",
        rows=[
            {
                "number": each.number,
                "plan": plan_name(each.rank, each.strategy),
                "strategy": in_short(each.strategy),
                "status": each.status,
                "ended": ended(each),
                "reason": each.reason or "No reason was told.",
                "predicted": "" if each.predicted_step_time_s is None else seconds(each.predicted_step_time_s),
                "memory": ""
                if each.predicted_peak_allocated_bytes is None
                else gib(each.predicted_peak_allocated_bytes),
                "took": "" if each.took_s is None else duration(each.took_s),
            }
            for each in tuning.failed
        ],
        hints=[HINTS[kind] for kind in kinds if kind in HINTS],
    )


def next_trials(tuning: Tuning) -> Section | None:
    """Which plans would be worth measuring, and why."""
    if not tuning.next:
        return None
    named = [(plan_name(each.rank, each.strategy), each) for each in tuning.next]
    return section(
        "next",
        "What to measure next",
        rows=[
            {"plan": f"{name[0].upper()}{name[1:]}", "strategy": in_short(each.strategy), "why": each.why}
            for name, each in named
        ],
    )


def run_knobs(tuning: Tuning) -> Section | None:
    """The run-time knobs of the fastest plan, where they were tuned."""
    found: Json = tuning.knobs or {}
    # The framework may have no knobs, or none of their trials may have run.
    best = found.get("best")
    if not isinstance(best, dict) or not isinstance(best.get("values"), dict):
        return None
    arguments = best.get("arguments")
    return section(
        "run-knobs",
        "Run-time knobs of the fastest plan",
        sentence=knobs_gain(found, "these values"),
        rows=[(name, json.dumps(value)) for name, value in best["values"].items()],
        arguments=" ".join(map(str, arguments)) if isinstance(arguments, list) else "",
    )
