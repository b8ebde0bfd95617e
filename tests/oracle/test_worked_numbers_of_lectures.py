"""Worked numbers of the five lectures that the product's purpose was drawn from, each with its lecture and line.

000: Li, Distributed Training (LLM Sys, CMU). 001: Xu, Data Parallelism in LLM Training (2025). 002: Maheshwari, Large-scale Distributed
Training for LLMs (NVIDIA). 003: Yuan, Distributed Training for LLM (PKU). 004: the appendix of The Ultra-Scale Playbook (Hugging Face).
What contradicts itself, or what it was taken from, is in `CONTRADICTIONS` with the reason; everything else is computed by the models.
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest

from builders import job_of, llama_model, row_of
from cost_models.frameworks import memory_traits
from cost_models.hardware import textbook
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.textbook import Link
from cost_models.inputs.model import resolve_model
from cost_models.layers.flops import model_flops_per_step, repeated_flops_per_token
from cost_models.layers.parameters import count_parameters, layer_parameters
from cost_models.memory import stage_memory
from cost_models.memory.layer_table import layer_table
from cost_models.step.overlap_conditions import dp_ratio, pp_ratio, tp_ratio, zero3_ratio
from cost_models.step.pipeline import bubble_s
from planner.rows import evaluate_rows
from tests.oracle import simulated_collectives as simulated
from tests.oracle.simulated_collectives import Wires

A100, H100 = 312e12, 989e12
DAY_S, HOUR_S = 86_400.0, 3600.0
STATE_TERMS = ("parameters", "main_parameters", "gradients", "optimizer_states")


def gpt(layers: int, hidden: int, heads: int, vocab: int = 50_257, positions: int = 2048) -> dict[str, Any]:
    """A GPT of the published shape: learned positions, tied embeddings, biases everywhere, an MLP four times as wide."""
    return {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden,
        "vocab_size": vocab, "gated_mlp": False, "norm": "layernorm", "position_embedding": "learned",
        "max_position_embeddings": positions, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    }  # fmt: skip


def total(model: dict[str, Any]) -> int:
    return count_parameters(resolve_model(model)).total


# --- parameters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "printed", "layers", "hidden", "heads"),
    [
        ("003:63", 125e6, 12, 768, 12), ("003:64", 350e6, 24, 1024, 16), ("003:65", 760e6, 24, 1536, 16),
        ("003:66", 1.3e9, 24, 2048, 16), ("003:67", 2.7e9, 32, 2560, 32), ("003:68", 6.7e9, 32, 4096, 32),
        ("003:69", 13.0e9, 40, 5120, 40), ("003:70", 175.0e9, 96, 12288, 96),
    ],
)  # fmt: skip
def test_gpt3_has_the_printed_parameters(line: str, printed: float, layers: int, hidden: int, heads: int) -> None:
    """Table 2.1 of the GPT-3 paper rounds to two or three digits; 2.7B is 2.65e9. Heads of XL and width of 13B: CONTRADICTIONS."""
    assert total(gpt(layers, hidden, heads)) == pytest.approx(printed, rel=0.02), line


@pytest.mark.parametrize(
    ("line", "printed", "layers", "hidden", "heads", "intermediate"),
    [
        ("003:88", 6.7e9, 32, 4096, 32, 11008), ("003:89", 13.0e9, 40, 5120, 40, 13824), ("003:90", 32.5e9, 60, 6656, 52, 17920),
        ("003:91", 65.2e9, 80, 8192, 64, 22016),
    ],
)  # fmt: skip
def test_llama_has_the_printed_parameters(
    line: str, printed: float, layers: int, hidden: int, heads: int, intermediate: int
) -> None:
    model = llama_model(
        layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=intermediate,
        vocab_size=32000,
    )  # fmt: skip
    # The paper cuts the second digit off: 6.738, 13.016, 32.529 and 65.286 billion.
    assert total(model) // 1e8 * 1e8 == pytest.approx(printed), line


def test_the_formula_of_001_265_leaves_out_norms_attention_biases_and_positions() -> None:
    """V h + L (12 h^2 + 5 h). The whole count has 8 h more in each layer (two norms 4 h, biases of attention 4 h), a last norm 2 h, and
    positions 2,048 h: 0.02 % of 175e9.
    """
    layers, hidden = 96, 12288
    formula = 50_257 * hidden + layers * (12 * hidden**2 + 5 * hidden)
    assert total(gpt(layers, hidden, 96)) - formula == layers * 8 * hidden + 2 * hidden + 2048 * hidden


def test_a_block_has_16_h2_with_a_gated_mlp_and_12_h2_without() -> None:
    """004:325, for an MLP four times as wide; beside them only the two norms, 2 h."""
    hidden = 1024
    sizes = {"hidden_size": hidden, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4 * hidden}
    for gated, factor in ((True, 16), (False, 12)):
        model = resolve_model(llama_model(2, **sizes, gated_mlp=gated))
        found = layer_parameters(model, model.layer_kinds[0]).total
        assert found == factor * hidden**2 + 2 * hidden


# --- states -----------------------------------------------------------------------------------------------------------------


def state_bytes_of(framework: str, **training: Any) -> dict[str, float]:
    """Bytes per parameter of every state, of a replica that shards nothing."""
    model = llama_model(2)
    job = job_of(model, framework, **training)
    memory = stage_memory(job, row_of(job, all_stages=True, dp=8, zero=0)).breakdown(0, 0)
    return {name: memory[name] / total(model) for name in STATE_TERMS}


def test_gpt3_holds_2800_gb_of_states_where_gradients_have_16_bits() -> None:
    """001:282-286: 700 + 700 + 700 GB in fp32, 350 + 350 GB in 16 bits, of 175e9 parameters. DeepSpeed keeps them so."""
    gb = {name: 175 * each for name, each in state_bytes_of("deepspeed").items()}
    assert gb == pytest.approx(
        {"main_parameters": 700.0, "optimizer_states": 1400.0, "parameters": 350.0, "gradients": 350.0}
    )


def test_nemotron_holds_18_bytes_of_states_a_parameter() -> None:
    """002:216-219: 2 + 4 + 4 + 4 + 4 bytes, 18 x 340e9 = 6,120 GB. Megatron keeps fp32 gradients."""
    held = state_bytes_of("megatron")
    assert held == pytest.approx({"parameters": 2.0, "main_parameters": 4.0, "gradients": 4.0, "optimizer_states": 8.0})
    assert sum(held.values()) * 340 == pytest.approx(6120.0)


@pytest.mark.parametrize(
    ("line", "training", "term", "bytes_per_parameter"),
    [
        ("002:196", {"precision": "fp32"}, "parameters", 4.0),
        ("002:201", {}, "optimizer_states", 8.0),
        ("002:207", {}, "gradients", 4.0),
        ("002:207", {"precision": "fp32"}, "gradients", 4.0),
    ],
)
def test_what_sits_in_memory(line: str, training: dict[str, Any], term: str, bytes_per_parameter: float) -> None:
    assert state_bytes_of("fsdp", **training)[term] == pytest.approx(bytes_per_parameter), line


def test_sgd_with_momentum_keeps_four_bytes() -> None:
    """002:203: one state in fp32, as Megatron's SGD keeps it."""
    assert state_bytes_of("megatron", optimizer="sgd")["optimizer_states"] == pytest.approx(4.0)


