"""Whole plans on pools: placement, proof, constraints, what frameworks cannot be told, what is refused."""

from __future__ import annotations

import time
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest

from builders import llama_model, training_of
from cost_models.errors import InvalidInputError, NotModelledError
from planner.plan import plan
from planner.pools.bounds import row_numbers
from planner.pools.placements import NodeLimits, node_limits, possible_worlds
from planner.request.job import resolve_pooled_job
from planner.rows import evaluate_rows
from planner.schemas import PlanResponse
from planner.schemas.plan_request import Constraints
from planner.schemas.strategy import StrategyInput
from planner.splits.builder import with_choices
from planner.splits.cp_sat import Solved, SolverError, solve
from planner.splits.gaps import Closed, close_gap
from planner.splits.several_pools import PooledSplit
from planner.splits.thresholds import balance
from planner.strategies.parse import resolve_strategies

POOLS = [
    {"name": "old", "preset": "dgx-a100-80gb", "num_nodes": 2},
    {"name": "new", "preset": "dgx-h100", "num_nodes": 2},
]
REQUEST: dict[str, Any] = {
    "model": llama_model(16),
    "cluster": {"pools": POOLS},
    "training": training_of(seq_length=4096),
    "constraints": {"allowed": {"vpp": [1], "cp": [1], "tp": [1, 2, 4]}},
    "top_k": 3,
}


def planned(**changed: Any) -> dict[str, Any]:
    return plan(REQUEST | changed)


def constrained(**constraints: Any) -> dict[str, Any]:
    return planned(constraints=REQUEST["constraints"] | constraints)


def best(response: dict[str, Any]) -> dict[str, Any]:
    return response["plans"][0]["strategy"]


def test_the_faster_pool_gets_more_layers() -> None:
    found = planned()
    PlanResponse.model_validate(found)
    strategy = best(found)
    layers = dict.fromkeys(("old", "new"), 0)
    for pool, count in zip(strategy["pool_per_stage"], strategy["layers_per_stage"], strict=True):
        layers[pool] = max(layers[pool], count)
    assert sum(strategy["layers_per_stage"]) == 16
    assert layers["new"] > 1.5 * layers["old"] > 0
    assert found["search"]["proof"] == {"optimal": True, "gap": 0.0, "lower_bound_s": pytest.approx(
        found["plans"][0]["evaluation"]["step_time_s"])}  # fmt: skip
    assert "pools-in-order" in found["warnings"]


def test_no_split_that_is_given_is_better() -> None:
    step_s = planned()["plans"][0]["evaluation"]["step_time_s"]
    for split in ([8, 8], [4, 12], [6, 10]):
        given = constrained(fixed={"layers_per_stage": split})["plans"][0]["evaluation"]["step_time_s"]
        assert given >= step_s * (1 - 1e-6)


def test_every_plan_is_the_best_split_of_its_own_family() -> None:
    """No two plans differ in their layers alone, also where strategies are tried before the search."""
    found = planned(constraints={"allowed": {"vpp": [1]}}, top_k=20)
    families = [{**each["strategy"], "layers_per_stage": None} for each in found["plans"]]
    assert len(families) == 20
    assert all(family not in families[:position] for position, family in enumerate(families))
    for each in found["plans"][::5]:
        fixed = {name: value for name, value in each["strategy"].items() if name in ("tp", "pp", "dp", "cp", "zero")}
        fixed |= {name: each["strategy"][name] for name in ("micro_batch_size", "zero_shard_size", "pool_per_stage")}
        one = planned(constraints={"fixed": fixed, "allowed": {"vpp": [1]}}, top_k=1)
        assert one["plans"][0]["evaluation"]["step_time_s"] <= each["evaluation"]["step_time_s"] * (1 + 1e-9)


def test_stages_say_their_pool_and_its_capacity() -> None:
    evaluation = planned()["plans"][0]["evaluation"]
    capacity = {stage["pool"]: stage["capacity_bytes"] for stage in evaluation["memory"]["stages"]}
    assert capacity.keys() == {"old", "new"}
    assert all(stage["peak_device_bytes"] < capacity[stage["pool"]] for stage in evaluation["memory"]["stages"])
    assert evaluation["memory"]["capacity_bytes"] in capacity.values()
    assert evaluation["provenance"]["calibration"] == "A100-SXM-80GB reference + H100-SXM-80GB reference"


