"""What a page and the command line say of a tuning in the same words: its outcome, how right the predictions were, what was learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isclose
from statistics import median
from typing import Any, TypeGuard

from app.plan_cells import degrees_above_one, recomputed, seconds
from app.report.tuning.document import LARGEST, OPEN, Json, Learnt, Ranked, TunedTrial, Tuning
from cost_models.inputs.fields import WARNINGS
from cost_models.terms import MEMORY_TERMS, TIME_TERMS

_PHRASES = {term.name: term.phrase for term in TIME_TERMS} | {
    term.name: f"memory of {term.name.replace('_', ' ')}" for term in MEMORY_TERMS
}
STATUSES = {
    "ok": "measured", "oom": "out of memory", "hang": "not in time", "crash": "an error", "queued": "waits", "running": "runs",
    "cancelled": "given up",
}  # fmt: skip
"""How a trial ended, in the words of a table."""
_ENDED = {"oom": "ran out of memory", "hang": "did not end in time", "crash": "ended with an error"}
HINTS = {
    "oom": "The GPU has less memory than this plan needs. Where the plan was said to fit, the prediction of its memory is too low.",
    "hang": "Its time was over before its steps were done: its ranks wait for each other, or its deadline is too short for it.",
    "crash": "The framework refused the plan, or the installation is not complete. What it wrote says more than its first line.",
}
"""What each way to fail means, and what to look at."""
BACKENDS = {
    "pytorch": "PyTorch's own parallelism, random weights and made-up tokens",
    "export": "the exported launch files, with made-up tokens",
}
"""What ran the steps."""


def ended(trial: TunedTrial) -> str:
    """How a trial ended, in a few words."""
    return STATUSES.get(trial.status, trial.status)


def split(strategy: Json) -> str:
    """The degrees of a strategy above 1, such as "tp2sp dp4 z3"."""
    return degrees_above_one({"strategy": strategy})


def in_short(strategy: Json) -> str:
    """A strategy in one cell: degrees, micro-batch and, where there is any, recomputation."""
    again = recomputed({"strategy": strategy})
    parts = [split(strategy), f"mb{strategy.get('micro_batch_size') or 1}", *([] if again == "none" else [again])]
    return " ".join(parts)


def plan_name(rank: int | None, strategy: Json) -> str:
    """What a plan is called: by its rank before the tuning, and by its strategy where it has none."""
    return in_short(strategy) if rank is None else f"plan {rank}"


def term_phrase(name: str) -> str:
    """How a sentence names a term of time or memory."""
    return _PHRASES.get(name, name.replace("_", " "))


def share(fraction: float) -> str:
    """A share without a sign, such as "5.4%"."""
    return f"{abs(fraction):.1%}"


def signed(fraction: float | None) -> str:
    """An error as a share with its sign; empty where it is not known."""
    # A rounded zero has no sign.
    return "" if fraction is None else f"{round(100.0 * fraction, 1) + 0.0:+.1f}%"


def notes(tuning: Tuning) -> Iterator[str]:
    """What a reader must know of the tuning as a whole."""
    machines = [(each.record or {}).get("machine") for each in tuning.measured]
    if any(isinstance(machine, dict) and machine.get("gpu") == "CPU" for machine in machines):
        yield (
            "Trials ran on processors. They show that the plans run, but their times, and how far off the predictions "
            "are, say nothing of GPUs."
        )
    yield from (WARNINGS.get(warning, warning) for warning in tuning.warnings)


def duration(seconds_s: float) -> str:
    """A time in the unit that suits it: "45 s", "4.2 min", "1.5 h"."""
    # Minutes from the point where seconds would have three digits.
    if seconds_s < 99.5:
        return f"{seconds_s:.0f} s"
    return f"{seconds_s / 60.0:.1f} min" if seconds_s < 5_970.0 else f"{seconds_s / 3_600.0:.1f} h"


def outcome(tuning: Tuning) -> str:
    """What the tuning found, in one sentence."""
    # What was predicted to be the fastest is what one would have run without a tuning.
    best = tuning.best
    if best is None:
        return nothing_ran(tuning)
    name = plan_name(best.rank, best.strategy)
    found = f"{seconds(best.step_time_s)} s a step"
    if best.rank == 1:
        return f"Plan 1 was predicted to be the fastest, and is the fastest that was measured: {found}."
    told = f"{name[0].upper()}{name[1:]} is the fastest that was measured: {found}"
    if best.gain_fraction is None:
        first = next((each for each in tuning.failed if each.rank == 1), None)
        how = "was not measured" if first is None else _ENDED.get(first.status, "has no result")
        return f"{told}. Plan 1, which was predicted to be the fastest, {how}."
    return f"{told}, {share(best.gain_fraction)} less than plan 1, which was predicted to be the fastest."


def nothing_ran(tuning: Tuning) -> str:
    """That no step was measured, and how the trials ended."""
    if not tuning.failed:
        waits = tuning.status in OPEN
        return "No trial has ended yet." if waits else "No trial was made, so nothing was measured."
    counts = Counter(each.status for each in tuning.failed)
    how = [f"{count} {_ENDED.get(status, f'ended as {status}')}" for status, count in counts.most_common()]
    number = "the only trial" if len(tuning.failed) == 1 else f"any of the {len(tuning.failed)} trials"
    return f"No step of {number} was measured: {_listed(how)}."


def median_error(tuning: Tuning) -> str:
    """The median error of predicted times, such as "5.4%"; empty where there is none."""
    errors = [error for each in tuning.measured if (error := each.error_fraction) is not None]
    return _median(errors) if errors else ""


def median_corrected_error(tuning: Tuning) -> str:
    """The same of times that were corrected by what earlier trials had taught; empty where nothing was learnt in time."""
    errors = [each.corrected_error_fraction or 0.0 for each in _with_something_learnt(tuning)]
    return _median(errors) if errors else ""


def _with_something_learnt(tuning: Tuning) -> list[TunedTrial]:
    # A first trial has nothing to learn from, so its corrected prediction is the plain one and says nothing.
    return [
        each
        for each in tuning.measured
        if each.corrected_step_time_s is not None
        and each.predicted_step_time_s is not None
        and not isclose(each.corrected_step_time_s, each.predicted_step_time_s, rel_tol=1e-6)
    ]


def accuracy(tuning: Tuning) -> Iterator[str]:
    """How right the predictions were: times, ranges, corrected times, memory."""
    found = [(each, error) for each in tuning.measured if (error := each.error_fraction) is not None]
    if not found:
        return
    inside = [each.is_in_range for each, _ in found if each.is_in_range is not None]
    told = f"Predicted times were off by {_median(error for _, error in found)}{_of(len(found))}"
    if inside:
        told += f"; {sum(inside)} of {len(inside)} {'lies' if sum(inside) == 1 else 'lie'} inside the 80 % range"
    yield f"{told}."
    if learnt := _with_something_learnt(tuning):
        before = _median(each.error_fraction or 0.0 for each in learnt)
        yield (
            f"Corrected by what earlier trials had taught, they were off by {median_corrected_error(tuning)}"
            f"{_of(len(learnt))}, and by {before} without that."
        )
    memory = [error for each in tuning.measured if (error := each.memory_error_fraction) is not None]
    if memory:
        yield f"Predicted allocated memory was off by {_median(memory)}{_of(len(memory))}."


def spent(tuning: Tuning) -> str:
    """Trials, time and GPU hours, each with its limit."""
    used, limits = tuning.used, tuning.limits
    parts = [
        f"{used.trials:,} {'trial' if used.trials == 1 else 'trials'}{_limit(limits.max_trials)}",
        duration(used.seconds) + (f" of {duration(limits.budget_s)}" if limits.budget_s is not None else ""),
        f"{used.gpu_hours:.3g} GPU hours{_limit(limits.gpu_hours)}",
    ]
    return ", ".join(parts)


def knobs_gain(found: Json, values: str) -> str:
    """What the best values of run-time knobs gain, in a sentence; empty where no trial of them was measured.

    Args:
        found: the tuning of the knobs.
        values: what the sentence calls the values.
    """
    # The framework may have no knobs, or none of their trials may have run.
    best = found.get("best")
    step_s = best.get("step_time_s") if isinstance(best, dict) else None
    if not is_number(step_s):
        return ""
    told = f"{seconds(step_s)} s a step with {values}"
    gain, default_s = found.get("gain_fraction"), found.get("default_step_time_s")
    if is_number(gain) and is_number(default_s):
        told += f", {share(gain)} {'less' if gain > 0 else 'more'} than with the framework's defaults ({seconds(default_s)} s)"
    return f"{told}."


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a record or a study can be written down as a number."""
    # What they hold is not ours to check.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def correction_told(found: Learnt) -> str:
    """One correction as a line: the term, its factor, and whether and why it is kept."""
    told = f"{term_phrase(found.term)} × {found.factor:.2f}"
    told += ", kept" if found.kept else ", not kept"
    if found.kept and not found.enabled:
        told += " but switched off"
    if found.error_before is not None and found.error_after is not None:
        told += (
            f" (error of trials left out: {share(found.error_before)} without it, {share(found.error_after)} with it)"
        )
    return f"{told}: {found.reason}" if found.reason else told


