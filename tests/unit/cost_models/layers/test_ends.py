"""Embedding, head and loss per micro-batch, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of
from cost_models.constants import LOSS_BYTES_PER_LOGIT
from cost_models.hardware.groups import groups
from cost_models.layers.ends import end_costs

H, SEQ, VOCAB = 1024, 2048, 50257
RATE = 800e9
"""0.8 of 1000 GB/s."""


def job(framework="megatron", *, layers_ahead=0, **given):
    """`layers_ahead`: modules that predict tokens further ahead."""
    model = dense_model(4, hidden_size=H, vocab_size=VOCAB, mtp_num_layers=layers_ahead)
    return job_of(model, framework, **{"gpu": UNIT_GPU, "seq_length": SEQ, "global_batch_size": 16, **given})


class Case:
    def __init__(self, strategy, *, framework="megatron", **given) -> None:
        self.job = job(framework, **given)
        rows = row_of(self.job, **{"micro_batch_size": 2, **strategy})
        self.placements = groups(rows, self.job.cluster)
        self.found = end_costs(self.job, rows)

    def price(self, op, size) -> float:
        return float(self.job.calibration.collective_s(op, size, placement=self.placements.tp).seconds[0])

    def gemm(self, m, n, k) -> float:
        estimates = [
            self.job.calibration.gemm_s(*map(np.array, shape), precision="bf16", kind=kind, batch=1.0)
            for kind, shape in (("forward", (m, n, k)), ("dgrad", (m, k, n)), ("wgrad", (k, n, m)))
        ]
        return float(sum(estimate.seconds for estimate in estimates))


TOKENS = 2 * SEQ


def test_one_rank() -> None:
    """Padded to 50304 (a multiple of 128): three passes of T*h bf16, the gradient's V*h fp32; 10 passes of the final norm."""
    case = Case({"tp": 1})
    padded = 50304
    assert case.found.embedding[0] == pytest.approx((3 * TOKENS * H * 2 + padded * H * 4) / RATE)
    norm = 10 * TOKENS * H * 2 / RATE
    assert case.found.head[0] == pytest.approx(case.gemm(TOKENS, padded, H) + norm)
    each = LOSS_BYTES_PER_LOGIT[case.job.training.cross_entropy].value
    assert case.found.loss[0] == pytest.approx(each * TOKENS * padded / RATE)
    assert case.found.embedding_comm[0] == case.found.head_comm[0] == 0


def test_tensor_parallel_ranks_share_the_vocabulary() -> None:
    """tp 4: padded to a multiple of 512 = 50688, a quarter each; maximum, target and sum reduced, fp32 a token."""
    case = Case({"tp": 4, "dp": 2, "sequence_parallel": False})
    share = 50688 // 4
    norm = 10 * TOKENS * H * 2 / RATE
    assert case.found.head[0] == pytest.approx(case.gemm(TOKENS, share, H) + norm)
    each = LOSS_BYTES_PER_LOGIT[case.job.training.cross_entropy].value
    reduced = 3 * case.price("all_reduce", TOKENS * 4)
    assert case.found.loss[0] == pytest.approx(each * TOKENS * share / RATE + reduced)
    whole = case.price("all_reduce", TOKENS * H * 2)
    assert case.found.embedding_comm[0] == pytest.approx(whole)
    assert case.found.head_comm[0] == pytest.approx(whole)


def test_sequence_parallelism_splits_the_norm_and_gathers_for_the_head() -> None:
    case = Case({"tp": 4, "dp": 2, "sequence_parallel": True})
    plain = Case({"tp": 4, "dp": 2, "sequence_parallel": False})
    norm = 10 * TOKENS * H * 2 / RATE
    assert plain.found.head[0] - case.found.head[0] == pytest.approx(norm * 3 / 4)
    gather, scatter = case.price("all_gather", TOKENS * H * 2), case.price("reduce_scatter", TOKENS * H * 2)
    assert case.found.embedding_comm[0] == pytest.approx(scatter + gather)
    assert case.found.head_comm[0] == pytest.approx(2 * gather + scatter)


def test_context_ranks_hold_their_own_tokens() -> None:
    whole, half = Case({"cp": 1}), Case({"cp": 2, "dp": 4})
    gradient = 50304 * H * 4 / RATE
    assert half.found.embedding[0] - gradient == pytest.approx((whole.found.embedding[0] - gradient) / 2)
    assert half.found.loss[0] == pytest.approx(whole.found.loss[0] / 2)


def test_each_loss_moves_its_own_bytes() -> None:
    seconds = {name: Case({}, cross_entropy=name).found.loss[0] for name in ("unfused", "fused", "te")}
    assert seconds["unfused"] / seconds["te"] == pytest.approx(36 / 12)
    assert seconds["fused"] / seconds["te"] == pytest.approx(22 / 12)


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp", "deepspeed"])
def test_pytorchs_own_loss_moves_48_bytes_a_logit(framework: str) -> None:
    """One operator after the other: 6 + 16 + 16 + 4 + 6 bytes, without a padded vocabulary; 36 in Megatron's own."""
    case = Case({}, framework=framework, cross_entropy="unfused")
    assert case.found.loss[0] == pytest.approx(48 * TOKENS * VOCAB / RATE, rel=1e-3)


def test_transformer_engines_loss_is_bound_by_its_multiprocessors_on_fast_memory() -> None:
    """148 of them at 2.0e9 logits/s take 3.4 ps a logit; 12 bytes at 0.8 of 8 TB/s would take 1.9."""
    fast = {**UNIT_GPU, "memory_bandwidth_gb_per_s": 8000, "num_sms": 148}
    asked = job(gpu=fast, cross_entropy="te")
    strategies = row_of(asked, tp=1, micro_batch_size=2)
    assert end_costs(asked, strategies).loss[0] == pytest.approx(TOKENS * 50304 / (2.0e9 * 148))


def test_multi_token_prediction_does_the_head_twice() -> None:
    once, twice = Case({}), Case({}, layers_ahead=1)
    assert twice.found.loss[0] == pytest.approx(2 * once.found.loss[0])
    norm = 10 * TOKENS * H * 2 / RATE
    assert twice.found.head[0] - norm > 1.5 * (once.found.head[0] - norm)