def test_mfu_is_over_the_peaks_of_all_gpus() -> None:
    """All GPUs are used: 16 of 312 and 16 of 989 dense bf16 TFLOP/s."""
    evaluation = constrained(allow_idle_gpus=False)["plans"][0]["evaluation"]
    flops = evaluation["model_tflops_per_gpu"] * 32
    assert evaluation["mfu"] == pytest.approx(flops / (16 * 312 + 16 * 989.5), rel=2e-3)


@pytest.mark.parametrize("preset", ["dgx-h100", "dgx-a100-80gb"])
def test_one_kind_of_node_cut_in_two_has_the_same_best_plan(preset: str) -> None:
    """Four stages of one node each: the same degrees, split and time whether the nodes are one cluster or two pools."""
    fixed = {"pp": 4, "tp": 4, "dp": 2}
    half = {"preset": preset, "num_nodes": 2}
    allowed = {"vpp": [1], "cp": [1]}
    whole = planned(
        cluster={"preset": preset, "num_nodes": 4},
        include=["open_splits"],
        constraints={"fixed": fixed, "allowed": allowed},
    )
    halves = planned(
        cluster={"pools": [{"name": "a", **half}, {"name": "b", **half}]},
        constraints={"fixed": fixed | {"pool_per_stage": ["a", "a", "b", "b"]}, "allowed": allowed},
    )
    for one, two in zip(whole["plans"], halves["plans"], strict=True):
        assert two["evaluation"]["step_time_s"] == pytest.approx(one["evaluation"]["step_time_s"], rel=1e-9)
    assert best(halves) == best(whole) | {"pool_per_stage": ["a", "a", "b", "b"]}


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_a_single_pool_is_the_cluster_of_one_kind(framework: str) -> None:
    """The whole space, virtual stages and recomputed blocks included: the open splits of one kind of node find the same."""
    nodes = {"preset": "dgx-a100-80gb", "num_nodes": 2, "reserved_memory_gib": 40}
    asked = {"training": REQUEST["training"] | {"framework": framework}, "constraints": {}, "top_k": 1}
    whole = planned(**asked, cluster=nodes, include=["open_splits"])
    single = planned(**asked, cluster={"pools": [{"name": "a", **nodes}]})
    strategy = dict(best(single))
    assert set(strategy.pop("pool_per_stage")) == {"a"}
    assert strategy == best(whole)
    assert single["plans"][0]["evaluation"]["step_time_s"] == pytest.approx(
        whole["plans"][0]["evaluation"]["step_time_s"], rel=1e-9
    )


def test_the_pool_of_every_stage_can_be_fixed() -> None:
    found = constrained(fixed={"pool_per_stage": ["new", "new", "old", "old"]})
    assert best(found)["pool_per_stage"] == ["new", "new", "old", "old"]
    assert {entry["strategy"]["pp"] for entry in found["plans"]} == {4}
    free = planned()["plans"][0]["evaluation"]["step_time_s"]
    assert found["plans"][0]["evaluation"]["step_time_s"] >= free


def test_idle_pools_are_allowed_and_forbidden() -> None:
    few = constrained(num_nodes={"max": 2})
    assert best(few)["pool_per_stage"] == ["new"] * best(few)["pp"]
    assert few["plans"][0]["evaluation"]["num_gpus_used"] == 16
    all_nodes = constrained(allow_idle_gpus=False)
    assert {entry["evaluation"]["num_gpus_used"] for entry in all_nodes["plans"]} == {32}


