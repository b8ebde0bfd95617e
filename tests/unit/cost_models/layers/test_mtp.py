"""Multi-token prediction: a decoder layer, a projection, a second head and a copy of the embedding, and where none is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import builders
from builders import dense_model, row_of
from cost_models.evaluate import Evaluated, evaluate
from cost_models.job import PooledJob
from cost_models.layers.flops import model_flops_per_step, repeated_flops_per_token
from cost_models.memory.moments import moments
from planner.strategies.told import assumed_fields

H, V, LAYERS, SEQ, BATCH = 1024, 32768, 8, 2048, 32
LAYER = 4 * H * H + 3 * H * 4096
"""Query, key, value, output; gated MLP."""
ATTENTION = 2 * 8 * SEQ * (128 + 128)


def job_of(*, model: dict[str, Any], **training: Any):
    given = {"num_nodes": 2, "seq_length": SEQ, "global_batch_size": BATCH, **training}
    return builders.job_of(dense_model(**{"num_layers": LAYERS, "hidden_size": H, "vocab_size": V, **model}), **given)


def rows_of(job, **strategy: Any):
    return row_of(job, all_stages=True, **{"recompute": "none", **strategy})


def priced(strategy: dict[str, Any], *, model: dict[str, Any], **training: Any) -> Evaluated:
    job = job_of(model=model, **training)
    return evaluate(job, rows_of(job, **strategy))


def test_operations_count_the_layer_its_projection_and_its_head() -> None:
    """Nine layers, a projection of 2h x h and two heads; causal halves the attention of all nine."""
    job = job_of(model={"mtp_num_layers": 1})
    weights, attention = 2 * (9 * LAYER + 2 * H * H + 2 * H * V), 9 * ATTENTION
    assert model_flops_per_step(job) == pytest.approx(3 * (weights + attention) * SEQ * BATCH, rel=1e-12)
    causal = 3 * (weights + attention / 2) * SEQ * BATCH
    assert model_flops_per_step(job, causal=True) == pytest.approx(causal, rel=1e-12)


def test_full_recomputation_repeats_the_module_but_not_in_blocks() -> None:
    """multi_token_prediction.py (_checkpointed_forward): "block is not supported for MTP yet. Skipping recompute"."""
    job = job_of(model={"mtp_num_layers": 1})
    tokens, repeated = SEQ * BATCH, 2 * LAYER + ATTENTION
    every, block = (
        float(repeated_flops_per_token(job, rows_of(job, recompute="full", **given))[0]) * tokens
        for given in ({}, {"recompute_method": "block", "recompute_num_layers": LAYERS})
    )
    assert every == pytest.approx((9 * repeated + 4 * H * H) * tokens, rel=1e-12)
    assert block == pytest.approx(8 * repeated * tokens, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_last_stage_works_a_layer_more(recompute: str) -> None:
    """Eight layers and a module take what nine layers take, but for a second head, its projection and its embedding."""
    strategy = {"recompute": recompute}
    deep, nine = (priced(strategy, model=model) for model in ({"mtp_num_layers": 1}, {"num_layers": 9}))
    for name in ("gemm", "attention", "elementwise", "launch", "recompute", "grad_accumulation"):
        assert deep.terms_s[name] == pytest.approx(nine.terms_s[name], rel=1e-12)
    assert deep.terms_s["loss"] == pytest.approx(2 * nine.terms_s["loss"], rel=1e-12)
    assert deep.terms_s["head"][0] > 2 * nine.terms_s["head"][0]
    assert sum(deep.terms_s.values()) == pytest.approx(deep.step_time_s, rel=1e-12)


def test_the_module_s_own_part_is_a_projection_three_norms_and_an_embedding() -> None:
    """[F-6] Beside its head: products of (T, 2h) by (2h, h) in three passes, 3 x 10 passes over T h elements, and [F-5] 3 passes over
    them with 4 bytes for each of V h elements of the embedding's gradient; two micro-batches of 2048 tokens. The decoder's final
    norm, which is part of the head, is there once.
    """
    strategy = {"tp": 1, "dp": 16}
    deep, nine = (priced(strategy, model=model) for model in ({"mtp_num_layers": 1}, {"num_layers": 9}))
    calibration = job_of(model={}).calibration
    shapes = [np.array([float(each)]) for each in (SEQ, H, 2 * H)]
    passes = calibration.gemm_passes_s(*shapes, precision="bf16", batch=np.ones(1)).seconds
    size, rate = SEQ * H * 2.0, calibration.memory_bytes_per_s_effective.value
    moved = (3 * 10 + 3 - 10) * size + V * H * 4.0
    extra = deep.terms_s["head"][0] - 2 * nine.terms_s["head"][0]
    assert extra == pytest.approx(2 * (float(passes.sum()) + moved / rate), rel=1e-6)


def test_a_pipeline_s_last_stage_is_the_slowest_and_the_others_wait() -> None:
    """Two stages of four layers, the second of which runs five: the planner used to see a free layer there."""
    strategy = {"pp": 2, "dp": 8}
    deep = priced(strategy, model={"mtp_num_layers": 1})
    uneven = priced({**strategy, "layers_per_stage": [4, 5]}, model={"num_layers": 9})
    for name in ("gemm", "attention", "elementwise"):
        assert deep.terms_s[name] == pytest.approx(uneven.terms_s[name], rel=1e-12)


def test_the_last_stage_holds_the_embedding_too() -> None:
    """2 bytes a parameter: the layer as any other, 2h x h / t, three norms, and V h / t of the embedding's copy."""
    tp = 2
    strategy = {"tp": tp, "pp": 2, "dp": 4, "zero": 0}
    jobs = [job_of(model=model) for model in ({"mtp_num_layers": 1}, {"num_layers": 9})]
    held = []
    for job, split in zip(jobs, ([4, 4], [4, 5]), strict=True):
        found = moments(job, rows_of(job, **strategy, layers_per_stage=split))
        held.append(found.states.bytes_KN.parameters[:, 0])
    assert held[0][0] == held[1][0]
    assert held[0][1] - held[1][1] == 2 * (2 * H * H / tp + 3 * H + V * H / tp)


