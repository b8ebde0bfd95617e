"""What torch.autocast adds to a layer of fp32 parameters, counted by hand, and beside traced steps."""

from __future__ import annotations

import numpy as np
import pytest

from builders import H100, UNIT_GPU, dense_model, job_of, row_of
from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.layers.autocast import WIDENING_SHARE, autocast_s
from cost_models.layers.elementwise import HALVES_SHARE, layer_traffic

H, WIDTH, Q, KV, TOKENS = 1024, 4096, 1024, 256, 1024
WEIGHTS = H * Q + 2 * H * KV + Q * H + 3 * H * WIDTH + 2 * H


def old_torchtitan(model=None, **training):
    """0.2's layers, whose query, key and value are three products, and which autocast casts where nothing is sharded."""
    model = model or dense_model(2, num_key_value_heads=2)
    base = {
        "gpu": UNIT_GPU,
        "seq_length": TOKENS,
        "global_batch_size": 8,
        "framework": "torchtitan",
        "framework_version": "0.2",
    }
    return job_of(model, **{**base, "param_dtype": "fp32", **training})


def added(job, **strategy):
    return autocast_s(
        job, job.model.layer_kinds[0], row_of(job, **{"zero": 0, **strategy}), tokens=np.array([float(TOKENS)])
    )


def test_every_product_casts_its_weight_and_its_input() -> None:
    """Forward: 2 norms of 4 bytes more, 2 additions of 4, 5 casts of read 4 and write 2, a weight of 6; 7 weights, 2 norms', 5 casts."""
    job = old_torchtitan()
    rate = job.calibration.memory_bytes_per_s_effective.value
    forward, backward = added(job)
    kernels = (9 + 5) * ELEMENTWISE_KERNEL_S.value
    assert forward == pytest.approx((TOKENS * H * (2 * 4 + 2 * 4 + 5 * 6) + 6 * WEIGHTS) / rate + kernels)
    # Backward: norms 10 each; additions 6 and a cast of 6; 3 sums of 6; what is widened is slow.
    streamed = TOKENS * H * (2 * 10 + 2 * 12 + 3 * 6) / rate
    widened = 6 * (WEIGHTS + 5 * TOKENS * H) / (rate * WIDENING_SHARE.value)
    assert backward == pytest.approx(streamed + widened + kernels + 2 * ELEMENTWISE_KERNEL_S.value)


def test_a_compiler_makes_the_casts_part_of_other_kernels_but_those_of_weights() -> None:
    job = old_torchtitan(compile=True)
    rate = job.calibration.memory_bytes_per_s_effective.value
    forward, backward = added(job)
    kernels = 9 * ELEMENTWISE_KERNEL_S.value
    assert forward == pytest.approx((TOKENS * H * (2 * 4 + 2 * 4) + 6 * WEIGHTS) / rate + kernels)
    assert backward == pytest.approx(
        (TOKENS * H * (2 * 10 + 2 * 6) + 6 * WEIGHTS) / rate + kernels + 2 * ELEMENTWISE_KERNEL_S.value
    )


@pytest.mark.parametrize("training", [{"param_dtype": "bf16"}, {"precision": "fp32", "gpu": H100}])
def test_nothing_is_cast_where_parameters_have_the_type_of_the_products(training) -> None:
    assert added(old_torchtitan(**training)) is None


def test_what_fsdp_shards_it_casts_itself() -> None:
    assert added(old_torchtitan(), dp=2, zero=3) is None


def test_shares_are_those_of_traced_steps() -> None:
    """A 1.3B step of two replicas on an H200: 4.93e9 weights and 8.05e9 inputs of products widened at 6 bytes in 41.0 ms."""
    layers, batches, tokens, hidden = 24, 4, 8192, 2048
    weights = layers * batches * (4 * hidden**2 + 3 * hidden * 5632)
    inputs = layers * batches * 5 * tokens * hidden
    streaming = 0.875 * 4.8e12
    assert 6 * (weights + inputs) / 0.04104 / streaming == pytest.approx(WIDENING_SHARE.value, abs=0.02)
    # A pipeline of 8B: 28.6 ps a turned element, forward and backward, which are 50 bytes.
    assert 50 / 28.6e-12 / streaming == pytest.approx(HALVES_SHARE.value, abs=0.02)


def test_halves_are_turned_by_a_chain_of_operators() -> None:
    """20 bytes each way as one product of complex numbers; as a chain 20 and 30, at its share of the streaming rate."""
    elements = Q + KV
    products, chain = (
        layer_traffic(job, job.model.layer_kinds[0])
        for job in (
            old_torchtitan(dense_model(2, num_key_value_heads=2, rotary_interleaved=each)) for each in (True, False)
        )
    )
    share = HALVES_SHARE.value
    assert chain[0].sharded_bytes - products[0].sharded_bytes == pytest.approx(elements * 20 * (1 / share - 1))
    assert chain[1].sharded_bytes - products[1].sharded_bytes == pytest.approx(elements * (30 / share - 20))


def test_models_that_norm_queries_and_keys_turn_halves_in_torchtitan() -> None:
    asked = old_torchtitan(dense_model(2, num_key_value_heads=2, qk_norm=True))
    said = old_torchtitan(dense_model(2, num_key_value_heads=2, qk_norm=True, rotary_interleaved=True))
    assert (
        layer_traffic(asked, asked.model.layer_kinds[0])[0].sharded_bytes
        > layer_traffic(said, said.model.layer_kinds[0])[0].sharded_bytes
    )
