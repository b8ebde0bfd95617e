"""Open splits inside a whole plan: proof, failure of the solver, cancelling, what cannot be launched."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.step.total import step_time
from planner.plan import plan
from planner.request.job import resolve_job
from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.objective import build_goal
from planner.splits import search as open_splits
from planner.splits.bounds import _whole_layers_s, split_bound_s
from planner.splits.builder import build_split_model
from planner.splits.cp_sat import SolverError, solve
from planner.splits.model import split_numbers
from planner.splits.search import Best, OpenSplits
from planner.splits.thresholds import balance
from planner.strategies.axes import build_space

UNEVEN: dict[str, Any] = {
    "model": {
        "num_layers": 13, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336,
        "vocab_size": 250_000,
    },
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {
        "seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron", "cross_entropy": "te",
    },
    "constraints": {"fixed": {"pp": 4, "tp": 2, "cp": 1}},
    "top_k": 3,
    "include": ["open_splits"],
}  # fmt: skip


def test_a_large_vocabulary_leaves_the_last_stage_fewer_layers() -> None:
    found = plan(UNEVEN)
    best = found["plans"][0]["strategy"]["layers_per_stage"]
    assert sum(best) == 13
    assert best[-1] < min(best[1:-1])
    assert found["search"]["proof"]["optimal"]
    assert "thresholds" in found["search"]["methods"]


def test_no_listed_split_is_better_than_the_open_one() -> None:
    listed = plan(UNEVEN | {"constraints": {"fixed": {"pp": 4, "tp": 2, "cp": 1, "layers_per_stage": [3, 4, 3, 3]}}})
    open_s = plan(UNEVEN)["plans"][0]["evaluation"]["step_time_s"]
    assert open_s < listed["plans"][0]["evaluation"]["step_time_s"]


def test_only_who_asks_waits_for_open_splits() -> None:
    found = plan({name: value for name, value in UNEVEN.items() if name != "include"})
    assert found["search"]["methods"] == ["exhaustive"]
    assert found["plans"][0]["evaluation"]["step_time_s"] > plan(UNEVEN)["plans"][0]["evaluation"]["step_time_s"]


def test_what_cannot_be_told_is_kept_apart() -> None:
    training = UNEVEN["training"] | {"framework_version": "0.12"}
    found = plan(UNEVEN | {"training": training})
    launched = found["plans"][0]["evaluation"]["step_time_s"]
    other = found["inexpressible_best"]
    assert all(len(set(p["strategy"]["layers_per_stage"][1:-1])) == 1 for p in found["plans"])
    if other is not None:
        assert other["step_time_s"] < launched
        assert other["gain_fraction"] == pytest.approx(1 - other["step_time_s"] / launched)
        assert {reason["code"] for reason in other["reasons"]} <= {"split-unsupported", "recompute-per-stage-mismatch"}


def searcher(request: Any = UNEVEN, **changed: Any) -> tuple[OpenSplits, Any]:
    asked = PlanRequest.model_validate(request)
    job = resolve_job(request)
    space = build_space(job, asked.constraints)
    goal = build_goal(job, asked.objective, asked.targets)
    exhaustive = Exhaustive(space, goal=goal, top_k=3, headroom_fraction=0.03, allow_at_risk=False, keep_legal=True)
    exhaustive.run()
    options = {"known": exhaustive.kept.safe_values, "should_stop": lambda: False} | changed
    return OpenSplits(space, goal=goal, top_k=3, headroom_fraction=0.03, **options), exhaustive.legal[0]


def test_a_failing_solver_leaves_the_balanced_split_and_says_so() -> None:
    def fails(*_args: Any, **_keywords: Any) -> Any:
        raise SolverError("no solver here")

    opened, (base, bounds) = searcher(solver=fails)
    opened.run(base, bounds)
    best = min(opened.found.ranked, key=lambda candidate: candidate.step_s)
    model = build_split_model(opened.job, best.row, headroom_fraction=0.03, limit_s=2 * best.step_s)
    balanced = balance(model)
    before = Best(model, balanced.picked, balanced.step_s)
    after = opened._close(before, bound_s=0.9 * balanced.step_s, limit_s=2 * best.step_s)
    assert after is before
    assert opened.found.failures == ["no solver here"]
    assert opened.found.unproven_s == 0.9 * balanced.step_s


def loosely(model: Any, **options: Any) -> Any:
    """Balanced splits whose bound is too low, so that all of them leave a gap."""
    found = balance(model, **options)
    return None if found is None else replace(found, bound_s=0.9 * found.bound_s)


def test_gaps_are_closed_once_every_balanced_split_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT finds nothing better than the balanced splits, which stay ranked once each; gaps above the last are left."""
    known, legal = searcher()
    known.run(*legal)
    expected = sorted((candidate.step_s, candidate.layout.layers) for candidate in known.close().ranked)
    limits: list[float] = []

    def counted(model: Any, **options: Any) -> Any:
        limits.append(options["limit_s"])
        return solve(model, **options)

    monkeypatch.setattr(open_splits, "balance", loosely)
    opened, legal = searcher(solver=counted)
    opened.run(*legal)
    assert not limits
    found = opened.close()
    assert found.solved == len(limits) > 0
    assert sorted((candidate.step_s, candidate.layout.layers) for candidate in found.ranked) == expected
    assert max(limits) <= expected[-1][0] * (1 + 1e-6)


