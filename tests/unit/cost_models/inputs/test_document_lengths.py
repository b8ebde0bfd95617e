"""Documents of several lengths: pairs of tokens counted one by one, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from builders import dense_model, job_of, row_of
from cost_models.errors import InvalidInputError
from cost_models.layers.attention_core import layer_attention_s
from cost_models.layers.flops import attention_flops_per_token, model_flops
from cost_models.specs.documents import attended_mean, spans
from planner.request.resolved import training_document

SEQUENCE = 1000


def test_pairs_are_those_of_the_documents():
    random.seed(20)
    drawn = [int(random.lognormvariate(5.5, 1.2)) + 1 for _ in range(5000)]
    assert max(drawn) > 2 * SEQUENCE
    pieces = [piece for length in drawn for piece in [SEQUENCE] * (length // SEQUENCE) + [length % SEQUENCE] if piece]
    lengths = tuple((float(length), float(drawn.count(length))) for length in sorted(set(drawn)))
    # Every token sees its own piece: the sum of squares over the sum.
    expected = sum(piece**2 for piece in pieces) / sum(pieces)
    assert attended_mean(lengths, SEQUENCE) == pytest.approx(expected, rel=1e-12)
    found = spans(lengths, SEQUENCE)
    assert sum(share for _, share in found) == pytest.approx(1.0)
    assert 2 < len(found) < 25
    assert max(length for length, _ in found) <= SEQUENCE


def test_shares_are_of_documents_in_any_unit():
    # Three documents of 100 tokens for one of 700: 30 % and 70 % of the tokens.
    for unit in (1.0, 0.25):
        found = spans(((100.0, 3.0 * unit), (700.0, unit)), SEQUENCE)
        assert [length for length, _ in found] == pytest.approx([100.0, 700.0])
        assert [share for _, share in found] == pytest.approx([0.3, 0.7])


def test_a_window_reaches_into_each_length_by_itself():
    documents = [[100, 3], [700, 1]]
    job = job_of(dense_model(sliding_window=200), seq_length=SEQUENCE, document_lengths=documents)
    kind = job.model.layer_kinds[0]
    by_hand = 0.3 * attention_flops_per_token(job.model, kind, seq_length=100.0)
    by_hand += 0.7 * attention_flops_per_token(job.model, kind, seq_length=700.0)
    assert model_flops(job).attention_flops_per_token == pytest.approx(4 * by_hand)


def test_attention_takes_the_sum_of_its_lengths():
    seconds = {}
    for name, training in (
        ("both", {"document_lengths": [[512, 4], [2048, 1]]}), ("short", {"mean_document_length": 512.0}), ("long", {}),
    ):  # fmt: skip
        job = job_of(dense_model(), seq_length=2048, **training)
        seconds[name] = layer_attention_s(job, job.model.layer_kinds[0], row_of(job)).forward_s[0]
    # Half of the tokens lie in documents of either length.
    assert seconds["both"] == pytest.approx((seconds["short"] + seconds["long"]) / 2, rel=1e-9)


def test_a_mean_is_the_field_of_old_and_resolved_requests_mean_the_same():
    same = [
        job_of(dense_model(), **given)
        for given in ({"document_lengths": {"mean": 300}}, {"mean_document_length": 300.0})
    ]
    assert same[0].training == same[1].training
    given = job_of(dense_model(), document_lengths=[[100, 3], [700, 1]])
    assert given.training.warnings == ("document-lengths-vary",)
    document = training_document(given.training)
    assert document["document_lengths"] == ((100.0, 3.0), (700.0, 1.0))
    again = job_of(
        dense_model(), **{**document, "document_lengths": [list(pair) for pair in document["document_lengths"]]}
    )
    assert again.training.attended_spans == given.training.attended_spans


@pytest.mark.parametrize(("documents", "said"), [
    ({"mean": 0}, "must be at least"), ({"average": 3}, "average"), ([], "at least 1"), ([[100]], "2"), ([[100, -1]], "must be at least"),
    ("short", "list"),
])  # fmt: skip
def test_lengths_that_are_none_are_refused(documents: Any, said: str):
    with pytest.raises(InvalidInputError, match="document_lengths") as refused:
        job_of(dense_model(), document_lengths=documents)
    assert said in str(refused.value)


def test_two_means_that_differ_are_refused():
    with pytest.raises(InvalidInputError, match="both given"):
        job_of(dense_model(), document_lengths={"mean": 300}, mean_document_length=200.0)


def test_documents_of_one_length_do_not_vary_however_often_it_is_listed():
    assert job_of(dense_model(), document_lengths=[[512, 1], [512, 3]]).training.warnings == ()
