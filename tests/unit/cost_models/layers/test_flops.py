"""Model and hardware operations against the arithmetic of the papers that define them."""

from __future__ import annotations

import pytest

from builders import job_of, llama_model, row_of
from cost_models.layers.flops import model_flops, model_flops_per_step, repeated_flops_per_token

LLAMA = llama_model()


def job(model=LLAMA, **training):
    return job_of(model, **{"seq_length": SEQ, "global_batch_size": BATCH, **training})


SEQ, BATCH = 8192, 16
TOKENS = SEQ * BATCH
LAYER = 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096 + 3 * 4096 * 14336
"""q; k and v of 8 heads of 128; output; gated MLP: 218,103,808 weights."""
HEAD = 4096 * 128256
ATTENTION = 2 * 32 * SEQ * (128 + 128)
"""Per token and layer, full S x S: 2 (multiply-add) * heads * S * (scores 128 + values 128)."""


def test_llama_3_1_8b() -> None:
    """3 passes * 2 * (32 layers + head) weights and 3 * 32 * attention, per token; causal takes half of the attention."""
    assert LAYER == 218_103_808
    weights, attention = 6 * (32 * LAYER + HEAD), 3 * 32 * ATTENTION
    assert model_flops_per_step(job()) == pytest.approx((weights + attention) * TOKENS, rel=1e-12)
    assert model_flops_per_step(job(), causal=True) == pytest.approx((weights + attention / 2) * TOKENS, rel=1e-12)


def test_weight_gradients_that_nobody_computes_are_not_counted() -> None:
    """A pass less of 32 MLPs; of everything but 41,943,040 adapter weights (rank 16 on all seven modules); of all layers."""
    attention, mlp = 3 * 32 * ATTENTION, 32 * 3 * 4096 * 14336
    frozen = job(frozen=["mlp"], framework="fsdp")
    assert model_flops_per_step(frozen) / TOKENS == pytest.approx(6 * (32 * LAYER + HEAD) + attention - 2 * mlp)
    adapted = job(adapter={"rank": 16}, framework="fsdp")
    assert model_flops_per_step(adapted) / TOKENS == pytest.approx(4 * (32 * LAYER + HEAD) + attention + 6 * 41_943_040)
    head_alone = job(frozen=["embedding", "attention", "mlp", "norms"], framework="fsdp")
    assert model_flops_per_step(head_alone) / TOKENS == pytest.approx(2 * (32 * LAYER + 2 * HEAD) + 32 * ATTENTION)


def test_of_a_tiny_model_every_operation_counts() -> None:
    """Two layers of width 8: 4 heads of 2, 2 of them for keys and values, a gated MLP of 12, a vocabulary of 11, 4 positions.

    A layer has 8 * (8 + 4 + 4 + 8) + 3 * 8 * 12 = 480 weights and 2 * 4 * 4 * (2 + 2) = 128 operations of attention per token, the
    head 88 weights. Adapters of rank 1 on all seven products add 16 + 12 + 12 + 16 and 3 * 20 weights to a layer. A frozen weight
    loses one pass of 2; the weights of adapters have three.
    """
    tiny = {
        "num_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 11,
    }  # fmt: skip
    plain = 6 * (2 * 480 + 88) + 3 * 2 * 128
    more = {
        (): 0,
        ("frozen", ("mlp",)): -2 * 2 * 288,
        ("frozen", ("attention", "norms")): -2 * 2 * 192,
        ("frozen", ("head",)): -2 * 88,
        ("adapter", 1): -2 * (2 * 480 + 88) + 6 * 2 * 116,
        ("adapter with head", 1): -2 * 2 * 480 + 6 * 2 * 116,
    }
    for what, added in more.items():
        trained = {} if not what else {"frozen": list(what[1])} if what[0] == "frozen" else {"adapter": {"rank": 1}}
        if what and what[0] == "adapter with head":
            trained = {"adapter": {"rank": 1, "modules_to_save": ["lm_head"]}}
        asked = job_of(tiny, "fsdp", seq_length=4, global_batch_size=16, **trained)
        assert model_flops_per_step(asked) == (plain + added) * 64, what


def test_the_embedding_is_free_and_the_vocabulary_unpadded() -> None:
    tied = job({**LLAMA, "tie_word_embeddings": True})
    assert model_flops_per_step(tied) == model_flops_per_step(job())
    odd = job({**LLAMA, "vocab_size": 50257})
    assert model_flops(odd).head_flops_per_token == 2 * 4096 * 50257


def test_only_routed_experts_count() -> None:
    """2 of 8 experts of 3 * 4096 * 2048, the router of 4096 * 8, and one shared expert of width 1024."""
    moe = {
        "num_experts": 8, "top_k": 2, "expert_intermediate_size": 2048, "num_shared_experts": 1,
        "shared_expert_intermediate_size": 1024,
    }  # fmt: skip
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 2048 + 4096 * 8 + 3 * 4096 * 1024
    forward = 2 * (32 * layer + HEAD) + 32 * ATTENTION
    assert model_flops_per_step(job({**LLAMA, "moe": moe})) == pytest.approx(3 * forward * TOKENS, rel=1e-12)


