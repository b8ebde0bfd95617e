"""The table of errors: every class has its code, its status and its shape."""

from __future__ import annotations

import re

import pytest

from app import errors as service_errors
from app.errors import STATUSES, TITLES, NotFoundError, problem_document, problems_of, status_of
from cost_models import errors as model_errors
from cost_models.errors import InvalidInputError, MeshwrightError, NotModelledError, Problem

CLASSES = sorted(
    {
        found
        for module in (model_errors, service_errors)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, MeshwrightError)
    },
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_has_a_status_of_its_own_in_the_table(cls: type[MeshwrightError]) -> None:
    assert cls in STATUSES
    assert STATUSES[cls] in TITLES
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cls.code)


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(codes) == len(set(codes))


def test_statuses_are_those_of_the_contract() -> None:
    """Clients act on them: 4xx is theirs to mend, 503 to repeat, 504 to ask for less or to wait longer."""
    expected = {
        "bad-request": 400, "not-json": 400, "unauthorized": 401, "forbidden": 403, "not-found": 404, "method-not-allowed": 405,
        "request-timeout": 408, "wrong-state": 409, "body-too-large": 413, "unsupported-media-type": 415, "invalid-input": 422,
        "not-modelled": 422, "calibration": 422, "plan-not-expressible": 422, "search-budget": 422, "measurement": 422,
        "quota-exceeded": 429, "too-many-requests": 429, "too-many-jobs": 429, "too-many-agents": 429, "too-many-answers": 429,
        "memory-limit": 422, "head-too-large": 431, "internal-error": 500, "worker-lost": 500, "unavailable": 503,
        "database-away": 503, "database-full": 503, "schema-not-current": 503, "no-worker": 503,
        "service-unreachable": 503, "time-limit": 504, "error": 500,
    }  # fmt: skip
    assert {cls.code: status for cls, status in STATUSES.items()} == expected
    assert TITLES[504] == "Time limit"


def test_a_new_leaf_takes_the_status_of_its_base() -> None:
    class LeafError(NotFoundError):
        code = "leaf"

    assert status_of(LeafError("gone")) == 404


def test_problems_survive_the_way_over_the_wire() -> None:
    problems = [Problem("/a", "is wrong", "Correct it."), Problem("/b/0", "is missing", "Add it.", "missing-field")]
    document = problem_document(NotModelledError(problems), request_id="r")
    assert (document["status"], document["code"], document["request_id"]) == (422, "not-modelled", "r")
    assert problems_of(document["errors"]) == problems


def test_an_error_without_a_hint_still_says_where_to_look() -> None:
    document = problem_document(InvalidInputError([Problem("/a", "is wrong")]))
    assert "/docs" in document["hint"]
    assert "/docs" in document["errors"][0]["hint"]
