"""What every searcher keeps to: it finds runnable strategies of the space that was asked for, at their true cost, and repeats itself.

A searcher that joins is one entry of `SEARCHERS`. The judge is `evaluate_rows`, which prices one strategy at a time and
knows no search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest

from builders import Document, dense_model, request_of, with_experts
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rows import evaluate_rows
from planner.schemas import PlanRequest
from planner.search.bayes import Knob, KnobStudy
from planner.search.objective import build_goal
from planner.search.pareto import front_documents, pareto_front
from planner.strategies.axes import build_space

PARTS = ("model", "cluster", "training")
ALLOWED: dict[str, list[Any]] = {"tp": [2, 4], "pp": [1, 2], "micro_batch_size": [1, 2], "recompute": ["none", "full"]}
FIXED = {"cp": 1, "vpp": 1, "zero": 1, "sequence_parallel": True}
SMALL = {
    **request_of({"preset": "llama-3.2-1b"}, seq_length=4096, global_batch_size=32),
    "constraints": {"allowed": ALLOWED, "fixed": FIXED},
    "top_k": 5,
}
UNEVEN = {
    **request_of(
        dense_model(7, hidden_size=4096, num_attention_heads=32, intermediate_size=14336, vocab_size=250_000),
        seq_length=4096,
    ),
    "constraints": {"fixed": {"pp": 2, "tp": 2, "cp": 1, "zero": 1}, "allowed": {"recompute": ["none", "full"]}},
    "top_k": 3,
    "include": ["open_splits"],
}
GAPS = {
    **request_of(
        with_experts(
            dense_model(26, hidden_size=2048, intermediate_size=10_944, vocab_size=102_400),
            num_experts=64,
            top_k=6,
            expert_intermediate_size=1408,
            num_shared_experts=2,
            first_dense_layers=3,
        ),
        num_nodes=2,
        seq_length=4096,
        global_batch_size=32,
    ),
    "constraints": {
        "fixed": {
            "pp": 4, "tp": 1, "cp": 1, "ep": 4, "vpp": 2, "zero": 1, "micro_batch_size": 1, "recompute": "none",
            "moe_dispatcher": "alltoall",
            "overlap": {"grad_reduce": True, "param_gather": True, "tp_comm": False, "p2p": True, "moe_all_to_all": False},
        }
    },
    "top_k": 2,
    "include": ["open_splits"],
}  # fmt: skip
"""Too many ways to put layers on virtual stages to be enumerated, and what CP-SAT then leaves open is more than nothing."""
POOLS = {
    **SMALL,
    "cluster": {
        "pools": [
            {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
            {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        ]
    },
}
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Found:
    """What a search came back with, in the order in which it was given."""

    strategies: list[Document]
    step_s: list[float]
    proven: bool
    """Whether it says that nothing in its space is faster than the first."""
    methods: tuple[str, ...]


def planned(request: Document, *, should_stop: Stop | None = None) -> Found:
    """The ranked plans of a whole search."""
    response = plan(request, should_stop=should_stop)
    plans, search = response["plans"], response["search"]
    return Found(
        [each["strategy"] for each in plans],
        [each["evaluation"]["step_time_s"] for each in plans],
        proven=search["proof"]["optimal"],
        methods=tuple(search["methods"]),
    )


def fronted(method: str) -> Callable[..., Found]:
    """The front, whose first point is the fastest."""

    def search(request: Document, *, should_stop: Stop | None = None) -> Found:
        asked, job = PlanRequest.model_validate(request), resolve_job({part: request[part] for part in PARTS})
        goal, space = build_goal(job, asked.objective, asked.targets), build_space(job, asked.constraints)
        front = pareto_front(
            space, goal=goal, headroom_fraction=0.03, seed=0, method=method, should_stop=should_stop
        )  # fmt: skip
        points = front_documents(front)
        strategies, step_s = [point["strategy"] for point in points], [point["step_time_s"] for point in points]
        return Found(strategies, step_s, proven=method == "exhaustive" and should_stop is None, methods=(front.method,))

    return search


def tuned(request: Document, *, should_stop: Stop | None = None) -> Found:
    """The best of twelve trials that Optuna's sampler asks for, each run on the model in place of a cluster."""
    allowed, fixed = request["constraints"]["allowed"], request["constraints"]["fixed"]
    study = KnobStudy.start({name: Knob(choices=tuple(values)) for name, values in allowed.items()}, name="c", seed=0)
    tried: dict[int, Document] = {}
    while len(tried) < 12 and not (should_stop and should_stop()):
        trial = study.ask()
        answer = judged(request, {**fixed, **trial.values})
        study.tell(trial.number, answer["step_time_s"] if answer["verdict"] == "fits" else None)
        tried[trial.number] = {**fixed, **trial.values}
    if study.best is None or study.best.step_s is None:
        return Found([], [], proven=False, methods=("bayes",))
    return Found([tried[study.best.number]], [study.best.step_s], proven=False, methods=("bayes",))


