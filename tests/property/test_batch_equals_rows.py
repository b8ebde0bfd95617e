"""A batch equals its rows to the last digit, whatever stands beside them: alone, in groups of a kind, and shuffled.

The strategies are drawn from the whole space of a job, so that every knob that a search turns is pooled with every other one.
Each is compared with the same strategy written out in the contract's names and read back as the only row of an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest

from cost_models.evaluate import Evaluated, evaluate
from cost_models.job import Job
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.specs.training import Framework
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, concatenated
from cost_models.terms import PEAK_MOMENTS, TIME_NAMES
from planner.request.job import WITHOUT_PIPELINE, resolve_job, resolve_pooled_job
from planner.rows import evaluate_rows
from planner.rules import violations
from planner.schemas import StrategyInput
from planner.schemas.plan_request import Constraints
from planner.strategies.axes import build_space
from planner.strategies.on_pools import resolve_on_pools, violations_on_pools
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict

ROWS, ALONE, TRIED = 300, 60, (40, 100, 400)
"""Strategies of one batch, how many of them are also priced alone, and combinations of degrees that they are drawn from:
the smaller number where these have enough, since many jobs have thousands of strategies for each."""
SMALL = {
    "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 2816, "vocab_size": 32000, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {"num_experts": 12, "top_k": 2, "expert_intermediate_size": 512, "first_dense_layers": 2}
LATENT = {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
MODELS: dict[str, dict[str, Any]] = {
    "dense": SMALL,
    "windows": {**SMALL, "sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"] * 4},
    "experts": {**SMALL, "moe": {**EXPERTS, "num_shared_experts": 1, "shared_expert_intermediate_size": 512}},
    "latent": {
        **SMALL, "mla": LATENT, "moe": EXPERTS, "mtp_num_layers": 1, "sliding_window": 256,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
    },
    "wide": {**SMALL, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
             "intermediate_size": 14336, "tie_word_embeddings": False},
}  # fmt: skip
CLUSTERS: dict[str, dict[str, Any]] = {
    "nodes": {"preset": "dgx-h100", "num_nodes": 3},
    "racks": {"preset": "gb200-nvl72", "num_nodes": 6},
    "pcie": {"preset": "l40s-pcie-8", "num_nodes": 3},
    "leaves": {
        "gpu": "A100-SXM-80GB", "num_nodes": 6, "gpus_per_node": 6, "nics_per_node": 2, "nic_gbit_per_s": 100,
        "network": {"fabric": "roce", "nodes_per_leaf": 2, "oversubscription": 3.0},
    },
}  # fmt: skip
MEMORY = ("allocated", "reserved", "device", "device_low", "device_high", "host_bytes_per_node")
KNOBS = {
    "zero_shard_size": [1, 2, 3, 4, 6, 12], "grad_sync": ["last", "each"], "cp_comm": ["p2p", "a2a+p2p", "allgather"],
    "recompute": ["none", "selective", "full"], "schedule": ["1f1b", "interleaved", "gpipe", "zb-h1"],
}  # fmt: skip


@cache
def job_of(framework: str, model: str, cluster: str) -> Job:
    return resolve_job({"model": MODELS[model], "cluster": CLUSTERS[cluster], "training": training(framework)})


def training(framework: str) -> dict[str, Any]:
    return {"seq_length": 1536, "global_batch_size": 144, "precision": "bf16", "framework": framework}


@cache
def drawn(job: Job, count: int, *, seed: int = 0) -> list[StrategyInput]:
    """So many legal strategies out of the job's whole space, half of them with the listed knobs; each occurs once."""
    rng = np.random.default_rng(seed)
    found: list[StrategyInput] = []
    for listed in (KNOBS, {}):
        space = build_space(job, Constraints.model_validate({"allowed": listed}))
        every = space.base()
        order = rng.permutation(len(every))
        for tried in TRIED:
            base = every.take(order[:tried])
            pairs = space.pairs(base)
            rows = space.expand(base, pairs.take(rng.permutation(len(pairs.origin))[: 25 * max(TRIED)])).rows
            rows = rows.take(violations(job, rows).legal)
            if len(rows) >= count // 2:
                break
        chosen = rng.permutation(len(rows))[: count // 2].tolist()
        found += [StrategyInput.model_validate(strategy_dict(rows, index)) for index in chosen]
    return found


def resolved(job: Job, inputs: list[StrategyInput]) -> Strategies:
    found = resolve_strategies(job, inputs, all_stages=True)
    assert found.strategies is not None
    assert len(found.index) == len(inputs)
    return found.strategies


def answers(found: Evaluated, index: int) -> dict[str, Any]:
    """Everything that is answered about one strategy."""
    memory = found.memory
    layout = found.strategies.layouts.table[int(found.strategies.layout[index])]
    stages = {
        f"stage {stage}": (
            PEAK_MOMENTS[int(memory.peak_moment_KN[stage, index])],
            float(memory.allocated_KN[stage, index]),
            memory.breakdown(stage, index),
        )
        for stage in range(layout.pp)
    }
    return {
        **{f"seconds of {name}": float(found.terms_s[name][index]) for name in TIME_NAMES},
        **{f"tier of {name}": int(found.tiers[name][index]) for name in TIME_NAMES},
        **{name: float(getattr(memory, name)[index]) for name in MEMORY},
        **stages,
        "seconds": tuple(
            float(each[index]) for each in (found.step_time_low_s, found.step_time_s, found.step_time_high_s)
        ),
        "verdict": (int(found.verdict[index]), bool(found.host_exceeded[index])),
    }


CASES = [
    *((framework, "wide", "nodes") for framework in get_args(Framework)),
    *((framework, "latent", "nodes") for framework in get_args(Framework) if framework != "nanotron"),
    ("megatron", "experts", "racks"), ("megatron", "windows", "pcie"), ("megatron", "dense", "leaves"),
    ("torchtitan", "dense", "pcie"), ("fsdp", "windows", "leaves"), ("deepspeed", "dense", "pcie"),
    ("nanotron", "dense", "leaves"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "model", "cluster"), CASES)
def test_a_batch_equals_its_rows(framework: str, model: str, cluster: str) -> None:
    job = job_of(framework, model, cluster)
    inputs = drawn(job, ROWS)
    assert len(inputs) > ALONE
    batch = resolved(job, inputs)
    together = evaluate(job, batch)
    for index in range(ALONE):
        assert answers(together, index) == answers(evaluate(job, resolved(job, [inputs[index]])), 0), inputs[index]


@pytest.mark.parametrize(("framework", "model", "cluster"), CASES)
def test_shuffling_and_grouping_change_nothing(framework: str, model: str, cluster: str) -> None:
    job = job_of(framework, model, cluster)
    inputs = drawn(job, ROWS)
    batch = resolved(job, inputs)
    together = evaluate(job, batch)
    for name, some in parts_of(batch):
        apart = evaluate(job, resolved(job, [inputs[index] for index in some.tolist()]))
        for term in TIME_NAMES:
            assert (apart.terms_s[term] == together.terms_s[term][some]).all(), (name, term)
            assert (apart.tiers[term] == together.tiers[term][some]).all(), (name, term)
        for column in MEMORY:
            assert (getattr(apart.memory, column) == getattr(together.memory, column)[some]).all(), (name, column)
        assert (apart.step_time_high_s == together.step_time_high_s[some]).all(), name
        assert (apart.verdict == together.verdict[some]).all(), name


def parts_of(batch: Strategies) -> Iterator[tuple[str, np.ndarray]]:
    """Positions of the whole batch in another order, and of the rows that agree in one field, for every field and value."""
    yield "shuffled", np.random.default_rng(1).permutation(len(batch))
    for name in ARRAY_FIELDS:
        column = getattr(batch, name)
        for value in np.unique(column).tolist():
            some = np.flatnonzero(column == value)
            if name != "layout" and len(some) < len(batch):
                yield f"{name} {value}", some


def test_rows_of_different_global_batches_keep_their_own_answers() -> None:
    """`evaluate` prices rows that differ in their global batch together; every answer is that of the row alone."""
    job = job_of("megatron", "experts", "nodes")
    rows = [
        {
            "model": MODELS["experts"], "cluster": CLUSTERS["nodes"],
            "training": training("megatron") | {"global_batch_size": 144 * times},
            "strategy": given.model_dump(exclude_none=True),
        }
        for times, given in zip((5, 1, 3, 7, 2) * 12, drawn(job, 2 * ALONE), strict=False)
    ]  # fmt: skip
    together = list(evaluate_rows(rows))
    assert len(together) == ALONE
    assert {answer["verdict"] for answer in together} >= {"fits"}
    for row, answer in zip(rows, together, strict=True):
        assert next(iter(evaluate_rows([row]))) == answer


POOLS = {
    "pools": [
        {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
        {"name": "bridged", "preset": "a100-pcie-pairs-8", "num_nodes": 2},
        {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
    ]
}  # fmt: skip


@pytest.mark.parametrize("framework", [name for name in get_args(Framework) if name not in WITHOUT_PIPELINE])
@pytest.mark.parametrize("model", ["wide", "experts", "latent"])
def test_a_batch_on_pools_equals_its_rows(framework: str, model: str) -> None:
    pooled = resolve_pooled_job({"model": MODELS[model], "cluster": POOLS, "training": training(framework)})
    rng = np.random.default_rng(0)
    alone = []
    for given in drawn(pooled.whole[0], 2 * ROWS):
        cut = np.sort(rng.integers(0, (given.pp or 1) + 1, 2)).tolist()
        pools = ["old"] * cut[0] + ["bridged"] * (cut[1] - cut[0]) + ["new"] * ((given.pp or 1) - cut[1])
        row = resolve_on_pools([pooled], [given.model_copy(update={"pool_per_stage": tuple(pools)})]).strategies
        if row is not None and violations_on_pools(pooled, row).legal[0]:
            alone.append(row)
        if len(alone) == ALONE:
            break
    assert len({row.layouts.table[0].pool_per_stage for row in alone}) > 1
    layouts = build_layouts([row.layouts.table[0] for row in alone], model=pooled.jobs[0].model, all_stages=True)
    batch = concatenated([replace(row, layouts=layouts, layout=np.array([n])) for n, row in enumerate(alone)])
    together = evaluate_on_pools(pooled, batch)
    memory = together.pools
    for index, row in enumerate(alone):
        time = evaluate_on_pools(pooled, row)
        its = time.pools
        for name in TIME_NAMES:
            assert time.terms_s[name][0] == together.terms_s[name][index], name
            assert time.tiers[name][0] == together.tiers[name][index], name
        for seconds in ("step_time_low_s", "step_time_s", "step_time_high_s"):
            assert getattr(time, seconds)[0] == getattr(together, seconds)[index]
        assert (its.verdict[0], its.tightest_pool[0]) == (memory.verdict[index], memory.tightest_pool[index])
        for pool, own in its.by_pool.items():
            at = int(np.flatnonzero(memory.by_pool[pool].rows == index)[0])
            for column in MEMORY:
                assert getattr(own.memory, column)[0] == getattr(memory.by_pool[pool].memory, column)[at], column
