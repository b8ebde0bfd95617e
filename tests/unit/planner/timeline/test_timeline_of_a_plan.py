"""The timeline of a plan against its evaluation: the same seconds, the same terms, and the closed form where it is exact."""

from __future__ import annotations

import pytest
from timeline_rows import ROWS, SPLIT, Document, timeline_row

from cost_models.errors import MeshwrightError
from cost_models.hardware import document_of
from planner.one_plan.neighbours import ChangedPriceError
from planner.rows import evaluate_rows
from planner.timeline.orders import rank_orders
from planner.timeline.play import played
from planner.timeline.seconds import EXPOSED
from planner.timeline.step import MOST_TASKS, Timeline, plan_timeline, shortened_to

MEASURED: Document = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-28",
    "fingerprint": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "interconnect": "nvswitch"},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
}  # fmt: skip
"""A profile that measured nothing but what the device is."""


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
    document = timeline_row(pp=4, dp=1, vpp=4, training={"global_batch_size": 2048})
    timeline = plan_timeline(document)
    assert 2 * 16 * timeline.micro_batches > MOST_TASKS
    assert not timeline.is_whole
    assert timeline.played_micro_batches < 200
    orders = rank_orders(timeline.schedule, ranks=4, chunks=4, micro_batches=2048)
    assert timeline.pipeline_s == pytest.approx(played(orders, timeline.seconds.durations).seconds, rel=1e-9)


def test_a_step_that_settles_slowly_is_counted_too() -> None:
    """The stages of a V-shaped pipeline take longer than the first attempt at 3 p + 8 micro-batches to fall into step."""
    document = timeline_row(
        "torchtitan",
        pp=4,
        dp=1,
        vpp=2,
        schedule="zb-v",
        recompute="full",
        training={**SPLIT, "global_batch_size": 4096},
    )
    timeline = plan_timeline(document)
    assert not timeline.is_whole
    orders = rank_orders(timeline.schedule, ranks=4, chunks=2, micro_batches=4096)
    expected = played(orders, timeline.seconds.durations, folded=True).seconds
    assert timeline.pipeline_s == pytest.approx(expected, rel=1e-9)


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


def test_a_calibration_of_the_callers_own_is_used() -> None:
    """A row that names a document can be played only by who has it, at the prices of that document."""
    document = ROWS["1f1b"]
    mine = {**document, "cluster": {**document["cluster"], "calibration": "mine"}}
    with pytest.raises(MeshwrightError, match="mine"):
        plan_timeline(mine)
    own = document_of(MEASURED)
    (evaluation,) = evaluate_rows([mine], extra={"mine": own})
    assert plan_timeline(mine, evaluation, extra={"mine": own}).step_time_s == evaluation["step_time_s"]
