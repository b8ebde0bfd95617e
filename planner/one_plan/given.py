"""What `show` is given: a plan response, one ranked plan of it, or an evaluation, told apart by their fields and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import validated
from planner.export.launch_plan import row_of_plan
from planner.request.checked_request import PRODUCT_VERSION
from planner.revision import model_revision
from planner.schemas.evaluation import Evaluation
from planner.schemas.plan_response import PlanResponse, RankedPlan

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """One plan with as much of its surroundings as the document holds."""

    evaluation: Document
    entry: Document | None = None
    """The ranked plan; None for an evaluation, which does not hold its strategy."""
    response: Document | None = None
    """The response that ranks it."""
    row: Document | None = None
    """Its evaluate row; None without a response."""

    @property
    def request(self) -> Document | None:
        """The request with every default filled in."""
        return None if self.response is None else self.response["request"]

    @property
    def strategy(self) -> Document | None:
        """The strategy with every field filled in."""
        return None if self.entry is None else self.entry["strategy"]


def given_plan(document: Document, rank: int) -> Given:
    """The plan of a document; `rank` picks one of a response.

    Raises:
        InvalidInputError: the document is none of the three, a field of it is wrong, or no plan has this rank.
    """
    if "plans" in document and "request" in document:
        return _of_response(document, rank)
    # What GET /v1/plans/{id}/ranked/{rank} returns.
    if "evaluation" in document and "strategy" in document:
        _check(RankedPlan, document, written_by=None)
        if document["rank"] != rank:
            raise _problem(
                "/rank", f"the document holds plan {document['rank']} alone, not plan {rank}", "Leave --plan out."
            )
        return Given(_whole(document["evaluation"]), document)
    if "verdict" in document:
        _check(Evaluation, document, written_by=None)
        return Given(_whole(document))
    message = "the document is neither a plan response nor an evaluation: it has no plans and no verdict"
    raise InvalidInputError([Problem("", message, _EXPECTED, "not-a-response")])


def other_revision(response: Document) -> str:
    """Which other product or revision of the models wrote a response, in words; empty where it was this one."""
    product, revision = response.get("product_version"), response.get("model_revision")
    if product == PRODUCT_VERSION and revision == model_revision():
        return ""
    return f"meshwright {product} with models of revision {revision}, not {PRODUCT_VERSION} with {model_revision()}"


_EXPECTED = "Give what `meshwright plan --json` or `meshwright evaluate` printed."


def check_response(document: Document) -> None:
    """Checks a plan response as a whole.

    Raises:
        InvalidInputError: it is none, its job has not succeeded, or a field is wrong.
    """
    if "plans" not in document or "request" not in document:
        message = "the document is no plan response: it has no plans or no request"
        raise InvalidInputError([Problem("", message, _EXPECTED, "not-a-response")])
    if (status := document.get("status")) != "succeeded" and not document["plans"]:
        hint = "Fetch it again when it has succeeded." if status in ("queued", "running") else "Plan again."
        raise _problem("/status", f"the response has no plans: its status is {status!r}", hint)
    # The service and `plan --json` write responses that pass; one that was edited by hand, or comes from another version, need not.
    _check(PlanResponse, document, written_by=other_revision(document))
    _check_request(document["request"])


def _of_response(document: Document, rank: int) -> Given:
    check_response(document)
    return plan_of_checked(document, rank)


def plan_of_checked(document: Document, rank: int) -> Given:
    """One plan of a response that `check_response` has passed."""
    row = row_of_plan(document, rank)
    entry = next(each for each in document["plans"] if each["rank"] == rank)
    for name in _FILLED:
        if entry["strategy"].get(name) is None:
            message = f"the strategy of plan {rank} has no {name}; a response has every field filled in"
            raise InvalidInputError(
                [Problem(f"/plans/{rank - 1}/strategy/{name}", message, _EXPECTED, "missing-field")]
            )
    return Given(_whole(entry["evaluation"]), entry, document, row)


_FILLED = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch_size")


_NUMBERS = (
    "num_gpus_used", "num_micro_batches", "step_time_s", "step_time_range_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
    "time_breakdown_s", "memory", "provenance",
)  # fmt: skip


def _whole(evaluation: Document) -> Document:
    """The evaluation, after a check that a strategy which could run has all of its numbers."""
    if evaluation["verdict"] == "invalid":
        return dict.fromkeys(Evaluation.model_fields) | {"assumed": {}, "warnings": []} | dict(evaluation)
    if missing := [name for name in _NUMBERS if evaluation.get(name) is None]:
        message = f"the evaluation has the verdict {evaluation['verdict']!r} and no {', '.join(missing)}"
        raise InvalidInputError([Problem(f"/{missing[0]}", message, _EXPECTED, "missing-field")])
    return dict.fromkeys(Evaluation.model_fields) | {"assumed": {}, "warnings": []} | dict(evaluation)


def _check(model: type[PlanResponse | RankedPlan | Evaluation], document: Document, *, written_by: str | None) -> None:
    try:
        validated(model, document, pointer="")
    except InvalidInputError as error:
        if not written_by:
            raise
        # Fields that another version added or took away say nothing of use one by one.
        message = f"the response cannot be read: it was written by {written_by}"
        hint = "Show it with the version that wrote it, or plan again with this one."
        raise InvalidInputError([Problem("", message, hint, "other-revision"), *error.problems[:1]]) from error


def _check_request(request: Document) -> None:
    """Checks what is shown of a request; the rest of it is checked where something is computed from it."""
    for name in ("model", "cluster", "training"):
        if not isinstance(request.get(name), Mapping):
            raise _problem(f"/request/{name}", f"the request of the response has no {name}", _EXPECTED)
    pools = request["cluster"].get("pools")
    parts = [(f"/request/cluster/pools/{at}", part) for at, part in enumerate(pools or ())]
    for where, part in parts or [("/request/cluster", request["cluster"])]:
        for name in ("num_nodes", "gpus_per_node"):
            _require_count(part, name, where)
    for name in ("seq_length", "global_batch_size"):
        _require_count(request["training"], name, "/request/training")


def _require_count(document: Any, name: str, where: str) -> None:
    value = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _problem(f"{where}/{name}", f"{name} of the response's request is no count", _EXPECTED)


def _problem(pointer: str, message: str, hint: str) -> InvalidInputError:
    return InvalidInputError([Problem(pointer, message, hint)])
