"""From a ranked plan to launch files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from cost_models.errors import InvalidInputError, NotExpressibleError, Problem
from cost_models.frameworks.releases import version_key
from cost_models.hints import choice_hint
from cost_models.units import GIB
from planner.export.collectives import with_collectives
from planner.export.launch_plan import LaunchPlan, launch_plan, plans_of, row_of_plan
from planner.export.launchers.kubernetes import job_set, pytorch_job, runs_in_kubernetes
from planner.export.launchers.shell import BATCH, LAUNCH, MOCK, batch_script, node_script
from planner.export.nearest import with_nearest
from planner.export.quantities import Quantities
from planner.export.target import Launch, LaunchFile, Target
from planner.export.targets import TARGETS
from planner.request.job import Documents

_PADDED = (
    "The plan has one document in each sequence, padded to the sequence length; the run on mock data has no padding."
)
_AVERAGING = ("pytorch",)
"""Targets whose program averages the weights."""
ROW = "plan.json"
"""The evaluate row that the files say, for `evaluate`, `observe` and for whoever wonders later."""


def export(
    response: Mapping[str, Any],
    framework: str,
    *,
    plan: int = 1,
    changed: bool = False,
    framework_version: str | None = None,
    **options: Any,
) -> tuple[LaunchFile, ...]:
    """The launch files of one ranked plan.

    Args:
        response: a plan response.
        framework: name of a target, such as "megatron" or "accelerate".
        plan: rank of the plan, from 1.
        changed: whether it is one of the plans that change the mathematics.
        framework_version: the target's release; by default the request's, or the newest known one of a front end.
        options: passed on to `export_row`.

    Raises:
        InvalidInputError: there is no such plan, target or version.
        NotExpressibleError: the target cannot say the plan; `context` names the field and the nearest plan that it can say.
    """
    target = target_named(framework)
    own = framework_version if target.own_version else None
    row = row_of_plan(response, plan, framework_version=own, changed=changed)
    ranked = next(each for each in plans_of(response, changed=changed) if each["rank"] == plan)
    return export_row(row, framework, framework_version=framework_version, predicted=ranked["evaluation"], **options)


def export_row(
    row: Mapping[str, Any],
    framework: str,
    *,
    framework_version: str | None = None,
    predicted: Mapping[str, Any] | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
) -> tuple[LaunchFile, ...]:
    """The launch files of an evaluate row.

    Args:
        row: `{"model", "cluster", "training", "strategy"}`.
        predicted: its evaluation, whose time and memory the scripts mention.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    For the other arguments and errors see `export`.
    """
    target = target_named(framework)
    whole = launch_plan(row, extra=extra, allow_files=allow_files)
    plan = whole.of_one_group()
    _check_framework(target, plan)
    version = version_of(target, framework_version, plan)
    try:
        launch = said(plan, target, version)
    except NotExpressibleError as refusal:
        raise with_nearest(refusal, row, lambda other: said(other.of_one_group(), target, version)) from refusal
    return _files(plan, launch, target, version, row=row, strategy=whole.strategy, predicted=predicted)


_NEVER_WRITTEN: Final = {
    "training.towers": (
        "launch files train the text model alone",
        "Take the strategy over into a recipe of the multimodal model, or plan without training.towers.",
    ),
    "model.classes": (
        "launch files train language models, without a classification head",
        "Load the model with transformers' AutoModelForSequenceClassification in the exported script of a plan without model.classes.",
    ),
}
"""What no target's files train: why, and what to do."""


