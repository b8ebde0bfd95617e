"""Why not mine: the strategies that many would try first, each with what speaks against it, and on served pages a form for one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from app.plan_cells import degrees_above_one, seconds
from app.report.report import Report
from app.report.section import Section, environment, section, unavailable
from app.report.words import gib
from cost_models.errors import CalibrationError, InvalidInputError, Problem
from cost_models.terms import TIME_TERMS
from planner.why_not import usual_choices

Json = Mapping[str, Any]
TITLE = "Why not …?"
CHOICES = {
    "defaults": "The framework's defaults alone",
    "zero_3": "ZeRO 3 over all GPUs",
    "tensor_in_node": "Tensor parallel over a node, no pipeline",
    "tensor_and_pipeline": "Tensor parallel over a node, and a pipeline",
    "pipeline": "A pipeline alone",
    "nearest": "The nearest that does not fit",
}
FORM_FIELDS = ("tp", "pp", "cp", "dp", "ep", "zero", "micro_batch_size")
"""Fields of a strategy that the form asks for one by one; the others are written as JSON."""
_OTHER_FIELDS = (
    "vpp", "sequence_parallel", "recompute", "recompute_method", "recompute_num_layers", "recompute_modules", "pool_per_stage",
)  # fmt: skip
"""The others that decide most, which a strategy brings along as JSON."""
_PHRASES = {term.name: term.phrase for term in TIME_TERMS}


def why_not(report: Report) -> Section:
    """Usual choices and the nearest infeasible ones, each with its answer."""
    try:
        answers = usual_choices(report.response, extra=report.calibrations, allow_files=report.allow_files)
    except CalibrationError as error:
        return unavailable("why_not", TITLE, error)
    return section(
        "why_not",
        TITLE,
        entries=[
            {
                "name": CHOICES[answer["choice"]],
                "strategy": strategy_told(answer["strategy"]),
                "told": answer_told(answer, report.response),
                "verdict": answer["verdict"],
                "choice": answer["choice"],
                "change": answer.get("smallest_change"),
            }
            for answer in answers
        ],
        pools="pools" in report.request["cluster"],
        form=None if report.address is None else f"{report.address}/why-not",
    )


def answer_markup(answer: Json, response: Json) -> Markup:
    """The answer to one strategy as a part of a page, for who posted a form."""
    shown = environment().get_template("parts/why_not_answer.html").render(
        strategy=strategy_told(answer["strategy"]), told=answer_told(answer, response), verdict=answer["verdict"],
        reasons=answer["reasons"][1:],
    )  # fmt: skip
    return Markup(shown)  # noqa: S704 - rendered with autoescape


def form_markup(action: str, filled: Json | None = None) -> Markup:
    """The form that asks for a strategy.

    Args:
        action: where it is posted.
        filled: what the fields hold at first: a strategy such as the first plan's, or a form as it was posted.
    """
    known = filled or {}
    fields = [{"name": name, "value": known.get(name)} for name in FORM_FIELDS]
    # What follows from the degrees, such as the layers of every stage, would no longer fit them once one is changed.
    more = known.get("more")
    if more is None and known:
        others = {name: known[name] for name in _OTHER_FIELDS if known.get(name) not in (None, [])}
        # On pools an even split is far from the best, and no default knows a better one.
        if "pool_per_stage" in others:
            others["layers_per_stage"] = known["layers_per_stage"]
        more = json.dumps(others) if others else ""
    shown = environment().get_template("parts/why_not_form.html").render(action=action, fields=fields, more=more or "")
    return Markup(shown)  # noqa: S704 - rendered with autoescape


def posted_strategy(form: Mapping[str, str]) -> dict[str, Any]:
    """The strategy that a posted form describes; fields left empty are the framework's defaults.

    Raises:
        InvalidInputError: a number is none, or `more` is no JSON object.
    """
    strategy: dict[str, Any] = {}
    for name in FORM_FIELDS:
        text = (form.get(name) or "").strip()
        # Other digits than 0 to 9 count as digits to Python, and a longer number than nine digits is no degree.
        if text and not (text.isascii() and text.isdigit() and len(text) <= 9):
            message = f"{name} is {text[:20]!r}; it must be a whole number"
            raise InvalidInputError([Problem(f"/strategy/{name}", message, "Write digits, or leave it empty.")])
        if text:
            strategy[name] = int(text)
    more = (form.get("more") or "").strip()
    if more:
        try:
            others = json.loads(more)
        except ValueError:
            others = None
        if not isinstance(others, dict):
            hint = 'Write an object such as {"recompute": "full"}, or leave it empty.'
            raise InvalidInputError([Problem("/strategy", "the other fields are no JSON object", hint)])
        strategy = {**others, **strategy}
    return strategy


def strategy_told(strategy: Json) -> str:
    """A strategy in few words: degrees, micro-batch and recomputation."""
    told = degrees_above_one({"strategy": strategy})
    size, recompute = strategy.get("micro_batch_size"), strategy.get("recompute")
    parts = [
        told,
        f"micro-batch {size}" if size else "",
        f"recompute {recompute}" if recompute not in (None, "none") else "",
    ]
    return ", ".join(part for part in parts if part)


def answer_told(answer: Json, response: Json) -> str:
    """What speaks against a strategy, in sentences."""
    if answer["verdict"] == "invalid":
        reason = answer["reasons"][0]
        return f"It cannot run: {reason['message']}. {reason['hint']}"
    if answer["rank"] is not None:
        return f"It is plan {answer['rank']} of this list."
    took = f"a step takes {seconds(answer['step_time_s'])} s{_against_first(answer)}"
    if answer["verdict"] == "fits":
        fit = f"It fits with {gib(answer['peak_device_bytes'])} of {gib(answer['capacity_bytes'])} GiB, and {took}."
    else:
        word = "It does not fit" if answer["verdict"] == "oom" else "It may not fit"
        reason = answer["reasons"][0]["message"] if answer["reasons"] else "its memory is too large"
        fit = f"{word}: {reason}. If it did, {took.replace('takes', 'would take', 1)}."
    return " ".join([fit, *answer["excluded"], *_place(answer, response)])


def _against_first(answer: Json) -> str:
    difference = answer["difference_s"]
    if difference is None:
        return ""
    first = answer["step_time_s"] - difference
    share = abs(difference) / first
    if share < 0.0005:
        # A difference that would be written as 0.0 % is none.
        told = ", as long as plan 1's"
    else:
        told = f", {seconds(abs(difference))} s ({share:.1%}) {'longer' if difference > 0 else 'shorter'} than plan 1's"
    if answer["too_close"]:
        told += ", too close to call"
    terms = [f"{more:+.3g} s on {_PHRASES[term]}" for term, more in answer["largest_terms_s"].items()]
    return f"{told} ({', '.join(terms)})" if terms else told


def _place(answer: Json, response: Json) -> list[str]:
    """Where a strategy that fits would stand, where that is worth a word."""
    plans = response["plans"]
    if answer["verdict"] != "fits" or not plans or answer["excluded"]:
        return []
    # Behind all listed plans is what anybody expects; only a better place needs a reason.
    if answer["place"] > len(plans):
        return []
    if answer["place"] == 1:
        return ["It would be better than plan 1; the search did not price it."]
    return [
        f"It would stand before plan {answer['place']}; the search did not price it, or left it out as a near-copy."
    ]
