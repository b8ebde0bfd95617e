"""Stages on pools: the price of one kind of node cut in two, of two kinds, and the memory of each stage's own GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.evaluate import Verdict, evaluate
from cost_models.hardware.groups import groups
from cost_models.job import PooledJob
from cost_models.pools.evaluate import evaluate_on_pools, pooled_memory
from cost_models.pools.time import pooled_step_time
from cost_models.step.pipeline import hop_s
from cost_models.step.stage_costs import stage_costs
from cost_models.step.stages import recomputed_shares_by_slot, stage_seconds
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import Strategies
from planner.request.job import resolve_job, resolve_pooled_job
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

TRAINING = {"seq_length": 4096, "global_batch_size": 128, "precision": "bf16", "framework": "megatron"}


def cut(preset: str, nodes: int) -> dict[str, Any]:
    half = {"preset": preset, "num_nodes": nodes // 2}
    return {"pools": [{"name": "a", **half}, {"name": "b", **half}]}


def two_kinds(**new: Any) -> dict[str, Any]:
    old = {"name": "a", "preset": "dgx-a100-80gb", "num_nodes": 4}
    return {"pools": [old, {"name": "b", "preset": "dgx-h100", "num_nodes": 4, **new}]}


def on(pooled: PooledJob, strategy: dict[str, Any], pools: str) -> Strategies:
    """The strategy with the pool of every stage, one letter each."""
    resolved = resolve_strategies(pooled.whole[0], [StrategyInput.model_validate(strategy)], all_stages=True)
    assert resolved.strategies is not None, resolved.problems
    layout = replace(resolved.strategies.layouts.table[0], pool_per_stage=tuple(pools))
    return replace(resolved.strategies, layouts=build_layouts([layout], model=pooled.jobs[0].model, all_stages=True))


STRATEGIES = [
    {"tp": 4, "pp": 4, "dp": 4, "micro_batch_size": 1},
    {"tp": 2, "pp": 4, "dp": 8, "micro_batch_size": 1, "recompute": "full"},
    {"tp": 8, "pp": 4, "dp": 2, "micro_batch_size": 2, "zero": 1, "layers_per_stage": [9, 9, 8, 6]},
    {"tp": 1, "pp": 4, "dp": 16, "vpp": 2, "micro_batch_size": 1, "recompute": "selective"},
    {"tp": 2, "pp": 4, "dp": 8, "micro_batch_size": 1, "zero": 3, "recompute": "full", "recompute_num_layers": 3},
]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_kind_of_node_cut_in_two_costs_the_same(model: str, strategy: dict[str, Any]) -> None:
    """Every term, the memory and the interval: a placement over two pools of equal nodes is one on all of them."""
    document = {"model": {"preset": model}, "training": TRAINING}
    whole = resolve_job(document | {"cluster": {"preset": "dgx-h100", "num_nodes": 8}})
    pooled = resolve_pooled_job(document | {"cluster": cut("dgx-h100", 8)})
    resolved = resolve_strategies(whole, [StrategyInput.model_validate(strategy)], all_stages=True)
    assert resolved.strategies is not None
    alone, row = evaluate(whole, resolved.strategies), on(pooled, strategy, "aabb")
    both = evaluate_on_pools(pooled, row)
    time, memory = pooled_step_time(pooled, row), both.pools
    assert time.total_s == pytest.approx(alone.step_time_s, rel=1e-12)
    for name, seconds in time.terms_s.items():
        assert seconds == pytest.approx(alone.terms_s[name], rel=1e-9, abs=1e-12), name
        assert time.tiers[name] == alone.tiers[name], name
    assert both.step_time_low_s == pytest.approx(alone.step_time_low_s)
    assert max(its.memory.device_high[0] for its in memory.by_pool.values()) == alone.memory.device_high[0]
    assert memory.verdict[0] == alone.verdict[0]


def pooled_job(cluster: dict[str, Any], model: str = "llama-3.1-8b") -> PooledJob:
    return resolve_pooled_job({"model": {"preset": model}, "cluster": cluster, "training": TRAINING})


def test_the_step_is_the_slowest_stage_and_the_sum_of_the_others() -> None:
    """1F1B by hand: (m - 1) times the slowest stage and once all of them, each on its own pool's GPU."""
    pooled = pooled_job(two_kinds())
    row = on(pooled, {"tp": 4, "pp": 4, "dp": 4, "micro_batch_size": 1, "layers_per_stage": [5, 5, 11, 11]}, "aabb")
    share = recomputed_shares_by_slot(row)
    old, new = (stage_seconds(row, stage_costs(job, row).per, share_KN=share)[:, 0] for job in pooled.jobs)
    stages = [old[0], old[1], new[2], new[3]]
    time = pooled_step_time(pooled, row)
    once = ("pp_comm", "dp_comm", "tied_embedding_comm", "optimizer", "offload", "jitter")
    work = sum(float(seconds[0]) for name, seconds in time.terms_s.items() if name not in once)
    m = 128 / 4
    assert work == pytest.approx((m - 1) * max(stages) + sum(stages), rel=1e-9)
    assert new[2] < old[2]


