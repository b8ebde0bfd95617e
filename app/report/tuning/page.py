"""The page of a tuning: a file that holds everything, or a page of the service. Both tell the same without scripts and on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.report.frame import Frame, frame_of_file, frame_of_page
from app.report.section import Section, environment
from app.report.tuning.comparison import order, trials, wrong_terms
from app.report.tuning.document import Json, Tuning, read_tuning
from app.report.tuning.outcome import failed, next_trials, run_knobs, time_spent, verdict
from app.report.words import nodes, parameters
from planner.answer.step_cost import total_gpus

SECTIONS: tuple[Callable[[Tuning], Section | None], ...] = (
    verdict, order, trials, wrong_terms, failed, run_knobs, next_trials, time_spent,
)  # fmt: skip
"""What is told, in this order; a section that has nothing to show is left out."""
WITHOUT_A_RESULT: tuple[Callable[[Tuning], Section | None], ...] = (verdict, failed, next_trials, trials, time_spent)
"""The same where no step was measured: why that is comes first."""


def tuning_file(document: Json, *, scripts: bool = True) -> str:
    """The tuning as one HTML document that needs no network.

    Args:
        document: what `meshwright tune --json` printed or `GET /v1/tunings/{id}` returned.
        scripts: whether its tables can be sorted; it says the same without.

    Raises:
        cost_models.errors.InvalidInputError: the document is no tuning.
    """
    return _rendered(read_tuning(document), frame_of_file((), wanted=scripts))


def tuning_page(
    document: Json,
    *,
    assets: str = "/assets",
    home: str = "/",
    site: Sequence[Mapping[str, str]] = (),
    notice: str = "",
) -> str:
    """The served page of a tuning; the arguments are those of `app.report.pages.report_page`."""
    frame = frame_of_page((), assets=assets)
    return _rendered(read_tuning(document), frame, home=home, site=site, notice=notice)


def _rendered(tuning: Tuning, frame: Frame, **shown: Any) -> str:
    # Whoever pays for GPUs asks first whether it was worth it, and last what it took.
    sections = [
        made for make in (SECTIONS if tuning.measured else WITHOUT_A_RESULT) if (made := make(tuning)) is not None
    ]
    origin = [
        f"meshwright {tuning.product_version}" if tuning.product_version else "Made by meshwright",
        *(each for each in (tuning.id, tuning.created_at) if each),
    ]
    return (
        environment()
        .get_template("tuning.html")
        .render(
            frame=frame,
            title=_title(tuning.request or {}),
            job=_job(tuning.request or {}),
            sections=sections,
            contents=[{"href": f"#{each.name}", "label": each.title} for each in sections],
            origin="; ".join(origin),
            **shown,
        )
    )


def _title(request: Json) -> str:
    model, gpus = request.get("model"), _gpus(request)
    name = model.get("name") or model.get("preset") if isinstance(model, Mapping) else model
    return f"Tuning of {name or 'a model'}" + (f" on {gpus:,} GPUs" if gpus else "")


def _gpus(request: Json) -> int | None:
    """GPUs of the cluster; None where the request does not say, as one that was never filled in with defaults."""
    # A request may name a preset in place of the numbers.
    cluster = request.get("cluster")
    counted = isinstance(cluster, Mapping) and (
        "pools" in cluster or all(isinstance(cluster.get(name), int) for name in ("num_nodes", "gpus_per_node"))
    )
    return total_gpus(cluster) if counted and isinstance(cluster, Mapping) else None


def _job(request: Json) -> str:
    """What is trained, as far as the request says."""
    # A request that was never completed may lack any of these.
    model, cluster, training = (request.get(name) for name in ("model", "cluster", "training"))
    parts = [parameters(model) if isinstance(model, Mapping) else ""]
    if isinstance(cluster, Mapping):
        parts.append(" + ".join(nodes(pool) for pool in cluster.get("pools") or [cluster]))
    if isinstance(training, Mapping):
        length, batch = training.get("seq_length"), training.get("global_batch_size")
        parts += [
            f"sequences of {length:,} tokens" if isinstance(length, int) else "",
            f"{batch:,} a step" if isinstance(batch, int) else "",
            str(training.get("precision") or ""),
            " ".join(str(training[key]) for key in ("framework", "framework_version") if training.get(key)),
        ]
    return ", ".join(part for part in parts if part)
