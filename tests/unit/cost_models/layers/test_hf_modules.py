"""Hugging Face's modules operator by operator: bytes, kernels and loss, counted by hand from transformers' source."""

from __future__ import annotations

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of
from cost_models.layers.elementwise import elementwise_s, layer_traffic
from cost_models.layers.ends import end_costs
from cost_models.layers.hf_modules import CHAIN_SHARE, LIGER_HOST, QK_NORM_HOST, host_ratio, liger_chunks

H, WIDTH, Q, KV, VOCAB = 1024, 4096, 1024, 256, 32000
RATE = 800e9
"""0.8 of the 1,000 GB/s of UNIT_GPU."""
TOKENS = 1024


def job(framework="fsdp", *, model=None, **training):
    given = {"num_key_value_heads": 2, **(model or {})}
    return job_of(dense_model(2, **given), framework, gpu=UNIT_GPU, seq_length=TOKENS, global_batch_size=8, **training)


def traffic(asked):
    return layer_traffic(asked, asked.model.layer_kinds[0])


def test_a_layer_of_transformers_modules() -> None:
    """LlamaRMSNorm: to fp32 2 + 4, pow 4 + 4, mean 4, product with its inverse root 4 + 4, to bf16 4 + 2, product with the weight
    2 + 2: 36. Rotation: two products 4 + 4, rotate_half's negation 1 + 1 and concatenation 2 + 2, sum 6: 20 for the half that it
    negates. Residual additions 3e, SwiGLU's SiLU and product 5e forward, 9e backward.
    """
    forward, backward = traffic(job())
    assert forward.hidden_bytes == H * (2 * 36 + 2 * 6)
    assert forward.sharded_bytes == (Q + KV) * 20 + WIDTH * 10
    assert backward.hidden_bytes == H * (2 * 84 + 2 * 6)
    assert backward.sharded_bytes == (Q + KV) * 30 + WIDTH * 18
    assert forward.kernels == 2 * 8 + 2 * 1 + 2 + 8


def test_norms_of_queries_and_keys_are_such_norms_too() -> None:
    plain, normed = traffic(job()), traffic(job(model={"qk_norm": True}))
    moved = [b.sharded_bytes - a.sharded_bytes for a, b in zip(plain, normed, strict=True)]
    assert moved == [(Q + KV) * 36, (Q + KV) * 84]


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed", "torchtitan"])
def test_whose_modules_run_decides_and_not_the_framework(framework: str) -> None:
    """From PyTorch 2.9 on, a native RMSNorm is one kernel of 2e bytes."""
    theirs, own = (
        traffic(job(framework, model_impl=each, compile=False, software_date="2026-01"))[0]
        for each in ("transformers", "native")
    )
    assert (theirs.hidden_bytes - own.hidden_bytes) / H == 2 * (36 - 4)


def test_ligers_kernels_are_fused_but_for_the_residual() -> None:
    forward, backward = traffic(job(model_impl="liger"))
    assert forward.hidden_bytes == H * (2 * 4 + 2 * 6)
    assert forward.sharded_bytes == (Q + KV) * 4 + WIDTH * 6
    assert backward.hidden_bytes == H * (2 * 10 + 2 * 6)


@pytest.mark.parametrize("training", [{"compile": True}, {"framework": "megatron"}])
def test_compiled_layers_and_megatrons_are_none_of_them(training) -> None:
    given = {"framework": "fsdp", "model_impl": "transformers", **training}
    other = {**given, "model_impl": "native"}
    assert traffic(job(**given)) == traffic(job(**other))


def test_chains_run_at_their_share_of_the_streaming_rate() -> None:
    """Bytes take 1 / 0.58 as long; each kernel's ramp stays 1.5 us."""
    asked = job()
    forward = traffic(asked)[0]
    tokens, one = np.array([float(TOKENS)]), np.ones(1)
    found, _ = elementwise_s(
        asked, asked.model.layer_kinds[0], tokens=tokens, tp=one, sequence_parallel=np.zeros(1, bool)
    )
    moved = TOKENS * (forward.hidden_bytes + forward.sharded_bytes + forward.gathered_bytes)
    assert CHAIN_SHARE.value == 0.58
    assert found[0] == pytest.approx(moved / (0.58 * RATE) + forward.kernels * 1.5e-6)


def test_the_unfused_loss_casts_and_reads_its_rows_twice() -> None:
    """To fp32 2 + 4, log-softmax and its backward twice 4 + 4 each, a filled gradient 4, to bf16 4 + 2: 48 bytes a logit."""
    asked = job(cross_entropy="unfused")
    loss = float(end_costs(asked, row_of(asked, dp=8)).loss[0])
    assert loss == pytest.approx(48 * TOKENS * VOCAB / RATE)


@pytest.mark.parametrize(
    ("tokens", "vocab", "hidden", "pieces"),
    [
        (8192, 151936, 2048, 64),  # 74.2 times the hidden size: 75 pieces of 110 tokens, which become 128 tokens each
        (8192, 128256, 4096, 32),  # 31.3: 32 pieces of 256 tokens, a power of two
        (100, 1000, 4096, 1),  # a vocabulary narrower than the hidden states: one piece
    ],
)
def test_pieces_of_ligers_loss(tokens: int, vocab: int, hidden: int, pieces: int) -> None:
    found = liger_chunks(tokens=np.array([float(tokens)]), vocab=np.array([float(vocab)]), hidden=float(hidden))
    assert found[0] == pieces


def test_each_piece_of_ligers_head_reads_the_weights_gradient() -> None:
    """32,000 / 1,024 = 31.25: 32 pieces of 32 tokens. Their products accumulate into V x h bf16 elements, read once a piece; the
    native linear loss is not in pieces.
    """
    liger, native = (job(model_impl=each, cross_entropy="linear") for each in ("liger", "native"))
    heads = [float(end_costs(each, row_of(each, dp=8)).head[0]) for each in (liger, native)]
    read = 32 * VOCAB * H * 2 / RATE
    assert heads[0] > heads[1] + read  # thin products are less efficient too


def test_ligers_loss_is_the_default_of_its_patches() -> None:
    assert job(model_impl="liger").training.cross_entropy == "linear"
    assert job(model_impl="liger", cross_entropy="unfused").training.cross_entropy == "unfused"


def test_host_time_of_a_layer() -> None:
    """Norms of query and key are more operators, Liger's kernels more host work each; native layers are counted elsewhere."""
    assert host_ratio(job()) == 1.0
    assert host_ratio(job(model={"qk_norm": True})) == QK_NORM_HOST.value
    assert host_ratio(job(model={"qk_norm": True}, model_impl="liger")) == QK_NORM_HOST.value * LIGER_HOST.value
    assert host_ratio(job(model={"qk_norm": True}, model_impl="native")) == 1.0
