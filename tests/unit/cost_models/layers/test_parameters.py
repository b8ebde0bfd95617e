"""Parameter counts by hand: how each tensor is split over a rank, and what a token multiplies."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import (
    active_matmul_parameters,
    count_parameters,
    dense_layer_parameters_on_rank,
    embedding_parameters,
    expert_layer_parameters_on_rank,
    head_parameters,
    layer_parameters,
    padded_vocab_size,
    position_parameters,
)

GQA = resolve_model(
    {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
)
MOE = resolve_model(
    {
        "num_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "intermediate_size": 96,
        "vocab_size": 100,
        "moe": {
            "num_experts": 4,
            "top_k": 2,
            "expert_intermediate_size": 32,
            "num_shared_experts": 1,
            "shared_expert_intermediate_size": 48,
            "first_dense_layers": 1,
        },
    }
)
BIASED = resolve_model(
    {
        "num_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "intermediate_size": 256,
        "vocab_size": 100,
        "gated_mlp": False,
        "norm": "layernorm",
        "linear_bias": True,
        "position_embedding": "learned",
        "max_position_embeddings": 50,
        "tie_word_embeddings": True,
    }
)


def test_a_layer_with_grouped_queries():
    layer = layer_parameters(GQA, GQA.layer_kinds[0])
    # q and o: 64*64 each; k and v: 64*16 each; gate, up, down: 64*96 each; two norms of 64
    assert layer.matrices == 2 * 64 * 64 + 3 * 64 * 96
    assert layer.kv_matrices == 2 * 64 * 16
    assert layer.vectors == 0
    assert layer.replicated == 2 * 64


def test_the_whole_model_is_layers_embedding_head_and_final_norm():
    counts = count_parameters(GQA)
    per_layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96 + 2 * 64
    assert counts.per_layer == (per_layer, per_layer)
    assert counts.total == 2 * per_layer + 2 * 100 * 64 + 64
    assert counts.active == counts.total


def test_biases_norms_and_positions():
    layer = layer_parameters(BIASED, BIASED.layer_kinds[0])
    # column-parallel biases: q, k, v (64 each) and the MLP's first (256)
    assert layer.vectors == 3 * 64 + 256
    # row-parallel biases (64 each) and two LayerNorms of weight and bias
    assert layer.replicated == 2 * 64 + 2 * 2 * 64
    assert position_parameters(BIASED) == 50 * 64
    assert count_parameters(BIASED).head == 0


def test_experts_router_and_shared_expert():
    dense, sparse = (layer_parameters(MOE, kind) for kind in MOE.layer_kinds[:2])
    assert dense.num_experts == 0
    assert sparse.per_expert == 3 * 64 * 32
    assert sparse.shared_expert == 3 * 64 * 48
    assert sparse.replicated == 2 * 64 + 4 * 64  # norms and router
    counts = count_parameters(MOE)
    # two MoE layers leave 4 - 2 experts of each token unused
    assert counts.total - counts.active == 2 * 2 * 3 * 64 * 32


def test_tensor_parallel_ranks_share_key_value_heads():
    """k and v stop splitting at two key-value heads; the rest divides by tp."""
    on_rank = dense_layer_parameters_on_rank(GQA, GQA.layer_kinds[0], np.array([1.0, 2.0, 8.0]))
    split, kv, replicated = 2 * 64 * 64 + 3 * 64 * 96, 2 * 64 * 16, 128
    assert on_rank.tolist() == [
        split + kv + replicated,
        split / 2 + kv / 2 + replicated,
        split / 8 + kv / 2 + replicated,
    ]


def test_expert_ranks_hold_their_share():
    ep, etp = np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0])
    on_rank = expert_layer_parameters_on_rank(MOE, MOE.layer_kinds[1], ep, etp)
    expert = 3 * 64 * 32
    assert on_rank.tolist() == [4 * expert, 2 * expert, expert / 2]
    assert expert_layer_parameters_on_rank(MOE, MOE.layer_kinds[0], ep, etp).tolist() == [0, 0, 0]


def test_latent_attention_replicates_the_down_projections():
    model = resolve_model(
        {
            "num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100,
            "mla": {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
                    "v_head_dim": 8},
        }
    )  # fmt: skip
    layer = layer_parameters(model, model.layer_kinds[0])
    # q up: 24*4*12, kv up: 16*4*(8+8), out: 4*8*64, MLP: 3*64*96
    assert layer.matrices == 24 * 48 + 16 * 64 + 32 * 64 + 3 * 64 * 96
    # q down 64*24 and its norm, kv down 64*(16+4) and its norm, two norms of 64
    assert layer.replicated == 64 * 24 + 24 + 64 * 20 + 16 + 2 * 64
    assert layer.kv_matrices == 0


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        # 50257 = 392.6 * 128 -> 393 * 128 = 50304; tp 2: 196.3 * 256 -> 197 * 256 = 50432
        ("megatron", [50304.0, 50432.0, 51200.0]),
        ("megatron-deepspeed", [50304.0, 50432.0, 51200.0]),
        ("nanotron", [50257.0, 50258.0, 50264.0]),
        ("fsdp", [50257.0] * 3),
        ("torchtitan", [50257.0] * 3),
    ],
)
def test_vocabulary_padding(framework, expected):
    model = resolve_model({"preset": "gpt3-175b"})
    assert padded_vocab_size(model, framework, np.array([1.0, 2.0, 8.0])).tolist() == expected


def test_embedding_and_head_follow_the_padded_vocabulary():
    vocab = np.array([128.0, 256.0])
    assert embedding_parameters(GQA, vocab).tolist() == [128 * 64, 256 * 64]
    assert head_parameters(GQA, vocab).tolist() == [128 * 64, 256 * 64]
    assert head_parameters(BIASED, vocab).tolist() == [0, 0]


def test_multiplied_weights_leave_look_ups_norms_and_biases_out():
    per_layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96
    assert active_matmul_parameters(GQA) == 2 * per_layer + 100 * 64
    # tied: the head multiplies, the look-up does not
    assert active_matmul_parameters(BIASED) == 4 * 64 * 64 + 2 * 64 * 256 + 100 * 64


def test_a_token_multiplies_its_own_experts_only():
    attention, router = 4 * 64 * 64, 4 * 64
    sparse = attention + router + 2 * 3 * 64 * 32 + 3 * 64 * 48
    assert active_matmul_parameters(MOE) == attention + 3 * 64 * 96 + 2 * sparse + 100 * 64


def test_multi_token_prediction_is_counted_apart():
    with_mtp = count_parameters(resolve_model({"preset": "deepseek-v3"}))
    without = count_parameters(resolve_model({"preset": "deepseek-v3", "mtp_num_layers": 0}))
    assert with_mtp.total == without.total
    # one more layer, eh_proj of 2*7168 x 7168, three norms
    assert with_mtp.mtp == with_mtp.per_layer[-1] + 2 * 7168**2 + 3 * 7168