def test_eight_bit_adam_keeps_two_bytes_and_a_little() -> None:
    """002:202: 2 bytes; the scale of each block of quantised values (4 bytes for 2,048 or 256) comes on top, twice."""
    held = state_bytes_of("fsdp", optimizer="adam-8bit")["optimizer_states"]
    assert 2.0 <= held <= 2.05


def test_mixed_precision_holds_six_bytes_of_weights() -> None:
    """002:197: a copy in fp32 and one in 16 bits."""
    held = state_bytes_of("deepspeed")
    assert held["parameters"] + held["main_parameters"] == pytest.approx(6.0)


def test_a_layer_keeps_34_sbh_and_5_abss() -> None:
    """001:1133. GPT-3 at 2,048 tokens: 34 h + 5 a s bytes a token, and 16 of the norms' statistics, which the lecture leaves out."""
    job = job_of(
        gpt(1, 12288, 96), "megatron", transformer_impl="local", attention="math", dropout=0.1, global_batch_size=8
    )
    kept = float(layer_table(job, memory_traits(job.training), row_of(job, dp=8)).kept_J[0][0]) / 2048
    assert kept == 34 * 12288 + 5 * 96 * 2048 + 16


# --- operations, table 1, utilisation -----------------------------------------------------------------------------------------

TABLE_1 = [
    ("003:154", 1.7, 24, 2304, 24, 32, 137, 44, 4.4), ("003:155", 3.6, 32, 3072, 30, 64, 138, 44, 8.8),
    ("003:156", 7.5, 32, 4096, 36, 128, 142, 46, 18.2), ("003:157", 18.4, 48, 6144, 40, 256, 135, 43, 34.6),
    ("003:158", 39.1, 64, 8192, 48, 512, 138, 44, 70.8), ("003:159", 76.1, 80, 10240, 60, 1024, 140, 45, 143.8),
    ("003:160", 145.6, 96, 12288, 80, 1536, 148, 47, 227.1), ("003:161", 310.1, 128, 16384, 96, 1920, 155, 50, 297.4),
    ("003:162", 529.6, 128, 20480, 105, 2520, 163, 52, 410.2), ("003:163", 1008.0, 160, 25600, 128, 3072, 163, 52, 502.0),
]  # fmt: skip
"""Table 1 of Narayanan et al. 2021: 1e9 parameters, heads, width, layers, GPUs, TFLOP/s a GPU, per cent of the peak, PFLOP/s."""


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: row[0])
def test_table_1_agrees_with_itself_and_with_our_counts(row: tuple[Any, ...]) -> None:
    """Parameters to the printed digit; 312 TFLOP/s peak; GPUs x TFLOP/s to half a TFLOP/s."""
    _, billions, heads, hidden, layers, gpus, tflops, percent, pflops = row
    # A width of 16,384 prints as 310.1 for 310.14e9, and 20,480 as 529.6 for 529.57e9.
    assert total(gpt(layers, hidden, heads, vocab=51_200)) / 1e9 == pytest.approx(billions, abs=0.056)
    assert round(100 * tflops * 1e12 / A100) == pytest.approx(percent, abs=1)
    assert gpus * tflops / 1000 == pytest.approx(pflops, abs=gpus * 0.5 / 1000 + 0.05)


