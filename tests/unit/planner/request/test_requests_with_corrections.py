"""Corrections in requests and rows: what they change, what they leave to the last bit, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.request.checked_request import check_request
from planner.request.job import resolve_job
from planner.rows import evaluate_rows

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "torchtitan"},
    "top_k": 5,
}
ROW = REQUEST | {"strategy": {"dp": 8, "zero": 3, "micro_batch_size": 4}}
SCOPE = resolve_job(REQUEST).scope


def entry(term: str = "gemm", factor: float = 1.5, **fields: Any) -> dict[str, Any]:
    return {
        "term": term, "factor": factor, "kept": True, "framework": SCOPE.framework, "model_impl": SCOPE.model_impl,
        "gpu": SCOPE.gpu, "precision": SCOPE.precision, "calibration": SCOPE.calibration, **fields,
    }  # fmt: skip


def corrections(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, "corrections": list(entries or (entry(),))}


def evaluated(**fields: Any) -> dict[str, Any]:
    (answer,) = evaluate_rows([ROW | fields])
    return answer


def test_factors_show_in_the_breakdown_and_are_named() -> None:
    before, after = evaluated(), evaluated(corrections=corrections(entry("optimizer", 2.0), entry("activations", 0.5)))
    assert after["time_breakdown_s"]["optimizer"] == pytest.approx(2.0 * before["time_breakdown_s"]["optimizer"])
    assert sum(after["time_breakdown_s"].values()) == pytest.approx(after["step_time_s"])
    assert after["provenance"]["corrections"] == {"optimizer": 2.0, "activations": 0.5}
    assert after["memory"]["peak_allocated_bytes"] < before["memory"]["peak_allocated_bytes"]
    (stage,) = after["memory"]["stages"]
    assert sum(stage["breakdown_bytes"].values()) == pytest.approx(stage["peak_allocated_bytes"])


@pytest.mark.parametrize("word", ["auto", "none", None])
def test_without_corrections_no_bit_of_an_answer_moves(word: str | None) -> None:
    assert json.dumps(evaluated(corrections=word)) == json.dumps(evaluated())


@pytest.mark.parametrize("fields", [{"kept": False}, {"enabled": False}])
def test_what_is_not_in_force_moves_nothing(fields: dict[str, Any]) -> None:
    assert json.dumps(evaluated(corrections=corrections(entry(**fields)))) == json.dumps(evaluated())


@pytest.mark.parametrize(
    "fields", [{"gpu": "A100-SXM-80GB"}, {"framework": "fsdp"}, {"precision": "fp8"}, {"calibration": "x"}]
)
def test_what_was_learnt_elsewhere_is_left_out_with_a_warning(fields: dict[str, Any]) -> None:
    found = evaluated(corrections=corrections(entry(**fields)))
    assert found["warnings"] == ["corrections-of-another-scope"]
    assert found | {"warnings": []} == evaluated()


def test_the_ranking_follows_corrected_seconds() -> None:
    """Where products take a tenth as long and data-parallel communication twenty times, plans that communicate least win."""
    learnt = corrections(entry("gemm", 0.1), entry("attention", 0.1), entry("dp_comm", 20.0))
    before, after = plan(REQUEST), plan(REQUEST | {"corrections": learnt})
    first = after["plans"][0]
    assert first["strategy"] != before["plans"][0]["strategy"]
    (again,) = evaluate_rows([REQUEST | {"strategy": first["strategy"], "corrections": learnt}])
    assert again["step_time_s"] == pytest.approx(first["evaluation"]["step_time_s"], rel=1e-12)
    (beaten,) = evaluate_rows([REQUEST | {"strategy": before["plans"][0]["strategy"], "corrections": learnt}])
    assert first["evaluation"]["step_time_s"] < beaten["step_time_s"]
    assert after["search"]["proof"]["optimal"]


def test_plans_that_are_like_measured_ones_tie_less() -> None:
    """All terms were seen in measured runs, whose errors were a tenth of their ranges; the seconds stay the models' own."""
    terms = list(evaluated()["time_breakdown_s"])
    learnt = corrections(*(entry(term, 1.0, range_factor=0.1) for term in terms))
    before, after = (plan(REQUEST | {"top_k": 20} | given) for given in ({}, {"corrections": learnt}))
    assert [each["strategy"] for each in after["plans"]] == [each["strategy"] for each in before["plans"]]
    groups = [[each["tie_group"] for each in answer["plans"]] for answer in (before, after)]
    assert groups[1][-1] > groups[0][-1]
    assert all(own <= its for own, its in zip(*groups, strict=True))
    assert all(each["evaluation"]["provenance"]["range_factor"] == 0.1 for each in after["plans"])


def test_the_digest_and_the_request_of_an_answer_tell_of_corrections() -> None:
    plain, word, learnt = (
        check_request(REQUEST | given) for given in ({}, {"corrections": "auto"}, {"corrections": corrections()})
    )
    other = check_request(REQUEST | {"corrections": corrections(entry(factor=1.6))})
    assert plain.digest == word.digest
    assert len({plain.digest, learnt.digest, other.digest}) == 3
    assert learnt.resolved["corrections"] == corrections()
    assert check_request(learnt.resolved).digest == learnt.digest


@pytest.mark.parametrize(
    ("given", "pointer", "message"),
    [
        ("mine", "/corrections", "it must be 'auto', 'none' or a document"),
        ({"schema_version": 1}, "/corrections/corrections", "required"),
        (corrections(entry("gem")), "/corrections/corrections/0/term", "no term of time or memory"),
        (corrections(entry(factor=50.0)), "/corrections/corrections/0/factor", "at most 20"),
        (corrections(entry(factor=-1.0)), "/corrections/corrections/0/factor", "at least 0.05"),
        (corrections(entry(), entry(factor=1.1)), "/corrections/corrections/1/term", "corrected twice"),
        (corrections(entry(framework="jax")), "/corrections/corrections/0/framework", "must be one of"),
    ],
)
def test_a_broken_document_is_refused_where_it_is_broken(given: Any, pointer: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_request(REQUEST | {"corrections": given})
    assert [(problem.pointer, message in problem.message) for problem in raised.value.problems] == [(pointer, True)]


def test_a_cluster_with_pools_is_not_corrected_and_says_so() -> None:
    """The same numbers to the last bit; a document in which nothing is in force has nothing to say."""
    pools = [{"name": name, "gpu": gpu, "num_nodes": 1, "gpus_per_node": 8} for name, gpu in
             (("new", "H200-SXM-141GB"), ("old", "A100-SXM-80GB"))]  # fmt: skip
    training = REQUEST["training"] | {"framework": "megatron"}
    strategy = {"tp": 8, "pp": 2, "dp": 1, "micro_batch_size": 1, "pool_per_stage": ["old", "new"]}
    row = {"model": REQUEST["model"], "cluster": {"pools": pools}, "training": training, "strategy": strategy}
    plain, idle, given = evaluate_rows(
        [row, *(row | {"corrections": corrections(entry(framework="megatron", kept=kept))} for kept in (False, True))]
    )
    assert plain["verdict"] != "invalid"
    assert given["warnings"] == [*plain["warnings"], "corrections-not-on-pools"]
    assert given | {"warnings": plain["warnings"]} == idle == plain


def test_open_splits_and_corrections_exclude_each_other() -> None:
    with pytest.raises(InvalidInputError, match="open_splits"):
        check_request(REQUEST | {"include": ["open_splits"], "corrections": corrections()})
