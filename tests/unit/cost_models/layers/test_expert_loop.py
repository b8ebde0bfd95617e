"""Experts in a Python loop: which software has one, its small products, and the launches that the host cannot issue in time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import builders
from builders import row_of
from cost_models.constants import HOST_SYNC_S
from cost_models.evaluate import evaluate
from cost_models.hardware.groups import groups
from cost_models.job import PooledJob
from cost_models.layers.expert_loop import loop_launches_s, loops_over_experts
from cost_models.layers.shapes import layer_gemms
from cost_models.step.fsdp_comm import fsdp_links_s
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import assumed_fields

EXPERTS, TOP_K, WIDTH, H, SEQ = 128, 8, 768, 2048, 4096


job_of = partial(
    builders.job_of,
    {
        "num_layers": 4, "hidden_size": H, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 32000, "moe": {"num_experts": EXPERTS, "top_k": TOP_K, "expert_intermediate_size": WIDTH},
    },
    seq_length=SEQ,
    global_batch_size=16,
)  # fmt: skip


def priced(job, **strategy: Any):
    return evaluate(job, row_of(job, **{"recompute": "none", **strategy}))


@pytest.mark.parametrize(
    ("framework", "training", "ep", "looped"),
    [
        # transformers 5.0.0 of 2026-01-26 was the first with grouped experts; PyTorch 2.8 is of 2025-08, 2.11 of 2026-03.
        ("fsdp", {"framework_version": "2.8"}, 1, True),
        ("fsdp", {"framework_version": "2.11"}, 1, False),
        ("fsdp", {"framework_version": "2.8", "model_impl": "liger"}, 1, True),
        ("fsdp", {"framework_version": "2.8", "model_impl": "native"}, 1, False),
        ("fsdp", {"framework_version": "2.8", "software_date": "2026-02"}, 1, False),
        ("deepspeed", {"framework_version": "0.18"}, 1, True),
        ("deepspeed", {"framework_version": "0.18"}, 8, True),  # its own layer: deepspeed/moe/experts.py
        ("deepspeed", {"framework_version": "0.19.2"}, 8, False),  # AutoEP: torch._grouped_mm
        ("deepspeed", {"framework_version": "0.19.2"}, 1, False),
        ("torchtitan", {"framework_version": "0.1"}, 1, False),
        ("megatron", {"framework_version": "0.12"}, 8, False),
    ],
)
def test_who_loops(framework: str, training: dict[str, Any], ep: int, looped: bool) -> None:
    job = job_of(framework, **training)
    assert loops_over_experts(job, np.array([float(ep)])).tolist() == [looped]
    if ep == 1:
        assert (assumed_fields(PooledJob.of_one_kind(job), {}).get("experts_implementation") == "eager") == looped


def test_a_loop_multiplies_each_expert_alone() -> None:
    """4096 tokens of 8 experts are 256 rows an expert: 128 pairs of products of a gate and an input, 128 of an output."""
    one = np.ones(1)
    for version, batch, times in (("2.8", 1, EXPERTS), ("2.11", EXPERTS, 1)):
        job = job_of("fsdp", framework_version=version)
        gemms = layer_gemms(job, job.model.layer_kinds[0], tokens=SEQ * one, tp=one, ep=one, etp=one)
        first, second = (gemm for gemm in gemms if gemm.module == "moe")
        assert (first.m[0], first.n[0], first.k[0]) == (SEQ * TOP_K / EXPERTS, WIDTH, H)
        assert (first.batch[0], first.repeats[0]) == (batch, 2 * times)
        assert (second.batch[0], second.repeats[0]) == (batch, times)


def test_launches_of_a_loop() -> None:
    """128 experts of 12 operators and two waits of 20 us forward, 20 operators backward; DeepSpeed's 16 of 5 and 10."""
    hugging_face = loop_launches_s(job_of("fsdp", framework_version="2.8"), np.ones(1), op_s=1e-5)
    assert HOST_SYNC_S.value == pytest.approx(20e-6)
    assert hugging_face.forward[0] == pytest.approx(128 * (12e-5 + 2 * 20e-6))
    assert hugging_face.backward[0] == pytest.approx(128 * 20e-5)
    chunks = loop_launches_s(job_of("deepspeed", framework_version="0.18"), np.array([8.0]), op_s=1e-5)
    assert (chunks.forward[0], chunks.backward[0]) == pytest.approx((16 * 5e-5, 16 * 10e-5))
    grouped = loop_launches_s(job_of("fsdp", framework_version="2.11"), np.ones(1), op_s=1e-5)
    assert grouped.forward[0] == grouped.backward[0] == 0


def test_the_host_binds_a_loop() -> None:
    """Two micro-batches of four layers: at least 128 x 32 operators each, of some 10 us, where the device needs a tenth."""
    loop, grouped = (priced(job_of("fsdp", framework_version=version), zero=3) for version in ("2.8", "2.11"))
    assert grouped.terms_s["launch"][0] < 0.1 * grouped.step_time_s[0]
    op_s = job_of("fsdp", framework_version="2.8").calibration.looped_op_s.value
    layer = 128 * (32 * op_s + 2 * 20e-6)
    work = sum(float(loop.terms_s[name][0]) for name in ("gemm", "attention", "elementwise", "launch"))
    assert work >= 2 * 4 * layer
    assert loop.step_time_s[0] > 4 * grouped.step_time_s[0]


def test_stage_3_gathers_the_tensors_of_each_expert_of_a_loop() -> None:
    """384 all-gathers of 2048 x 768 weights a layer and pass rather than two of all experts' inputs and outputs."""
    links = []
    for version in ("0.18", "0.19"):
        job = job_of("deepspeed", framework_version=version)
        rows = resolve_strategies(job, [StrategyInput(micro_batch_size=1, zero=3)]).strategies
        assert rows is not None
        links.append(float(fsdp_links_s(job, rows).layer_JU.gather[0, 0]))

    def gather_s(size: float) -> float:
        placement = groups(rows, job.cluster).edp
        return float(job.calibration.collective_s("all_gather", size, placement=placement).seconds[0])

    size = EXPERTS * 3 * H * WIDTH * 2.0
    assert links[0] - links[1] == pytest.approx(384 * gather_s(size / 384) - 2 * gather_s(size / 2))