def test_operations_of_a_step_are_those_of_table_1() -> None:
    """003:173: 8 T P is 96 B s l h^2 (1 + s / 6h + V / 16 l h) for short sequences, with full recomputation: 8.3 for GPT-3."""
    layers, hidden, vocab, tokens = 96, 12288, 51_200, 2048
    job = job_of(gpt(layers, hidden, 96, vocab), "megatron", global_batch_size=8, num_nodes=16)
    row = row_of(job, tp=8, pp=16, dp=1, recompute="full")
    ours = model_flops_per_step(job) + float(repeated_flops_per_token(job, row)[0]) * 8 * tokens
    shape = 1 + tokens / (6 * hidden) + vocab / (16 * layers * hidden)
    assert ours == pytest.approx(96 * 8 * tokens * layers * hidden**2 * shape, rel=1e-3)
    assert ours / (8 * tokens * total(gpt(layers, hidden, 96, vocab))) == pytest.approx(8.0, rel=0.035)


def utilisation(tokens: float, parameters: float, gpus: int, days: float) -> float:
    """8 T P / (N F t), solved for U as 003:172-181 do."""
    return 8 * tokens * parameters / (gpus * A100 * days * DAY_S)


def test_gpt3_trains_at_0_44() -> None:
    """003:191, which rounds 0.435 up (CONTRADICTIONS); at U 0.44 the run takes 34.6 days."""
    assert utilisation(300e9, 175e9, 1024, 35) == pytest.approx(0.4347, abs=5e-5)
    assert utilisation(300e9, 175e9, 1024, 1.0) / 0.44 == pytest.approx(34.6, abs=0.05)