def test_a_better_split_takes_the_place_of_the_balanced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here balancing says that a split which moves a layer from one inner stage to the other is the best."""
    plain = {**UNEVEN, "constraints": {"fixed": {"pp": 4, "tp": 2, "cp": 1, "vpp": 1, "recompute": "none"}}}
    known, legal = searcher(plain)
    known.run(*legal)
    best = min(known.close().ranked, key=lambda candidate: candidate.step_s)

    def worse(model: Any, **options: Any) -> Any:
        found = balance(model, **options)
        if found is None or model.layout(list(found.picked)) != best.layout:
            return found
        moved = [i + step for i, step in zip(found.picked, (0, -1, 1, 0), strict=True)]
        if min(moved) < 0 or any(i >= len(c.layers) for i, c in zip(moved, model.choices, strict=True)):
            return found
        return replace(found, picked=tuple(moved), step_s=model.step_s(moved))

    monkeypatch.setattr(open_splits, "balance", worse)
    opened, legal = searcher(plain)
    opened.run(*legal)
    before = [candidate.layout for candidate in opened.found.ranked]
    found = opened.close()
    assert best.layout not in before
    assert found.solved > 0
    again = min(found.ranked, key=lambda candidate: candidate.step_s)
    assert again.step_s == pytest.approx(best.step_s, rel=1e-9)
    assert len(found.ranked) == len(before)


def test_stopping_leaves_a_bound_at_once() -> None:
    opened, legal = searcher(should_stop=lambda: True)
    started = time.perf_counter()
    found = opened.run(*legal)
    assert found.stopped
    assert not found.ranked
    assert 0 < found.unproven_s < np.inf
    assert time.perf_counter() - started < 5


def test_the_bound_holds_for_every_listed_split() -> None:
    opened, (base, _) = searcher()
    rows = opened.space.expand(base.take(np.arange(min(len(base), 20)))).rows
    rows = rows.take(np.flatnonzero(rows.recompute < 2))
    bound_s = split_bound_s(opened.job, rows, split_numbers(opened.job, rows))
    assert (bound_s <= step_time(opened.job, rows).total_s * (1 + 1e-9)).all()


def test_whole_layers_bound_is_the_least_slowest_stage_or_below() -> None:
    """Against every time k * layer + end under which floor((t - end) / layer) layers fit on each stage."""
    draw = np.random.default_rng(0)
    exact = 0
    for _ in range(300):
        layers, pp = int(draw.integers(3, 60)), int(draw.integers(2, 20))
        first, last = draw.uniform(0, 3, 2)
        levels = sorted(k + end for k in range(layers + 1) for end in (0.0, first, last))
        ends = [first, last, *[0.0] * (pp - 2)]
        truth = next(
            t for t in levels
            if t >= max(first, last) - 1e-9 and sum(int(t - end + 1e-9) for end in ends) >= layers
        )  # fmt: skip
        bound = _whole_layers_s(*(np.array([x]) for x in (1.0, float(pp), first, last)), float(layers))[0]
        assert bound <= truth + 1e-9
        exact += bool(bound >= truth - 1e-9)
    assert exact >= 270
