"""The matrix products of a layer after sharding: GQA, MLA and MoE, in frameworks that fuse projections and those that don't."""

from __future__ import annotations

import numpy as np

from builders import job_of, llama_model
from cost_models.layers.shapes import Gemm, layer_gemms

LLAMA = llama_model(2)

MOE = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 2048}
MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
TOKENS = 4096.0
Shapes = dict[str, tuple[float, float, float, float]]


def gemms_of(
    model=LLAMA, *, framework: str = "megatron", tp=1.0, ep=1.0, etp=1.0, sp=1.0, **training
) -> dict[str, Gemm]:
    """Products by name; an MoE layer's own shared and routed MLPs by "module.name"."""
    job = job_of(model, framework, num_nodes=4, **{"seq_length": 4096, "global_batch_size": 32, **training})
    one = np.ones(1)
    gemms = layer_gemms(
        job, job.model.layer_kinds[-1], tokens=TOKENS * one, tp=tp * one, ep=ep * one, etp=etp * one, sp=sp * one
    )
    named = {(f"{g.module}.{g.name}" if g.name.startswith("fc") and g.module != "mlp" else g.name): g for g in gemms}
    assert len(named) == len(gemms)
    return named


def shapes(model=LLAMA, **asked) -> Shapes:
    """(m, n, k, how often)."""
    return {name: (g.m[0], g.n[0], g.k[0], g.batch[0] * g.repeats[0]) for name, g in gemms_of(model, **asked).items()}


def test_grouped_queries_fused() -> None:
    """One product for q (32 heads) and both k and v (8 heads each) of width 128; gate and up in one."""
    assert shapes() == {
        "qkv_proj": (TOKENS, 4096 + 2 * 1024, 4096, 1),
        "o_proj": (TOKENS, 4096, 4096, 1),
        "fc1": (TOKENS, 2 * 14336, 4096, 1),
        "fc2": (TOKENS, 4096, 14336, 1),
    }


def test_tensor_parallel_splits_columns_then_rows() -> None:
    """tp 4: 8 query and 2 key-value heads a rank; the second product of a pair splits its inner dimension."""
    assert shapes(tp=4.0) == {
        "qkv_proj": (TOKENS, 1024 + 2 * 256, 4096, 1),
        "o_proj": (TOKENS, 4096, 1024, 1),
        "fc1": (TOKENS, 2 * 3584, 4096, 1),
        "fc2": (TOKENS, 4096, 3584, 1),
    }


def test_more_ranks_than_key_value_heads_repeat_one() -> None:
    """tp 16 over 8 heads: every rank still holds one key and one value head of 128."""
    assert shapes(tp=16.0)["qkv_proj"] == (TOKENS, 256 + 2 * 128, 4096, 1)


def test_models_of_one_matrix_keep_it_anywhere() -> None:
    """GPT-2's line has one query, key and value matrix of its own, so FSDP multiplies by it as it is."""
    gpt = {**LLAMA, "position_embedding": "learned", "max_position_embeddings": 4096}
    assert shapes(gpt, framework="fsdp")["qkv_proj"] == (TOKENS, 4096 + 2 * 1024, 4096, 1)


def test_separate_projections() -> None:
    """torchtitan to 0.2: q alone, k and v twice the same shape, gate and up twice the same shape."""
    assert shapes(framework="torchtitan", framework_version="0.2.2", tp=2.0) == {
        "q_proj": (TOKENS, 2048, 4096, 1),
        "kv_proj": (TOKENS, 512, 4096, 2),
        "o_proj": (TOKENS, 4096, 2048, 1),
        "fc1": (TOKENS, 7168, 4096, 2),
        "fc2": (TOKENS, 4096, 7168, 1),
    }


def test_torchtitan_fuses_query_key_and_value_from_0_3() -> None:
    """models/common/config_utils.py of 0.3.0: FusedQKVLinear in every Llama; gate and up stay two products."""
    found = shapes(framework="torchtitan", framework_version="0.3")
    assert found["qkv_proj"] == (TOKENS, 4096 + 2 * 1024, 4096, 1)
    assert found["fc1"] == (TOKENS, 14336, 4096, 2)
    assert "q_proj" not in found


def test_an_ungated_mlp_has_one_input_projection() -> None:
    assert shapes({**LLAMA, "gated_mlp": False})["fc1"] == (TOKENS, 14336, 4096, 1)


def test_latent_attention_splits_only_the_up_projections() -> None:
    """tp 4 of 32 heads: 8 heads of 192-wide queries; the shared rotary key (64) comes with the down-projection."""
    model = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"} | {"mla": MLA}
    found = shapes(model, tp=4.0)
    assert found["q_down_proj"] == (TOKENS, 1536, 4096, 1)
    assert found["q_up_proj"] == (TOKENS, 8 * 192, 1536, 1)
    assert found["kv_down_proj"] == (TOKENS, 512 + 64, 4096, 1)
    assert found["kv_up_proj"] == (TOKENS, 8 * (128 + 128), 512, 1)
    assert found["o_proj"] == (TOKENS, 4096, 8 * 128, 1)
    plain = shapes({**model, "mla": {**MLA, "q_lora_rank": None}}, tp=4.0)
    assert plain["q_proj"] == (TOKENS, 8 * 192, 4096, 1)
    assert "q_down_proj" not in plain


