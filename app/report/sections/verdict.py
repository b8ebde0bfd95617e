"""The verdict: what the best plan costs and needs, in one sentence, and what it rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from app.plan_cells import degrees_above_one, parameter_count, seconds
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import gib, ranks, strategy_in_words
from app.trained_words import tower_sentences, trained_words
from cost_models.inputs.fields import WARNINGS
from planner.answer.rejections import rejections
from planner.answer.step_cost import total_gpus


def verdict(report: Report) -> Section:
    if not report.plans:
        return _nothing_fits(report)
    best = report.plans[0]
    return section(
        "verdict",
        "Verdict",
        sentence=_sentence(report, best),
        figures=list(key_figures(best.evaluation, total=total_gpus(report.request["cluster"]))),
        facts=list(_facts(report, best)),
        warnings=list(_warnings(report)),
    )


def _sentence(report: Report, best: PlanView) -> str:
    evaluation = best.evaluation
    low, high = evaluation["step_time_range_s"]
    memory = evaluation["memory"]
    told = (
        f"Plan {best.rank}: {seconds(evaluation['step_time_s'])} s a step ({seconds(low)} to {seconds(high)}), "
        f"{gib(memory['peak_device_bytes'])} of {gib(memory['capacity_bytes'])} GiB, {evaluation['num_gpus_used']:,} GPUs"
    )
    if evaluation["verdict"] != "fits":
        told += "; its memory is at risk"
    # Near-copies tie with the plan that they copy by their nature; only other plans leave a choice.
    tied = [
        view.rank
        for view in report.plans[1:]
        if view.plan["tie_group"] == best.plan["tie_group"] and report.leader(view.rank) == view.rank
    ]
    return f"{told}; ties with {ranks(tied)}." if tied else f"{told}."


def key_figures(evaluation: Json, *, total: int | None) -> Iterator[tuple[str, str, str]]:
    """The figures of a plan that count most: name, value with its unit, and what belongs to it.

    Args:
        evaluation: of a strategy that could run.
        total: GPUs of the cluster; None where only those in use are known.
    """
    low, high = evaluation["step_time_range_s"]
    memory, used = evaluation["memory"], evaluation["num_gpus_used"]
    # A number and its unit stay on one line.
    yield "Step", f"{seconds(evaluation['step_time_s'])}\u00a0s", f"80 % range {seconds(low)} to {seconds(high)}\u00a0s"
    share = memory["peak_device_bytes"] / memory["capacity_bytes"]
    yield (
        "Memory",
        f"{gib(memory['peak_device_bytes'])}\u00a0GiB",
        f"{share:.0%} of {gib(memory['capacity_bytes'])}\u00a0GiB",
    )
    idle = "in use" if total is None else "none idle" if used == total else f"of {total:,}; {total - used:,} idle"
    yield "GPUs", f"{used:,}", idle
    rate = evaluation["tokens_per_s_per_gpu"]
    mfu = "" if evaluation["mfu"] is None else f", MFU {evaluation['mfu']:.1%}"
    yield "Tokens/s", f"{rate * used:,.0f}", f"{rate:,.0f} on each GPU{mfu}"
    if run := evaluation.get("run"):
        cost = "" if run.get("cost") is None else f", cost {run['cost']:,.0f}"
        yield "Whole run", f"{run['days']:,.1f} days", f"{run['gpu_hours']:,.0f} GPU hours{cost}"


def _facts(report: Report, best: PlanView) -> Iterator[tuple[str, str]]:
    yield "Strategy", strategy_in_words(best)
    if trained := _trained(report, best):
        yield "Trained", trained
    if told := best.plan.get("against_next"):
        yield "Against the next", f"Plan {best.rank} is {told}."
    yield "Proof", _proof(report.response)
    if better := report.response.get("inexpressible_best"):
        reasons = "; ".join(reason["message"] for reason in better["reasons"])
        yield (
            "Out of reach",
            f"A plan {better['gain_fraction']:.1%} faster cannot be told to this framework: {reasons}.",
        )


def _trained(report: Report, best: PlanView) -> str:
    evaluation, training = best.evaluation, report.request["training"]
    towers = " ".join(tower_sentences(evaluation))
    # Where everything is trained there is nothing to tell.
    if not (what := trained_words(evaluation, training)):
        return towers
    trained, stored = evaluation["trainable_parameters"], evaluation["stored_parameters"]
    counts = f"{parameter_count(trained)} of {parameter_count(stored)} parameters ({100.0 * trained / stored:.2g} %)"
    told = f"{counts}: {what}. MFU counts what is computed, and so no weight gradients of frozen weights."
    return f"{told} {towers}".strip()


def _proof(response: Json) -> str:
    search = response["search"]
    if search is None:
        return "The search did not end."
    proof = search["proof"]
    space = f"{search['total']:,} strategies"
    where = f"{search['evaluated']:,} priced, {search['bounded']:,} excluded by bounds"
    if search["unsearched"]:
        where += f", {search['unsearched']:,} not searched"
    if proof["optimal"]:
        return f"No plan in the searched space of {space} is better ({where})."
    gap = "" if proof["gap"] is None else f" A better one can gain {proof['gap']:.1%} at most."
    return f"The best that was found among {space} ({where}); that none is better is not proved.{gap}"


def _warnings(report: Report) -> Iterator[str]:
    # A warning about the job stands with the response and again with every plan.
    found = [*report.response["warnings"], *(w for view in report.plans[:1] for w in view.evaluation["warnings"])]
    for warning in dict.fromkeys(found):
        # The planner's own sentences are warnings without a code.
        yield WARNINGS.get(warning, warning)


def _nothing_fits(report: Report) -> Section:
    response = report.response
    search = response["search"]
    told = rejections(response["rejected"], most=3)
    facts = [("Why", f"Of {search['total']:,} strategies, {told}.")] if told and search else []
    if nearest := response["nearest_infeasible"]:
        reasons = "; ".join(reason["message"] for reason in nearest[0]["reasons"])
        facts.append(("Closest", f"{degrees_above_one(nearest[0])}: {reasons}."))
        facts.append(("Smallest change", nearest[0]["smallest_change"]))
    if search:
        facts.append(("Proof", _all_searched(search)))
    return section(
        "verdict",
        "Verdict",
        sentence=_why_nothing(response["rejected"].keys()),
        figures=[],
        facts=facts,
        warnings=list(_warnings(report)),
    )


def _why_nothing(codes: Collection[str]) -> str:
    # Where targets or rules leave nothing, more memory would not help, and the headline must not say so.
    if "misses-target" in codes:
        return "No plan is as fast as the targets ask."
    memory = {"out-of-memory", "at-risk-of-memory", "host-memory", "nvme-capacity"}
    return "No plan fits." if memory & set(codes) else "No strategy can run as asked."


def _all_searched(search: Json) -> str:
    if search["proof"]["optimal"]:
        return f"All of the searched space was looked at: {search['total']:,} strategies."
    return f"The search ended before all of its {search['total']:,} strategies were looked at; a plan may be among the rest."
