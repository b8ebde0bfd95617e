"""Neighbours of a plan: each is the plan with one thing changed, priced as `evaluate` prices it."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright
from planner.one_plan.neighbours import ChangedPriceError, neighbours

ROW: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {"seq_length": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron"},
    "strategy": {"tp": 2, "pp": 2, "dp": 4, "zero": 1, "sequence_parallel": True, "micro_batch_size": 1, "recompute": "selective",
                 "overlap": {"tp_comm": True, "grad_reduce": True, "param_gather": True}},
}  # fmt: skip


def found_of(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (own,) = meshwright.evaluate([row])
    found = neighbours(row, own)
    return {each["change"]: each for each in (*found["priced"], *found["refused"])}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return found_of(ROW)


@pytest.mark.parametrize(
    ("change", "strategy"),
    [
        ("micro_batch_size 2", {"micro_batch_size": 2}),
        ("tp 4 (dp 2)", {"tp": 4, "dp": 2}),
        ("tp 1 (dp 8)", {"tp": 1, "dp": 8, "overlap": {"tp_comm": False}}),
        ("pp 1 (dp 8)", {"pp": 1, "dp": 8}),
        ("cp 2 (dp 2)", {"cp": 2, "dp": 2}),
        ("vpp 2", {"vpp": 2}),
        ("recompute full", {"recompute": "full"}),
        ("zero 3", {"zero": 3}),
        ("overlap.{grad_reduce, param_gather} false", {"overlap": {"grad_reduce": False, "param_gather": False, "tp_comm": True}}),
        ("sequence_parallel false, overlap.tp_comm false", {"sequence_parallel": False, "overlap": {"tp_comm": False}}),
    ],
)  # fmt: skip
def test_a_neighbour_costs_what_its_row_costs(found, change, strategy) -> None:
    own, its = meshwright.evaluate([ROW, {**ROW, "strategy": {**ROW["strategy"], **strategy}}])
    assert found[change]["verdict"] == its["verdict"]
    assert found[change]["step_time_s"] == pytest.approx(its["step_time_s"], rel=1e-9)
    assert found[change]["difference_s"] == pytest.approx(its["step_time_s"] - own["step_time_s"], rel=1e-6)
    assert found[change]["peak_device_bytes"] == its["memory"]["peak_device_bytes"]
    more = {term: its["time_breakdown_s"][term] - own["time_breakdown_s"][term] for term in own["time_breakdown_s"]}
    named = found[change]["largest_terms_s"]
    assert named.items() <= {term: pytest.approx(value) for term, value in more.items()}.items() or named == {
        term: pytest.approx(more[term]) for term in named
    }
    assert max((term for term in more if term != "jitter"), key=lambda term: abs(more[term])) in named


def test_what_fits_comes_first_and_the_fastest_of_it_at_the_top() -> None:
    (own,) = meshwright.evaluate([ROW])
    priced = neighbours(ROW, own)["priced"]
    order = [(("fits", "at-risk", "oom").index(each["verdict"]), each["step_time_s"]) for each in priced]
    assert order == sorted(order)
    assert len({verdict for verdict, _ in order}) > 1


def test_what_the_framework_refuses_has_its_reason() -> None:
    """FSDP has no pipeline; a batch of 3 sequences cannot be run as micro-batches of 2."""
    row = {**ROW, "training": {**ROW["training"], "framework": "fsdp", "global_batch_size": 48}}
    found = found_of({**row, "strategy": {"dp": 16, "micro_batch_size": 1, "zero": 3}})
    assert "pipeline" in found["pp 2 (dp 8)"]["reason"]
    assert "micro_batch_size 2" in found
    assert "reason" in found["micro_batch_size 2"]


def test_experts_are_spread_only_where_there_are_any() -> None:
    assert not any(name.startswith("ep ") for name in found_of(ROW))
    row = {**ROW, "model": {"preset": "mixtral-8x7b"}, "cluster": {"preset": "dgx-h100", "num_nodes": 8}}
    row["strategy"] = {
        "tp": 1,
        "pp": 4,
        "dp": 16,
        "ep": 8,
        "etp": 1,
        "zero": 1,
        "micro_batch_size": 1,
        "moe_dispatcher": "alltoall",
    }
    names = found_of(row)
    assert {"ep 4", "ep 16", "moe_dispatcher flex", "moe_dispatcher allgather"} <= names.keys()


def test_on_pools_degrees_stay_because_stages_lie_where_they_are() -> None:
    pool = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
    row = {**ROW, "cluster": {"pools": [{"name": "a", **pool}, {"name": "b", **pool}]}}
    row["strategy"] = {"tp": 4, "pp": 2, "dp": 2, "zero": 1, "micro_batch_size": 1, "pool_per_stage": ["a", "b"],
                       "layers_per_stage": [16, 16]}  # fmt: skip
    names = found_of(row)
    assert {"micro_batch_size 2", "recompute full"} <= names.keys()
    assert not any(name.startswith(("tp", "pp", "cp", "vpp")) for name in names)


def test_offload_is_one_thing_that_can_be_left_out() -> None:
    row = {**ROW, "strategy": {**ROW["strategy"], "offload": {"optimizer_fraction": 1.0}}}
    assert found_of(row)["no offload"]["step_time_s"] < next(iter(meshwright.evaluate([row])))["step_time_s"]


def test_a_plan_that_is_priced_differently_now_has_no_neighbours() -> None:
    (own,) = meshwright.evaluate([ROW])
    with pytest.raises(ChangedPriceError, match="s a step now"):
        neighbours(ROW, {**own, "step_time_s": own["step_time_s"] * 1.01})