def test_latent_attention_projects_a_rank_s_own_tokens_down_in_transformer_engine() -> None:
    """Core 0.14's TELinear is duplicated and sees T/t tokens; 0.13's, and the local layers', is split by columns and sees all
    (megatron/core/models/gpt/gpt_layer_specs.py). torchtitan gathers whole rows and projects them on every rank.
    """
    model = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"} | {"mla": MLA}
    for asked, rows, columns in (
        ({"framework_version": "0.14"}, 4, 1),
        ({"framework_version": "0.13"}, 1, 4),
        ({"transformer_impl": "local"}, 1, 4),
        ({"framework": "torchtitan"}, 1, 1),
    ):
        found = shapes(model, tp=4.0, sp=4.0, **asked)
        assert found["q_down_proj"] == (TOKENS / rows, 1536 / columns, 4096, 1)
        assert found["kv_down_proj"] == (TOKENS / rows, 576 / columns, 4096, 1)
        assert found["q_up_proj"] == (TOKENS, 8 * 192, 1536, 1)


def test_experts_see_their_group_s_tokens() -> None:
    """ep 4, tp 1: 4 ranks bring 4096 tokens each, 2 of 8 experts a token: 4*4096*2/8 = 4096 rows for each of 2 experts."""
    found = shapes({**LLAMA, "moe": MOE}, ep=4.0)
    assert found["router"] == (TOKENS, 8, 4096, 1)
    assert found["moe.fc1"] == (4096, 2 * 2048, 4096, 2)
    assert found["moe.fc2"] == (4096, 4096, 2048, 2)
    assert "fc1" not in found


def test_padded_experts_multiply_their_whole_capacity() -> None:
    """DeepSpeed's dispatched tensor is (experts, capacity, h): 1.25 of 4096 rows; Megatron's 1.25 only limits, 0.5 halves."""
    limited = {**LLAMA, "moe": {**MOE, "capacity_factor": 1.25}}
    assert shapes(limited, framework="megatron-deepspeed", ep=4.0)["moe.fc2"] == (5120, 4096, 2048, 2)
    assert shapes(limited, ep=4.0)["moe.fc2"] == (4096, 4096, 2048, 2)
    halved = {**LLAMA, "moe": {**MOE, "capacity_factor": 0.5}}
    assert shapes(halved, ep=4.0)["moe.fc2"] == (2048, 4096, 2048, 2)


def test_tensor_parallel_ranks_share_the_tokens_before_dispatch() -> None:
    """tp 4, ep 2, etp 2: the 4 ranks of an expert group bring 1024 tokens each: 4*1024*2/8 = 1024 rows, width halved."""
    found = shapes({**LLAMA, "moe": MOE}, tp=4.0, ep=2.0, etp=2.0)
    assert found["router"] == (1024, 8, 4096, 1)
    assert found["moe.fc1"] == (1024, 2 * 1024, 4096, 4)
    assert found["moe.fc2"] == (1024, 4096, 1024, 4)


def test_routed_work_is_top_k_tokens_whatever_the_split() -> None:
    """Rows * width * experts held, summed over ep*etp ranks per tokens brought, is 2 copies of every token."""
    model = {**LLAMA, "moe": MOE}
    for tp, ep, etp in ((1.0, 1.0, 1.0), (1.0, 8.0, 1.0), (2.0, 2.0, 2.0), (4.0, 2.0, 1.0)):
        m, _, k, batch = shapes(model, tp=tp, ep=ep, etp=etp)["moe.fc2"]
        assert m * k * batch == TOKENS / tp * 2 * 2048


def test_shared_experts_are_one_dense_mlp() -> None:
    moe = {**MOE, "num_shared_experts": 2, "shared_expert_intermediate_size": 1024}
    found = shapes({**LLAMA, "moe": moe}, tp=2.0)
    assert found["shared_experts.fc1"] == (TOKENS, 2 * 1024, 4096, 1)
    assert found["shared_experts.fc2"] == (TOKENS, 4096, 1024, 1)


def test_separate_projections_are_kernels_one_after_the_other_and_experts_one_grouped_kernel() -> None:
    dense = gemms_of(framework="torchtitan", framework_version="0.2")
    assert (dense["kv_proj"].batch[0], dense["kv_proj"].repeats[0]) == (1, 2)
    assert (dense["fc1"].batch[0], dense["fc1"].repeats[0]) == (1, 2)
    routed = gemms_of({**LLAMA, "moe": MOE}, framework="torchtitan")["moe.fc1"]
    assert (routed.batch[0], routed.repeats[0]) == (8, 2)
