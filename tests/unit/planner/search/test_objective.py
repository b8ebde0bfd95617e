"""What is minimised, how times are rounded before they are compared, and how ties break."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, build_strategies
from planner.request.job import resolve_job
from planner.schemas.plan_request import Targets
from planner.search.objective import Goal, build_goal, ranked_order, rounded

SIZES = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}
ENDLESS = np.inf


def batch(**columns: list[int]):
    layouts = build_layouts([Layout(1, 1, (2,))], model=resolve_model(SIZES))
    return build_strategies(dict.fromkeys(ARRAY_FIELDS, 1) | {"layout": 0} | columns, layouts=layouts)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.2345674, 1.234567), (1.2345676, 1.234568), (0.00098765432, 0.0009876543), (43.210987654, 43.21099)],
)
def test_times_are_rounded_to_a_millionth_of_their_decade(seconds, expected) -> None:
    assert rounded(np.array([seconds]))[0] == pytest.approx(expected, rel=1e-9)


def test_the_last_bits_of_a_sum_decide_nothing() -> None:
    one, other = 0.1 + 0.2, 0.3
    assert one != other
    assert rounded(np.array([one]))[0] == rounded(np.array([other]))[0]
    assert rounded(np.array([1.0]))[0] < rounded(np.array([1.00001]))[0]


def test_rounding_keeps_the_order() -> None:
    times = np.sort(np.random.default_rng(0).uniform(1e-3, 1e3, 2000))
    assert (np.diff(rounded(times)) >= 0).all()
    assert rounded(times) == pytest.approx(times, rel=1e-6)


def test_each_objective_by_hand() -> None:
    """8 GPUs in 2 s or 16 in 1.5 s: the second is faster, the first cheaper (16 against 24 GPU-seconds) and smaller."""
    rows, step_s = batch(dp=[8, 16]), np.array([2.0, 1.5])
    values = {name: Goal(name, ENDLESS).value(rows, step_s) for name in ("step_time", "cost", "fewest_gpus")}
    assert values["step_time"].tolist() == pytest.approx([2.0, 1.5])
    assert values["cost"].tolist() == pytest.approx([16.0, 24.0])
    assert values["fewest_gpus"].tolist() == pytest.approx([8 + 2 / 3, 16 + 1.5 / 2.5])


def test_of_equally_few_gpus_the_faster_wins() -> None:
    values = Goal("fewest_gpus", ENDLESS).value(batch(dp=[8, 8, 16]), np.array([500.0, 499.0, 1e-3]))
    assert values[1] < values[0] < values[2]


@pytest.mark.parametrize(
    ("objective", "value", "expected"),
    [
        ("step_time", 3.0, 3.0), ("step_time", 9.0, 5.0),
        ("cost", 24.0, 3.0), ("cost", 72.0, 5.0),  # 8 GPUs: 3 s and 9 s
        ("fewest_gpus", 8.75, 3.0), ("fewest_gpus", 8.9, 5.0),  # t / (1 + t) = 0.75 at 3 s and 0.9 at 9 s
        ("fewest_gpus", 9.0, 5.0), ("fewest_gpus", 7.5, 0.0),
    ],
)  # fmt: skip
def test_the_longest_step_reaches_the_value_and_the_targets(objective, value, expected) -> None:
    """On 8 GPUs with a target of 5 s: the step that has this value, but no longer than the target."""
    assert Goal(objective, 5.0).longest_step_s(8.0, value) == pytest.approx(expected, rel=1e-5)


def test_targets_are_the_tighter_of_both() -> None:
    """1000 steps of 4 * 2048 tokens: in 1 h 3.6 s a step; at 4096 tokens/s 2 s."""
    job = resolve_job({
        "model": SIZES,
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {
            "seq_length": 2048, "global_batch_size": 4, "precision": "bf16", "framework": "megatron",
            "total_tokens": 1000 * 4 * 2048,
        },
    })  # fmt: skip
    assert build_goal(job, "step_time", Targets()).slowest_step_s == np.inf
    assert build_goal(job, "step_time", Targets(deadline_h=1)).slowest_step_s == pytest.approx(3.6)
    both = build_goal(job, "step_time", Targets(deadline_h=1, min_tokens_per_s=4096))
    assert both.slowest_step_s == pytest.approx(2.0)
    assert both.reached(np.array([1.9, 2.0, 2.1])).tolist() == [True, True, False]


def test_ties_break_by_degrees_and_risk_comes_last() -> None:
    rows = batch(tp=[4, 2, 2, 1], pp=[1, 4, 2, 1], zero=[0, 0, 0, 0])
    values = np.array([1.0, 1.0, 1.0, 0.5])
    none = np.zeros(4, np.bool_)
    assert ranked_order(values, rows, last=none).tolist() == [3, 2, 1, 0]
    assert ranked_order(values, rows, last=np.array([False, False, True, True])).tolist() == [1, 0, 3, 2]
