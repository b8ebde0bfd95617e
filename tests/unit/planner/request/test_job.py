"""A job from a document's three parts: every problem of all of them, and what is refused on purpose told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import request_of, tiny_model
from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.hardware import shipped_document
from planner.request.job import resolve_job

GIVEN = request_of(tiny_model(), seq_length=1024, global_batch_size=8)
CLUSTER, TRAINING = GIVEN["cluster"], GIVEN["training"]


def test_the_same_document_is_the_same_job() -> None:
    assert resolve_job(GIVEN) is resolve_job({**GIVEN})


def test_a_calibration_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    shipped = shipped_document("h100x4-nvls-off-2026")
    assert shipped is not None
    file = tmp_path / "mine.json"
    given = {**GIVEN, "cluster": {**CLUSTER, "calibration": str(file)}}
    file.write_text(shipped.model_copy(update={"name": "first"}).canonical_json())
    first = resolve_job(given, allow_files=True)
    assert resolve_job(given, allow_files=True) is first
    file.write_text(shipped.model_copy(update={"name": "the second"}).canonical_json())
    second = resolve_job(given, allow_files=True)
    assert first.calibration.name.startswith("first")
    assert second.calibration.name.startswith("the second")


def test_all_parts_tell_their_problems_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve_job({"model": tiny_model(0), "cluster": {**CLUSTER, "num_nodes": 0}})
    assert type(caught.value) is InvalidInputError
    assert [problem.pointer for problem in caught.value.problems] == [
        "/model/num_layers",
        "/cluster/num_nodes",
        "/training",
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"cluster": {**CLUSTER, "pools": [{"gpu": "H100-SXM-80GB"}]}},
        {"training": {**TRAINING, "adapter": {"peft_type": "IA3"}}},
        {"model": {"hf_config": {"model_type": "mamba", "num_hidden_layers": 2}}},
    ],
)
def test_what_has_no_model_is_refused_as_such(part) -> None:
    """Not a mistake of the sender: the code of the whole answer says so too."""
    with pytest.raises(NotModelledError):
        resolve_job({**GIVEN, **part})
