"""Stages on two pools against brute force: the best split of one strategy, and the best plan of whole small problems.

Every split, placement and strategy is priced by the cost models themselves; the searches must find the same best.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from cost_models.evaluate import Verdict
from cost_models.job import PooledJob
from cost_models.pools.evaluate import pooled_memory
from cost_models.pools.time import pooled_step_time
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Strategies
from planner.plan import plan
from planner.pools.bounds import row_bound, row_numbers, row_work
from planner.pools.families import stage_questions
from planner.pools.placements import Sites
from planner.request.job import resolve_pooled_job
from planner.schemas.strategy import StrategyInput
from planner.splits.builder import with_choices
from planner.splits.cp_sat import solve
from planner.splits.enumeration import best_way
from planner.splits.memory_screen import most_layers
from planner.splits.several_pools import PooledSplit
from planner.splits.thresholds import balance
from planner.splits.virtual_stages import is_played
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools
from planner.strategies.parse import resolve_strategies
from tests.oracle.open_splits_brute import compositions

HEADROOM = 0.03
GPUS = ("A100-SXM-80GB", "H100-SXM-80GB", "A100-SXM-40GB", "H200-SXM-141GB")
MOE = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 4096}


def two_pools(draw: np.random.Generator, *, nodes: tuple[int, int]) -> dict[str, Any]:
    """Two kinds of node of eight GPUs, one of which may have little memory to spare."""
    kinds = draw.choice(GPUS, 2, replace=False)
    spare = draw.choice([0.0, 0.0, 10.0, 25.0, 60.0], 2)
    return {
        "pools": [
            {
                "name": name, "gpu": str(gpu), "num_nodes": count, "gpus_per_node": 8,
                "reserved_memory_gib": float(min(reserved, 25.0 if "40GB" in gpu else 60.0)),
            }
            for name, gpu, count, reserved in zip(("a", "b"), kinds, nodes, spare, strict=True)
        ]
    }  # fmt: skip


def random_problem(seed: int) -> tuple[PooledJob, Strategies, tuple[int, ...]]:
    """A small job on pools, one strategy of it whose split is open, and the pool of every stage."""
    draw = np.random.default_rng(seed)
    first, last = int(draw.integers(1, 3)), int(draw.integers(1, 3))
    pp = first + last
    layers = int(draw.integers(max(pp, 3), 11))
    vpp = int(draw.choice([1, 1, 1, 2])) if layers >= 2 * pp else 1
    model: dict[str, Any] = {
        "num_layers": layers, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336,
        "vocab_size": int(draw.choice([32000, 128256, 250000])), "tie_word_embeddings": bool(draw.random() < 0.3),
    }  # fmt: skip
    if draw.random() < 0.3:
        model["moe"] = MOE | {"first_dense_layers": int(draw.integers(0, 3)) if vpp == 1 else 0}
    document = {
        "model": model,
        "cluster": two_pools(draw, nodes=(2, 2)),
        "training": {
            "seq_length": 4096, "global_batch_size": int(draw.choice([16, 96])), "precision": "bf16", "framework": "megatron"
        },
    }  # fmt: skip
    pooled = resolve_pooled_job(document)
    base, extra = divmod(layers, pp * vpp)
    strategy = {
        "tp": int(draw.choice([1, 2])), "pp": pp, "dp": 4, "vpp": vpp, "zero": int(draw.choice([0, 1, 2, 3])),
        "micro_batch_size": int(draw.choice([1, 2])), "recompute": str(draw.choice(["none", "selective", "full", "full"])),
        "layers_per_stage": [base + (stage < extra) for stage in range(pp * vpp)],
    }  # fmt: skip
    if strategy["recompute"] == "full" and strategy["zero"] < 3 and draw.random() < 0.5:
        strategy["recompute_num_layers"] = int(draw.integers(1, 4))
    resolved = resolve_strategies(pooled.whole[0], [StrategyInput.model_validate(strategy)])
    assert resolved.strategies is not None, resolved.problems
    order = draw.permutation(2).tolist()
    return pooled, resolved.strategies, (order[0],) * first + (order[1],) * last


def every_split(pooled: PooledJob, row: Strategies, pools: tuple[int, ...]) -> list[Layout]:
    """Every layout that the model may choose, by the layers of each virtual stage."""
    pp, vpp, layers = int(row.pp[0]), int(row.vpp[0]), pooled.jobs[0].model.num_layers
    names = tuple(pooled.names[pool] for pool in pools)
    every = compositions(layers, pp * vpp, least=(0,) * (pp * vpp))
    return [Layout(pp, vpp, split, pool_per_stage=names) for split in every]


def priced(pooled: PooledJob, row: Strategies, table: list[Layout]) -> tuple[np.ndarray, np.ndarray]:
    """Step time of one strategy under each layout, and where it fits."""
    layouts = build_layouts(table, model=pooled.jobs[0].model, all_stages=True)
    rows = replace(row.take(np.zeros(len(table), np.int64)), layout=np.arange(len(table)), layouts=layouts)
    verdict = pooled_memory(pooled, rows, headroom_fraction=HEADROOM).verdict
    return pooled_step_time(pooled, rows).total_s, verdict == Verdict.FITS


def brute_force(
    pooled: PooledJob, row: Strategies, pools: tuple[int, ...]
) -> tuple[float, set[tuple[int, ...]]] | None:
    """The least step time of all splits that fit, and the stage totals that reach it."""
    table = every_split(pooled, row, pools)
    step_s, fits = priced(pooled, row, table)
    if not fits.any():
        return None
    best_s = step_s[fits].min()
    equal = np.flatnonzero(fits & (step_s <= best_s * (1 + 1e-9)))
    return float(best_s), {totals_of(table[index]) for index in equal}


def totals_of(layout: Layout) -> tuple[int, ...]:
    return tuple(layout.layers_on_stage(stage) for stage in range(layout.pp))


def sites_of(pools: tuple[int, ...]) -> Sites:
    """The placement of these stages on two pools."""
    order = list(dict.fromkeys(pools))
    return Sites(
        np.zeros(1, np.int64), np.array([[pools.count(0)], [pools.count(1)]]), np.array([[order[0]], [1 - order[0]]])
    )


def model_of(pooled: PooledJob, row: Strategies, pools: tuple[int, ...]) -> PooledSplit | None:
    numbers = row_numbers(pooled, row)
    bound = row_bound(pooled, numbers, row, sites_of(pools))
    bare = PooledSplit(
        jobs=pooled.jobs, row=row, pools=pools, numbers=numbers, choices=(), pooled=pooled,
        sends_s=float(bound.sends_s[0]), once_least_s=float(bound.once_s[0]),
    )  # fmt: skip
    return with_choices(bare, slowest_s=np.inf, headroom_fraction=HEADROOM)


def check_thresholds(seeds: range) -> tuple[int, int]:
    """Problems that have a split, and of these those that thresholds prove."""
    proven = feasible = 0
    for seed in seeds:
        pooled, row, pools = random_problem(seed)
        truth = brute_force(pooled, row, pools)
        model = model_of(pooled, row, pools)
        found = balance(model) if model is not None and model.is_feasible else None
        if truth is None:
            assert found is None or found.picked is None, seed
            continue
        feasible += 1
        assert found is not None, seed
        assert found.bound_s <= truth[0] * (1 + 1e-9), seed
        if is_played(model):  # thresholds know nothing of unequal virtual stages' events, enumeration does
            way = best_way(model, target_s=np.inf)
            assert way is not None, seed
            assert way.step_s == pytest.approx(truth[0], rel=1e-9), seed
            proven += 1
            continue
        assert found.step_s >= truth[0] * (1 - 1e-9), seed
        if found.bound_s >= found.step_s * (1 - 1e-9):
            proven += 1
            assert totals_of(model.layout(found.picked, found.layers)) in truth[1], seed
    return feasible, proven


def check_cp_sat(seeds: range) -> int:
    """Problems that have a split, in each of which CP-SAT finds the best."""
    compared = 0
    for seed in seeds:
        pooled, row, pools = random_problem(seed)
        truth = brute_force(pooled, row, pools)
        model = model_of(pooled, row, pools)
        if model is None or not model.is_feasible:
            assert truth is None, seed
            continue
        if is_played(model):
            continue
        answer = solve(model, hint=None, deterministic_limit=60.0)
        assert answer.proven, seed
        assert (answer.picked is None) == (truth is None), seed
        if truth is not None:
            compared += 1
            assert model.step_s(answer.picked) == pytest.approx(truth[0], rel=1e-6), seed
    return compared


@pytest.mark.parametrize("batch", [pytest.param(at, marks=pytest.mark.proof if at >= 2 else ()) for at in range(4)])
def test_thresholds_are_brute_force(batch: int) -> None:
    """40 problems, and as many with the proofs: never better than the optimum, the bound never worse; where they meet, the split is a best one."""
    feasible, proven = check_thresholds(range(20 * batch, 20 * batch + 20))
    assert feasible >= 10
    assert proven >= 0.9 * feasible


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(10))
def test_thresholds_are_brute_force_in_300_more(batch: int) -> None:
    feasible, proven = check_thresholds(range(1000 + 30 * batch, 1000 + 30 * batch + 30))
    assert feasible >= 15
    assert proven >= 0.9 * feasible


@pytest.mark.parametrize("batch", range(4))
def test_cp_sat_is_brute_force(batch: int) -> None:
    """60 problems, to the integer scaling: 1e-7 of an average stage a stage and micro-batch."""
    assert check_cp_sat(range(2000 + 15 * batch, 2000 + 15 * batch + 15)) >= 7


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(10))
def test_cp_sat_is_brute_force_in_200_more(batch: int) -> None:
    assert check_cp_sat(range(3000 + 20 * batch, 3000 + 20 * batch + 20)) >= 10


def test_the_memory_screen_leaves_out_nothing_that_fits() -> None:
    """Every stage of the best split holds no more layers than the screen says; much of what has no split is left out."""
    left_out = fitting = 0
    for seed in range(60):
        pooled, row, pools = random_problem(seed)
        if len(pooled.jobs[0].model.distinct_kinds) > 1:
            continue
        truth = brute_force(pooled, row, pools)
        work = row_work(row_numbers(pooled, row), row, num_layers=pooled.jobs[0].model.num_layers)
        asked = stage_questions(row, sites_of(pools), work, kind=0, slowest_s=np.array([np.inf]))
        (possible,), held = most_layers(pooled.jobs, row, asked, headroom_fraction=HEADROOM)
        assert possible or truth is None, seed
        if truth is not None:
            assert all((np.array(totals) <= held).all() for totals in truth[1]), seed
        left_out, fitting = left_out + (not possible), fitting + (truth is not None)
    assert left_out >= 3
    assert fitting >= 20


def small_request(seed: int) -> dict[str, Any]:
    """A whole problem that can be enumerated: few layers, two nodes, micro-batches of 1 and 2."""
    draw = np.random.default_rng(seed)
    nodes = [(1, 1), (1, 2)][int(draw.integers(2))]
    return {
        "model": {
            "num_layers": int(draw.integers(3, 7)), "hidden_size": 4096, "num_attention_heads": 32,
            "intermediate_size": 14336, "vocab_size": int(draw.choice([32000, 250000])),
        },
        "cluster": two_pools(draw, nodes=nodes),
        "training": {
            "seq_length": 4096, "global_batch_size": int(draw.choice([8, 24])), "precision": "bf16", "framework": "megatron"
        },
        "constraints": {
            "allowed": {
                "tp": [2, 4], "cp": [1], "micro_batch_size": [1, 2], "vpp": [1], "zero": [0, 1],
                "recompute": ["none", "selective"], "sequence_parallel": [True],
            }
        },
        "top_k": 1,
    }  # fmt: skip


def best_of_all(request: dict[str, Any]) -> float | None:
    """The least step time of every strategy on every placement with every split, each resolved like an evaluate row."""
    pooled = resolve_pooled_job(request)
    allowed = request["constraints"]["allowed"]
    batch, layers = request["training"]["global_batch_size"], request["model"]["num_layers"]
    rooms = [pool.cluster.num_nodes for pool in pooled.cluster.pools]
    best = np.inf
    for order in ((0,), (1,), *permutations((0, 1))):
        for counts in product(*(range(1, 8 * rooms[pool] + 1) for pool in order)):
            pools = tuple(pool for pool, count in zip(order, counts, strict=True) for _ in range(count))
            names = tuple(pooled.names[pool] for pool in pools)
            if len(pools) > layers:
                continue
            for tp, dp, micro, zero, recompute, overlap, shard in product(
                allowed["tp"], (d for d in range(1, batch + 1) if batch % d == 0), (1, 2), (0, 1), ("none", "selective"),
                (False, True), (None, 2, 4),
            ):  # fmt: skip
                if shard is not None and (zero == 0 or dp % shard or shard >= dp):
                    continue  # ZeRO over all replicas, or no ZeRO
                width = tp * dp
                whole = all(count * width % 8 == 0 and count * width <= 8 * rooms[pool] for pool, count in
                            zip(order, counts, strict=True))  # fmt: skip
                if not whole or batch % (dp * micro):
                    continue
                given = StrategyInput.model_validate({
                    "tp": tp, "pp": len(pools), "dp": dp, "zero": zero, "micro_batch_size": micro, "recompute": recompute,
                    "pool_per_stage": names, "layers_per_stage": [layers - len(pools) + 1] + [1] * (len(pools) - 1),
                    "overlap": {"tp_comm": overlap}, **({} if shard is None else {"zero_shard_size": shard}),
                })  # fmt: skip
                row = resolve_on_pools([pooled], [given]).strategies
                if row is None or not violations_on_pools(pooled, row).legal[0]:
                    continue
                step_s, fits = priced(pooled, row, every_split(pooled, row, pools))
                best = min(best, float(step_s[fits].min(initial=np.inf)))
    return best if np.isfinite(best) else None


# The quicker five with every change; the others take as long as all of these, each.
@pytest.mark.parametrize(
    "seed", [pytest.param(at, marks=() if at in (0, 1, 2, 3, 9) else pytest.mark.proof) for at in range(12)]
)
def test_whole_search_is_brute_force(seed: int) -> None:
    request = small_request(seed)
    truth, found = best_of_all(request), plan(request)
    assert found["search"]["proof"]["optimal"]
    if truth is None:
        assert not found["plans"]
        return
    assert found["plans"][0]["evaluation"]["step_time_s"] == pytest.approx(truth, rel=2e-6)


def test_the_same_answer_twice() -> None:
    first, second = plan(small_request(3)), plan(small_request(3))
    assert [entry["strategy"] for entry in first["plans"]] == [entry["strategy"] for entry in second["plans"]]
