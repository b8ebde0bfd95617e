"""Multi-token prediction on a virtual stage of its own (`mtp_stage`), as Megatron's pipeline layouts say it with m apart from L."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import Document, dense_model, job_of, request_of, row_of
from cost_models.errors import InvalidInputError
from cost_models.evaluate import evaluate
from cost_models.job import Job
from cost_models.memory.moments import moments
from cost_models.step.chunks import chunk_seconds
from cost_models.step.stage_costs import stage_costs
from cost_models.strategies.strategy import Strategies
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.rules import reasons
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict

H, V, LAYERS = 1024, 32768, 8


def job(**model: Any) -> Job:
    shape = {"num_layers": LAYERS, "hidden_size": H, "vocab_size": V, "mtp_num_layers": 1, **model}
    return job_of(dense_model(**shape), num_nodes=2, seq_length=2048, global_batch_size=32)


def rows(of: Job, **strategy: Any) -> Strategies:
    return row_of(of, all_stages=True, **{"recompute": "none", "dp": 2, "tp": 2, "micro_batch_size": 1, **strategy})


FOUR = {"pp": 4, "layers_per_stage": [3, 3, 2, 0]}
INTERLEAVED = {"pp": 4, "vpp": 2, "layers_per_stage": [2, 1, 1, 1, 1, 2, 0, 0], "zero": 1}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_stage_works_as_with_a_layer_more(recompute: str) -> None:
    """Its stage of two layers and a module does the products of the three layers that every other stage has at most, so that the
    slowest stage is one of three layers; beside the output layer the module makes no such stage.
    """
    deep, plain = job(), job(mtp_num_layers=0, num_layers=9)
    apart = evaluate(deep, rows(deep, **{**FOUR, "layers_per_stage": [2, 3, 3, 0]}, mtp_stage=2, recompute=recompute))
    four = evaluate(plain, rows(plain, pp=4, layers_per_stage=[2, 3, 4, 0], recompute=recompute))
    for name in ("gemm", "attention", "elementwise", "recompute", "grad_accumulation"):
        assert apart.terms_s[name] == pytest.approx(four.terms_s[name], rel=1e-12)
    assert apart.terms_s["loss"][0] == 0  # the losses, the module's too, stay on the last stage
    assert apart.terms_s["head"][0] > 0  # and its projection does not


def test_virtual_stages_lose_and_win_the_same() -> None:
    """What the last of eight virtual stages loses, the one before it wins: passes, their parts, and no other stage changes."""
    deep = job()
    found = []
    for mtp_stage in (None, 6):
        strategies = rows(deep, **INTERLEAVED, mtp_stage=mtp_stage)
        seconds = chunk_seconds(strategies, stage_costs(deep, strategies), np.array([0]))
        found.append([seconds.forward, seconds.backward, seconds.weight_gradient, seconds.exposed["tp_comm"]])
    for beside, apart in zip(*found, strict=True):
        moved = (apart - beside)[:, 0]
        assert moved[6] > 0
        assert moved[7] == pytest.approx(-moved[6], rel=1e-9)
        assert (moved[:6] == 0).all()


@pytest.mark.parametrize(("strategy", "stage", "rank"), [(FOUR, 2, 2), (INTERLEAVED, 6, 2)])
def test_the_module_and_its_copy_of_the_embedding_move(strategy: Document, stage: int, rank: int) -> None:
    """2 bytes a parameter, tp 2: a layer of 4 h h + 3 h 4096 and norms of 2 h, 2h x h, three norms, and V h of the embedding's copy."""
    deep = job()
    beside, apart = (
        moments(deep, rows(deep, **strategy, mtp_stage=at)).states.bytes_KN.parameters[:, 0] for at in (None, stage)
    )
    moved = 2 * ((4 * H * H + 3 * H * 4096) / 2 + 2 * H + 2 * H * H / 2 + 3 * H + V * H / 2)
    assert apart[rank] - beside[rank] == pytest.approx(moved)
    assert beside[3] - apart[3] == pytest.approx(moved)
    assert (apart[:rank] == beside[:rank]).all()


