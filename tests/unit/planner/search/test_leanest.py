"""Which choices are the leanest, and where that is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import Document, dense_model, request_of, with_experts
from cost_models.memory import stage_memory
from cost_models.strategies.strategy import Bools, Strategies
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas.plan_request import Constraints, PlanRequest
from planner.search.leanest import least_memory, may_fit_in_groups, some_choice_fits
from planner.strategies.axes import build_space

GPU = {
    "name": "unit", "memory_gib": 86, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 2000,
    "nvlink_gb_per_s": 200,
}  # fmt: skip


def test_units_of_several_layers_may_fit_where_single_layers_do_not() -> None:
    """128 layers keep 128 inputs of 32,768 x 2,048 x 2 bytes = 16 GiB if each is recomputed by itself, in units of four
    layers 4 GiB.
    """
    request = request_of(
        dense_model(128, hidden_size=2048, num_attention_heads=16, intermediate_size=8192),
        gpu=GPU,
        seq_length=32768,
        global_batch_size=8,
    )
    fixed = {
        "tp": 1, "cp": 1, "pp": 1, "dp": 8, "zero": 1, "micro_batch_size": 1, "zero_shard_size": 8,
        "recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 4,
        "offload": {"optimizer_fraction": 0.0},
    }  # fmt: skip
    single = {name: value for name, value in fixed.items() if name not in ("recompute_method", "recompute_num_layers")}
    answers = [
        plan({**request, "constraints": {"fixed": strategy, "allow_at_risk": True}}) for strategy in (fixed, single)
    ]
    assert [len(answer["plans"]) for answer in answers] == [1, 0]
    assert (answers[0]["rejected"], list(answers[1]["rejected"])) == ({}, ["out-of-memory"])


TWO_KINDS = with_experts(dense_model(6, intermediate_size=16384), moe_layer_freq=2)
ODD = dense_model(25, hidden_size=2048, num_attention_heads=16)


@pytest.mark.parametrize(
    ("model", "fixed"),
    [
        # One layer that is kept counts as the average of its stage, one that is made again as the largest kind.
        pytest.param(TWO_KINDS, {}, id="layers of two kinds"),
        # The first stage holds less with more virtual stages, since the warm-up's additional chunks are smaller.
        pytest.param(ODD, {"tp": 1, "pp": 2, "cp": 1}, id="an odd number of layers"),
    ],
)
def test_no_strategy_needs_less_than_the_least(model: Document, fixed: Document) -> None:
    request = request_of(model, gpu=GPU, seq_length=8192, global_batch_size=32)
    request["constraints"] = {"fixed": fixed}
    job = resolve_job(request)
    space = build_space(job, PlanRequest.model_validate(request).constraints)
    base = space.base()
    pairs = space.every_pair(base)
    rows = space.expand(base, pairs).rows
    legal = np.flatnonzero(violations(job, rows).legal)
    needed, least = stage_memory(job, rows.take(legal)).device, least_memory(space, base).of_pairs(pairs)[legal]
    assert len(legal) > 500
    assert (least <= needed * (1 + 1e-9)).all()
    assert (least > 0.6 * needed).any()


def test_a_base_row_is_kept_if_anything_that_it_stands_for_fits() -> None:
    """At risk a strategy may be whose low end just reaches the capacity, so that of the leanest choices decides to the last byte."""
    request = request_of(TWO_KINDS, gpu=GPU, seq_length=8192, global_batch_size=32)
    job = resolve_job(request)
    space = build_space(job, PlanRequest.model_validate(request).constraints)
    base = space.base()
    expansion = space.expand(base)
    legal = np.flatnonzero(violations(job, expansion.rows).legal)
    low, origin = stage_memory(job, expansion.rows.take(legal)).device_low, expansion.origin[legal]
    for row in np.unique(origin)[::5].tolist():
        capacity = low[origin == row].min() * (1 + 1e-9)

        def fits(rows: Strategies, *, capacity: float = capacity) -> Bools:
            memory = stage_memory(job, rows)
            return np.asarray(memory.device_low - memory.hole <= capacity)

        assert some_choice_fits(space, base.take(np.array([row])), fits).all()


def test_what_needs_exactly_the_capacity_may_fit_and_a_byte_more_may_not() -> None:
    """At risk the low end decides, else the high end beside 3 % of headroom; the hole that logits leave counts in both."""
    job = resolve_job(request_of(TWO_KINDS, gpu=GPU))
    plain = stage_memory(job, build_space(job, Constraints()).base().take(np.array([0])))
    capacity, hole = job.cluster.capacity_bytes, 2.0**20
    for above in (0.0, 2.0**10):
        low = replace(plain, device_low=np.array([capacity + hole + above]), hole=np.array([hole]))
        assert may_fit_in_groups(job, low, 0.03, allow_at_risk=True).tolist() == [above == 0.0]
        high = replace(plain, device_high=np.array([capacity * (1.0 - 0.03) + hole + above]), hole=np.array([hole]))
        assert may_fit_in_groups(job, high, 0.03, allow_at_risk=False).tolist() == [above == 0.0]
