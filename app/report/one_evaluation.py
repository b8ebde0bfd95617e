"""The page of an evaluation, or of one ranked plan, that stands alone: what it tells without the request that it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.plan_cells import degrees_above_one, seconds
from app.report.frame import frame_of_file
from app.report.intact import require_intact_evaluation
from app.report.report import Json
from app.report.section import Section, environment, section
from app.report.sections.collectives import collectives_section
from app.report.sections.conditions import conditions_section
from app.report.sections.memory import memory_section
from app.report.sections.run import run_section
from app.report.sections.time import time_section
from app.report.sections.trust import trust_alone
from app.report.sections.verdict import key_figures
from app.report.words import counted, gib
from cost_models.inputs.fields import WARNINGS
from planner.one_plan.detail import plan_detail

_VERDICTS = {
    "fits": "It fits",
    "at-risk": "It may not fit",
    "oom": "It does not fit",
    "invalid": "No framework could run it",
}


def evaluation_file(document: Json, *, scripts: bool = True) -> str:
    """The evaluation as one HTML document that needs no network.

    Args:
        document: what `meshwright evaluate` printed, or one ranked plan of a response.
        scripts: as for `report_file`.

    Raises:
        cost_models.errors.InvalidInputError: the document is neither, or is a summary without stages.
    """
    # The detail of a plan completes and checks what is given, whichever of the two it is.
    rank = document.get("rank")
    detail = plan_detail(document, rank if isinstance(rank, int) else 1, allow_files=True)
    evaluation = detail["evaluation"]
    require_intact_evaluation(evaluation)
    sections = [_verdict(detail), *_priced(evaluation), _assumed(evaluation)]
    frame = frame_of_file((), wanted=scripts)
    return (
        environment()
        .get_template("evaluation.html")
        .render(
            frame=frame,
            title=_title(detail),
            sections=[each for each in sections if each is not None],
            note=" ".join(detail["not_shown"]),
        )
    )


def _title(detail: Json) -> str:
    if detail["rank"] is not None:
        return f"Plan {detail['rank']}"
    given = detail["evaluation"]["id"]
    return "An evaluation" if given is None else f"Evaluation of {given}"


def _priced(evaluation: Json) -> Iterator[Section | None]:
    """What only a strategy that could run has."""
    if evaluation["step_time_s"] is not None:
        yield trust_alone(evaluation)
        yield memory_section(evaluation, headroom_fraction=None)
        yield time_section(evaluation)
        yield run_section(evaluation)
        yield conditions_section(evaluation)
        yield collectives_section(evaluation)


def _verdict(detail: Json) -> Section:
    evaluation = detail["evaluation"]
    told = _VERDICTS[evaluation["verdict"]]
    figures: list[tuple[str, str, str]] = []
    facts = [("Why", f"{reason['message']}. {reason['hint']}".rstrip()) for reason in evaluation["reasons"]]
    if evaluation["step_time_s"] is not None:
        low, high = evaluation["step_time_range_s"]
        memory = evaluation["memory"]
        told += (
            f": {seconds(evaluation['step_time_s'])} s a step ({seconds(low)} to {seconds(high)}), "
            f"{gib(memory['peak_device_bytes'])} of {gib(memory['capacity_bytes'])} GiB, {evaluation['num_gpus_used']:,} GPUs"
        )
        figures = list(key_figures(evaluation, total=None))
        facts.append(
            ("Batch", f"{counted(evaluation['num_micro_batches'], 'micro-batch')} for each replica in a step.")
        )
    if detail["strategy"] is not None:
        facts.append(("Strategy", degrees_above_one({"strategy": detail["strategy"]})))
    warnings = [WARNINGS.get(warning, warning) for warning in evaluation["warnings"]]
    return section("verdict", "Verdict", sentence=f"{told}.", figures=figures, facts=facts, warnings=warnings)


def _assumed(evaluation: Json) -> Section | None:
    """Every default that was applied: an evaluation holds no request in which they could be seen."""
    assumed: dict[str, Any] = {name: value for name, value in evaluation["assumed"].items() if name != "recipe_habits"}
    if not assumed:
        return None
    return section("assumed", "Assumed, because nothing was said", folded=True, assumed=assumed)
