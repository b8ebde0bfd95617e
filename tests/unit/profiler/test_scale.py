"""Which sizes are measured on a GPU: those that public models ask for, each once, and within what a GPU holds."""

from __future__ import annotations

from math import log2

import pytest

from cost_models import presets
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import Model
from profiler.scale import Scale, cpu_scale, gpu_scale
from profiler.timing import FULL, QUICK

GIB = 2.0**30
MODELS = [resolve_model({"preset": name}) for name in presets.names("models")]
GPU = gpu_scale(budget_s=300.0)


def heads_of(model: Model) -> tuple[int, int, int]:
    """Query heads, key heads, and the width of a head."""
    return model.num_attention_heads, model.num_key_value_heads, model.head_dim


def layers_of(model: Model, ranks: int) -> set[tuple[float, float]]:
    """(output, input) features of one rank's share of each linear layer (Megatron-LM, section 3), fused and unfused."""
    heads, kv_heads, width = heads_of(model)
    hidden, inner = model.hidden_size, model.intermediate_size or 0
    wide = (
        (heads + 2 * kv_heads) * width, heads * width, kv_heads * width, 2 * inner, inner, model.vocab_size,
    )  # fmt: skip
    narrow = (heads * width, inner)
    return {(each / ranks, hidden) for each in wide} | {(hidden, each / ranks) for each in narrow}


def test_every_product_is_a_layer_of_a_public_model_on_one_to_eight_ranks() -> None:
    public = set[tuple[float, float]]().union(*(layers_of(model, 2**i) for model in MODELS for i in range(4)))
    assert set(GPU.weights) | set(GPU.more_weights) <= public


def test_no_product_is_measured_twice() -> None:
    weights = [*GPU.weights, *GPU.more_weights]
    assert len(set(weights)) == len(weights) == 40
    assert len(set(GPU.tokens)) == len(GPU.tokens)


def test_the_layers_of_llama_come_first_and_those_of_other_sizes_after_them() -> None:
    """Llama 3.1 8B: 4,096 wide, 32 heads of 128 with 8 of keys, 14,336 inside, 128,256 words; one of 1B is 2,048 wide with
    8,192 inside, one of 70B 8,192 with 28,672 inside and 64 heads of 128.
    """
    whole = {(6144, 4096), (4096, 4096), (28672, 4096), (14336, 4096), (4096, 14336), (128256, 4096)}
    halves = {(7168, 4096), (4096, 7168)}
    small = {(2048, 2048), (8192, 2048), (2048, 8192)}
    squares = {(3072, 3072), (5120, 5120), (12288, 12288)}
    assert set(GPU.weights) == whole | halves | small | squares
    assert GPU.gradient_weights == GPU.weights
    seventy = {(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)}
    its_quarters = {(2560, 8192), (14336, 8192), (8192, 7168)}
    its_small_shares = {(1024, 2048), (2048, 1024), (512, 2048), (2048, 512), (4096, 2048)}
    eight_in_parts = {(64128, 4096), (1024, 4096), (4096, 1024), (2048, 4096), (3584, 4096), (4096, 3584)}
    seven = {(12288, 4096), (22016, 4096), (4096, 11008), (32000, 4096)}
    others = {(8192, 3072), (13824, 5120), (6144, 12288), (12288, 6144)}
    assert set(GPU.more_weights) == seventy | its_quarters | its_small_shares | eight_in_parts | seven | others


def test_rows_are_the_tokens_of_usual_micro_batches() -> None:
    """Powers of two from 512 to 16,384; the two that most steps have come first, gradients for one of them and a quarter."""
    assert sorted(GPU.tokens) == [2**power for power in range(9, 15)]
    assert GPU.tokens[:2] == (8192, 4096)
    assert GPU.gradient_tokens == (8192, 2048)


def test_experts_hold_the_tokens_of_one_micro_batch_in_both_products() -> None:
    """Mixtral 8x7B (8 experts, 4,096 to 14,336) and DeepSeek-V2-Lite (64 experts, 2,048 to 1,408), each with 16,384 rows."""
    assert set(GPU.experts) == {
        (8, 2048, 14336, 4096), (8, 2048, 4096, 14336), (64, 256, 1408, 2048), (64, 256, 2048, 1408),
    }  # fmt: skip
    assert {experts * rows for experts, rows, _, _ in GPU.experts} == {16384}


def test_math_attention_multiplies_scores_and_values_of_as_many_heads_as_keep_the_work_alike() -> None:
    """Scores (length x width by its transpose) and values (length x length by width), for the widths of public heads."""
    products = {(batch, length) for batch, length, _, _ in GPU.batched}
    assert products == {(128, 1024), (64, 2048), (32, 4096)}  # batch times length stays the same
    widths = {min(n, k) for _, _, n, k in GPU.batched}
    assert widths == {64, 80, 96, 128}
    assert {(n, k) for _, length, n, k in GPU.batched} == {
        pair for _, length in products for width in widths for pair in ((length, width), (width, length))
    }
    assert len(set(GPU.batched)) == len(GPU.batched) == 24