def test_a_batch_of_both_equals_its_rows() -> None:
    deep = job()
    given = [StrategyInput(tp=2, dp=2, micro_batch_size=1, **FOUR, mtp_stage=at) for at in (None, 2)]
    both = resolve_strategies(deep, given).strategies
    assert both is not None
    together = evaluate(deep, both)
    for position, each in enumerate(given):
        alone = evaluate(deep, resolve_strategies(deep, [each]).strategies)
        assert together.step_time_s[position] == alone.step_time_s[0]
        assert together.memory.allocated[position] == alone.memory.allocated[0]
    told = [strategy_dict(both, position).get("mtp_stage") for position in (0, 1)]
    assert told == [None, 2]


def test_the_last_stage_is_where_it_lies_anyway() -> None:
    deep = job()
    assert rows(deep, **FOUR, mtp_stage=3).layouts.table == rows(deep, **FOUR).layouts.table


@pytest.mark.parametrize(
    ("strategy", "wrong"),
    [
        ({**FOUR, "mtp_stage": 4}, "is not one of the virtual stages 1 to 3"),
        ({**FOUR, "mtp_stage": 1}, "has decoder layers behind it"),
        ({**INTERLEAVED, "mtp_stage": 3}, "must be in the last chunk of a rank behind the first, so from 5 to 7"),
        ({**INTERLEAVED, "layers_per_stage": [2, 2, 2, 2, 0, 0, 0, 0], "mtp_stage": 4}, "must be in the last chunk"),
        ({"pp": 4, "mtp_stage": 2}, "needs a pipeline whose layers_per_stage is given"),
    ],
)
def test_what_no_layout_says_is_refused(strategy: Document, wrong: str) -> None:
    """Megatron Core's validate_layer_layout: one virtual stage, the last chunk of a rank behind the first, behind the decoder."""
    given = StrategyInput(tp=2, dp=2, micro_batch_size=1, **strategy)
    (problems,) = resolve_strategies(job(), [given]).problems
    assert [problem["code"] for problem in problems] == ["split-unsupported"]
    assert wrong in problems[0]["message"]


def test_without_modules_there_is_nothing_to_place() -> None:
    given = StrategyInput(tp=2, dp=2, micro_batch_size=1, **FOUR, mtp_stage=2)
    (problems,) = resolve_strategies(job(mtp_num_layers=0), [given]).problems
    assert "no modules of multi-token prediction are built" in problems[0]["message"]
    assert reasons(job(), rows(job(), **FOUR, mtp_stage=2), 0) == []


def test_a_search_says_that_it_leaves_them_beside_the_output_layer() -> None:
    request = {**request_of(dense_model(mtp_num_layers=1)), "constraints": {"fixed": {"mtp_stage": 2}}}
    with pytest.raises(InvalidInputError) as refused:
        plan(request)
    assert [problem.pointer for problem in refused.value.problems] == ["/constraints/fixed/mtp_stage"]


def test_pools_are_refused() -> None:
    node = {"num_nodes": 1, "gpus_per_node": 8}
    row = {
        "model": dense_model(mtp_num_layers=1),
        "cluster": {"pools": [{"name": "old", "gpu": "A100-SXM-80GB", **node}, {"name": "new", "gpu": "H100-SXM-80GB", **node}]},
        "training": {"seq_length": 2048, "global_batch_size": 32, "precision": "bf16", "framework": "megatron"},
        "strategy": {"pp": 4, "dp": 2, "micro_batch_size": 1, "layers_per_stage": [1, 2, 1, 0], "mtp_stage": 2},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    assert [reason["message"] for reason in answer["reasons"]] == [
        "mtp_stage is not modelled on a cluster that lists pools"
    ]
