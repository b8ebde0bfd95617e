"""Flip conditions: that a scaled fact is the fact scaled, and that the order really changes where it is said to."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import llama_model, request_of
from cost_models.hardware import Calibration, document_of
from cost_models.hardware.placement import place
from cost_models.job import PooledJob
from planner.flips.facts import FACTS, Fact
from planner.flips.flips import flip_conditions
from planner.flips.memory import memory_flips
from planner.one_plan.listed import ListedPlans, listed_plans
from planner.plan import plan
from planner.request.job import resolve_pooled_job
from planner.rows import evaluate_rows

REQUESTS = Path(__file__).resolve().parents[4] / "examples" / "requests"
FACT = {fact.name: fact for fact in FACTS}


@cache
def response(name: str) -> dict[str, Any]:
    found: dict[str, Any] = plan(json.loads((REQUESTS / f"{name}.json").read_text("utf-8")))
    return found


@cache
def listed(name: str) -> ListedPlans:
    return listed_plans(response(name), response(name)["plans"])


def on(fact: str, factor: float, name: str = "mixtral-8x7b") -> np.ndarray[Any, Any]:
    found = listed(name)
    return found.step_s(FACT[fact].on(found.pooled, factor))


def as_requested(name: str, change: dict[str, Any]) -> list[float]:
    """The plans priced as rows on a cluster that states the changed fact."""
    request = response(name)["request"]
    cluster = {**request["cluster"], **{key: value for key, value in change.items() if key != "network"}}
    cluster["network"] = {**cluster["network"], **change.get("network", {})}
    rows = [
        {"model": request["model"], "cluster": cluster, "training": request["training"], "strategy": each["strategy"]}
        for each in response(name)["plans"]
    ]
    return [answer["step_time_s"] for answer in evaluate_rows(rows)]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_factor_of_one_changes_nothing(fact: Fact) -> None:
    then = [each["evaluation"]["step_time_s"] for each in response("mixtral-8x7b")["plans"]]
    assert on(fact.name, 1.0).tolist() == pytest.approx(then, rel=1e-9)


def test_a_scaled_network_is_the_network_that_a_request_would_state() -> None:
    """400 Gbit/s halved is 200 Gbit/s, and 2.7 us doubled is 5.4 us."""
    assert on("network_bandwidth", 0.5).tolist() == pytest.approx(
        as_requested("mixtral-8x7b", {"nic_gbit_per_s": 200.0})
    )
    slower = as_requested("mixtral-8x7b", {"network": {"latency_us": 5.4}})
    assert on("network_latency", 2.0).tolist() == pytest.approx(slower)


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact.name != "network_latency"], ids=lambda fact: fact.name)
def test_more_of_a_fact_is_never_slower(fact: Fact) -> None:
    times = np.array([on(fact.name, factor) for factor in (fact.low, 0.7, 1.0, 1.3, fact.high)])
    assert (np.diff(times, axis=0) <= 1e-9 * times[1:]).all()
    assert (times[0] > times[-1]).any()


def test_products_take_their_time_by_the_factor() -> None:
    """At half the rate the term of matrix products is twice as long, but for launch gaps and what memory bounds."""
    job = listed("llama-3.1-70b").pooled.jobs[0]
    slow = FACT["products"].scaled(job, 0.5)
    own, its = (
        each.calibration.gemm_s(8192.0, 8192.0, 8192.0, precision="bf16").seconds.item() for each in (job, slow)
    )
    assert its == pytest.approx(2 * own, rel=0.02)


MEASURED: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-28",
    "fingerprint": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "interconnect": "nvswitch"},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
    "collective_fits": [
        {"op": "all_gather", "ranks": ranks, "ranks_per_node": min(ranks, 8), "size_bytes": [1024.0, 2.0**30],
         "time_s": [2e-5, 2.0**30 / rate], "residual_fraction": 0.02}
        for ranks, rate in ((8, 300e9), (16, 100e9))
    ],
}  # fmt: skip
"""An all-gather of 1 GiB that moves 300 GB/s inside a node, and 100 GB/s over two."""


def measured_job() -> PooledJob:
    request = request_of(
        llama_model(), num_nodes=2, cluster={"calibration": "mine", "nics_per_node": 8, "nic_gbit_per_s": 400}
    )
    return resolve_pooled_job(request, extra={"mine": document_of(MEASURED)})


def gather_s(calibration: Calibration, ranks: int) -> float:
    placement = place(float(ranks), stride=1.0, cluster=calibration.cluster)
    return calibration.collective_s("all_gather", 2.0**30, placement=placement).seconds.item()


def test_measured_curves_are_scaled_and_not_only_nominal_figures() -> None:
    pooled = measured_job()
    own = pooled.jobs[0].calibration
    assert gather_s(own, 8) == pytest.approx(2.0**30 / 300e9, rel=0.01)
    assert gather_s(own, 16) == pytest.approx(2.0**30 / 100e9, rel=0.01)
    slow_link = FACT["node_bandwidth"].on(pooled, 0.5).jobs[0].calibration
    assert gather_s(slow_link, 8) == pytest.approx(2 * 2.0**30 / 300e9, rel=0.02)
    slow_network = FACT["network_bandwidth"].on(pooled, 0.25).jobs[0].calibration
    assert gather_s(slow_network, 8) == pytest.approx(gather_s(own, 8))
    # At a quarter of the bandwidth the network bounds the call, whatever bounded it before.
    assert gather_s(slow_network, 16) > 2 * gather_s(own, 16)


def test_plans_change_places_where_they_are_said_to() -> None:
    name = "mixtral-8x7b"
    found = flip_conditions(response(name))
    assert found is not None
    ranks = [each["rank"] for each in response(name)["plans"]]
    compared = [ranks.index(rank) for rank in found["compared"]]
    seen = 0
    for fact in found["facts"]:
        for side, outward in (("below", -1), ("above", 1)):
            leader = found["compared"][0]
            for change in fact[side]:
                beyond, before = (on(fact["name"], change["factor"] * 1.006 ** (outward * way)) for way in (1, -2))
                for times, best in ((beyond, change["rank"]), (before, leader)):
                    assert ranks[min(compared, key=lambda place, times=times: times[place])] == best
                leader = change["rank"]
                seen += 1
    assert seen >= 2


def test_where_nothing_is_said_no_listed_plan_is_better() -> None:
    name = "llama-3.1-70b"
    found = flip_conditions(response(name))
    assert found is not None
    places = [rank - 1 for rank in found["compared"]]
    still = [fact for fact in found["facts"] if not fact["below"] and not fact["above"]]
    assert still
    for fact in still:
        for factor in np.geomspace(fact["low"], fact["high"], 9):
            times = on(fact["name"], float(factor), name)[places]
            assert times[0] <= times.min() * (1 + 1e-9)


def test_near_copies_are_left_out() -> None:
    found = flip_conditions(response("llama-3.1-70b"))
    assert found is not None
    folded = [each["rank"] for each in response("llama-3.1-70b")["plans"] if each["folded_under"] is not None]
    assert folded
    assert found["left_out"] == folded
    assert not {*found["compared"]} & {*folded}


def test_a_response_with_one_plan_has_none() -> None:
    one = {**response("llama-3.1-70b"), "plans": response("llama-3.1-70b")["plans"][:1]}
    assert flip_conditions(one) is None
    assert flip_conditions(response("too-small")) is None


def test_plans_are_compared_by_the_objective() -> None:
    """The fastest plan uses all GPUs, and the cheapest may leave nodes idle: what each costs is its time by its GPUs."""
    request = json.loads((REQUESTS / "qwen3-8b-fsdp.json").read_text("utf-8"))
    few = {
        "model": request["model"],
        "cluster": {"preset": "dgx-h100", "num_nodes": 4},
        "training": request["training"],
    }
    by_cost = plan({**few, "objective": "cost", "top_k": 12})
    found = flip_conditions(by_cost)
    assert found is not None
    assert found["objective"] == "cost"
    plans = {each["rank"]: each for each in by_cost["plans"]}
    assert len({plans[rank]["evaluation"]["num_gpus_used"] for rank in found["compared"]}) > 1
    for fact in found["facts"]:
        table = fact["step_time_s"]
        changed = {change["factor"] for side in ("below", "above") for change in fact[side]}
        for column, factor in enumerate(table["factors"]):
            cost = {
                rank: times[column] * plans[rank]["evaluation"]["num_gpus_used"]
                for rank, times in table["by_rank"].items()
            }
            best = min(cost, key=lambda rank, cost=cost: cost[rank])
            inside = [change["rank"] for change in fact["below"] if factor <= change["factor"]]
            inside += [change["rank"] for change in fact["above"] if factor >= change["factor"]]
            told = inside[-1] if inside else found["compared"][0]
            assert cost[told] == pytest.approx(cost[best], rel=1e-6), (fact["name"], factor, factor in changed)


def ranked(rank: int, high_bytes: float, verdict: str = "fits") -> dict[str, Any]:
    memory = {"capacity_bytes": 80.0, "peak_device_range_bytes": [1.0, high_bytes]}
    return {"rank": rank, "evaluation": {"verdict": verdict, "memory": memory}}


def test_less_memory_takes_plans_out_in_turn() -> None:
    """With headroom 0.2 a plan needs high / 0.8: 75, 77.5, 50 and 25 of 80, so that 5, 2.5, 30 and 55 are to spare."""
    request = {"cluster": {}, "constraints": {"memory_headroom_fraction": 0.2}}
    plans = [ranked(1, 60.0), ranked(2, 62.0), ranked(3, 40.0), ranked(4, 20.0), ranked(5, 70.0, "at-risk")]
    found = memory_flips({"request": request, "plans": plans})
    assert found is not None
    assert [(each["rank"], each["less_bytes"]) for each in found["changes"]] == [(3, 5.0), (4, 30.0)]
    assert found["none_fits_from_less_bytes"] == pytest.approx(55.0)
    assert memory_flips({"request": {**request, "cluster": {"pools": []}}, "plans": plans}) is None


def test_the_threshold_of_memory_is_the_verdicts() -> None:
    """Reserving just less than the spare memory leaves the first plan fitting, and just more does not."""
    name = "llama-3.1-70b"
    found = memory_flips(response(name))
    assert found is not None
    less_gib = found["changes"][0]["less_bytes"] / 2**30
    request = response(name)["request"]
    rows = [
        {
            "model": request["model"],
            "cluster": {**request["cluster"], "reserved_memory_gib": less_gib * share},
            "training": request["training"],
            "strategy": response(name)["plans"][0]["strategy"],
        }
        for share in (0.999, 1.001)
    ]
    assert [answer["verdict"] for answer in evaluate_rows(rows)] == ["fits", "at-risk"]
