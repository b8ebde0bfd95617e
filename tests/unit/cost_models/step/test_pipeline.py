"""Bubbles by schedule and the sends between stages, by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from builders import dense_model, job_of, rows_of
from cost_models.constants import INTERFERENCE, SENDS_ON_STAGE
from cost_models.hardware.groups import groups
from cost_models.step.pipeline import bubble_s, exposed_sends_s, hop_s
from cost_models.strategies.fields import Schedule

H, SEQ = 1024, 2048
job = partial(job_of, dense_model(8, hidden_size=H), num_nodes=4, seq_length=SEQ, global_batch_size=32)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"pp": 4, "schedule": "1f1b"}, 30.0),  # 4 stages of 10: three wait for the fourth
        ({"pp": 4, "schedule": "gpipe"}, 30.0),
        ({"pp": 4, "vpp": 2}, 15.0),  # half of it with two chunks
        # A stage's forward takes 3, its data gradients 5, its weight gradients 2.
        ({"pp": 4, "schedule": "zb-h1"}, 3 * (3.0 + (5.0 - 2.0))),  # (p - 1)(F + I - W), Qi 2023
        ({"pp": 4, "vpp": 2, "schedule": "zb-v"}, 3 * (2 * (5.0 - 2.0) / 2)),  # 2 (I - W) is the longest of its waits
        ({"pp": 4, "vpp": 2, "schedule": "dualpipe-v"}, 3 * (3.0 + 5.0 + (5.0 - 2.0)) / 2),
    ],
)
def test_bubble_of_equal_stages(strategy, expected) -> None:
    found = bubble_s(
        rows_of(job(), strategy), stages_sum_s=np.array([40.0]), slowest_s=np.array([10.0]), forward_s=np.array([3.0]),
        wgrad_s=np.array([2.0]),
    )  # fmt: skip
    assert found[0] == pytest.approx(expected)


def test_no_bubble_is_negative() -> None:
    """Weight gradients longer than the gaps fill them but for the forward; rounding of the sum takes nothing off."""
    batch = rows_of(job(), {"pp": 4, "schedule": "zb-h1"}, {"pp": 4})
    found = bubble_s(
        batch,
        stages_sum_s=np.array([40.0, 10.0]),
        slowest_s=np.array([10.0, 10.0 + 1e-12]),
        forward_s=np.array([0.5, 3.0]),
        wgrad_s=np.array([9.0, 9.0]),
    )
    assert found == pytest.approx([1.5, 0.0])  # (p - 1) F = 3 x 0.5


def test_schedules_of_one_batch_are_told_apart() -> None:
    batch = rows_of(job(), {"pp": 4}, {"pp": 4, "vpp": 2}, {"pp": 4, "schedule": "zb-h1"})
    assert batch.schedule.tolist() == [Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1]
    whole, slowest, forward, wgrad = np.full(3, 40.0), np.full(3, 10.0), np.full(3, 4.0), np.full(3, 1.0)
    found = bubble_s(batch, stages_sum_s=whole, slowest_s=slowest, forward_s=forward, wgrad_s=wgrad)
    assert found == pytest.approx([30.0, 15.0, 3 * (4.0 + 5.0 - 1.0)])


def test_a_hop_sends_a_slice_per_tensor_parallel_rank() -> None:
    """T*h bf16 = 4 MiB: whole with tp 1, a quarter with tp 4; without sequence parallelism Megatron-LM gathered it again
    before it took Megatron Core's pipelines in 2023 (Narayanan 2021, section 4.1)."""
    asked = job(software_date="2022-05")
    batch = rows_of(
        asked, {"pp": 4, "dp": 2}, {"tp": 4, "pp": 4, "dp": 2}, {"tp": 4, "pp": 4, "dp": 2, "sequence_parallel": False}
    )
    placed, size = groups(batch, asked.cluster), SEQ * H * 2.0
    send = asked.calibration.collective_s("send_recv", size / np.array([1.0, 4.0, 4.0]), placement=placed.pp).seconds
    gather = asked.calibration.collective_s("all_gather", size, placement=placed.tp).seconds
    hop, _ = hop_s(asked, batch)
    assert hop == pytest.approx([send[0], send[1], send[2] + gather[2]])


@pytest.mark.parametrize("asked", [job("deepspeed"), job(), job(software_date="2023-03")])
def test_a_framework_without_scatter_gather_sends_everything(asked) -> None:
    """Megatron Core: schedules.py (get_tensor_shapes) divides by tp with sequence parallelism alone; 0.1.0 is of 2023-03."""
    batch = rows_of(asked, {"tp": 4, "pp": 4, "dp": 2, "zero": 1, "sequence_parallel": False})
    placed = groups(batch, asked.cluster)
    send = asked.calibration.collective_s("send_recv", SEQ * H * 2.0, placement=placed.pp)
    assert hop_s(asked, batch)[0] == pytest.approx(send.seconds)


def test_one_stage_sends_nothing() -> None:
    asked = job()
    batch = rows_of(asked, {"tp": 2}, {"pp": 2})
    hop, tier = hop_s(asked, batch)
    assert hop[0] == tier[0] == 0
    assert hop[1] > 0
    assert exposed_sends_s(batch, hop=np.array([1.0, 1.0]), interference=0.15)[0] == 0


def test_sends_of_a_step() -> None:
    """pp 4, dp 8, 4 micro-batches, hop 1: 2 (p - 1) = 6 to fill and drain, and half of 2 * 4 in between.

    With two chunks twice as many, which Megatron then overlaps: 15 % of 2 * 4 * 2.
    """
    asked = job()
    batch = rows_of(asked, {"pp": 4, "dp": 8}, {"pp": 4, "dp": 8, "vpp": 2})
    assert batch.num_micro_batches.tolist() == [4, 4]
    found = exposed_sends_s(batch, hop=np.ones(2), interference=INTERFERENCE.value)
    assert found == pytest.approx([6 + SENDS_ON_STAGE.value * 8, 6 + INTERFERENCE.value * 16])
