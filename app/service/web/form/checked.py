"""What a filled form stands for: the problems of its request at the fields that caused them, and what the request resolves to.

The request is checked by `prepare_request`, as one that is posted to the API is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.plan_cells import parameter_count
from app.service.intake.plan_requests import PreparedRequest, prepare_request
from app.service.parts import Service
from app.service.web.form.document import request_of
from app.service.web.form.fields import BY_DOCUMENT, BY_GPU, FIELDS, Field, Values
from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.fields import LARGEST, validated
from cost_models.inputs.model import resolve_model
from cost_models.inputs.pools import lists_pools, resolve_pools
from cost_models.inputs.training import TrainingInput
from cost_models.layers.parameters import count_parameters
from cost_models.specs.model import Model


@dataclass(frozen=True, slots=True)
class CheckedForm:
    """A filled form with what was found out about it."""

    values: Values
    problems: tuple[Problem, ...]
    resolved: Mapping[str, str]
    """What is already known of the job, in words: parameters, GPUs, tokens of a step."""
    prepared: PreparedRequest | None
    """The request, ready to be planned; None where there are problems."""

    def at(self, field: Field) -> list[Problem]:
        """The problems that are shown beside this field."""
        return [problem for problem in self.problems if self.field_of(problem) is field]

    @property
    def elsewhere(self) -> list[Problem]:
        """The problems that belong to no field."""
        return [problem for problem in self.problems if self.field_of(problem) is None]

    def field_of(self, problem: Problem) -> Field | None:
        """The field that shows a problem: the nearest one above its place in the request."""
        steps = problem.pointer.strip("/").split("/")
        # Where a part is a document, its fields of the form are hidden: whatever is wrong with the part is shown at the document.
        way = self.values.get(f"{steps[0]}.by")
        if way == BY_DOCUMENT:
            return FIELDS[f"{steps[0]}.document"]
        for length in range(len(steps), 0, -1):
            name = ".".join(steps[:length])
            if name in FIELDS:
                return FIELDS[name]
        if way is not None:
            return FIELDS["cluster.gpu" if way == BY_GPU else f"{steps[0]}.preset"]
        if steps[:2] == ["training", "adapter"]:
            return FIELDS["training.adapter.rank"]
        own = f"{steps[0]}.document"
        return FIELDS[own] if self.values.get(own, "").strip() else None


def check_form(values: Values, *, tenant: str, service: Service) -> CheckedForm:
    """The filled form, checked."""
    document, problems = request_of(values, max_depth=service.settings.max_json_depth)
    broken = {problem.pointer.removesuffix("/document") for problem in problems}
    prepared = None
    try:
        prepared = prepare_request(
            document,
            tenant=tenant,
            calibrations=service.calibrations,
            job_time_limit_s=service.settings.job_time_limit_s,
            corrections=service.corrections,
        )
    except InvalidInputError as error:
        # A part whose document could not be read is missing from the request, which would be told a second time.
        found = [each for each in error.problems if not any(each.pointer.startswith(part) for part in broken)]
        problems += found if _reaches(found, "/training") else [*found, *_of_training(document)]
    except MeshwrightError as error:
        problems.append(Problem("", error.message, error.hint, error.code))
    return CheckedForm(values, tuple(problems), resolved_to(document), None if problems else prepared)


def _reaches(problems: list[Problem], pointer: str) -> bool:
    return any(problem.pointer.startswith(pointer) for problem in problems)


def _of_training(document: Mapping[str, Any]) -> list[Problem]:
    """What the training's schema refuses. Requests are checked no further than a wrong model or cluster; a form tells all at once."""
    try:
        validated(TrainingInput, document["training"], pointer="/training")
    except InvalidInputError as error:
        return list(error.problems)
    return []


def resolved_to(document: Mapping[str, Any]) -> dict[str, str]:
    """What is known of a job, each part by itself: one that is still wrong hides nothing of the others."""
    told: dict[str, str] = {}
    model: Model | None = _or_none(lambda: resolve_model(document["model"]))
    if model is not None:
        counts = count_parameters(model)
        told["parameters"] = parameter_count(counts.total)
        if counts.active != counts.total:
            told["active for one token"] = parameter_count(counts.active)
    gpus = _or_none(lambda: _num_gpus(document["cluster"]))
    if gpus is not None:
        told["GPUs"] = f"{gpus:,}"
    training = document.get("training") or {}
    tokens = _count(training.get("seq_length")) * _count(training.get("global_batch_size"))
    if tokens:
        told["tokens per step"] = f"{tokens:,}"
    return told


def _count(value: Any) -> int:
    """The value, where it is a count that a request may hold; else 0."""
    # A product of integers of thousands of digits, which are refused elsewhere, has no text.
    return value if isinstance(value, int) and 0 < value <= LARGEST else 0


def _num_gpus(cluster: Mapping[str, Any]) -> int:
    if lists_pools(cluster):
        return sum(pool.cluster.num_nodes * pool.cluster.gpus_per_node for pool in resolve_pools(cluster).pools)
    resolved = resolve_cluster(cluster)
    return resolved.num_nodes * resolved.gpus_per_node


def _or_none(resolve: Callable[[], Any]) -> Any:
    try:
        return resolve()
    except (InvalidInputError, KeyError):
        return None
