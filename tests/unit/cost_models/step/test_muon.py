"""Muon's operations and seconds by hand, and the operations that torch counts in its own optimizer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of, tiny_model
from cost_models.evaluate import evaluate
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.weight_matrices import Matrices
from cost_models.step.fsdp_comm import fsdp_links_s
from cost_models.step.muon import iterations_s, matrix_flops, muon_s, vectors_owned
from cost_models.step.optimizer import optimizer_s

job = partial(job_of, gpu=UNIT_GPU, optimizer="muon")


def shape(rows: float, columns: float, count: float = 1.0) -> Matrices:
    return Matrices(np.array([rows]), np.array([columns]), np.array([count]))


def test_flops_of_an_iteration():
    # X X': 2 r r c; A A: 2 r^3; B X: 2 r r c; five times. r = 2, c = 3: 5 (48 + 16) = 320, whichever side is the longer.
    assert matrix_flops(shape(2, 3))[0] == matrix_flops(shape(3, 2))[0] == 320
    # DeepSpeed's: X X' and B X twice each, 14 products of squares: 4 x 24 + 14 x 16.
    assert matrix_flops(shape(2, 3), gram=True)[0] == 4 * 24 + 14 * 16


@pytest.mark.parametrize("sizes", [(48, 16), (16, 48), (32, 32)])
def test_torch_counts_the_same(sizes: tuple[int, int]):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    weight = torch.nn.Parameter(torch.randn(sizes))
    weight.grad = torch.randn(sizes)
    optimizer = torch.optim.Muon([weight])
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert counter.get_total_flops() == matrix_flops(shape(*sizes))[0]


def test_products_are_priced_by_shape():
    made, matrix = job(dense_model()), shape(4096, 1024)
    price = made.calibration.gemm_s
    expected = 5 * sum(float(price(m, n, k, precision="bf16").seconds) for m, n, k in (
        (1024, 1024, 4096), (1024, 4096, 1024), (1024, 1024, 1024),
    ))  # fmt: skip
    # The square and the matrix itself are added to a product each: copied, which is a read and a write, and read by the product.
    added = 6 * (1024 * 1024 + 4096 * 1024)
    expected += 5 * float(made.calibration.elementwise_s(added, kernels=2).seconds)
    assert iterations_s(made, matrix)[0] == pytest.approx(expected, rel=1e-12)
    # No product is faster than its operations at the peak of 100 TFLOP/s.
    assert iterations_s(made, matrix)[0] > matrix_flops(matrix)[0] / 100e12


def test_small_matrices_wait_for_their_host():
    # Six matrices a layer, 15 products and 12 other operators each, in a model so small that the host decides.
    made = job_of(tiny_model(num_layers=4), optimizer="muon")
    assert muon_s(made, row_of(made, zero=0))[0] == pytest.approx(4 * 6 * 27 * made.calibration.bare_op_s.value)


def test_products_of_deepspeeds_iteration():
    # Four with the matrix and 14 of squares, and 12 other operators, in a model so small that the host decides: a whole number of 30.
    made = job_of(
        tiny_model(num_layers=4, hidden_size=256, num_key_value_heads=2),
        "deepspeed",
        optimizer="muon",
        framework_version="0.19",
    )
    whole = muon_s(made, row_of(made, zero=1, dp=8, zero_shard_size=8))[0]
    each = 30 * made.calibration.bare_op_s.value
    assert whole / each == pytest.approx(round(whole / each), rel=1e-9)


def test_ranks_share_whole_matrices():
    made = job(dense_model(num_layers=8), num_nodes=1)
    alone, shared = (muon_s(made, row_of(made, zero=zero))[0] for zero in (0, 1))
    # Eight of every shape over eight ranks: one of each.
    assert shared == pytest.approx(alone / 8, rel=1e-9)


def test_adam_updates_what_is_no_matrix():
    # Embedding and head of 32,000 x 1,024 and 2 x 4 + 1 norms; eight ranks share them.
    made = job(dense_model(num_layers=4))
    padded = np.ceil(32000 / 128) * 128
    assert vectors_owned(made, row_of(made, zero=1))[0] == (2 * padded * 1024 + 9 * 1024) / 8


def test_the_step_holds_both():
    made = job(dense_model(num_layers=4))
    row = row_of(made, zero=1)
    held = np.array([123_456_789.0])
    vectors = float(vectors_owned(made, row)[0])
    # fp32 gradients are read, and read and written (12); Adam reads the gradient, main parameter and two moments, and writes all but the
    # gradient and the bf16 copy: 4 + 2 x 4 + 2 x 2 x 4 + 2 = 30. 0.8 of 1000 GB/s.
    streamed = (12 * 123_456_789 / 8 + 30 * vectors) / 800e9
    launches = 150 * made.calibration.bare_op_s.value
    expected = max(streamed, launches) + float(muon_s(made, row)[0])
    assert optimizer_s(made, row, dense=held, expert=np.zeros(1))[0] == pytest.approx(expected)


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan", "deepspeed"])
def test_sharded_matrices_are_exchanged(framework: str):
    # The same layers on GPUs with a link a thousand times as fast: less time where shards travel.
    fast = {**UNIT_GPU, "nvlink_gb_per_s": 100_000}
    slow_s, fast_s = (
        muon_s(made, row_of(made, zero=3))[0]
        for made in (job_of(dense_model(), framework, gpu=gpu, optimizer="muon") for gpu in (UNIT_GPU, fast))
    )
    assert slow_s > 1.02 * fast_s


def test_every_rank_of_megatron_reduces_as_before():
    slow = job(dense_model())
    fast = job_of(dense_model(), gpu={**UNIT_GPU, "nvlink_gb_per_s": 100_000}, optimizer="muon")
    assert muon_s(slow, row_of(slow, zero=1))[0] == muon_s(fast, row_of(fast, zero=1))[0]


def test_dtensor_waits_for_its_host():
    # Seven matrices a layer in a model so small that the host decides.
    made = job_of(tiny_model(num_layers=2), "fsdp", optimizer="muon", param_dtype="fp32")
    alone, sharded = (muon_s(made, row_of(made, zero=zero))[0] for zero in (0, 3))
    layer_op_s = made.calibration.host_op_s().value * made.calibration.wrapped_layer_ratio("tensor_parallel").value
    assert 14 * 28 * layer_op_s < sharded < 14 * 45 * layer_op_s
    assert sharded > 10 * alone


def test_deepspeeds_stage_3_gathers_four_times_in_two_bytes():
    # Gradient and momentum before, update and momentum after, in bf16 though states are fp32 (stage3.py of 0.19.8, _create_momentum_buffer):
    # q, k, v and output of 1,024 x 1,024, two products of 4,096 x 1,024, four layers.
    slow, fast = (
        job_of(dense_model(), "deepspeed", gpu={**UNIT_GPU, "nvlink_gb_per_s": rate}, optimizer="muon")
        for rate in (100, 1e6)
    )

    def gather_s(made: Job, elements: int) -> float:
        shard = groups(row_of(made, zero=3, dp=8), made.cluster).zero_shard
        return float(
            made.calibration.collective_s("all_gather", np.array([2.0 * elements]), placement=shard).seconds[0]
        )

    of_links = [4 * 4 * (4 * gather_s(made, 1024 * 1024) + 3 * gather_s(made, 4096 * 1024)) for made in (slow, fast)]
    whole = [float(muon_s(made, row_of(made, zero=3, dp=8))[0]) for made in (slow, fast)]
    assert whole[0] - whole[1] == pytest.approx(of_links[0] - of_links[1])


def test_deepspeeds_stage_3_holds_the_momentum_in_two_bytes():
    made = job_of(dense_model(), "deepspeed", gpu=UNIT_GPU, optimizer="muon")
    matrices = 4 * (4 * 1024 * 1024 + 3 * 4096 * 1024)
    vectors = 2 * 32000 * 1024 + 9 * 1024
    memory = evaluate(made, row_of(made, zero=3, dp=8)).memory
    assert memory.breakdown(0, 0)["optimizer_states"] == (2 * matrices + 8 * vectors) / 8


def test_deepspeeds_muon_reduces_whole_gradients():
    """It refuses to scatter them: an all-reduce of a layer's matrices and two norms, in bf16 and one bucket."""
    made = job_of(dense_model(), "deepspeed", gpu=UNIT_GPU, optimizer="muon")
    row = row_of(made, zero=3, dp=8)
    layer = np.array([2.0 * (4 * 1024 * 1024 + 3 * 4096 * 1024 + 2 * 1024)])
    shard = groups(row, made.cluster).zero_shard
    expected = made.calibration.collective_s("all_reduce", layer, placement=shard).seconds[0]
    assert fsdp_links_s(made, row).layer_JU.reduce[0, 0] == pytest.approx(expected)
