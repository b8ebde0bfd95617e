"""Which schedules are tried on which split, and what share of the other stages' time their bubbles take at least."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import job_of, tiny_model
from cost_models.constants import WGRAD_SHARE
from cost_models.inputs.model import resolve_model
from cost_models.step.pipeline import bubble_s
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, build_strategies
from planner.plan import plan
from planner.schemas import Constraints
from planner.strategies.axes import build_space, searched_values
from planner.strategies.listed_splits import waiting_share
from planner.strategies.space import Space

TITAN_02 = {"framework_version": "0.2"}


def space(framework, *, layers=8, fixed=None, allowed=None, **training) -> Space:
    job = job_of(tiny_model(layers), framework, num_nodes=1, **{"seq_length": 512, "global_batch_size": 16, **training})
    return build_space(job, Constraints.model_validate({"fixed": {"pp": 2, **(fixed or {})}, "allowed": allowed or {}}))


def tried(found: Space) -> set[tuple[int, bool, str]]:
    table = found.layouts.table
    return {
        (vpp, table[layout].folded, Schedule(schedule).label)
        for vpp, layout in found.layout_index[2]
        for schedule in found.splits.schedules(layout)
    }


PLAIN = {(1, False, "1f1b"), (2, False, "interleaved"), (4, False, "interleaved")}
VS = {(2, True, "zb-v"), (2, True, "dualpipe-v")}


@pytest.mark.parametrize(
    ("framework", "training", "expected"),
    [
        ("megatron", {}, PLAIN),
        ("torchtitan", TITAN_02, PLAIN | VS | {(1, False, "gpipe")}),
        ("torchtitan", {"framework_version": "0.1"}, PLAIN | {(2, True, "zb-v"), (1, False, "gpipe")}),
        # Neither compiled code nor FlexAttention, which is compiled, can split its backward.
        ("torchtitan", {**TITAN_02, "compile": True}, PLAIN | {(1, False, "gpipe")}),
        ("torchtitan", {"framework_version": "0.3"}, PLAIN | {(1, False, "gpipe")}),
        ("nanotron", {}, {(1, False, "1f1b")}),
    ],
)  # fmt: skip
def test_a_search_tries_the_schedules_that_can_run(framework, training, expected) -> None:
    assert tried(space(framework, **training)) == expected


def test_given_schedules_are_tried_on_every_split_and_judged_by_the_rules() -> None:
    found = space("torchtitan", allowed={"schedule": ["1f1b", "zb-v"]}, **TITAN_02)
    assert tried(found) == {(vpp, False, "1f1b") for vpp in (1, 2, 4)} | {
        (1, False, "zb-v"),
        (2, True, "zb-v"),
        (4, False, "zb-v"),
    }
    assert searched_values(found)["schedule"] == ["1f1b", "zb-v"]


def test_of_the_schedules_of_a_split_the_leanest_stands_for_all_and_1f1b_where_there_is_none() -> None:
    """1F1B holds no more micro-batches than GPipe, ZB-V no more than DualPipe-V. Alone, ZB-V runs on no split but the folded one."""

    def leanest(found: Space) -> dict[tuple[int, bool], str]:
        table = found.layouts.table
        codes = found.splits.leanest_schedule
        return {(table[at].vpp, table[at].folded): Schedule(int(codes[at])).label for _, at in found.layout_index[2]}

    assert leanest(space("torchtitan", **TITAN_02)) == {
        (1, False): "1f1b", (2, False): "interleaved", (4, False): "interleaved", (2, True): "zb-v",
    }  # fmt: skip
    given = space("torchtitan", allowed={"schedule": ["dualpipe-v", "zb-v"]}, **TITAN_02)
    assert set(leanest(given).values()) == {"zb-v"}
    none = dataclasses.replace(given.splits, given=())
    assert [none.schedules(layout) for layout in range(len(none.layouts.table))] == [()] * len(none.layouts.table)
    assert set(none.leanest_schedule.tolist()) == {Schedule.ONE_F_ONE_B}


def test_the_report_names_the_schedules() -> None:
    assert searched_values(space("torchtitan", **TITAN_02))["schedule"] == [
        "1f1b",
        "interleaved",
        "gpipe",
        "zb-v",
        "dualpipe-v",
    ]


def test_a_search_finds_the_best_of_all_schedules() -> None:
    """What one request finds is the best that requests with a fixed schedule each find."""

    def asked(**fixed) -> list[float]:
        request = {
            "model": {"preset": "llama-3.1-8b"},
            "cluster": {"preset": "dgx-h100", "num_nodes": 1},
            "training": {
                "seq_length": 4096,
                "global_batch_size": 32,
                "precision": "bf16",
                "framework": "torchtitan",
                **TITAN_02,
            },
            "constraints": {"fixed": {"pp": 4, **fixed}},
            "top_k": 30,
        }
        return [each["evaluation"]["step_time_s"] for each in plan(request)["plans"]]

    alone = {name: asked(schedule=name) for name in ("1f1b", "interleaved", "gpipe", "zb-v", "dualpipe-v")}
    # GPipe is as fast as 1F1B, and a ranking that names both says the same twice.
    several = sorted({step for name, steps in alone.items() for step in steps if name != "gpipe"})
    assert asked() == several[:30]
    assert {alone["zb-v"][0], alone["interleaved"][0]} <= set(asked())


times = st.floats(0.05, 1.0)


@pytest.mark.parametrize("schedule", list(Schedule))
@given(forward=times, rest=times, share=st.floats(0.0, 1.0), stages=st.integers(2, 8), chunks=st.integers(2, 4))
def test_no_bubble_is_below_its_share(schedule, forward, rest, share, stages, chunks) -> None:
    """Weight gradients take up to WGRAD_SHARE of a stage's seconds."""
    vpp = {Schedule.INTERLEAVED: chunks, Schedule.ZB_V: 2, Schedule.DUALPIPE_V: 2}.get(schedule, 1)
    slowest = forward + rest
    wgrad = min(share * WGRAD_SHARE.value * slowest, rest)
    sizes = {
        "num_layers": stages,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    layouts = build_layouts([Layout(stages, 1, (1,) * stages)], model=resolve_model(sizes))
    row = dict.fromkeys(ARRAY_FIELDS, 1) | {"pp": stages, "vpp": vpp, "layout": 0, "schedule": schedule}
    rows = build_strategies({name: [value] for name, value in row.items()}, layouts=layouts)
    one = {"slowest_s": slowest, "forward_s": forward, "wgrad_s": wgrad, "stages_sum_s": stages * slowest}
    found = bubble_s(rows, **{name: np.array([value]) for name, value in one.items()})[0]
    assert found >= waiting_share(schedule, vpp) * (stages - 1) * slowest * (1 - 1e-12)


@pytest.mark.parametrize(
    ("schedule", "vpp", "share"),
    [
        (Schedule.ONE_F_ONE_B, 1, 1.0), (Schedule.GPIPE, 1, 1.0), (Schedule.INTERLEAVED, 4, 0.25), (Schedule.ZB_H1, 1, 1 / 3),
        (Schedule.ZB_V, 2, 1 / 6), (Schedule.DUALPIPE_V, 2, (1 - WGRAD_SHARE.value) / 2),
    ],
)  # fmt: skip
def test_the_share_is_met_by_the_chunks_that_wait_least(schedule, vpp, share) -> None:
    """ZB-H1 waits for the longest of three passes, at least a third; ZB-V for half of that; DualPipe-V for half of all but the largest W."""
    assert waiting_share(schedule, vpp) == pytest.approx(share)