def moves(tuning: Tuning) -> str:
    """How the order changed: who leads now, and how many plans have another place."""
    # Plans that do not run have no place any more.
    placed = [(each, each.rank_after) for each in tuning.ranking if each.rank_after is not None]
    if not placed:
        return ""
    lost = len(tuning.ranking) - len(placed)
    gone = (
        f" {lost} {'plan has' if lost == 1 else 'plans have'} none now, having failed or needing more memory than one that did."
        if lost
        else ""
    )
    # Places among the plans of the tuning: ranks of the response have gaps where near-copies and what no trial can run are left out.
    order = sorted(tuning.ranking, key=lambda each: each.rank_before)
    place_before = {each.rank_before: place for place, each in enumerate(order, start=1)}
    changed = sum(place_before[each.rank_before] != after for each, after in placed)
    if not changed:
        return f"What was measured leaves the order as it was predicted.{gone}"
    first, _ = min(placed, key=lambda pair: pair[1])
    name = _capital(plan_name(first.rank_before, first.strategy))
    led = order[0]
    lead = "stays first" if first is led else "is now first"
    # A plan that is only believed to be fast may well lead those that were measured.
    lead = f"{name} {lead}" if first.measured_step_time_s is not None else f"{name}, which was not measured, {lead}"
    fallen = ""
    if first is not led and led.rank_after is not None:
        fallen = f", and {plan_name(led.rank_before, led.strategy)} is {ordinal(led.rank_after)}"
    return f"{lead}{fallen}. {changed} of {len(tuning.ranking)} plans have another place than predicted.{gone}"


def ordinal(number: int) -> str:
    """A place such as "1st", "22nd" or "13th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def after_of(plan: Ranked) -> float:
    """The best that is known of a plan's step in seconds: measured, else corrected, else predicted."""
    return plan.measured_step_time_s or plan.corrected_step_time_s or plan.predicted_step_time_s


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _limit(limit: float | None) -> str:
    return "" if limit is None else f" of {limit:g}"


def _of(count: int) -> str:
    return " (one trial)" if count == 1 else f" (median of {count})"


def _median(errors: Iterator[float] | Sequence[float]) -> str:
    return share(median(abs(error) for error in errors))


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