def test_a_forward_takes_two_operations_a_parameter_and_token() -> None:
    """004:326: 2 T P forward, 4 T P backward; attention adds s / 6h of that: 12 l s h a token, over 6 P."""
    model = llama_model(32)
    job = job_of(model, "megatron", global_batch_size=8)
    matrices = total(model) - 128_256 * 4096  # the embedding multiplies nothing
    attention = 12 * 32 * 2048 * 4096
    assert model_flops_per_step(job) / (8 * 2048) == pytest.approx(6 * matrices + attention, rel=1e-4)


# --- GPU-hours ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "gpu_hours", "gpus", "days"), [("000:38-40", 2.664e6, 2048, 54.2), ("000:42-43", 30.84e6, 16_000, 80.3)]
)
def test_gpu_hours_are_days_times_gpus(line: str, gpu_hours: float, gpus: int, days: float) -> None:
    """DeepSeek-V3's "2 months" on 2,048 GPUs. Our runs hold the same: tokens / (tokens per second and GPU) = GPU-seconds, over GPUs the
    days; asked for as many tokens as make a run of those GPU-hours.
    """
    row = {
        "model": llama_model(4), "cluster": {"preset": "dgx-h100", "num_nodes": gpus // 8},
        "training": {
            "seq_length": 4096, "global_batch_size": gpus, "precision": "bf16", "framework": "torchtitan", "total_tokens": 1.0e12,
        },
        "strategy": {"zero": 3, "micro_batch_size": 1},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    tokens = gpu_hours * HOUR_S * answer["tokens_per_s_per_gpu"]
    (answer,) = evaluate_rows([{**row, "training": {**row["training"], "total_tokens": float(round(tokens))}}])
    assert answer["run"]["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-6), line
    assert answer["run"]["days"] == pytest.approx(days, abs=0.05), line


# --- pipelines ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (8, 64)])
def test_the_bubble_is_n_minus_1_micro_batches(stages: int, micro_batches: int) -> None:
    """002:450 and 003:654: (p - 1) forwards and backwards, (N - 1) / m of the time in which nobody is idle."""
    job = job_of(llama_model(8), "megatron", global_batch_size=micro_batches, num_nodes=stages // 8 or 1)
    row = row_of(job, pp=stages, dp=1)
    one = np.array([10.0])
    found = bubble_s(row, stages_sum_s=stages * one, slowest_s=one, forward_s=one / 3, wgrad_s=one / 3)
    assert found[0] == pytest.approx((stages - 1) * 10.0)
    assert found[0] / (micro_batches * 10.0) == pytest.approx((stages - 1) / micro_batches)


def test_interleaving_makes_the_bubble_smaller() -> None:
    """002:461: with two chunks on each device half as large, at more communication."""
    job = job_of(llama_model(8), "megatron", global_batch_size=16)
    one = np.array([10.0])
    found = [
        bubble_s(
            row_of(job, pp=4, vpp=vpp, dp=1), stages_sum_s=4 * one, slowest_s=one, forward_s=one / 3, wgrad_s=one / 3
        )
        for vpp in (1, 2)
    ]
    assert found[0] == pytest.approx(2 * found[1])


# --- collectives ----------------------------------------------------------------------------------------------------------------

UNIT = Link(1.0, 1.0)  # one second a round, one byte a second


def array(value: float) -> np.ndarray:
    return np.array([float(value)])


def test_a_broadcast_in_messages_takes_k_minus_2_plus_s_of_them() -> None:
    """000:322: (K - 2 + S) N / (S B), which tends to N / B."""
    free = Link(0.0, 1.0)
    for ranks, messages in ((4, 1), (4, 8), (8, 64)):
        found = textbook.chain(array(1.0), array(ranks), free, chunks=float(messages)).seconds[0]
        assert found == pytest.approx((ranks - 2 + messages) / messages)
        assert found == pytest.approx(simulated.chain(ranks, 1.0, messages, Wires(0.0, 1.0)))
    assert textbook.chain(array(1.0), array(8), free, chunks=1e6).seconds[0] == pytest.approx(1.0, abs=1e-4)


def test_a_ring_moves_2_n_minus_1_over_n_in_2_n_minus_1_rounds() -> None:
    """001:664-670 and 004:183: a GPU sends S / N in each of 2 (N - 1) rounds; 003:738-751: less than 2 M / B, and M / B for each half."""
    for ranks in (4, 5, 16):
        vectors = [np.ones(720) for _ in range(ranks)]
        wires = Wires(1.0, 1.0)
        simulated.ring(vectors, wires)
        assert wires.rounds == 2 * (ranks - 1)
        assert max(wires.sent.values()) == 2 * (ranks - 1) * 720 // ranks
        both = textbook.ring(array(720), array(ranks), UNIT, rounds_of=2.0)
        assert (both.latency_s[0], both.bandwidth_s[0]) == (2 * (ranks - 1), 2 * (ranks - 1) * 720 / ranks)
        assert both.bandwidth_s[0] < 2 * 720
        half = textbook.ring(array(720), array(ranks), UNIT)
        assert half.bandwidth_s[0] == both.bandwidth_s[0] / 2 < 720
        assert bus_factor("all_reduce", array(ranks))[0] * 720 == pytest.approx(both.bandwidth_s[0])


def test_rabenseifner_has_the_rings_bytes_in_2_log_n_rounds() -> None:
    """001:737, cost column: 2 log N a + 2 (N - 1) S / N b."""
    for ranks in (4, 8, 16):
        found = textbook.halving_doubling(array(720), members=array(ranks), nodes=array(1), near=UNIT, far=UNIT)
        assert found.latency_s[0] == 2 * log2(ranks)
        assert found.bandwidth_s[0] == pytest.approx(2 * (ranks - 1) * 720 / ranks)


# --- overlap --------------------------------------------------------------------------------------------------------------------


def test_conditions_of_overlap_are_those_of_the_appendix() -> None:
    """004:329-364, in bytes (see CONTRADICTIONS): ratios of an H100 in bf16, for the appendix's own formulas.

    DP (004:337) and ZeRO-3 (004:345) depend on the tokens, TP (004:355) on h and t alone, PP (004:364) on h and the layers alone.
    """
    facts = {"element_bytes": 2.0, "flops_per_s": H100}
    assert float(dp_ratio(131_072, ranks=64, bytes_per_s=50e9, **facts)) == pytest.approx(0.1486, abs=5e-5)
    assert float(zero3_ratio(8192, ranks=64, bytes_per_s=50e9, **facts)) == pytest.approx(2.3768, abs=5e-5)
    assert float(tp_ratio(8192, ranks=8, bytes_per_s=450e9, **facts)) == pytest.approx(1.878, abs=5e-4)
    assert float(pp_ratio(8192, layers=10, bytes_per_s=50e9, **facts)) == pytest.approx(0.0151, abs=5e-5)
    # The same from 16 h^2 weights: 16 h^2 e (n - 1) / n / B over 2 x 16 h^2 T / F.
    hidden, tokens = 8192, 8192
    weights = 16 * hidden**2
    gather_s, forward_s = weights * 2.0 * (63 / 64) / 50e9, 2 * weights * tokens / H100
    assert gather_s / forward_s == pytest.approx(2.3768, abs=5e-5)


# --- formats --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "bits", "exponent_bits", "printed"),
    [
        ("002:578", "0 01101 1001010011", 5, 0.395264), ("002:579", "0 01111101 1001010", 8, 0.394531),
        ("002:580", "0 0101 101", 4, 0.40625), ("002:581", "0 01101 10", 5, 0.375),
    ],
)  # fmt: skip
def test_formats_of_numbers(line: str, bits: str, exponent_bits: int, printed: float) -> None:
    """2^(exponent - bias) (1 + mantissa / 2^digits)."""
    _, exponent, mantissa = bits.split()
    bias = 2 ** (exponent_bits - 1) - 1
    value = 2.0 ** (int(exponent, 2) - bias) * (1 + int(mantissa, 2) / 2 ** len(mantissa))
    assert value == pytest.approx(printed, abs=5e-7), line


# --- what contradicts itself ----------------------------------------------------------------------------------------------------

CONTRADICTIONS: list[tuple[str, float, float, str]] = [
    (
        "003:200", 0.3, utilisation(1.4e12, 65e9, 2048, 21),
        "U of LLaMA 65B by the formula that gave 0.44 for GPT-3 is 0.63, and 0.47 at 6 T P without recomputation; 0.3 follows from neither.",
    ),
    (
        "003:191", 0.44, utilisation(300e9, 175e9, 1024, 35),
        "8 T P / (N F t) is 0.4347, which rounds to 0.43; 0.44 belongs to 34.6 days, which the paper calls 35.",
    ),
    (
        "003:66", 24, 2048 / 128,
        "GPT-3 XL has 24 heads of 128 printed for a width of 2,048, which 16 fill; the count of parameters does not depend on it.",
    ),
    ("003:69", 5140, 40 * 128, "The width printed for GPT-3 13B is not 40 heads of 128; 12.85e9 parameters are 5,120's."),
    (
        "001:667", 1, 8 - 1,
        "An all-gather on a ring of 8 takes N - 1 rounds of S / N, as the reduce-scatter above it; one round would move (N - 1) S / N at once.",
    ),
    (
        "001:736", 2 * (8 - 1), 2 * (8 - 1) / 8,
        "The table's ring traffic 2 S (N - 1) / S and cost 2 (N - 1)(a + S / B) send the whole S in each round; 001:670 has 2 (N - 1) S / N.",
    ),
    (
        "001:690", 2 * log2(8), 2 * (8 - 1) / 8,
        "Halving sends S / 2, S / 4, ..., not S in each round: 2 (N - 1) / N S as 001:737 has it. 2 S log N would be doubling twice.",
    ),
    (
        "004:341", 16.0, 32.0,
        "A block of 16 h^2 weights is 32 h^2 bytes in bf16; the appendix calls elements bytes, so that its ratios are half as large.",
    ),
    (
        "001:261", 12 * 12288**2, 12 * 12288**2 + 5 * 12288,
        "The first total of parameters leaves out the biases that the MLP's count above it (001:256) and the next total (001:265) have.",
    ),
    (
        "003:313", 8.0, 16.0,
        "2 x 4 bytes a parameter is Adam with everything in 16 bits; 001:282-286 and 002:216 keep fp32 states: 16 and 18 bytes.",
    ),
    (
        "001:352", 128e9, 63e9,
        "128 GB/s of PCIe 5.0 x16 is both directions together; one is 63 GB/s, as 001:983 says, and 900 GB/s of NVLink is both as well.",
    ),
    (
        "003:654", 3 / 8, 3 / (8 + 3),
        "(N - 1) / m is idle over busy time. As a fraction of all the time, which the slide calls it, it is (N - 1) / (m + N - 1).",
    ),
]  # fmt: skip
"""Line, what is printed, what is right, and why."""


@pytest.mark.parametrize(("line", "printed", "right", "reason"), CONTRADICTIONS, ids=lambda each: str(each)[:8])
def test_contradictions_are_real(line: str, printed: float, right: float, reason: str) -> None:
    """Nothing stands in the list that rounding explains."""
    assert reason.endswith(".")
    assert abs(printed / right - 1.0) > (1e-6 if line == "001:261" else 0.003)


def test_a_bubble_as_a_fraction_of_all_time_is_smaller_than_printed() -> None:
    """003:654, with 4 stages and 8 micro-batches: 3/8 of busy time, 3/11 of the step."""
    job = job_of(llama_model(8), "megatron", global_batch_size=8)
    one = np.array([1.0])
    idle = bubble_s(row_of(job, pp=4, dp=1), stages_sum_s=4 * one, slowest_s=one, forward_s=one / 3, wgrad_s=one / 3)[0]
    assert idle / 8 == pytest.approx(3 / 8)
    assert idle / (8 + idle) == pytest.approx(3 / 11)
