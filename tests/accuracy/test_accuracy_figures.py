"""The scores' arithmetic on rows whose answers are written down by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks.accuracy.active_share import total_and_active
from benchmarks.accuracy.baseline import drifts
from benchmarks.accuracy.figures import figures, rank_quality
from benchmarks.accuracy.left_out import FREE_CONSTANTS, Effects, blind_start, free_constants, refit
from benchmarks.accuracy.measured_rows import read_rows, score_rows, scored_part
from benchmarks.accuracy.memory_by_kind import kind_errors, rank_errors
from benchmarks.accuracy.named_constants import moved, named_constants
from cost_models.units import GIB


def measured_row(row_id: str, *, step_time_s: float | None, verdict: str = "fits", **measured):
    times = {} if step_time_s is None else {"step_time_s": step_time_s}
    return {
        "id": row_id,
        "source": "hand",
        "group": "g",
        "model": {"num_layers": 1, "hidden_size": 4, "num_attention_heads": 1, "vocab_size": 8},
        "cluster": {"gpu": "X", "num_nodes": 1, "gpus_per_node": 2},
        "training": {"seq_length": 10, "global_batch_size": 4, "precision": "bf16"},
        "strategy": {"tp": 1, "pp": 2},
        "measured": {"verdict": verdict, **times, **measured},
        "complete": True,
    }


def answer(step_time_s: float, *, low: float, high: float, verdict: str = "fits", allocated: float = 0.0):
    stages = [{"peak_allocated_bytes": allocated}, {"peak_allocated_bytes": 0.5 * allocated}]
    memory = {f"peak_{kind}_bytes": allocated * k for kind, k in (("allocated", 1), ("reserved", 2), ("device", 3))}
    return {
        "verdict": verdict,
        "step_time_s": step_time_s,
        "step_time_range_s": [low, high],
        "num_parameters": 100,
        "memory": {**memory, "stages": stages},
    }


def test_time_figures_by_hand() -> None:
    """Errors -50 %, +50 %, 0; ranges hold two of three; the null gives every row the median rate of the two others."""
    rows = [measured_row(name, step_time_s=s) for name, s in (("a", 2.0), ("b", 2.0), ("c", 4.0))]
    answers = [answer(1.0, low=0.5, high=1.5), answer(3.0, low=1.0, high=4.0), answer(4.0, low=2.0, high=8.0)]
    found = figures(score_rows(rows, answers))
    assert found["time_mape"] == pytest.approx(1 / 3)
    assert found["time_bias"] == pytest.approx(0.0)
    assert found["time_max_ape"] == pytest.approx(0.5)
    assert found["coverage"] == pytest.approx(2 / 3)
    assert found["range_width"] == pytest.approx(4.0)  # median of 3, 4, 4
    # equal work W; rates W/2, W/2, W/4. Rows a and b see the median of (W/2, W/4) = 3W/8: 8/3 s, +1/3 each;
    # row c sees W/2: 2 s, -1/2. Mean 7/18.
    assert found["null_mape"] == pytest.approx(7 / 18)
    assert found["vs_null"] == pytest.approx((1 / 3) / (7 / 18))
    # measured / predicted 2, 2/3, 1. a: x (2/3+1)/2 = 5/6 -> 7/12 off; b: x 3/2 -> 4.5, 5/4 off; c: x 4/3 -> 1/3 off.
    assert found["one_factor_mape"] == pytest.approx((7 / 12 + 5 / 4 + 1 / 3) / 3)


def test_ties_in_predicted_time_count_against_us() -> None:
    """Two plans tie as fastest; the slower one, 3 against 2 seconds, is taken as chosen."""
    spearman, top1, top5, order = rank_quality(np.array([1.0, 1.0, 5.0]), np.array([2.0, 3.0, 4.0]))
    assert top1 == pytest.approx(0.5)
    assert math.isnan(top5)
    # ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, variances 1.5 and 2
    assert spearman == pytest.approx(1.5 / math.sqrt(1.5 * 2.0))
    assert order == pytest.approx((0.5 + 1 + 1) / 3)


def test_verdicts_are_counted_by_what_happened() -> None:
    rows = [
        measured_row("ran", step_time_s=1.0),
        measured_row("died", step_time_s=None, verdict="oom"),
        measured_row("died-2", step_time_s=None, verdict="oom"),
    ]
    verdicts = ("oom", "fits", "at-risk")
    found = figures(score_rows(rows, [answer(1.0, low=1.0, high=1.0, verdict=verdict) for verdict in verdicts]))
    assert [found[name] for name in ("false_oom", "missed_oom", "oom_at_risk", "ran_fits")] == [1, 1, 1, 0]
    assert found["timed"] == 1


def test_memory_readings_by_kind_and_rank() -> None:
    """1 GiB allocated predicted on stage 0 and half on stage 1; four ranks lie two and two on the stages."""
    row = measured_row(
        "m", step_time_s=1.0, peak_memory_gib=0.8, memory_kind="allocated", reserved_gib=2.5, device_gib=3.0,
        per_rank={"allocated_gib": [0.8, 1.0, 0.5, 0.4]},
    )  # fmt: skip
    scored = score_rows([row], [answer(1.0, low=1.0, high=1.0, allocated=GIB)])
    assert scored.memory_error == pytest.approx([0.25])
    assert kind_errors(scored, "reserved") == pytest.approx([-0.2])
    assert kind_errors(scored, "device") == pytest.approx([0.0])
    assert rank_errors(scored) == pytest.approx([0.25, 0.0, 0.0, 0.25])


def test_active_share_of_experts() -> None:
    """h 2, one layer of 4 experts of width 3, 2 active, plain MLP: 12 weights an expert, 8 of router."""
    total, active = total_and_active({
        "num_layers": 1, "hidden_size": 2, "num_attention_heads": 1, "vocab_size": 5, "gated_mlp": False,
        "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 3},
    })  # fmt: skip
    always = 2 * 5 * 2 + 2 * 2 * 2 * (1 + 1) + 2 * 4  # embedding twice, attention, router
    assert total == always + 4 * 12
    assert active == always + 2 * 12
    assert math.isnan(total_and_active({"preset": "llama-3.1-8b"})[0])


def test_incomplete_rows_count_only_where_nothing_else_does() -> None:
    whole, part = {"complete": True}, {"complete": False}
    assert scored_part([whole, part]) == [whole]
    assert scored_part([part]) == [part]


def test_drifts_name_what_moved() -> None:
    accepted = {"bars": {"x: time error": 0.05}, "scores": {"x": {"time_mape": 0.05, "coverage": 0.8}}}
    now = {"bars": {"x: time error": 0.055}, "scores": {"x": {"time_mape": 0.07, "coverage": 0.8}}}
    assert list(drifts(accepted, now)) == ["x time_mape: 0.05 -> 0.07"]


def test_moved_constants_come_back_even_after_an_error() -> None:
    name = "MEMORY_EFFICIENCY"
    before = named_constants()[name].value
    seen = []

    def try_and_fail() -> None:
        with moved({name: 0.7}):
            seen.append(named_constants()[name].value)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        try_and_fail()
    assert seen == [0.7]
    assert named_constants()[name].value == before


def test_free_constants_exist_and_have_a_range() -> None:
    named = named_constants()
    assert all(named[name].low < named[name].high for name in free_constants())


def test_free_constants_name_measured_sources() -> None:
    """`fitted_on` lists stems of data/measured (some are absent from a source distribution)."""
    entries = json.loads(FREE_CONSTANTS.read_text())["constants"].values()
    known = {*read_rows(), "bigscience", "dgxc", "ml_engineering"}
    assert {source for entry in entries for source in entry["fitted_on"]} <= known


def made_effects() -> Effects:
    """Constant c at 2 doubles all seconds: right for p and r, wrong for q."""
    twice, once = np.log([2.0]), np.zeros(1)
    return Effects(
        ratio={"p": np.array([0.5]), "q": np.array([1.0]), "r": np.array([0.4])},
        grid={"c": (1.0, 1.5, 2.0)},
        log_effect={
            ("c", 1.0): dict.fromkeys("pqr", once),
            ("c", 1.5): dict.fromkeys("pqr", np.log([1.5])),
            ("c", 2.0): dict.fromkeys("pqr", twice),
        },
    )


def test_refit_takes_what_two_other_sources_want() -> None:
    """p and r together move c; p alone, or r against q, does not: its own missing term would do the same."""
    effects = made_effects()
    assert refit(effects, ["p", "r"], start={"c": 1.0}) == {"c": 2.0}
    assert refit(effects, ["p"], start={"c": 1.0}) == {"c": 1.0}
    assert refit(effects, ["q", "r"], start={"c": 1.0}) == {"c": 1.0}
    # p: 0.5 x 2 is right, r: 0.4 x 2 is 20 % low
    assert effects.errors({"c": 2.0}, ["p", "r"]) == pytest.approx([0.0, 0.2])


def test_constant_chosen_in_view_of_a_source_starts_blind_for_it() -> None:
    """The geometric middle of the range stands second in the grid."""
    assert blind_start(made_effects(), "p", seen={"c": ["p"]}) == {"c": 1.5}
    assert blind_start(made_effects(), "q", seen={"c": ["p"]}) == {"c": 1.0}
