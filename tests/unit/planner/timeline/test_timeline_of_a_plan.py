"""The timeline of a plan against its evaluation: the same seconds, the same terms, and the closed form where it is exact."""

from __future__ import annotations

from typing import Any

import pytest

from planner.one_plan.neighbours import ChangedPriceError
from planner.rows import evaluate_rows
from planner.timeline.orders import rank_orders
from planner.timeline.play import played
from planner.timeline.seconds import EXPOSED
from planner.timeline.step import MOST_TASKS, Timeline, plan_timeline, shortened_to
from tests.builders import dense_model, request_of, with_experts

Document = dict[str, Any]
SPLIT: Document = {"compile": False, "attention_kernel": "fa2"}
"""torchtitan without what forbids to split a backward."""


def row(
    framework: str = "megatron", *, model: Document | None = None, training: Document | None = None, **strategy: Any
) -> Document:
    request = request_of(model or dense_model(16), framework, num_nodes=2, **(training or {}))
    return {**request, "strategy": {"tp": 2, "micro_batch_size": 1, **strategy}}


ROWS = {
    "1f1b": row(pp=4, dp=2),
    "one rank": row(pp=1, dp=8, recompute="full"),
    "recomputed": row(pp=4, dp=2, recompute="full", recompute_method="block", recompute_num_layers=2),
    "interleaved": row(pp=4, dp=2, vpp=2),
    "unlike chunks": row(pp=4, dp=2, vpp=2, layers_per_stage=[1, 2, 2, 2, 2, 3, 2, 2]),
    "gpipe": row("torchtitan", pp=4, dp=2, schedule="gpipe", training=SPLIT),
    "zb-v": row("torchtitan", pp=4, dp=2, vpp=2, schedule="zb-v", recompute="full", training=SPLIT),
    "dualpipe-v": row("torchtitan", pp=4, dp=2, vpp=2, schedule="dualpipe-v", recompute="none", training=SPLIT),
    "experts": row(pp=2, dp=4, ep=2, vpp=2, model=with_experts(dense_model(16))),
    "sharded": row("torchtitan", pp=2, dp=4, zero=3, training=SPLIT),
}


def timeline_of(name: str) -> tuple[Timeline, Document]:
    (evaluation,) = evaluate_rows([ROWS[name]])
    assert evaluation["verdict"] != "invalid", evaluation["reasons"]
    return plan_timeline(ROWS[name], evaluation), evaluation


@pytest.mark.parametrize("name", ROWS)
def test_the_parts_of_the_slowest_stage_are_the_evaluations(name: str) -> None:
    """Its passes are all terms of work; its exposed communication is each term, but for what reduces gradients once a step."""
    timeline, evaluation = timeline_of(name)
    terms = evaluation["time_breakdown_s"]
    slowest = max(timeline.summaries(), key=lambda each: each.busy_s)
    work = sum(
        terms[term]
        for term in (
            "gemm", "attention", "elementwise", "launch", "embedding", "head", "loss", "recompute", "grad_accumulation",
            "tp_comm", "cp_comm", "ep_comm",
        )
    )  # fmt: skip
    within = terms["dp_comm"] - timeline.ends_s["dp_comm"]
    assert slowest.busy_s == pytest.approx(work + within)
    assert slowest.exposed_s["dp_comm"] == pytest.approx(within, abs=1e-12)
    for term in EXPOSED[:3]:
        assert slowest.exposed_s[term] == pytest.approx(terms[term])


@pytest.mark.parametrize("name", ROWS)
def test_a_step_is_as_long_as_its_evaluation_says_where_the_closed_form_is_near(name: str) -> None:
    """Within 3 % of the price; the difference is told, and closes the gap."""
    timeline, evaluation = timeline_of(name)
    assert timeline.played_s == pytest.approx(evaluation["step_time_s"], rel=0.03)
    assert timeline.played_s + timeline.difference_s == pytest.approx(evaluation["step_time_s"])


def test_without_a_pipeline_there_is_nothing_to_approximate() -> None:
    assert timeline_of("one rank")[0].difference_s == pytest.approx(0.0, abs=1e-9)


def test_a_slowest_last_stage_is_played_as_priced() -> None:
    """The head makes the last stage the slowest, where the closed form is exact if every stage's backward is one multiple of its
    forward; the ends of the model are not quite that."""
    timeline, evaluation = timeline_of("1f1b")
    assert timeline.difference_s == pytest.approx(0.0, abs=1e-3 * evaluation["step_time_s"])


def test_full_recomputation_stands_in_front_of_backwards() -> None:
    """All sixteen layers of the only stage are repeated: what is repeated is the term, in every micro-batch."""
    timeline, evaluation = timeline_of("one rank")
    (only,) = timeline.summaries()
    assert only.repeated_s == pytest.approx(evaluation["time_breakdown_s"]["recompute"])
    assert only.repeated_s > 0


def test_weight_gradients_are_apart_only_where_the_schedule_splits_the_backward() -> None:
    assert not any(timeline_of("gpipe")[0].seconds.weight_gradient_V)
    split = timeline_of("zb-v")[0].seconds
    assert all(0 < w < b for w, b in zip(split.weight_gradient_V, split.backward_V, strict=True))


def test_a_long_step_is_counted_where_it_repeats() -> None:
    """2,048 micro-batches of four chunks on four stages are 65,536 tasks, more than are played: as long as if they were."""
    document = row(pp=4, dp=1, vpp=4, training={"global_batch_size": 2048})
    timeline = plan_timeline(document)
    assert 2 * 16 * timeline.micro_batches > MOST_TASKS
    assert not timeline.is_whole
    assert timeline.played_micro_batches < 200
    orders = rank_orders(timeline.schedule, ranks=4, chunks=4, micro_batches=2048)
    assert timeline.pipeline_s == pytest.approx(played(orders, timeline.seconds.durations).seconds, rel=1e-9)


def test_a_shortened_step_has_the_same_seconds() -> None:
    timeline, _ = timeline_of("1f1b")
    short = shortened_to(timeline, 8)
    assert short.played_micro_batches == 8
    assert len(short.events) == 2 * 4 * 8
    assert short.seconds is timeline.seconds


def test_another_price_is_refused() -> None:
    (evaluation,) = evaluate_rows([ROWS["1f1b"]])
    with pytest.raises(ChangedPriceError, match="when it was planned"):
        plan_timeline(ROWS["1f1b"], {**evaluation, "step_time_s": 1.01 * evaluation["step_time_s"]})
