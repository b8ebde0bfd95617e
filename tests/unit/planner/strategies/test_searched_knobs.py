"""Knobs that a search takes of its own accord: dispatchers and the overlap of experts' all-to-all."""

from __future__ import annotations

import pytest

from builders import job_of, llama_model, row_of, rows_of, tiny_model, with_experts
from planner.plan import plan
from planner.rules import active_rules, reasons
from planner.rules.rule import rule_fields
from planner.schemas import Constraints
from planner.strategies.axes import build_space


def request(**constraints) -> dict:
    return {
        "model": {"preset": "mixtral-8x7b"},
        "cluster": {"preset": "dgx-a100-80gb", "num_nodes": 4},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
        "top_k": 20,
        "constraints": constraints,
    }


def test_a_search_finds_what_listing_every_dispatcher_and_overlap_finds() -> None:
    """With ep 8 all legal combinations are tried, and nothing is reported as rejected that nobody asked for."""
    own = plan(request(fixed={"ep": 8, "pp": 1}))
    every = {"moe_dispatcher": ["alltoall", "allgather", "flex"], "overlap": {"moe_all_to_all": [False, True]}}
    listed = plan(request(fixed={"ep": 8, "pp": 1}, allowed=every))
    # An overlap with nothing beside it is the same strategy under another name: listed, it is ranked too.
    useful = [
        each["evaluation"]["step_time_s"]
        for each in listed["plans"]
        if not each["strategy"]["overlap"]["moe_all_to_all"] or each["evaluation"]["num_micro_batches"] > 1
    ]
    assert [each["evaluation"]["step_time_s"] for each in own["plans"]][: len(useful)] == useful
    assert own["plans"][0]["strategy"]["overlap"]["moe_all_to_all"]
    assert not {"overlap-unsupported", "dispatcher-unsupported"} & set(own["rejected"])
    assert "overlap-unsupported" in listed["rejected"]


@pytest.mark.parametrize(
    ("framework", "version", "dispatchers", "overlaps"),
    [
        ("megatron", "0.16", {"alltoall", "allgather", "flex"}, [False, True]),
        ("megatron", "0.13", {"alltoall", "allgather", "flex"}, None),
        ("megatron", "0.11", {"alltoall", "allgather"}, None),
        ("torchtitan", "0.3", {"alltoall", "flex"}, None),
        ("torchtitan", "0.1", None, None),
        ("deepspeed", "0.18", None, None),
    ],
)  # fmt: skip
def test_what_is_searched_is_what_a_release_has(framework, version, dispatchers, overlaps) -> None:
    job = job_of(
        with_experts(tiny_model()),
        framework,
        num_nodes=1,
        seq_length=512,
        global_batch_size=8,
        framework_version=version,
    )
    knobs = build_space(job, Constraints.model_validate({"fixed": {"pp": 1}})).knobs
    labels = {"allgather": 0, "alltoall": 1, "flex": 2}
    wanted = None if dispatchers is None else {labels[name] for name in dispatchers}
    assert (set(knobs["moe_dispatcher"]) if "moe_dispatcher" in knobs else None) == wanted
    assert (list(knobs["overlap_moe_all_to_all"]) if "overlap_moe_all_to_all" in knobs else None) == overlaps


@pytest.mark.parametrize(("tp", "searched"), [({}, True), ({"tp": 1}, True), ({"tp": 2}, False)])
def test_an_overlap_is_searched_where_some_mesh_can_have_it(tp: dict[str, int], searched: bool) -> None:
    """Megatron overlaps tensor-parallel communication with sequence parallelism alone: without that, only tp 1 runs."""
    job = job_of(with_experts(tiny_model()), "megatron", num_nodes=1, seq_length=512, global_batch_size=8)
    given = {"fixed": {"pp": 1, "sequence_parallel": False, "overlap": {"tp_comm": True}, **tp}}
    found = build_space(job, Constraints.model_validate(given)).searched_knobs
    assert ("overlap_moe_all_to_all" in found) is searched