def test_a_sliding_window_counts_the_pairs_it_leaves_twice() -> None:
    """Token i sees min(i, 1024) of 8,192: 1024 * 8192 - 1024^2 / 2 pairs, where the whole square counts twice its half."""
    windowed = job({**LLAMA, "sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 16})
    expected = 16 * ATTENTION + 16 * 2 * 32 * (2 * (1024 * 8192 - 1024**2 / 2) / 8192) * 256
    assert model_flops(windowed).attention_flops_per_token == expected


def test_packed_documents_attend_within_themselves_only() -> None:
    """Documents of 1,024 tokens in sequences of 8,192: an eighth of the square; longer ones than the sequence change nothing."""
    assert model_flops(job(mean_document_length=1024)).attention_flops_per_token == 32 * ATTENTION / 8
    assert model_flops(job(mean_document_length=100_000)).attention_flops_per_token == 32 * ATTENTION
    mixed = {**LLAMA, "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 16}
    # windows of 512 leave 512 * 1024 - 512^2 / 2 = 393,216 of a document's 524,288 pairs: three quarters
    expected = 16 * ATTENTION / 8 + 16 * 0.75 * ATTENTION / 8
    assert model_flops(job(mixed, mean_document_length=1024)).attention_flops_per_token == expected


def test_latent_attention_has_wider_scores_than_values() -> None:
    """Queries and keys 128 + 64 wide, values 128."""
    mla = {
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    model = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"} | {"mla": mla}
    assert model_flops(job(model)).attention_flops_per_token == 32 * 2 * 32 * SEQ * (192 + 128)
    down_and_up = 4096 * 1536 + 1536 * 32 * 192 + 4096 * (512 + 64) + 512 * 32 * (128 + 128) + 32 * 128 * 4096
    layer = down_and_up + 3 * 4096 * 14336
    assert model_flops(job(model)).layer_matmul_flops_per_token == 2 * 32 * layer


def test_multi_token_prediction_repeats_the_head() -> None:
    assert model_flops(job({**LLAMA, "mtp_num_layers": 1})).head_flops_per_token == 2 * 2 * HEAD


def test_hardware_operations_add_one_forward_of_what_is_recomputed() -> None:
    """Full repeats layers and attention but not the head; 8 of 32 layers a quarter of that; Megatron's selective the attention."""
    asked = job()
    layers, attention = 2 * 32 * LAYER * TOKENS, 32 * ATTENTION * TOKENS

    def repeated(**strategy) -> float:
        return float(repeated_flops_per_token(asked, row_of(asked, **strategy))[0]) * TOKENS

    assert repeated(recompute="none") == 0
    assert repeated(recompute="full") == pytest.approx(layers + attention, rel=1e-9)
    assert repeated(recompute="full", recompute_num_layers=8) == pytest.approx((layers + attention) / 4, rel=1e-9)
    assert repeated(recompute="selective") == pytest.approx(attention, rel=1e-9)


def selective_share(model, **training) -> float:
    """Share of the layers' products that torchtitan's selective recomputation repeats."""
    asked = job(model, framework="torchtitan", **training)
    more = float(repeated_flops_per_token(asked, row_of(asked, recompute="selective"))[0])
    return more / model_flops(asked).layer_matmul_flops_per_token


def test_torchtitan_selective_repeats_every_second_product_as_they_run() -> None:
    """To 0.2 wq [wk] wv [wo] w1 [w3] w2: 4096*1024 + 4096^2 + 4096*14336 of 218.1e6; 0.3 has one wqkv: wqkv [wo] w1 [w3] w2."""
    wk, wo, w3 = 4096 * 1024, 4096 * 4096, 4096 * 14336
    layer = 2 * wo + 2 * wk + 3 * w3
    assert selective_share(LLAMA, framework_version="0.2.2") == pytest.approx((wk + wo + w3) / layer, rel=1e-9)
    assert (wk + wo + w3) / layer == pytest.approx(0.365, abs=1e-3)
    assert selective_share(LLAMA, framework_version="0.3") == pytest.approx((wo + w3) / layer, rel=1e-9)


def test_torchtitan_selective_repeats_every_grouped_product_and_the_router() -> None:
    """Qwen3-30B-A3B: wq [wk] wv [wo], router, 8 of 128 experts 768 wide; grouped_mm is in no list of what is saved."""
    h, q, kv = 2048, 4096, 512
    wq, wk, experts, router = h * q, h * kv, 8 * 3 * h * 768, h * 128
    share = (wk + wq + router + experts) / (2 * wq + 2 * wk + router + experts)
    assert share == pytest.approx(0.83, abs=5e-3)
    assert selective_share({"preset": "qwen3-30b-a3b"}, framework_version="0.2") == pytest.approx(share, rel=1e-9)