SEARCHERS: dict[str, tuple[Callable[..., Found], Document]] = {
    "exhaustive": (planned, SMALL),
    "thresholds": (planned, UNEVEN),
    "cp-sat": (planned, GAPS),
    "pools": (planned, POOLS),
    "front": (fronted("exhaustive"), SMALL),
    "nsga-ii": (fronted("nsga-ii"), SMALL),
    "bayes": (tuned, SMALL),
}
every_searcher = pytest.mark.parametrize("name", SEARCHERS)


@cache
def result(name: str) -> Found:
    search, request = SEARCHERS[name]
    return search(request)


def judged(request: Document, strategy: Document) -> Document:
    (answer,) = evaluate_rows([{**{part: request[part] for part in PARTS}, "strategy": strategy}])
    return answer


@every_searcher
def test_what_it_finds_runs_fits_and_costs_what_it_says(name: str) -> None:
    found = result(name)
    assert found.strategies
    for strategy, step_s in zip(found.strategies, found.step_s, strict=True):
        answer = judged(SEARCHERS[name][1], strategy)
        assert (answer["verdict"], answer["reasons"]) == ("fits", []), strategy
        assert answer["step_time_s"] == pytest.approx(step_s, rel=1e-9)


@every_searcher
def test_it_stays_inside_the_constraints(name: str) -> None:
    constraints = SEARCHERS[name][1]["constraints"]
    for strategy in result(name).strategies:
        assert {field: strategy[field] for field in constraints["fixed"]} == constraints["fixed"]
        for field, values in constraints.get("allowed", {}).items():
            assert strategy[field] in values


@every_searcher
def test_nothing_is_found_twice_and_the_fastest_comes_first(name: str) -> None:
    found = result(name)
    assert len({repr(sorted(strategy.items())) for strategy in found.strategies}) == len(found.strategies)
    # Times that differ in their last bit are ties to the ranking.
    assert min(found.step_s) == pytest.approx(found.step_s[0], rel=1e-12)


@every_searcher
def test_it_repeats_itself(name: str) -> None:
    search, request = SEARCHERS[name]
    assert search(request) == result(name)


@every_searcher
def test_stopped_at_once_it_ends_and_proves_nothing(name: str) -> None:
    search, request = SEARCHERS[name]
    found = search(request, should_stop=lambda: True)
    assert not found.proven
    assert len(found.strategies) <= len(result(name).strategies)


@pytest.mark.parametrize("name", ["exhaustive", "thresholds", "cp-sat", "pools"])
def test_a_larger_k_only_adds(name: str) -> None:
    search, request = SEARCHERS[name]
    first = search({**request, "top_k": 1})
    assert first.strategies == result(name).strategies[:1]
    assert first.proven == result(name).proven
    assert first.proven == (name != "cp-sat")


def test_each_name_stands_for_the_method_that_was_used() -> None:
    """Else a request that no longer needs a method would leave it without a test."""
    assert result("exhaustive").methods == ("exhaustive",)
    assert "thresholds" in result("thresholds").methods
    assert "cp-sat" in result("cp-sat").methods
    assert "thresholds" in result("pools").methods
    assert result("nsga-ii").methods == ("nsga-ii",)


def test_searchers_of_one_space_agree_on_its_fastest_strategy() -> None:
    """Brute force over the listed values, priced one at a time; a sampler may come close, and never goes below."""
    overlaps = [{"overlap": {"tp_comm": overlap}} for overlap in (False, True)]  # searched, though not listed
    tried = (dict(zip(ALLOWED, values, strict=True)) for values in product(*ALLOWED.values()))
    answers = [judged(SMALL, {**FIXED, **values, **overlap}) for values, overlap in product(tried, overlaps)]
    best_s = min(answer["step_time_s"] for answer in answers if answer["verdict"] == "fits")
    assert result("exhaustive").step_s[0] == pytest.approx(best_s, rel=1e-9)
    assert result("front").step_s[0] == pytest.approx(best_s, rel=1e-9)
    for sampler in ("nsga-ii", "bayes"):
        assert 1.0 - 1e-9 <= result(sampler).step_s[0] / best_s <= 1.1
