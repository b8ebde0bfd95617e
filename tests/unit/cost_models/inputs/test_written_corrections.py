"""A document of corrections is one that plans take, however many runs it was learnt from."""

from __future__ import annotations

import json

from cost_models.corrections import Correction, Scope
from cost_models.inputs.corrections import corrections_document, resolve_corrections
from cost_models.terms import MEMORY_NAMES, TIME_NAMES


def test_a_document_names_a_bounded_number_of_runs_and_is_read_back() -> None:
    """Three thousand names of 40 letters, with each of thirty terms and more, would be four million bytes."""
    sources = tuple(f"observation-{number:028d}" for number in range(3000))
    learnt = [
        Correction(
            term=term, factor=1.1, kept=True, scope=Scope("torchtitan", "native", "H200-SXM-141GB"), trials=3000,
            error_before=0.1, error_after=0.05, reason="Kept.", sources=sources,
        )
        for term in (*TIME_NAMES, *MEMORY_NAMES)
    ]  # fmt: skip
    document = corrections_document(learnt)
    assert len(json.dumps(document)) < 1 << 20
    read = resolve_corrections(document).listed
    assert [each.term for each in read] == [*TIME_NAMES, *MEMORY_NAMES]
    assert {(each.trials, each.sources[0]) for each in read} == {(3000, sources[0])}
