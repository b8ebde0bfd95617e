"""Open splits inside a whole plan: proof, failure of the solver, cancelling, what cannot be launched."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from cost_models.evaluate import Verdict, evaluate
from cost_models.step.total import step_time
from planner.plan import plan
from planner.request.job import resolve_job
from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.objective import build_goal
from planner.splits.bounds import split_bound_s, whole_layers_s
from planner.splits.cp_sat import SolverError
from planner.splits.found import OpenSplitsFound
from planner.splits.model import split_numbers
from planner.splits.search import OpenSplits
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
    exhaustive = Exhaustive(space, goal=goal, top_k=3, headroom_fraction=0.03, allow_at_risk=False, opened=space)
    exhaustive.run()
    options = {"known": exhaustive.kept.safe_values, "should_stop": lambda: False} | changed
    return OpenSplits(space, goal=goal, top_k=3, headroom_fraction=0.03, **options), exhaustive.legal[0]


KNOBS = {"moe_dispatcher": "alltoall", "overlap": {"tp_comm": False, "moe_all_to_all": False}}


def three_dense_layers(num_layers: int, *, reserved_gib: int = 0, **fixed: Any) -> dict[str, Any]:
    """A request whose layers are of two kinds, so that balancing leaves gaps below many of its splits; nothing overlaps."""
    moe = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 4096, "first_dense_layers": 3}
    model = UNEVEN["model"] | {"num_layers": num_layers, "vocab_size": 32000, "moe": moe}
    return UNEVEN | {
        "model": model,
        "cluster": UNEVEN["cluster"] | {"reserved_memory_gib": reserved_gib},
        "constraints": {"fixed": {"pp": 4, "tp": 2, "cp": 1, "zero": 1, "vpp": 2, **KNOBS, **fixed}},
    }


GAPS = three_dense_layers(9, recompute="none")


def steps(found: OpenSplitsFound) -> list[tuple[float, tuple[int, ...]]]:
    """Step time and layers of every ranked split, best first."""
    return sorted((candidate.step_s, candidate.layout.layers) for candidate in found.ranked)


def test_a_failing_solver_leaves_the_known_splits_and_says_so() -> None:
    """The bound of the best family, which balancing gave, stands for all of them."""

    def fails(*_args: Any, **_keywords: Any) -> Any:
        raise SolverError("no solver here")

    fixed = {"pp": 8, "tp": 2, "cp": 1, "zero": 1, "vpp": 2, "recompute": "none", "micro_batch_size": 1}
    many_ways = {
        "model": UNEVEN["model"] | {"num_layers": 36, "vocab_size": 200_000},
        "training": UNEVEN["training"] | {"global_batch_size": 128},
        "constraints": {"fixed": fixed},
    }
    opened, legal = searcher(UNEVEN | many_ways, program=fails)
    (balanced_s, _), *_ = steps(opened.run(*legal))
    found = opened.close()
    (known_s, _), *_ = steps(found)
    assert known_s <= balanced_s
    assert found.failures == ["no solver here"]
    assert found.solved == 0
    assert found.left.step_s < known_s


def test_gaps_are_closed_once_every_balanced_split_is_known() -> None:
    """Balancing knows nothing of unequal virtual stages' events, so better chunks are found; every family stays ranked once."""
    opened, legal = searcher(GAPS)
    balanced = steps(opened.run(*legal))
    found = opened.close()
    assert steps(found)[0][0] < balanced[0][0] * (1 - 1e-4)
    assert len({step_s for step_s, _ in steps(found)}) == len(found.ranked)
    assert not np.isfinite(found.left.step_s)


def test_a_better_split_takes_the_place_of_the_balanced_one() -> None:
    """Memory leaves few splits of the one family here; CP-SAT finds a faster one among them than balancing does."""
    opened, legal = searcher(three_dense_layers(13, reserved_gib=60, recompute="full", micro_batch_size=1, ep=2))
    (balanced_s, balanced_layers), *_ = steps(opened.run(*legal))
    (better_s, better_layers), *_ = steps(opened.close())
    assert better_layers != balanced_layers
    assert better_s < 0.998 * balanced_s
    best = min(opened.found.ranked, key=lambda candidate: candidate.step_s)
    priced = evaluate(opened.job, best.row, headroom_fraction=0.03)
    assert priced.step_time_s[0] == pytest.approx(better_s)
    assert Verdict(priced.verdict[0]) is Verdict.FITS


def test_stopping_leaves_a_bound_at_once() -> None:
    opened, legal = searcher(should_stop=lambda: True)
    started = time.perf_counter()
    found = opened.run(*legal)
    assert found.stopped
    assert not found.ranked
    assert 0 < found.left.step_s < np.inf
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
        bound = whole_layers_s(*(np.array([x]) for x in (1.0, float(pp), first, last)), float(layers))[0]
        assert bound <= truth + 1e-9
        exact += bool(bound >= truth - 1e-9)
    assert exact >= 270