def test_worlds_are_whole_nodes_of_any_pools() -> None:
    pools = [
        {"name": "x", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 4},
        {"name": "y", "gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
    ]
    pooled = resolve_pooled_job(REQUEST | {"cluster": {"pools": pools}})
    limits = node_limits(pooled, Constraints())
    assert possible_worlds(pooled, limits).tolist() == [4, 8, 12, 16, 20]
    two = node_limits(pooled, Constraints.model_validate({"num_nodes": {"min": 2, "max": 2}}))
    assert possible_worlds(pooled, two).tolist() == [12, 16]


def test_worlds_are_what_brute_force_counts() -> None:
    """5 nodes of 3, 2 of 4 and 6 of 8: every (i, j, k) tried."""
    sizes = {"x": (5, 3), "y": (2, 4), "z": (6, 8)}
    pools = [
        {"name": name, "gpu": "H100-SXM-80GB", "num_nodes": nodes, "gpus_per_node": gpus}
        for name, (nodes, gpus) in sizes.items()
    ]
    pooled = resolve_pooled_job(REQUEST | {"cluster": {"pools": pools}})
    ranges = [range(nodes + 1) for nodes, _ in sizes.values()]
    tried = [(sum(n), sum(k * gpus for k, (_, gpus) in zip(n, sizes.values(), strict=True))) for n in product(*ranges)]
    for least, most in ((1, 13), (2, 4), (7, 7), (13, 13)):
        limits = NodeLimits(least, most)
        fewest = {gpus: min(n for n, other in tried if other == gpus) for _, gpus in tried}
        largest = {gpus: max(n for n, other in tried if other == gpus) for _, gpus in tried}
        expected = sorted(g for g in fewest if fewest[g] <= most and largest[g] >= least)
        assert possible_worlds(pooled, limits).tolist() == expected


def test_pools_of_very_many_nodes_take_little_memory() -> None:
    """Two pools of 32,768 nodes: all multiples of 8 GPUs up to 524,288, without trying every pair of counts (16 GiB)."""
    pools = [{**pool, "num_nodes": 32_768} for pool in POOLS]
    pooled = resolve_pooled_job(REQUEST | {"cluster": {"pools": pools}})
    tracemalloc.start()
    found = possible_worlds(pooled, node_limits(pooled, Constraints()))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.tolist() == list(range(8, 524_288 + 1, 8))
    assert peak_bytes < 100e6


def test_a_response_asked_again_is_the_same() -> None:
    first = planned()
    second = plan(first["request"])
    assert second["request_digest"] == first["request_digest"]
    assert second["request"] == first["request"]
    assert [each["strategy"] for each in second["plans"]] == [each["strategy"] for each in first["plans"]]


def test_every_plan_is_priced_alike_as_a_row() -> None:
    plans = planned()["plans"]
    rows = [
        {**{part: REQUEST[part] for part in ("model", "cluster", "training")}, "strategy": each["strategy"]}
        for each in plans
    ]
    for each, answer in zip(plans, evaluate_rows(rows), strict=True):
        assert answer["step_time_s"] == pytest.approx(each["evaluation"]["step_time_s"], rel=1e-12)
        assert answer["memory"]["stages"] == each["evaluation"]["memory"]["stages"]


def test_what_a_framework_cannot_be_told_is_kept_apart() -> None:
    found = planned(training=REQUEST["training"] | {"framework": "megatron-deepspeed"})
    other = found["inexpressible_best"]
    assert all(len(set(entry["strategy"]["layers_per_stage"])) == 1 for entry in found["plans"])
    assert other["reasons"][0]["code"] == "split-unsupported"
    launched = found["plans"][0]["evaluation"]["step_time_s"]
    assert other["gain_fraction"] == pytest.approx(1 - other["step_time_s"] / launched)
    assert other["gain_fraction"] > 0


def test_torchtitan_takes_uneven_stages() -> None:
    found = planned(training=REQUEST["training"] | {"framework": "torchtitan"})
    assert found["inexpressible_best"] is None
    assert set(best(found)["pool_per_stage"]) == {"old", "new"}


def test_cost_weighs_the_price_of_each_pool() -> None:
    """Where the new pool costs a hundred times the old one, the cheapest plan leaves it idle; without prices it does not."""
    priced = [{**POOLS[0], "price_per_gpu_hour": 1}, {**POOLS[1], "price_per_gpu_hour": 100}]
    cheap = planned(objective="cost", cluster={"pools": priced})
    assert set(best(cheap)["pool_per_stage"]) == {"old"}
    assert "pools-cost-alike" not in cheap["warnings"]
    alike = planned(objective="cost")
    assert set(best(alike)["pool_per_stage"]) == {"new"}
    assert "pools-cost-alike" in alike["warnings"]


def test_nothing_fits_names_the_pool_and_what_is_missing() -> None:
    tight = [{**pool, "reserved_memory_gib": 70} for pool in POOLS]
    found = planned(cluster={"pools": tight}, model={"preset": "llama-3.1-70b"})
    assert found["plans"] == []
    assert found["rejected"]["out-of-memory"] > 0
    nearest = found["nearest_infeasible"][0]
    assert any("pool 'old'" in reason["message"] or "pool 'new'" in reason["message"] for reason in nearest["reasons"])
    PlanResponse.model_validate(found)


def test_stages_wider_than_any_pool_are_refused_with_the_reason() -> None:
    found = constrained(fixed={"dp": 32})
    assert found["plans"] == []
    assert found["rejected"] == {"unequal-data-parallel-shares": found["rejected"]["unequal-data-parallel-shares"]}
    assert "unequal shares of the batch" in found["nearest_infeasible"][0]["reasons"][0]["message"]


@pytest.mark.parametrize(
    ("fixed", "code", "says"),
    [
        ({"pp": 33}, "world-exceeds-gpus", "tp 1 x pp 33 x cp 1 needs 33 GPUs, but the cluster has only 32"),
        ({"pp": 17}, "gpus-not-divisible", "with pp 17 makes stages"),  # layers need not divide: it is the nodes
        ({"pool_per_stage": ["old"] * 3}, "gpus-not-divisible", "with 3 on old that fill 1 to 4 whole nodes"),
        ({"dp": 3}, "batch-not-divisible", "global_batch_size 64 is not a multiple of dp 3"),
        ({"micro_batch_size": 100}, "batch-not-divisible", "dp 1 x micro_batch_size 100"),
        ({"tp": 4, "dp": 16}, "world-exceeds-gpus", "needs 64 GPUs, but the cluster has only 32"),
    ],
)
def test_degrees_that_leave_nothing_are_named(fixed: dict[str, Any], code: str, says: str) -> None:
    found = planned(constraints={"fixed": fixed})
    (nearest,) = found["nearest_infeasible"]
    assert (found["plans"], found["rejected"]) == ([], {code: 1})
    assert nearest["reasons"][0]["code"] == code
    assert says in nearest["reasons"][0]["message"]
    assert {name: nearest["strategy"][name] for name in fixed if name != "pool_per_stage"} == {
        name: value for name, value in fixed.items() if name != "pool_per_stage"
    }
    PlanResponse.model_validate(found)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"constraints": {"fixed": {"ep": 2}}}, "experts-missing"),
        ({"constraints": {"fixed": {"tp": 3}}}, "heads-not-divisible"),
        ({"targets": {"min_tokens_per_s": 1e15}}, "misses-target"),
    ],
)
def test_what_rules_or_targets_ruled_out_is_counted_and_told_of_the_nearest(changed: dict[str, Any], code: str) -> None:
    found = planned(**changed)
    assert found["plans"] == []
    assert found["rejected"][code] > 0
    assert code in {reason["code"] for reason in found["nearest_infeasible"][0]["reasons"]}