def test_terms_sum_to_the_step() -> None:
    pooled = pooled_job(two_kinds())
    found = evaluate_on_pools(pooled, on(pooled, STRATEGIES[0], "aabb"))
    assert sum(float(seconds[0]) for seconds in found.terms_s.values()) == pytest.approx(float(found.step_time_s[0]))
    assert found.step_time_low_s[0] < found.step_time_s[0] < found.step_time_high_s[0]


def test_a_slower_pool_is_the_slowest_stage() -> None:
    pooled = pooled_job(two_kinds())
    for order, slow in (("aabb", 0), ("bbaa", 0)):
        assert pooled_step_time(pooled, on(pooled, STRATEGIES[0], order)).slowest_pool[0] == slow
    uneven = {**STRATEGIES[0], "layers_per_stage": [2, 2, 14, 14]}
    assert pooled_step_time(pooled, on(pooled, uneven, "aabb")).slowest_pool[0] == 1


def test_a_hop_between_pools_crosses_the_network() -> None:
    """A pool of one fast domain: inside it a hop is quick, to the next pool it is not."""
    pooled = pooled_job({
        "pools": [
            {"name": "a", "preset": "gb200-nvl72", "num_nodes": 18}, {"name": "b", "preset": "dgx-h100", "num_nodes": 4},
        ]
    })  # fmt: skip
    row = on(pooled, {"tp": 4, "pp": 4, "dp": 4, "micro_batch_size": 1}, "aabb")
    job = pooled.jobs[0]
    assert groups(row, job.cluster).pp.islands[0] == 1
    inside, across = hop_s(job, row)[0][0], hop_s(job, row, reach="network")[0][0]
    assert across > 2 * inside
    alone = on(pooled, {"tp": 4, "pp": 4, "dp": 4, "micro_batch_size": 1}, "aaaa")
    assert pooled_step_time(pooled, alone).terms_s["pp_comm"][0] < pooled_step_time(pooled, row).terms_s["pp_comm"][0]


def test_each_stage_is_judged_by_its_own_gpu() -> None:
    """The same split fits until one pool's GPUs have less to spare; the verdict is the worst pool's."""
    strategy = {"tp": 2, "pp": 4, "dp": 8, "micro_batch_size": 1}
    roomy, tight = pooled_job(two_kinds()), pooled_job(two_kinds(reserved_memory_gib=70))
    before, after = (pooled_memory(pooled, on(pooled, strategy, "aabb")) for pooled in (roomy, tight))
    assert before.verdict[0] == Verdict.FITS
    assert after.verdict[0] == Verdict.OOM
    assert after.by_pool[0].verdict[0] == Verdict.FITS
    assert after.by_pool[1].verdict[0] == Verdict.OOM
    assert after.tightest_pool[0] == 1


def test_a_batch_of_placements_equals_its_rows() -> None:
    pooled = pooled_job(two_kinds())
    rows = [on(pooled, strategy, pools) for strategy in STRATEGIES[:3] for pools in ("aabb", "bbaa", "abbb", "bbbb")]
    table = [row.layouts.table[0] for row in rows]
    layouts = build_layouts(table, model=pooled.jobs[0].model, all_stages=True)
    columns = {
        name: np.concatenate([getattr(row, name) for row in rows])
        for name in rows[0].__dataclass_fields__
        if name not in ("layouts", "layout")
    }
    batch = Strategies(**columns, layout=np.arange(len(rows)), layouts=layouts)
    times, verdicts = pooled_step_time(pooled, batch).total_s, pooled_memory(pooled, batch).verdict
    for index, row in enumerate(rows):
        assert pooled_step_time(pooled, row).total_s[0] == pytest.approx(times[index], rel=1e-12)
        assert pooled_memory(pooled, row).verdict[0] == verdicts[index]