@pytest.mark.parametrize("scale", [GPU, cpu_scale()])
def test_attention_groups_whole_heads_and_takes_powers_of_two(scale: Scale) -> None:
    for shape in (*scale.attention, *scale.math_attention):
        assert shape.heads % shape.kv_heads == 0
        for number in (shape.sequences, shape.heads, shape.kv_heads, shape.length, shape.width):
            assert log2(number).is_integer(), shape


def test_attention_covers_the_heads_lengths_and_groups_of_public_models() -> None:
    """8 of 32 heads hold keys in Llama 3.1 8B; a quarter of a 70B (64 and 8 heads) has 16 and 2. A call has 8,192 or 16,384
    tokens, as the products of its layer.
    """
    assert {(shape.heads, shape.kv_heads) for shape in GPU.attention} == {(32, 8), (32, 32), (16, 2), (8, 8)}
    assert {shape.sequences * shape.length for shape in GPU.attention} == {8192, 16384}
    lengths = {shape.length for shape in GPU.attention if (shape.heads, shape.kv_heads, shape.width) == (32, 8, 128)}
    assert lengths == {2048, 4096, 8192, 16384}
    assert {shape.width for shape in GPU.attention if shape.kv_heads == 8} == {64, 128}
    assert {shape.length for shape in GPU.attention if shape.kv_heads == 32} == {1024, 2048}
    assert {(s.sequences, s.width) for s in GPU.attention if (s.kv_heads, s.length) == (32, 2048)} == {
        (8, 128),
        (8, 64),
    }
    assert {(s.length, s.width) for s in GPU.attention if s.heads < 32} == {(4096, 128)}
    assert len(set(GPU.attention)) == len(GPU.attention)


def test_scores_of_math_attention_stay_within_a_gigabyte() -> None:
    """Every score is written in 16 bits: sequences x heads x length^2 x 2 bytes, here 0.5 or 1 GiB; each key head has its own."""
    sizes = [2 * s.sequences * s.heads * s.length**2 for s in GPU.math_attention]
    assert sorted(sizes) == [GIB / 2, GIB / 2, GIB]
    assert all(shape.heads == shape.kv_heads for shape in GPU.math_attention)
    assert {(shape.length, shape.width) for shape in GPU.math_attention} == {(2048, 128), (2048, 64), (4096, 128)}


def test_streams_exceed_the_cache_and_collectives_reach_the_largest_bucket() -> None:
    """The L2 cache of an H100 has 50 MiB; collectives double from 1 KiB to 2 GiB, in 21 steps."""
    assert [size / 2**20 for size in GPU.stream_bytes] == [64, 256, 1024]
    assert [log2(size) for size in GPU.collective_bytes] == list(range(10, 32))
    assert GPU.pair_bytes == GPU.stream_bytes[1]
    assert GPU.overlap_bytes == GPU.stream_bytes[0]


def test_what_states_take_fits_beside_everything_else() -> None:
    """128 Mi parameters of 16 bytes are 2 GiB on a GPU; 64 Mi for each rank are 1 GiB of the host, 8 GiB of a node."""
    assert 16 * GPU.optimizer_parameters == 2 * GIB
    assert 16 * GPU.host_adam_parameters == GIB


def test_a_layer_waits_for_its_host_and_a_device_is_warm_before_it_is_measured() -> None:
    """A layer of width 512 has 4 x 512^2 weights of attention and 12 x 512^2 of its MLP: on 64 tokens 0.5 GFLOP, which the peak
    of an H100, 989 TFLOP/s, makes in half a microsecond.
    """
    assert 2 * 64 * 16 * GPU.layer_width**2 == pytest.approx(0.54e9, rel=0.01)
    assert GPU.heat_s == 2.0
    assert cpu_scale().heat_s == 0.0
    assert GPU.host_bytes == 0.0
    assert GPU.overlap_size == GPU.tokens[0]  # a product as long as those of a layer


def test_a_processor_gets_small_sizes_that_every_number_of_ranks_divides() -> None:
    """All are powers of two: the largest product has 2 x 256 x 512 x 256 operations, and buffers take 256 MiB at most."""
    scale = cpu_scale()
    shapes = (*scale.weights, *scale.more_weights, *scale.gradient_weights, *scale.batched, *scale.experts)
    counts = (*scale.tokens, *scale.gradient_tokens, scale.overlap_size, scale.layer_width)
    sizes = (*scale.stream_bytes, scale.optimizer_parameters, scale.host_adam_parameters, scale.host_bytes)
    for number in (*(n for shape in shapes for n in shape), *counts, *sizes):
        assert log2(number).is_integer(), number
    assert max(2 * rows * n * k for rows in scale.tokens for n, k in scale.weights) == 2 * 256 * 512 * 256
    assert [log2(size) for size in scale.collective_bytes] == list(range(10, 23))
    assert (scale.pair_bytes, scale.overlap_bytes) == (2**20, 2**20)
    assert {shape.sequences for shape in (*scale.attention, *scale.math_attention)} == {1}


@pytest.mark.parametrize(("budget_s", "effort"), [(60.0, QUICK), (119.9, QUICK), (120.0, FULL), (300.0, FULL)])
def test_less_than_two_minutes_are_spent_on_more_shapes_and_not_on_longer_ones(budget_s: float, effort: object) -> None:
    short, long = gpu_scale(budget_s=budget_s), GPU
    assert short.effort is effort
    assert short.weights == long.weights
