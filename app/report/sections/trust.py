"""The trust strip: how much of the step's time was measured, lies between or beyond measurements, or is a data sheet's."""

from __future__ import annotations

from markupsafe import Markup, escape

from app.report.figures.bars import Part, bar
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from cost_models.terms import TIME_TERMS, Tier
from planner.answer.comparison import ties

MEANT = {
    "measured": "timed at this very size",
    "interpolated": "between two measured sizes",
    "extrapolated": "beyond what was measured, or measured on a related GPU",
    "nominal": "from data sheets and typical efficiencies",
}
"""What each origin of a number means to a reader."""
# An option is one word to its reader, but a browser would break it behind each of its hyphens.
_HOW_TO_MEASURE = Markup(
    'To measure it on your own nodes: <code>meshwright profile run <span class="option">--out FILE</span></code>, '
    'then plan with <code class="option">--calibration FILE</code>.'
)


def trust(report: Report) -> Section | None:
    if not report.plans:
        return None
    best = report.plans[0]
    strip, legend = trust_strip(best.evaluation)
    return section(
        "trust",
        "What the time rests on",
        rank=best.rank,
        strip=strip,
        legend=legend,
        calibration=best.evaluation["provenance"]["calibration"],
        advice=_advice(report, best),
    )


def trust_alone(evaluation: Json) -> Section:
    """The strip of an evaluation that is not among ranked plans."""
    strip, legend = trust_strip(evaluation)
    calibration = evaluation["provenance"]["calibration"]
    return section(
        "trust",
        "What the time rests on",
        rank=None,
        strip=strip,
        legend=legend,
        calibration=calibration,
        advice=_largest_guess(evaluation),
    )


def shares_by_tier(evaluation: Json) -> dict[str, float]:
    """Share of the step's time of each origin, best first; they sum to 1."""
    shares = {tier.label: 0.0 for tier in Tier}
    for name, told in evaluation["provenance"]["terms"].items():
        shares[told] += evaluation["time_breakdown_s"].get(name, 0.0) / evaluation["step_time_s"]
    return shares


def trust_strip(evaluation: Json) -> tuple[Markup, list[dict[str, str]]]:
    """The strip, and its legend: name, share and meaning of each origin that takes time."""
    # Terms that take no time are "measured" by definition, and must not make the plan look better known than it is.
    found = {tier: share for tier, share in shares_by_tier(evaluation).items() if share > 0.0}
    parts = [Part("tier", share, f"{tier}: {share:.1%} of the step", tier=tier) for tier, share in found.items()]
    legend = [
        {"tier": tier, "share": f"{share:.0%}" if share >= 0.005 else "< 1 %", "meaning": MEANT[tier]}
        for tier, share in found.items()
    ]
    return bar(parts, until=sum(found.values()), height=26), legend


def _advice(report: Report, best: PlanView) -> list[Markup]:
    """What to measure next: the largest term that was not, and the two plans whose difference tells the most."""
    told = _largest_guess(best.evaluation)
    # A near-copy would only tell how far two runs of one plan differ.
    leaders = [view.plan for view in report.plans if report.leader(view.rank) == view.rank]
    if group := next((each for each in ties(leaders) if best.rank in each["ranks"]), None):
        one, other = group["measure"]
        told.append(
            escape(f"Plans {one} and {other} are too close to call; measuring these two first would tell you the most.")
        )
    return told


def _largest_guess(evaluation: Json) -> list[Markup]:
    """The largest term that rests on no measurement of its own, and how to measure it; empty where every one does."""
    tiers, seconds = evaluation["provenance"]["terms"], evaluation["time_breakdown_s"]
    known = {Tier.MEASURED.label, Tier.INTERPOLATED.label}
    guessed = [term for term in TIME_TERMS if seconds.get(term.name) and tiers.get(term.name) not in known]
    told = []
    if guessed:
        largest = max(guessed, key=lambda term: seconds[term.name])
        share = seconds[largest.name] / evaluation["step_time_s"]
        tier = tiers[largest.name]
        part = escape(
            f"The largest part without a measurement of its own is {largest.phrase} ({share:.1%} of the step, {tier}). "
        )
        told.append(part + _HOW_TO_MEASURE)
    return told
