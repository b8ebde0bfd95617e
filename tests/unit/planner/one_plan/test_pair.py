"""Two plans beside each other: their terms, the fullest stage of each, and the fields in which they differ."""

from __future__ import annotations

from typing import Any

from planner.one_plan.pair import fullest_stage, pair


def plan(*, peaks: tuple[float, ...], gemm: float, **strategy: Any) -> dict[str, Any]:
    stages = [
        {"stage": place, "peak_allocated_bytes": peak, "breakdown_bytes": {"parameters": peak / 4, "activations": peak * 3 / 4}}
        for place, peak in enumerate(peaks)
    ]  # fmt: skip
    return {
        "strategy": {"tp": 2, "zero": 1, "overlap": {"tp_comm": True, "p2p": False}, "layers_per_stage": [4, 4]} | strategy,
        "evaluation": {"step_time_s": gemm, "time_breakdown_s": {"gemm": gemm}, "memory": {"stages": stages}},
    }  # fmt: skip


def test_terms_are_told_of_both() -> None:
    found = pair(plan(peaks=(8.0, 4.0), gemm=2.0), plan(peaks=(4.0, 12.0), gemm=2.5), calibrations=())
    assert found["difference_s"] == 0.5
    assert found["time_s"]["gemm"] == [2.0, 2.5]
    assert found["time_s"]["offload"] == [0.0, 0.0]  # a term that an older response does not hold
    assert found["stages"] == [0, 1]
    assert found["memory_bytes"]["activations"] == [6.0, 9.0]
    assert found["memory_bytes"]["parameters"] == [2.0, 3.0]


def test_the_first_of_equally_full_stages_is_told() -> None:
    assert fullest_stage(plan(peaks=(4.0, 9.0, 9.0), gemm=1.0)["evaluation"])["stage"] == 1


def test_only_fields_that_differ_are_told_those_of_groups_by_their_whole_name() -> None:
    one = plan(peaks=(1.0,), gemm=1.0)
    other = plan(peaks=(1.0,), gemm=1.0, zero=2, overlap={"tp_comm": True, "p2p": True}, layers_per_stage=[5, 3], vpp=2)
    found = pair(one, other, calibrations=())["strategy"]
    assert found == {
        "vpp": [None, 2],
        "zero": [1, 2],
        "layers_per_stage": [[4, 4], [5, 3]],
        "overlap.p2p": [False, True],
    }
    assert pair(one, one, calibrations=())["strategy"] == {}


def test_without_a_calibration_it_stays_open_whether_plans_differ() -> None:
    found = pair(plan(peaks=(1.0,), gemm=1.0), plan(peaks=(1.0,), gemm=9.0), calibrations=())
    assert found["tied"] is None
    assert found["difference_range_s"] is None
