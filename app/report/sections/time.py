"""The time of a step by term, each with how its number came about."""

from __future__ import annotations

from app.plan_cells import seconds
from app.report.figures.bars import Part, bar, length
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.sections.trust import trust_strip
from cost_models.terms import TIME_TERMS


def time(report: Report, plan: PlanView) -> Section | None:
    # Told once in a file, since they are the same for every plan.
    return time_section(plan.evaluation, meanings=report.address is not None or plan.rank == 1)


def time_section(evaluation: Json, *, meanings: bool = True) -> Section | None:
    """The time of an evaluation, None where it could not run; `meanings` says whether each term is explained."""
    if evaluation["step_time_s"] is None:
        return None
    step_s, found, tiers = (
        evaluation["step_time_s"],
        evaluation["time_breakdown_s"],
        evaluation["provenance"]["terms"],
    )
    # Longest first: where the time goes is the question, and the terms have no order of their own.
    taken = sorted((term for term in TIME_TERMS if found.get(term.name)), key=lambda term: -found[term.name])
    longest = max(found.values())
    _, legend = trust_strip(evaluation)
    return section(
        "time",
        "Time of a step by term",
        stack=bar(
            [_part(term.name, term.phrase, found, step_s, tiers) for term in taken],
            until=step_s,
            height=26,
            data_step=f"{step_s:.6g}",
        ),
        rows=[
            {
                "term": term.name,
                "phrase": term.phrase,
                "meaning": term.meaning,
                "seconds": f"{found[term.name]:.3f}" if found[term.name] >= 5e-4 else "< 0.001",
                "value": f"{found[term.name]:.6g}",
                "share": f"{found[term.name] / step_s:.1%}",
                "tier": tiers.get(term.name, ""),
                "bar": length(term.name, found[term.name] / longest, tier=tiers.get(term.name)),
            }
            for term in taken
        ],
        step=seconds(step_s),
        meanings=meanings,
        legend=legend,
        nothing=[term.phrase for term in TIME_TERMS if not found.get(term.name)],
    )


def _part(name: str, phrase: str, found: Json, step_s: float, tiers: Json) -> Part:
    told = f"{phrase}: {found[name]:.4g} s, {found[name] / step_s:.1%} ({tiers.get(name, '')})"
    return Part(name, found[name], told, tier=tiers.get(name))