@pytest.mark.parametrize(("dispatchers", "searched"), [(["allgather", "alltoall"], True), (["allgather"], False)])
def test_an_overlap_is_searched_where_some_listed_dispatcher_can_have_it(
    dispatchers: list[str], searched: bool
) -> None:
    """Megatron overlaps no gathered tokens (transformer_config.py); that these are listed first says nothing of the others."""
    job = job_of(with_experts(tiny_model()), "megatron", num_nodes=1, seq_length=512, global_batch_size=8)
    given = {"fixed": {"pp": 1}, "allowed": {"moe_dispatcher": dispatchers}}
    found = build_space(job, Constraints.model_validate(given)).searched_knobs
    assert ("overlap_moe_all_to_all" in found) is searched


def test_parts_of_experts_exchange_tokens_as_whole_experts_do() -> None:
    """With ep 1 and etp 2 the two ranks send each other tokens, so the dispatcher is chosen there too; only the overlap needs ep."""
    job = job_of(with_experts(tiny_model()), "megatron", num_nodes=1, seq_length=512, global_batch_size=8)
    found = build_space(job, Constraints.model_validate({"fixed": {"ep": 1, "etp": 2, "pp": 1}}))
    assert found.searched_knobs == {"moe_dispatcher"}
    alone = build_space(job, Constraints.model_validate({"fixed": {"ep": 1, "etp": 1, "pp": 1}}))
    assert not alone.searched_knobs


def test_whether_a_schedule_runs_is_the_same_in_every_mesh() -> None:
    """One mesh stands for all when the search asks which schedules can run, so no rule on schedules may look at more than these."""
    looked_at = set()
    for framework, version in (
        ("torchtitan", "0.1"),
        ("torchtitan", "0.3"),
        ("megatron", "0.16"),
        ("nanotron", "2025"),
    ):
        given = {"compile": True} if framework == "torchtitan" else {}
        job = job_of(
            tiny_model(),
            framework,
            num_nodes=1,
            seq_length=512,
            global_batch_size=8,
            framework_version=version,
            **given,
        )
        row = row_of(job, pp=2, vpp=1, micro_batch_size=1)
        for rule in active_rules(job):
            if rule.code == "schedule-unsupported":
                looked_at |= rule_fields(rule, job, row)
    assert looked_at == {"pp", "vpp", "schedule", "recompute"}


def test_a_given_value_is_not_searched() -> None:
    job = job_of(with_experts(tiny_model()), "megatron", num_nodes=1, seq_length=512, global_batch_size=8)
    given = {"fixed": {"moe_dispatcher": "alltoall", "overlap": {"moe_all_to_all": False}}}
    assert not build_space(job, Constraints.model_validate(given)).searched_knobs


def test_an_optimizer_changes_nothing_about_what_is_searched() -> None:
    """Megatron's Muon reduces unsharded gradients behind the backward, and has all of the experts' overlaps (core 0.17, arguments.py)."""
    for optimizer in ("adam", "muon"):
        job = job_of(
            with_experts(tiny_model()), "megatron", num_nodes=1, seq_length=512, global_batch_size=8, framework_version="0.17",
            optimizer=optimizer,
        )  # fmt: skip
        space = build_space(job, Constraints.model_validate({"fixed": {"pp": 1}}))
        assert space.searched_knobs == {"moe_dispatcher", "overlap_moe_all_to_all"}, optimizer


def test_a_row_that_says_nothing_of_overlaps_runs_with_muon() -> None:
    job = job_of(llama_model(), "megatron", num_nodes=2, optimizer="muon", framework_version="0.17")
    rows = rows_of(job, {"zero": 0}, {"zero": 1})
    assert rows.overlap_grad_reduce.tolist() == [False, True]
    assert not reasons(job, rows, 0)