def test_a_search_that_was_stopped_at_once_blames_nothing() -> None:
    found = planned(time_limit_s=1e-6)
    assert (found["plans"], found["nearest_infeasible"]) == ([], [])
    assert found["search"]["proof"]["optimal"] is False
    assert any("time_limit_s 1e-06" in warning for warning in found["warnings"])


def test_a_family_is_ranked_once_however_many_plans_are_asked() -> None:
    """Of plans that differ in their split alone the best stands; a longer list begins with the shorter one."""
    constraints = {"fixed": {"tp": 8}, "allowed": {"vpp": [1, 2], "cp": [1]}}
    many, few = planned(constraints=constraints, top_k=40), planned(constraints=constraints, top_k=5)
    families = [{**each["strategy"], "layers_per_stage": None} for each in many["plans"]]
    assert len(families) == len({str(family) for family in families}) > 5
    times = [each["evaluation"]["step_time_s"] for each in many["plans"]]
    assert times == sorted(times)
    assert [each["strategy"] for each in few["plans"]] == [each["strategy"] for each in many["plans"][:5]]


@pytest.mark.parametrize(
    ("changed", "pointer", "code"),
    [
        (
            {"fixed": {"pool_per_stage": ["old", "new"]}, "allowed": {"pp": [1, 4]}},
            "/constraints/fixed/pool_per_stage",
            "pool-per-stage-mismatch",
        ),
        ({"fixed": {"schedule": "zb-h1"}}, "/constraints/fixed/schedule", "pools-not-supported"),
        ({"allowed": {"schedule": ["1f1b", "zb-v"]}}, "/constraints/allowed/schedule", "pools-not-supported"),
        ({"fixed": {"pool_per_stage": ["old", "neu"]}}, "/constraints/fixed/pool_per_stage", "pool-unknown"),
        ({"fixed": {"pool_per_stage": ["old", "new"], "pp": 3}}, "/constraints/fixed/pool_per_stage", "pool-per-stage-mismatch"),
        ({"fixed": {"pool_per_stage": ["old", "new", "old"]}}, "/constraints/fixed/pool_per_stage", "pool-per-stage-mismatch"),
        (
            {"fixed": {"pool_per_stage": ["old", "new"], "layers_per_stage": [5, 5, 6]}},
            "/constraints/fixed/layers_per_stage", "layers-per-stage-mismatch",
        ),
        ({"num_nodes": {"min": 5}}, "/constraints/num_nodes/min", "invalid-field"),
    ],
)  # fmt: skip
def test_contradictions_are_named_before_searching(changed: dict[str, Any], pointer: str, code: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        constrained(**changed)
    assert (pointer, code) in [(problem.pointer, problem.code) for problem in raised.value.problems]


@pytest.mark.parametrize(
    "changed",
    [{"include": ["pareto"]}, {"include": ["what_if"]}, {"constraints": {"fixed": {"recompute_per_stage": [1, 1]}}}],
)
def test_what_is_not_modelled_on_pools_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(NotModelledError) as raised:
        planned(**changed)
    assert {problem.code for problem in raised.value.problems} == {"pools-not-supported"}


DENSE_THEN_MOE = llama_model(16) | {
    "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 4096, "first_dense_layers": 2}
}


def test_virtual_stages_of_several_kinds_of_layer_are_left_out_and_said() -> None:
    # With 8,192 tokens the device decides, not the host, so that the slower pool's nodes are worth their stage.
    found = planned(
        model=DENSE_THEN_MOE, training=training_of(seq_length=8192), constraints={"allowed": {"cp": [1], "tp": [2, 4]}}
    )
    assert found["search"]["space"]["vpp"] == [1]
    assert "pools-no-interleaving" in found["warnings"]
    assert found["search"]["proof"]["optimal"]
    assert set(best(found)["pool_per_stage"]) == {"old", "new"}
    with pytest.raises(NotModelledError) as raised:
        planned(model=DENSE_THEN_MOE, constraints={"fixed": {"vpp": 2}})
    assert raised.value.problems[0].pointer == "/constraints/fixed/vpp"


def test_pools_of_a_cluster_of_one_kind_are_refused() -> None:
    with pytest.raises(InvalidInputError) as raised:
        planned(cluster={"preset": "dgx-h100", "num_nodes": 2}, constraints={"fixed": {"pool_per_stage": ["a"]}})
    assert raised.value.problems[0].pointer == "/constraints/fixed/pool_per_stage"


def test_a_search_can_be_stopped() -> None:
    started = time.perf_counter()
    found = plan(REQUEST | {"constraints": {}, "model": {"preset": "llama-3.1-8b"}}, should_stop=lambda: True)
    assert found["status"] == "cancelled"
    assert not found["search"]["proof"]["optimal"]
    assert time.perf_counter() - started < 20


def test_a_failing_solver_leaves_the_split_unproven() -> None:
    """What thresholds leave open stands with its bound when CP-SAT cannot be used."""

    def fails(*_arguments: Any, **_keywords: Any) -> Any:
        raise SolverError("no solver here")

    pooled = resolve_pooled_job(REQUEST)
    given = {"tp": 4, "pp": 2, "dp": 4, "micro_batch_size": 1, "layers_per_stage": [8, 8]}
    resolved = resolve_strategies(pooled.whole[0], [StrategyInput.model_validate(given)])
    assert resolved.strategies is not None
    bare = PooledSplit(
        jobs=pooled.jobs, row=resolved.strategies, pools=(0, 1), numbers=row_numbers(pooled, resolved.strategies),
        choices=(), pooled=pooled, sends_s=0.0, once_least_s=0.0,
    )  # fmt: skip
    model = with_choices(bare, slowest_s=np.inf, headroom_fraction=0.03)
    assert model is not None
    found = balance(model)
    assert found is not None
    gap = {"bound_s": 0.99 * found.step_s, "target_s": 2.0 * found.step_s, "should_stop": lambda: False}
    assert close_gap(model, solver=fails, **gap) == Closed(unproven_s=0.99 * found.step_s, failure="no solver here")
    closed = close_gap(model, solver=solve, **gap)
    assert (closed.picked, closed.unproven_s, closed.solved) == (found.picked, np.inf, True)
    # Where the best split is proved, its bound is its own time, but for the solver's whole steps.
    best = solve(model, hint=None)
    assert (best.picked, best.proven) == (found.picked, True)
    assert best.bound_s == pytest.approx(found.step_s, rel=1e-3)


ROW = {part: REQUEST[part] for part in ("model", "cluster", "training")}


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        ({"tp": 8, "pp": 2, "dp": 2, "pool_per_stage": ["old", "neu"]}, "pool-unknown"),
        ({"tp": 8, "pp": 2, "dp": 2, "pool_per_stage": ["old"]}, "pool-per-stage-mismatch"),
        ({"tp": 8, "pp": 3, "dp": 1, "pool_per_stage": ["old", "new", "old"]}, "pool-per-stage-mismatch"),
        ({"tp": 8, "pp": 4, "dp": 2, "pool_per_stage": ["old", "old", "old", "new"]}, "pool-exceeded"),
        ({"tp": 8, "pp": 8, "dp": 2}, "pool-exceeded"),
        ({"tp": 8, "pp": 1, "dp": 4}, "unequal-data-parallel-shares"),
        ({"tp": 8, "pp": 2}, "missing-field"),
        ({"tp": 3, "pp": 2, "dp": 2, "pool_per_stage": ["old", "new"]}, "heads-not-divisible"),
    ],
)
def test_rows_that_no_pools_can_run(strategy: dict[str, Any], code: str) -> None:
    (answer,) = evaluate_rows([ROW | {"strategy": strategy | {"micro_batch_size": 1}}])
    assert answer["verdict"] == "invalid"
    assert code in [reason["code"] for reason in answer["reasons"]]


