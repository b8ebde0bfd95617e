"""Under which strategies a knob that no formula prices does anything, and its default, by the frameworks' sources."""

from __future__ import annotations

from typing import Any

import pytest

from planner.knobs import default_values

BUCKETS = ("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size")


def strategy(**given: Any) -> dict[str, Any]:
    plain = {"overlap": {"grad_reduce": True}, "offload": {"optimizer_fraction": 0.0}}
    return plain | given


@pytest.mark.parametrize(
    ("given", "has"),
    [
        ({"zero": 0, "dp": 64}, True),
        ({"zero": 0, "dp": 2}, True),
        ({"zero": 0, "dp": 1}, False),  # nothing to reduce
        ({"zero": 1, "dp": 64}, False),  # trainer.py (init_model) wraps nothing in buckets then
        ({"zero": 1, "dp": 1}, False),
    ],
)
def test_nanotron_has_buckets_without_zero_where_there_are_replicas(given: dict[str, Any], has: bool) -> None:
    """model.ddp_bucket_cap_mb, 25 MB unless told."""
    asked = strategy(cp=1, **given)
    assert default_values("nanotron", asked) == ({"model.ddp_bucket_cap_mb": 25} if has else {})


SHARDED = {"zero_optimization.stage3_prefetch_bucket_size": 50_000_000, "zero_optimization.stage3_max_live_parameters": 1e9,
           "zero_optimization.stage3_param_persistence_threshold": 100_000}  # fmt: skip
"""DeepSpeed's defaults (runtime/zero/config.py)."""


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-deepspeed"])
@pytest.mark.parametrize("replicas", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("fraction", [0.0, 0.5])
@pytest.mark.parametrize("zero", range(4))
def test_deepspeeds_knobs_follow_from_stage_replicas_and_offload(
    framework: str, replicas: tuple[int, int], fraction: float, zero: int
) -> None:
    """A shard needs a second replica, of data or of context; the host's share can be told to stage 3 alone."""
    dp, cp = replicas
    expected: dict[str, float] = {}
    if dp * cp > 1 and zero > 0:
        expected |= {BUCKETS[0]: 500_000_000} | ({BUCKETS[1]: 500_000_000} if zero < 3 else SHARDED)
    if zero == 3 and fraction > 0:
        expected["zero_optimization.offload_optimizer.ratio"] = fraction
    asked = strategy(dp=dp, cp=cp, zero=zero, offload={"optimizer_fraction": fraction})
    assert default_values(framework, asked) == expected


@pytest.mark.parametrize(("zero", "reduces"), [(0, True), (1, True), (2, False), (3, False)])
@pytest.mark.parametrize(
    ("dp", "cp", "default"), [(1, 1, None), (2, 1, 4e7), (1, 2, 4e7), (40, 1, 4e7), (41, 1, 4.1e7)]
)
def test_megatrons_buckets_need_whole_gradients_and_replicas(
    zero: int, reduces: bool, dp: int, cp: int, default: float | None
) -> None:
    found = default_values("megatron", strategy(zero=zero, dp=dp, cp=cp))
    assert found == ({"--ddp-bucket-size": default} if reduces and default else {})