def test_copies_of_the_embedding_are_kept_equal() -> None:
    """An all-reduce between the first and the last stage, as for tied embeddings; none without pipelines."""
    deep, plain = (priced({"pp": 2, "dp": 8}, model=model) for model in ({"mtp_num_layers": 1}, {}))
    assert plain.terms_s["tied_embedding_comm"][0] == 0
    assert deep.terms_s["tied_embedding_comm"][0] > 0
    assert priced({}, model={"mtp_num_layers": 1}).terms_s["tied_embedding_comm"][0] == 0


def test_experts_of_the_module_are_held_and_updated() -> None:
    """The optimizer's time follows the parameters of a rank: ep 4 leaves 2 of 8 experts of each layer, the module's too."""
    h = 4096
    moe = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": h}
    strategy = {"dp": 16, "ep": 4, "etp": 1, "zero": 0}
    deep, nine = (
        priced(strategy, model={"moe": moe, "hidden_size": h, **model})
        for model in ({"mtp_num_layers": 1}, {"num_layers": 9})
    )
    layer = 4 * h * h + 8 * h + 2 * h + 2 * 3 * h * h
    parameters = 9 * layer + 2 * V * h + h
    extra = 2 * h * h + 3 * h  # no copy of the embedding without pipelines
    ratio = deep.terms_s["optimizer"][0] / nine.terms_s["optimizer"][0]
    assert ratio == pytest.approx((parameters + extra) / parameters, rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "version", "built"),
    [("megatron", "0.16", True), ("megatron", "0.12", True), ("megatron", "0.11", False), ("torchtitan", "0.3", False),
     ("deepspeed", "0.19", False), ("fsdp", "2.8", False), ("nanotron", "0.4", False)],
)  # fmt: skip
def test_frameworks_that_build_no_modules_leave_them_out(framework: str, version: str, built: bool) -> None:
    """Megatron Core has them from 0.12 on; transformers' modules do not, and torchtitan's recipes build none."""
    jobs = [job_of(model={"mtp_num_layers": count}, framework=framework, framework_version=version) for count in (1, 0)]
    deep, plain = (evaluate(job, rows_of(job)) for job in jobs)
    assert (deep.step_time_s[0] > plain.step_time_s[0]) == built
    assert (deep.memory.allocated[0] > plain.memory.allocated[0]) == built
    assert (model_flops_per_step(jobs[0]) > model_flops_per_step(jobs[1])) == built
    assert ("mtp_num_layers" in assumed_fields(PooledJob.of_one_kind(jobs[0]), {})) != built
    assert np.isfinite(deep.step_time_s[0])