def test_rows_fill_what_they_leave_open() -> None:
    """dp from the pools' room, and pools in the order of the cluster where dp is given."""
    named = {"tp": 4, "pp": 2, "micro_batch_size": 1, "pool_per_stage": ["old", "new"]}
    placed = {"tp": 4, "pp": 2, "dp": 4, "micro_batch_size": 1}
    first, second = evaluate_rows([ROW | {"strategy": named}, ROW | {"strategy": placed}])
    assert first["assumed"]["dp"] == 4  # 16 GPUs a pool, one stage of tp 4 on each
    assert second["assumed"]["pool_per_stage"] == ("old", "new")
    assert first["step_time_s"] == second["step_time_s"]


@pytest.mark.parametrize(("solver_s", "left_s"), [(0.7, 0.9), (1.1, 1.1)])
def test_of_two_bounds_the_higher_one_stands(solver_s: float, left_s: float) -> None:
    """The solver ends early with a bound of its own, below or above the 0.9 s that were known."""

    def ends(*_arguments: Any, **_keywords: Any) -> Solved:
        return Solved(None, solver_s, proven=False)

    pooled = resolve_pooled_job(REQUEST)
    given = {"tp": 4, "pp": 2, "dp": 4, "micro_batch_size": 1, "layers_per_stage": [8, 8]}
    resolved = resolve_strategies(pooled.whole[0], [StrategyInput.model_validate(given)])
    assert resolved.strategies is not None
    model = PooledSplit(
        jobs=pooled.jobs, row=resolved.strategies, pools=(0, 1), numbers=row_numbers(pooled, resolved.strategies),
        choices=(), pooled=pooled, sends_s=0.0, once_least_s=0.0,
    )  # fmt: skip
    closed = close_gap(model, bound_s=0.9, target_s=2.0, solver=ends, should_stop=lambda: False)
    assert closed == Closed(unproven_s=left_s, solved=True)
