"""Where a tuning's predictions stood against its measurements: trial by trial, term by term, and in the order of the plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.plan_cells import seconds
from app.report.figures.agreement import Pair, agreement
from app.report.figures.bars import length
from app.report.figures.slopes import Slope, slopes
from app.report.section import Section, section
from app.report.tuning.document import Learnt, Ranked, TunedTrial, Tuning
from app.report.tuning.words import (
    accuracy,
    after_of,
    correction_told,
    ended,
    in_short,
    moves,
    plan_name,
    share,
    signed,
    term_phrase,
)
from app.report.words import gib
from cost_models.terms import TIME_TERMS
from cost_models.units import GIB

MOST_SLOPES = 12
"""Plans that the figure of the two orders shows; the table has all."""
SMALL = 0.005
"""Share of the step below which a term, predicted and traced, is only named."""


def trials(tuning: Tuning) -> Section | None:
    """Every trial as a line, and two figures of those that were measured."""
    # What failed has a section of its own.
    if not tuning.measured and not tuning.open:
        return None
    return section(
        "trials",
        "Predicted against measured",
        told=list(accuracy(tuning)),
        figures=[each for each in (_times(tuning.measured), _memory(tuning.measured)) if each is not None],
        # The fastest first; those without a result follow.
        rows=[_row(each) for each in (*tuning.measured, *tuning.failed, *tuning.open)],
        has_corrected=any(each.corrected_step_time_s for each in tuning.trials),
        has_memory=any(each.peak_allocated_bytes for each in tuning.trials),
    )


def _row(trial: TunedTrial) -> dict[str, object]:
    # Empty cells, and no dashes: a reader sorts by these columns.
    range_s, inside = trial.predicted_step_time_range_s, trial.is_in_range
    return {
        "number": trial.number,
        "rank": trial.rank,
        "plan": plan_name(trial.rank, trial.strategy),
        "strategy": in_short(trial.strategy),
        "status": trial.status,
        "ended": ended(trial),
        "measured": _cell(trial.step_time_s, seconds),
        "predicted": _cell(trial.predicted_step_time_s, seconds),
        "range": "" if range_s is None else f"{seconds(range_s[0])} to {seconds(range_s[1])}",
        "outside": inside is False,
        "error": signed(trial.error_fraction),
        "corrected": _cell(trial.corrected_step_time_s, seconds),
        "corrected_error": signed(trial.corrected_error_fraction),
        "memory": _cell(trial.peak_allocated_bytes, gib),
        "predicted_memory": _cell(trial.predicted_peak_allocated_bytes, gib),
        "memory_error": signed(trial.memory_error_fraction),
        "gpu_seconds": _cell(trial.gpu_seconds, "{:,.0f}".format),
        "measured_value": trial.step_time_s,
    }


def _cell(value: float | None, written: Callable[[float], str]) -> str:
    return "" if value is None else written(value)


def _label(trial: TunedTrial) -> str:
    return f"trial {trial.number}" if trial.rank is None else str(trial.rank)


def _times(measured: Sequence[TunedTrial]) -> dict[str, object] | None:
    pairs = []
    for each in measured:
        predicted, step_s = each.predicted_step_time_s, each.step_time_s
        if predicted is None or step_s is None:
            continue
        low, high = each.predicted_step_time_range_s or (None, None)
        told = f"{plan_name(each.rank, each.strategy)} ({in_short(each.strategy)}): {seconds(predicted)} s predicted, {seconds(step_s)} s measured, {signed(each.error_fraction)}"
        if each.corrected_step_time_s is not None:
            told += f"; {seconds(each.corrected_step_time_s)} s with what was learnt, {signed(each.corrected_error_fraction)}"
        pairs.append(Pair(_label(each), told, predicted, step_s, low, high, each.corrected_step_time_s))
    return _drawn(pairs, unit="s a step", name="agreement-time", caption="Time of a step")


def _memory(measured: Sequence[TunedTrial]) -> dict[str, object] | None:
    pairs = []
    for each in measured:
        predicted, peak = each.predicted_peak_allocated_bytes, each.peak_allocated_bytes
        if predicted is not None and peak is not None:
            told = f"{plan_name(each.rank, each.strategy)} ({in_short(each.strategy)}): {gib(predicted)} GiB predicted, {gib(peak)} GiB measured, {signed(each.memory_error_fraction)}"
            pairs.append(Pair(_label(each), told, predicted / GIB, peak / GIB))
    return _drawn(pairs, unit="GiB", name="agreement-memory", caption="Allocated memory of the fullest GPU")


def _drawn(pairs: Sequence[Pair], *, unit: str, name: str, caption: str) -> dict[str, object] | None:
    if not pairs:
        return None
    # Whoever does not see the figure hears every point.
    title = f"{caption}, predicted against measured"
    description = ". ".join(f"{pair.told[0].upper()}{pair.told[1:]}" for pair in pairs)
    figure = agreement(pairs, unit=unit, name=name, title=title, description=f"{description}.")
    return {
        "caption": caption,
        "figure": figure,
        "ranges": any(pair.low is not None for pair in pairs),
        "corrected": any(pair.corrected is not None for pair in pairs),
    }


@dataclass(frozen=True, slots=True)
class _Term:
    """A term over all trials of which a step was traced: mean seconds of a step."""

    name: str
    predicted_s: float
    traced_s: float

    @property
    def excess_s(self) -> float:
        return self.predicted_s - self.traced_s

    @property
    def largest_s(self) -> float:
        return max(self.predicted_s, self.traced_s)


def wrong_terms(tuning: Tuning) -> Section | None:
    """Which term was furthest off, in the steps that were traced, and the correction that each got."""
    # A step is traced after those that are timed, and not every back end can trace one.
    traced = [each for each in tuning.measured if each.terms_s and each.predicted_terms_s]
    terms = sorted(_terms(traced), key=lambda term: -abs(term.excess_s))
    if not terms and not tuning.corrections:
        return None
    step_s = sum(term.traced_s for term in terms)
    large = [term for term in terms if term.largest_s >= SMALL * step_s]
    longest = max((term.largest_s for term in terms), default=0.0)
    corrections = {each.term: each for each in tuning.corrections}
    return section(
        "terms",
        "Which part of the prediction was wrong",
        sentence=_worst(terms, traced),
        rows=[
            {
                "term": term.name,
                "phrase": term_phrase(term.name),
                "predicted": _short(term.predicted_s),
                "traced": _short(term.traced_s),
                "difference": _difference(term.excess_s),
                "predicted_bar": _bar("foreseen", term.predicted_s, longest),
                "traced_bar": _bar(term.name, term.traced_s, longest),
                "correction": _factor(corrections.get(term.name)),
            }
            for term in large
        ],
        small=[term_phrase(term.name) for term in terms if term not in large],
        trials=len(traced),
        each_trial=_trial_by_trial(traced, terms) if len(traced) > 1 else None,
        corrections=[_correction(each) for each in tuning.corrections],
    )


def _terms(traced: Sequence[TunedTrial]) -> list[_Term]:
    found = []
    for term in TIME_TERMS:
        predicted = [(each.predicted_terms_s or {}).get(term.name, 0.0) for each in traced]
        measured = [(each.terms_s or {}).get(term.name, 0.0) for each in traced]
        if any(predicted) or any(measured):
            found.append(_Term(term.name, sum(predicted) / len(traced), sum(measured) / len(traced)))
    return found


def _worst(terms: Sequence[_Term], traced: Sequence[TunedTrial]) -> str:
    if not terms:
        return "No step was traced, so what was learnt rests on whole steps alone."
    worst = terms[0]
    step_s = sum(term.traced_s for term in terms)
    over = "one trial" if len(traced) == 1 else f"the mean of {len(traced)} trials"
    phrase = term_phrase(worst.name)
    more = "more" if worst.excess_s > 0 else "less"
    return (
        f"{phrase[0].upper()}{phrase[1:]}: {_short(worst.predicted_s)} s of a step were predicted and {_short(worst.traced_s)} s traced, "
        f"{share(worst.excess_s / step_s) if step_s else 'something'} of the step {more} than there was ({over})."
    )


def _short(value_s: float) -> str:
    return f"{value_s:.3f}" if value_s >= 5e-4 or value_s == 0.0 else "< 0.001"


def _difference(seconds_s: float) -> str:
    # A rounded zero has no sign.
    return f"{round(seconds_s, 3) + 0.0:+.3f}" if abs(seconds_s) >= 5e-4 else "0.000"


def _bar(kind: str, value: float, longest: float) -> Markup:
    return length(kind, value / longest if longest else 0.0)


def _factor(found: Learnt | None) -> str:
    return "" if found is None else f"× {found.factor:.2f}" + ("" if found.kept and found.enabled else ", not used")


def _trial_by_trial(traced: Sequence[TunedTrial], terms: Sequence[_Term]) -> dict[str, object]:
    """Predicted less traced seconds of every term in every trial that was traced."""
    return {
        "trials": [f"plan {each.rank}" if each.rank is not None else f"trial {each.number}" for each in traced],
        "rows": [
            (
                term_phrase(term.name),
                [
                    _difference(
                        (each.predicted_terms_s or {}).get(term.name, 0.0) - (each.terms_s or {}).get(term.name, 0.0)
                    )
                    for each in traced
                ],
            )
            for term in terms
        ],
    }


def _correction(found: Learnt) -> dict[str, object]:
    scope = [each for each in (found.framework, found.model_impl, found.gpu) if each]
    return {
        "term": found.term,
        "phrase": term_phrase(found.term),
        "factor": f"{found.factor:.3f}",
        "used": "kept" if found.kept and found.enabled else "switched off" if found.kept else "not kept",
        "trials": "" if found.trials is None else f"{found.trials:,}",
        "before": "" if found.error_before is None else share(found.error_before),
        "after": "" if found.error_after is None else share(found.error_after),
        "reason": found.reason or "",
        "scope": ", ".join(scope),
        "told": correction_told(found),
    }


def order(tuning: Tuning) -> Section | None:
    """The order of the plans before and after, as a figure and as a table."""
    if not tuning.ranking:
        return None
    # Those that do not run have lost their place, and stand at the end.
    ranking = sorted(tuning.ranking, key=lambda each: (each.rank_after is None, each.rank_after or 0, each.rank_before))
    entries = [_slope(each, after) for each in ranking if (after := each.rank_after) is not None]
    shown = _shown(entries)
    figure = slopes(
        shown,
        before="as predicted",
        after="as known now",
        name="slopes",
        title="The order of the plans before and after the tuning",
        description=" ".join(f"{each.told}." for each in shown),
    )
    return section(
        "order",
        "How the order changed",
        sentence=moves(tuning),
        figure=figure if shown else "",
        left_out=len(entries) - len(shown),
        rows=[
            {
                "before": each.rank_before,
                "after": each.rank_after,
                "strategy": in_short(each.strategy),
                "predicted": seconds(each.predicted_step_time_s),
                "corrected": _cell(each.corrected_step_time_s, seconds),
                "range": ""
                if each.corrected_range_s is None
                else f"{seconds(each.corrected_range_s[0])} to {seconds(each.corrected_range_s[1])}",
                "measured": _cell(each.measured_step_time_s, seconds),
            }
            for each in ranking
        ],
    )


def _shown(entries: Sequence[Slope]) -> list[Slope]:
    """The plans of the figure: whatever was measured and the first of either order, as far as there is room."""
    # A line without a measurement at its end says less than one with it.
    wanted = sorted(entries, key=lambda each: (not each.is_measured, min(each.before, each.after)))
    # Two plans at one place could not be told apart.
    before: set[int] = set()
    after: set[int] = set()
    kept: list[Slope] = []
    for each in wanted:
        if each.before not in before and each.after not in after and len(kept) < MOST_SLOPES:
            before.add(each.before)
            after.add(each.after)
            kept.append(each)
    return kept


def _slope(plan: Ranked, after: int) -> Slope:
    value = f"{seconds(after_of(plan))} s"
    known = "measured" if plan.measured_step_time_s is not None else "predicted"
    told = f"Plan {plan.rank_before} ({in_short(plan.strategy)}) is at place {after} now, {value} {known}"
    return Slope(
        plan.rank_before,
        after,
        f"{in_short(plan.strategy)}\u2003{plan.rank_before}",
        f"{after}\u2003{value}",
        told,
        is_measured=plan.measured_step_time_s is not None,
    )
