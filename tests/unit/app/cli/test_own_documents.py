"""Documents that the program wrote itself, given to commands that want another kind, or that can take what they need from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.documents import read_corrections, read_request, read_row
from app.cli.main import run
from builders import dense_model, request_of
from cost_models.errors import InvalidInputError

REQUEST = request_of(dense_model(2), "megatron", cluster={"gpus_per_node": 1}) | {"top_k": 2}
ROW = REQUEST | {"strategy": {"dp": 1}}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "a plan response": {"id": "plan-1", "request": REQUEST, "plans": [], "search": {}},
    "a tuning": {"id": "tuning-1", "request": REQUEST, "trials": [], "limits": {}},
    "a set of corrections": {"schema_version": 1, "product_version": "0.1.0", "corrections": []},
    "an observation": {"id": "observation-1", "row": ROW, "measured": {"step_time_s": 1.0}},
    "the record of a trial": {"row": ROW, "backend": "pytorch", "status": "ok", "step_time_s": 1.0},
    "an evaluation": {"id": "row-1", "verdict": "fits", "step_time_s": 1.0},
    "a row": ROW,
    "a plan request": REQUEST,
}


def written(folder: Path, document: dict[str, Any]) -> str:
    path = folder / "given.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize("kind", ["a plan response", "a tuning", "a plan request"])
def test_a_request_is_also_taken_from_what_was_made_of_one(tmp_path: Path, kind: str) -> None:
    assert read_request(written(tmp_path, DOCUMENTS[kind])) == REQUEST


def test_an_answer_planned_again_is_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", written(tmp_path, REQUEST), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(["plan", written(tmp_path, first), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["request_digest"] == first["request_digest"]
    # What had been assumed is stated now, which is all that differs.
    for one, other in zip(first["plans"], again["plans"], strict=True):
        assert one["evaluation"]["assumed"]
        assert one["strategy"] == other["strategy"]
        assert one["evaluation"]["time_breakdown_s"] == other["evaluation"]["time_breakdown_s"]


@pytest.mark.parametrize(
    ("read", "taken", "wanted", "remedy"),
    [
        (read_request, {"a plan request", "a plan response", "a tuning"}, "a plan request", "a model, a cluster and a training"),
        (read_row, {"a row"}, "a row", "meshwright export"),
        (read_corrections, {"a set of corrections"}, "a set of corrections", "meshwright correct"),
    ],
)  # fmt: skip
def test_another_document_of_ours_is_refused_by_its_kind(
    tmp_path: Path, read: Any, taken: set[str], wanted: str, remedy: str
) -> None:
    for kind in DOCUMENTS.keys() - taken:
        path = written(tmp_path, DOCUMENTS[kind])
        with pytest.raises(InvalidInputError) as caught:
            read(path)
        (problem,) = caught.value.problems
        assert problem.message == f"{path} is {kind}, not {wanted}"
        assert remedy in problem.hint


def test_what_nobody_knows_is_left_to_those_who_name_its_fields(tmp_path: Path) -> None:
    for read in (read_request, read_row, read_corrections):
        assert read(written(tmp_path, {"modle": {}})) == {"modle": {}}


@pytest.mark.parametrize("word", ["auto", "none"])
def test_corrections_may_be_a_word(word: str) -> None:
    assert read_corrections(word) == word


def test_a_name_that_a_shell_left_empty_is_refused_and_not_taken_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "examples/requests/tiny-on-processors.json", "--corrections", ""]) == 2
    assert capsys.readouterr().err.startswith("error: '' cannot be read")


def test_a_request_larger_than_a_service_takes_is_refused(tmp_path: Path) -> None:
    """A response may be as large as it likes: only its request is used."""
    padding = "x" * (1 << 20)
    with pytest.raises(InvalidInputError, match="larger than 1 MiB"):
        read_request(written(tmp_path, REQUEST | {"name": padding}))
    assert read_request(written(tmp_path, DOCUMENTS["a plan response"] | {"warnings": [padding]})) == REQUEST
