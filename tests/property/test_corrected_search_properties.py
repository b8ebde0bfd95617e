"""The search with corrections against brute force: factors of time and memory of every size, and all bounds with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.corrections import Correction
from cost_models.evaluate import evaluate
from cost_models.inputs.corrections import corrections_document
from cost_models.terms import MEMORY_NAMES, TIME_NAMES
from planner.request.job import resolve_job
from planner.rules import violations
from planner.search.bounds import build_bounds, floors_s
from planner.search.leanest import least_memory
from tests.property.test_search_exact_properties import BruteForce, built, fields, requests, searched

FACTORS = st.sampled_from((0.4, 0.7, 0.9, 1.1, 1.4, 2.5))
IN_CI = settings(max_examples=12)
PROOF = settings(max_examples=3000)


@st.composite
def corrected_requests(draw) -> dict[str, Any]:
    """A small problem with factors for some terms of time and of memory."""
    request = draw(requests())
    scope = resolve_job(request).scope
    terms = draw(st.lists(st.sampled_from((*TIME_NAMES, *MEMORY_NAMES)), min_size=1, max_size=8, unique=True))
    listed = [
        Correction(term, draw(FACTORS), kept=True, scope=scope, trials=9, error_before=0.1, error_after=0.05, reason="")
        for term in terms
    ]
    return request | {"corrections": corrections_document(listed)}


def in_ci_and_as_proof(check: Callable[[Any], None]) -> Callable[[bool], None]:
    """The same check with few draws, and with thousands where proofs are asked for."""
    few, many = IN_CI(given(corrected_requests())(check)), PROOF(given(corrected_requests())(check))

    @pytest.mark.parametrize(
        "draws", ["few", pytest.param("many", marks=[pytest.mark.proof, pytest.mark.timeout(3000)])]
    )
    def test(draws: str) -> None:
        (few if draws == "few" else many)()

    return test


@in_ci_and_as_proof
def test_a_corrected_search_finds_what_brute_force_finds(request) -> None:
    """The same strategies in the same order of corrected seconds, and a proof that they are the best."""
    asked, space = built(request)
    assert space.job.corrections.factors
    brute, found = BruteForce(asked, space), searched(asked, space)
    assert fields(found.best) == fields(brute.best)
    assert found.optimal
    if len(brute.best):
        assert found.lower_bound_s == pytest.approx(brute.step_s.min(), rel=1e-12)


@in_ci_and_as_proof
def test_no_corrected_strategy_is_below_its_bounds(request) -> None:
    """Seconds of meshes, base rows and pairs, and bytes of base rows and pairs."""
    _, space = built(request)
    base = space.base()
    bounds, pairs = build_bounds(space, base), space.every_pair(base)
    least, rows = least_memory(space, base), space.expand(base, pairs).rows
    assert (np.repeat(floors_s(space), space.degrees.sizes) <= bounds.step_s * (1 + 1e-12)).all()
    legal = np.flatnonzero(violations(space.job, rows).legal)
    assume(len(legal))
    costs = evaluate(space.job, rows.take(legal))
    assert (bounds.paired_s(space, pairs)[legal] <= costs.step_time_s * (1 + 1e-9)).all()
    assert (least.of_pairs(pairs)[legal] <= costs.memory.device * (1 + 1e-12)).all()
    assert np.sum(list(costs.terms_s.values()), axis=0) == pytest.approx(costs.step_time_s)
    assert sum(costs.memory.breakdown(0, 0).values()) == pytest.approx(costs.memory.allocated_KN[0, 0])