def said(plan: LaunchPlan, target: Target, version: str) -> Launch:
    """What a target's writer says of a plan: everything, or an error.

    Raises:
        FieldNotExpressibleError: a field that matters was refused or left out.
    """
    quantities = Quantities(plan, target=target.name, version=version)
    for field, (why, hint) in _NEVER_WRITTEN.items():
        if quantities.peek(field):
            raise quantities.refusal(field, why=why, hint=hint)
    if quantities.peek("training.ema") and target.name not in _AVERAGING:
        why = "nothing in it keeps a moving average of the weights; the script of target pytorch does"
        raise quantities.refusal("training.ema", why=why)
    launch = target.write(quantities)
    quantities.finish()
    if plan.training.get("packing") == "padded":
        launch = replace(launch, own_data=(*launch.own_data, _PADDED))
    return with_collectives(launch, plan.job.cluster.collectives, target, version)


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        InvalidInputError: there is none.
    """
    if name not in TARGETS:
        message = f"{name!r} is no target of launch files"
        raise InvalidInputError([Problem("/framework", message, choice_hint(name, tuple(TARGETS)), "unknown-target")])
    return TARGETS[name]


def version_of(target: Target, asked: str | None, plan: LaunchPlan) -> str:
    """The known release whose keys are written: of the option, else of the request, else the newest.

    Raises:
        InvalidInputError: none of the target's known releases is meant.
    """
    planned = str(plan.training["framework_version"])
    # A front end that runs on one release of the framework is the one that runs on the plan's.
    fitting = [own for own, release in target.built_on.items() if _same_series(release, planned)]
    version = asked or (planned if target.own_version else [*target.versions, *fitting][-1])
    for known in target.versions:
        if _same_series(known, version):
            return known
    message = f"launch files for {target.name} {version} are not known"
    hint = f"Known releases: {', '.join(target.versions)}."
    raise InvalidInputError([Problem("/framework_version", message, hint, "unknown-version")])


def _same_series(known: str, version: str) -> bool:
    length = min(len(version_key(known)), len(version_key(version)))
    return version_key(known)[:length] == version_key(version)[:length]


def _check_framework(target: Target, plan: LaunchPlan) -> None:
    framework = plan.training["framework"]
    if framework not in target.frameworks:
        able = [each.name for each in TARGETS.values() if framework in each.frameworks]
        raise NotExpressibleError(
            f"{target.name} cannot say plans for {framework}",
            hint=f"Targets of {framework}: {', '.join(able) or 'none'}.",
            context={"field": "training.framework", "value": framework, "target": target.name},
        )


def _files(
    plan: LaunchPlan,
    launch: Launch,
    target: Target,
    version: str,
    *,
    row: Mapping[str, Any],
    strategy: Mapping[str, Any],
    predicted: Mapping[str, Any] | None,
) -> tuple[LaunchFile, ...]:
    name = _job_name(plan)
    head = _head(plan, target, version, predicted)
    inside = (
        *launch.files,
        LaunchFile(LAUNCH, node_script(plan, launch, head=head, mock=False), executable=True),
        LaunchFile(MOCK, node_script(plan, launch, head=head, mock=True), executable=True),
    )
    around = [LaunchFile(BATCH, batch_script(plan, name=name), executable=True)]
    if runs_in_kubernetes(plan):
        around += [
            LaunchFile("pytorchjob.yaml", pytorch_job(plan, inside, name=name, checkout=launch.checkout)),
            LaunchFile("jobset.yaml", job_set(plan, inside, name=name, checkout=launch.checkout)),
        ]
    document = {"model": plan.model, "cluster": row["cluster"], "training": plan.training, "strategy": strategy}
    return (*inside, *around, LaunchFile(ROW, json.dumps(document, indent=1, allow_nan=False) + "\n"))


def _job_name(plan: LaunchPlan) -> str:
    """A name that Kubernetes takes: small letters, digits and dashes, at most 40."""
    name = re.sub(r"[^a-z0-9]+", "-", str(plan.model.get("name") or "training").lower()).strip("-")
    return (name[:40].strip("-") or "training") if name[:1].isalpha() else f"train-{name}"[:40].strip("-")


def _head(plan: LaunchPlan, target: Target, version: str, predicted: Mapping[str, Any] | None) -> list[str]:
    named = plan.strategy
    degrees = ", ".join(
        f"{field} {named[field]}" for field in ("tp", "pp", "cp", "dp", "ep", "vpp") if named[field] > 1
    )
    gpus = f"{plan.world_size} GPU{'s' * (plan.world_size > 1)}"
    job = f"{plan.model.get('name') or 'A model'} on {gpus} for {target.name} {version}"
    rest = f"zero {named['zero']}, micro-batch {named['micro_batch_size']}, recompute {named['recompute']}"
    lines = [f"{job}: {degrees or 'unsplit'}, {rest}."]
    if predicted and predicted.get("step_time_s") is not None:
        low, high = predicted["step_time_range_s"]
        memory = predicted["memory"]["peak_device_bytes"] / GIB
        time = f"{predicted['step_time_s']:.3g} s a step ({low:.3g} to {high:.3g})"
        lines.append(f"Predicted: {time}, {memory:.1f} GiB on the fullest GPU.")
    return lines
