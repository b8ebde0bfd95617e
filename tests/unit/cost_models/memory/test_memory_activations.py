"""Saved bytes per layer and token, by framework and recomputation, against sums done by hand; micro-batches in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import job_of, llama_model, row_of
from cost_models.evaluate import evaluate
from cost_models.frameworks import memory_traits
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.memory.in_flight import micro_batches_in_flight
from cost_models.memory.layer_table import LayerTable, layer_table
from cost_models.memory.loss import loss_bytes
from cost_models.memory.moments import moments
from cost_models.strategies.fields import Schedule
from cost_models.strategies.strategy import Strategies

LLAMA_8B = llama_model()

GPT = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "vocab_size": 51200,
    "gated_mlp": False, "norm": "layernorm", "position_embedding": "none",
}  # fmt: skip
TOKENS = 8192


def built(model: dict[str, Any], strategy: dict[str, Any], **training: Any) -> tuple[Job, Strategies]:
    job = job_of(model, **{"num_nodes": 8, "seq_length": TOKENS, "dropout": 0.0, **training})
    return job, row_of(job, all_stages=True, **{"dp": 1, "recompute": "none", **strategy})


def table(model: dict[str, Any], strategy: dict[str, Any], **training: Any) -> LayerTable:
    job, strategies = built(model, strategy, **training)
    return layer_table(job, memory_traits(job.training), strategies)


def kept_per_token(model: dict[str, Any], strategy: dict[str, Any], **training: Any) -> float:
    return float(table(model, strategy, **training).kept_J[0][0]) / TOKENS


@pytest.mark.parametrize(
    ("recompute", "version", "expected"),
    [
        # 12h + 4kv + 8f + 4a + 8 = 49152 + 4096 + 114688 + 128 + 8
        ("none", "0.2", 168072),
        ("none", "0.3", 168072),
        # Input 2h, attention's output 2q and statistics 4a, outputs of wq, wv, w1, w2: 2q + 2kv + 2f + 2h
        ("selective", "0.2", 63616),
        # wqkv in place of wq and wv: 2kv more
        ("selective", "0.3", 65664),
    ],
)
def test_torchtitan(recompute: str, version: str, expected: float) -> None:
    strategy = {"zero": 3, "dp": 8, "recompute": recompute}
    assert kept_per_token(LLAMA_8B, strategy, framework="torchtitan", framework_version=version) == expected


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
def test_a_compiled_layer_makes_the_output_of_its_activation_again(framework: str) -> None:
    """168072 less 2f: gate, up and their product are left of a gated MLP; without a gate there is nothing to make again."""
    strategy = {"zero": 3, "dp": 8, "recompute": "none"}
    given = {"framework": framework, "model_impl": "native", "compile": True}
    assert kept_per_token(LLAMA_8B, strategy, **given) == 168072 - 2 * 14336
    plain = {**LLAMA_8B, "gated_mlp": False}
    eager = kept_per_token(plain, strategy, **{**given, "compile": False})
    assert kept_per_token(plain, strategy, **given) == eager


@pytest.mark.parametrize(
    ("framework", "compiled", "casts"),
    [
        # Query, key and value, and gate and up: five products cast their inputs, where two norm outputs are kept without autocast.
        ("fsdp", False, 5),
        # torchtitan joins query, key and value into one product.
        ("torchtitan", False, 3),
        # A compiler casts what several products read once.
        ("fsdp", True, 2),
    ],
)
def test_autocast_keeps_a_cast_for_every_product(framework: str, compiled: bool, casts: int) -> None:
    """Beside 2h a cast: h = 4096; fp32 instead of bf16 for the two norm inputs, 4h more than the 4h of bf16. What else is kept does
    not depend on it."""
    given = {"framework": framework, "model_impl": "native", "param_dtype": "fp32", "compile": compiled}
    sharded = kept_per_token(LLAMA_8B, {"zero": 3, "dp": 8}, **given)
    assert kept_per_token(LLAMA_8B, {"zero": 0, "dp": 8}, **given) - sharded == 4 * 4096 + 2 * 4096 * (casts - 2)


def test_torchtitan_selective_keeps_what_its_two_reduce_scatters_return() -> None:
    """t = 4: input, attention's output, its statistics, outputs of wqkv and w1 are divided: (2h + 2q + 4a + 2q + 4kv + 2f) / 4 =
    (8192 + 8192 + 128 + 8192 + 4096 + 28672) / 4 = 14368. The output of w2 is a whole partial sum, 2h = 8192, and the two
    reduce-scatters keep a quarter each, 2 * 2h / 4 = 4096.
    """
    strategy = {"tp": 4, "dp": 8, "zero": 3, "sequence_parallel": True, "recompute": "selective"}
    assert kept_per_token(LLAMA_8B, strategy, framework="torchtitan", framework_version="0.3") == 14368 + 8192 + 4096


def test_torchtitan_keeps_gathered_norm_outputs_under_tensor_parallelism() -> None:
    """t = 4: two norm outputs whole (4h = 16384), all else divided: (168072 - 16384) / 4 = 37922."""
    strategy = {"tp": 4, "dp": 8, "zero": 3, "sequence_parallel": True}
    expected = 4 * 4096 + (168072 - 4 * 4096) / 4
    assert kept_per_token(LLAMA_8B, strategy, framework="torchtitan") == expected


@pytest.mark.parametrize("tp", [1, 4])
def test_megatron_transformer_engine_divides_everything(tp: int) -> None:
    """10h + 2q + 4kv + 6f + 4a + 8 = 40960 + 8192 + 4096 + 86016 + 128 + 8, over t with sequence parallelism."""
    strategy = {"tp": tp, "dp": 1, "sequence_parallel": tp > 1}
    assert kept_per_token(LLAMA_8B, strategy) == 139400 / tp


def test_megatron_local_keeps_the_fused_projection_and_the_rotary_tables() -> None:
    """12h + 2q + 6kv + 6f + 4a + 8 = 49152 + 8192 + 6144 + 86016 + 128 + 8, and 8 * head_dim = 1024 a position."""
    assert kept_per_token(LLAMA_8B, {}, transformer_impl="local") == 149640 + 1024


def test_transformer_engine_in_fp8_saves_linear_inputs_in_one_byte() -> None:
    """Norm outputs 2h and the activation f shrink by a byte, the attention output gains an fp8 copy q:
    139400 - 2*4096 - 14336 + 4096."""
    assert kept_per_token(LLAMA_8B, {}, precision="fp8") == 139400 - 8192 - 14336 + 4096


def test_korthikanti_with_math_attention_and_dropout() -> None:
    """Section 4.1: s b h (34 + 5 a s / h) bytes, and 16 of layer-norm statistics a token.

    34 * 2048 = 69632; 5 * 16 * 8192 = 655360.
    """
    expected = 34 * 2048 + 5 * 16 * TOKENS + 16
    assert kept_per_token(GPT, {}, attention="math", dropout=0.1, transformer_impl="local") == expected


def test_korthikanti_with_tensor_parallelism_alone() -> None:
    """Equation 2: s b h (10 + 24/t + 5 a s / (h t)), t = 8, and undivided statistics."""
    expected = 10 * 2048 + 24 * 2048 / 8 + 5 * 16 * TOKENS / 8 + 16
    strategy = {"tp": 8, "sequence_parallel": False}
    assert kept_per_token(GPT, strategy, attention="math", dropout=0.1, transformer_impl="local") == expected


@pytest.mark.parametrize(("recompute", "dropped"), [("none", 0), ("selective", 5)])
def test_backward_of_math_attention_holds_two_gradients_of_the_scores(recompute: str, dropped: int) -> None:
    """The softmax's backward makes the scores' gradient from the probabilities', both alive: 2 * 2 bytes for each of 16 heads'
    8192 keys a token, more than the MLP's. Recomputed attention makes its matrices anew beside them: 5 bytes with dropout (softmax
    and dropout outputs of 2, a mask of 1). With flash attention the MLP's are the most: 2 * 8192 and a weight's, 2 * 8192 * 2048.
    """
    strategy = {"recompute": recompute}
    found = table(GPT, strategy, attention="math", dropout=0.1, transformer_impl="local")
    assert float(found.transient_J[0][0]) / TOKENS == (4 + dropped) * 16 * TOKENS
    flash = table(GPT, {"recompute": "none"}, dropout=0.1, transformer_impl="local")
    assert float(flash.transient_J[0][0]) == 2 * 8192 * TOKENS + 2 * 8192 * 2048


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        (["core_attn"], 4 * 32),
        (["mlp"], 6 * 14336),
        # Transformer Engine's linear layers make the norms' outputs themselves: there is no module to recompute
        (["layernorm"], 0),
        (["core_attn", "layernorm"], 4 * 32),
        ([], 4 * 32),
    ],
)
def test_megatron_selective_modules(modules: list[str], dropped: float) -> None:
    """With flash attention the core saves only the log-sum-exp beside what the projections need anyway."""
    strategy = {"recompute": "selective", "recompute_modules": modules}
    assert kept_per_token(LLAMA_8B, strategy) == 139400 - dropped


MOE = {
    **LLAMA_8B, "moe": {"num_experts": 16, "top_k": 2, "expert_intermediate_size": 1024, "num_shared_experts": 1,
                        "shared_expert_intermediate_size": 2048},
}  # fmt: skip


def test_mixture_follows_the_routed_width() -> None:
    """Attention and norms 139400 - 6*14336 = 53384; experts 2*(2h + 6*1024) = 28672; shared 6*2048; router 16*16."""
    assert kept_per_token(MOE, {"dp": 8, "ep": 8}) == 53384 + 28672 + 12288 + 256


def test_expert_tensor_ranks_gather_their_tokens_and_split_the_width() -> None:
    """tp 4 and etp 2: a rank's share of the copies, 2/4 a token, is gathered from both, rows of 2h and half of 6 * 1024 each.

    Attention and norms 53384 / 4; one row: 8192 + 3072; shared 6 * 2048 / 4; router 16 * 16 / 4. Before core 0.13 the outputs
    that are weighed outside stay too, a rank's own half copy of 2h.
    """
    strategy = {"tp": 4, "dp": 8, "ep": 4, "etp": 2, "sequence_parallel": True}
    assert kept_per_token(MOE, strategy) == 53384 / 4 + 8192 + 3072 + 3072 + 64
    former = kept_per_token(MOE, strategy, framework_version="0.12")
    assert former - kept_per_token(MOE, strategy) == 2 * 4096 / 2


def test_torchtitan_weighs_tokens_before_the_experts() -> None:
    """Attention and norms 168072 - 8f = 53384; experts 2*(2h + 4h in fp32 + 8*1024); shared 8*2048; router 16*16.

    models/moe/moe.py (0.2): `routed_output_unsorted.float()` or, before the experts, `routed_input.to(torch.float32)` is what a product
    with the weights keeps. Compiled, the cast is repeated from the 2h that are there.
    """
    strategy = {"dp": 8, "ep": 8, "zero": 3}
    eager = kept_per_token(MOE, strategy, framework="torchtitan", compile=False)
    assert eager == 53384 + 2 * (6 * 4096 + 8 * 1024) + 16384 + 256


def test_megatron_before_0_13_keeps_the_experts_outputs_to_weigh_them() -> None:
    """Two copies of a token, 2h bytes each: the multiplication moved into the activation with core 0.13."""
    former = kept_per_token(MOE, {"dp": 8, "ep": 8}, framework_version="0.12")
    assert former - kept_per_token(MOE, {"dp": 8, "ep": 8}, framework_version="0.13") == 2 * 2 * 4096


@pytest.mark.parametrize(
    ("framework", "factor", "rows"), [("megatron", 1.25, 2.0), ("megatron", 0.5, 1.0), ("deepspeed", 1.25, 2.5)]
)
def test_a_capacity_fills_experts_up_only_where_it_pads_them(framework: str, factor: float, rows: float) -> None:
    """Megatron drops what exceeds it (padding is a flag of its own), the (experts, capacity, h) tensor of
    DeepSpeed's own layer (before AutoEP) is always full.

    Rows a token of 2 experts: 2.5 where 1.25 of the balanced share are padded, 2 where nothing exceeds it.
    """
    strategy = {"dp": 8, "ep": 8, "zero": 1}
    limited = {**MOE, "moe": {**MOE["moe"], "capacity_factor": factor}}
    given = {"framework": framework, **({"framework_version": "0.18"} if framework == "deepspeed" else {})}
    found = [moments(*built(model, strategy, **given)) for model in (MOE, limited)]
    saved = [each.terms["layer_backward"]["activations"][0, 0] / TOKENS / 32 for each in found]
    each = (saved[1] - saved[0]) / (rows - 2.0) if rows != 2.0 else 0.0
    width = {"megatron": 2 * 4096 + 6 * 1024, "deepspeed": 4 * 4096 + 8 * 1024}[framework]
    assert saved[1] == saved[0] if rows == 2.0 else each == pytest.approx(width)
    jobs = [built(model, strategy, **given) for model in (MOE, limited)]
    gemm, link = ([evaluate(*one).terms_s[name][0] for one in jobs] for name in ("gemm", "ep_comm"))
    assert [gemm[1] > gemm[0], link[1] > link[0]] == [rows > 2.0] * 2
    assert [gemm[1] < gemm[0], link[1] < link[0]] == [rows < 2.0] * 2


@pytest.mark.parametrize(
    ("modules", "dropped"), [(["moe"], 28672 + 12288 + 256), (["moe_act"], 4096), (["shared_experts"], 12288)]
)
def test_mixture_modules(modules: list[str], dropped: float) -> None:
    strategy = {"dp": 8, "ep": 8, "recompute": "selective", "recompute_modules": modules}
    assert kept_per_token(MOE, strategy) == 53384 + 28672 + 12288 + 256 - dropped


@pytest.mark.parametrize(
    ("model", "training", "norms"),
    [
        (MOE, {}, 1),  # the norm before the router is a module, that of attention lies in linear_qkv
        (LLAMA_8B, {"transformer_impl": "local"}, 2),
        (MOE, {"transformer_impl": "local"}, 2),
    ],
)
def test_layernorm_recomputation_frees_what_separate_norms_make(model, training, norms) -> None:
    """2h each: megatron/core/models/gpt/gpt_layer_specs.py has pre_mlp_layernorm IdentityOp where there are no experts."""
    plain = {"dp": 8, "ep": 8 if "moe" in model else 1}
    named = {**plain, "recompute": "selective", "recompute_modules": ["layernorm"]}
    freed = kept_per_token(model, plain, **training) - kept_per_token(model, named, **training)
    assert freed == norms * 2 * 4096


def test_layernorm_recomputation_frees_latent_attentions_input_norm() -> None:
    """MLASelfAttention has no linear layer that a norm could join; its dense MLP's norm lies in linear_fc1."""
    mla = {"q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    model = {**LLAMA_8B, "num_key_value_heads": 32, "mla": mla}
    named = {"recompute": "selective", "recompute_modules": ["layernorm"]}
    assert kept_per_token(model, {}) - kept_per_token(model, named) == 2 * 4096


@pytest.mark.parametrize("comm", ["p2p", "a2a", "allgather"])
def test_context_parallelism_keeps_one_attention_output_more(comm: str) -> None:
    """2q a token with any exchange: transformer_engine context_parallel.py saves the ring's output, the one before the
    all-to-all that returns it, or the halves that the all-gather's are copied from, beside the output projection's input.
    """
    ring = table(LLAMA_8B, {"cp": 2, "dp": 4, "cp_comm": comm})
    assert float(ring.kept_J[0][0]) == (139400 + 2 * 4096) * TOKENS / 2


@pytest.mark.parametrize(("tp", "heads"), [(2, 4), (8, 1), (16, 1)])
def test_an_all_gather_of_keys_and_values_holds_the_whole_sequence(tp: int, heads: int) -> None:
    """2 tensors of 2 bytes, heads of 128, all 8,192 tokens; of eight key heads no rank holds less than one."""
    gathered = table(LLAMA_8B, {"tp": tp, "cp": 2, "dp": 2, "cp_comm": "allgather"}).gathered_kv
    assert gathered.tolist() == [2 * 2 * heads * 128 * TOKENS]
    assert table(LLAMA_8B, {"tp": tp, "cp": 2, "dp": 2, "cp_comm": "p2p"}).gathered_kv.tolist() == [0]


def test_latent_attention() -> None:
    """Per token: 4 q_lora + 4 kv_lora + 2 rope + 4a (nope + rope) + 2a v (value) + 2a v (output) + 4a, a = 32.

    4*512 + 4*256 + 2*64 + 4*32*192 + 4*32*128 + 128 = 44288; norms 8h + 8; MLP 6f.
    """
    mla = {"q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    model = {**LLAMA_8B, "num_key_value_heads": 32, "mla": mla}
    assert kept_per_token(model, {}) == 44288 + 8 * 4096 + 8 + 6 * 14336


@pytest.mark.parametrize(("framework", "split"), [("megatron", 4), ("torchtitan", 1)])
def test_latents_are_of_a_rank_s_own_tokens_in_megatron(framework: str, split: int) -> None:
    """Down-projected rows are split along the sequence before their norms and gathered by the up-projections, which save the
    shard (multi_latent_attention.py); torchtitan keeps whole rows. A wider kv_lora adds 2 * 2 bytes a token and element.
    """
    mla = {"q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    model = {**LLAMA_8B, "num_key_value_heads": 32, "mla": mla}
    wider = {**model, "mla": {**mla, "kv_lora_rank": 512}}
    strategy = {"tp": 4, "zero": 0}
    found = [kept_per_token(each, strategy, framework=framework) for each in (model, wider)]
    assert found[1] - found[0] == 2 * 2 * 256 / split


def test_full_recomputation_keeps_inputs() -> None:
    """Every layer: 32 * 2h; block of 8: 8 * 2h + 24 whole layers; uniform units of 4: 8 inputs."""
    per_layer = 139400 * TOKENS
    hidden = 2 * 4096 * TOKENS

    def activations(strategy: dict[str, Any]) -> float:
        job, strategies = built(LLAMA_8B, {"recompute": "full", **strategy})
        return float(moments(job, strategies).terms["layer_backward"]["activations"][0, 0])

    assert activations({}) == 32 * hidden
    block = {"recompute_method": "block", "recompute_num_layers": 8}
    assert activations(block) == 8 * hidden + 24 * per_layer
    assert activations({"recompute_method": "uniform", "recompute_num_layers": 4}) == 8 * hidden


def test_recomputed_units_come_back_whole() -> None:
    """A unit of four layers is made anew but for its input: 4 * 139400 - 2h, and the MLP's gradients 4f."""
    job, strategies = built(LLAMA_8B, {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 4})
    transient = float(moments(job, strategies).terms["layer_backward"]["layer_transient"][0, 0])
    assert transient == (4 * 139400 - 2 * 4096 + 4 * 14336) * TOKENS


@pytest.mark.parametrize(
    ("schedule", "vpp", "expected"),
    [
        (Schedule.ONE_F_ONE_B, 1, [4, 3, 2, 1]),
        (Schedule.GPIPE, 1, [np.inf] * 4),
        (Schedule.ZB_H1, 1, [4, 4, 4, 4]),
        (Schedule.ZB_V, 2, [4, 4, 4, 4]),
        (Schedule.DUALPIPE_V, 2, [4.5] * 4),
        # 2 (p - s - 1) + (v - 1) p + 1 = 11, 9, 7, 5 chunks, two to a stage
        (Schedule.INTERLEAVED, 2, [5.5, 4.5, 3.5, 2.5]),
    ],
)
def test_micro_batches_in_flight(schedule: Schedule, vpp: int, expected: list[float]) -> None:
    assert [micro_batches_in_flight(4, vpp, stage, (2,) * vpp, schedule) for stage in range(4)] == expected


def test_interleaved_chunks_count_with_their_own_layers() -> None:
    """Stage 0 of 4: 11 chunks = a round of 8 (4 of each) and 3 more of the first: 7 and 4 micro-batches.

    Chunks of 3 and 4 layers: (7*3 + 4*4) / 7 = 37/7 of the whole stage.
    """
    assert micro_batches_in_flight(4, 2, 0, (3, 4), Schedule.INTERLEAVED) == pytest.approx(37 / 7)


def test_chunks_of_longer_rounds_count_with_their_own_layers() -> None:
    """Ten micro-batches on four stages pass in two rounds of five (torch): the last stage holds 0 + 5 + 1 = 6 chunks, five
    of its first, which has three layers, and one of its second, which has one: (5 * 3 + 1) / 4.
    """
    strategy = {"pp": 4, "vpp": 2, "layers_per_stage": [4, 4, 4, 3, 5, 5, 6, 1], "zero": 0}
    job, strategies = built(LLAMA_8B, strategy, framework="torchtitan", global_batch_size=10)
    found = moments(job, strategies).batch.stages.in_flight_KN[:, 0]
    assert found[3] == pytest.approx((5 * 3 + 1 * 1) / 4)


def test_overlapped_expert_all_to_all_holds_one_more_layer() -> None:
    """A layer runs forward beside a layer's backward; one micro-batch has nothing to overlap with."""
    strategy = {"dp": 8, "ep": 8, "overlap": {"moe_all_to_all": True}}
    for batch, layers in ((64, 1), (8, 0)):
        saved = [
            moments(*built(MOE, given, global_batch_size=batch)).terms["layer_backward"]["activations"][0, 0]
            for given in (strategy, {"dp": 8, "ep": 8})
        ]
        assert saved[0] - saved[1] == layers * TOKENS * (53384 + 28672 + 12288 + 256)


def test_few_micro_batches_limit_what_is_in_flight() -> None:
    """pp 8 with a step of two micro-batches holds two on every stage but the last."""
    job, strategies = built(LLAMA_8B, {"pp": 8, "dp": 8}, global_batch_size=16)
    found = moments(job, strategies).batch.stages.in_flight_KN[:, 0]
    assert found.tolist() == [2, 2, 2, 2, 2, 2, 2, 1]


def test_folded_pipelines_put_the_loss_on_the_first_stage() -> None:
    strategy = {"pp": 4, "dp": 2, "vpp": 2, "schedule": "zb-v"}
    job, strategies = built(LLAMA_8B, strategy)
    found = stage_memory(job, strategies)
    stages = moments(job, strategies).batch.stages
    assert stages.head_KN[:, 0].tolist() == [True, False, False, False]
    assert found.device_KN[:, 0].argmax() == 0


def test_offloaded_layers_leave_the_device() -> None:
    """4 of 32 layers: an eighth of the activations, and 8 ranks of a node, of 3 GB each, write them to its memory."""
    strategy = {"dp": 8, "zero": 1, "offload": {"activation_layers": 4}}
    job, strategies = built(LLAMA_8B, strategy)
    found = moments(job, strategies)
    assert found.terms["layer_backward"]["activations"][0, 0] == 28 * 139400 * TOKENS
    assert stage_memory(job, strategies).host_bytes_per_node[0] == 8 * (4 * 139400 * TOKENS + 3e9)


@pytest.mark.parametrize(
    ("given", "tp", "per_logit"),
    [
        ({"framework": "torchtitan", "cross_entropy": "unfused"}, 1, 12),
        ({"framework": "torchtitan", "cross_entropy": "unfused"}, 2, 16),
        ({"framework": "torchtitan", "cross_entropy": "compiled"}, 1, 4),
        ({"framework": "deepspeed", "cross_entropy": "unfused"}, 1, 12),
        ({"framework": "deepspeed", "cross_entropy": "unfused", "software_date": "2025-02"}, 1, 18),
        ({"framework": "deepspeed", "cross_entropy": "unfused", "software_date": "2025-03"}, 1, 12),
        ({"framework": "megatron", "cross_entropy": "fused"}, 1, 10),
        ({"framework": "megatron", "cross_entropy": "unfused"}, 1, 6),
        ({"framework": "megatron", "cross_entropy": "te", "software_date": "2026-04"}, 1, 2),
        ({"framework": "megatron", "cross_entropy": "te", "software_date": "2026-08"}, 1, 6),
        ({"framework": "megatron-deepspeed", "cross_entropy": "unfused"}, 1, 10),
    ],
)
def test_loss_bytes_per_logit(given: dict[str, Any], tp: int, per_logit: float) -> None:
    """8192 tokens * 128256 / tp logits."""
    model = {**LLAMA_8B, "vocab_size": 131072}
    found = table(model, {"tp": tp, "dp": 8, "zero": 1 if "megatron" in given["framework"] else 3}, **given)
    assert found.logit[0] == TOKENS * 131072 / tp
    assert found.loss[0] == per_logit * TOKENS * 131072 / tp


def test_linear_cross_entropy_never_holds_logits() -> None:
    """The head's gradient twice (4 V h) and three hidden-wide tensors (6 h T)."""
    job, _ = built(LLAMA_8B, {"dp": 8, "zero": 3}, framework="deepspeed", cross_entropy="linear")
    assert loss_bytes(job, memory_traits(job.training)).linear
    found = table(LLAMA_8B, {"dp": 8, "zero": 3}, framework="deepspeed", cross_entropy="linear")
    assert found.loss[0] == 4 * 128256 * 4096 + 6 * 4096 * TOKENS


def test_multi_token_prediction_adds_a_layer_and_logits_beside_the_head() -> None:
    plain, strategies = built(LLAMA_8B, {"pp": 2, "dp": 2}, cross_entropy="te", software_date="2026-04")
    deep, same = built(
        {**LLAMA_8B, "mtp_num_layers": 1}, {"pp": 2, "dp": 2}, cross_entropy="te", software_date="2026-04"
    )
    before, after = moments(plain, strategies), moments(deep, same)
    assert (after.batch.stages.total_KN - before.batch.stages.total_KN)[:, 0].tolist() == [0, 1]
    logits = TOKENS * 128256
    grown = after.terms["loss"]["logits_and_loss"][0] - before.terms["loss"]["logits_and_loss"][0]
    assert grown == 2 * logits


@pytest.mark.parametrize(
    ("modules", "more"),
    [
        ("native", 2 * (4096 + 1024)),  # the inputs of both norms
        (
            "transformers",
            6 * (4096 + 1024),
        ),  # their fp32 copies instead, and the normalised tensors before their weights
        ("liger", 2 * (4096 + 1024)),
    ],
)
def test_norms_of_query_and_key_keep_what_whose_modules_do(modules: str, more: int) -> None:
    strategy, given = {"zero": 3, "dp": 8}, {"framework": "fsdp", "model_impl": modules}
    plain, normed = (kept_per_token(llama_model(qk_norm=each), strategy, **given) for each in (False, True))
    assert normed - plain == more


@pytest.mark.parametrize(("framework", "same"), [("deepspeed", False), ("torchtitan", False), ("megatron", True)])
def test_whose_modules_run_decides_what_a_layer_keeps(framework: str, same: bool) -> None:
    """Megatron has layers of its own, whatever is said."""
    kept = [kept_per_token(LLAMA_8B, {}, framework=framework, model_impl=each) for each in ("native", "transformers")]
    assert (kept[0] == kept[1]) is same
