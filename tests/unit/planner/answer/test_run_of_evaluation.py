"""What an evaluation says of mathematics, overlapping and the whole run, and what is wrong with what it needs for that."""

from __future__ import annotations

from typing import Any

import pytest

from planner.plan import plan
from planner.request.job import resolve_job
from planner.request.resolved import cluster_document, training_document
from planner.rows import evaluate_rows
from planner.schemas import Evaluation
from tests.builders import Document, dense_model, llama_model, request_of

LLAMA_3 = {"gpu_mtbf_h": 50_677, "restart_s": 600}
TOKENS = 1e12


def row_of(
    *, strategy: Document | None = None, num_nodes: int = 2, cluster: Document | None = None, **training: Any
) -> Document:
    base = request_of(llama_model(), num_nodes=num_nodes, cluster=cluster, seq_length=8192, **training)
    return {**base, "strategy": {"tp": 8, "pp": 1, "micro_batch_size": 1, **(strategy or {})}}


def evaluated(row: Document) -> Document:
    (answer,) = evaluate_rows([row])
    Evaluation.model_validate(answer)
    return answer


def test_everything_planned_today_is_exact() -> None:
    """Also where the request names a narrower type of reductions: its own precision counts as exact."""
    for training in ({}, {"grad_reduce_dtype": "bf16"}, {"precision": "fp8"}):
        answer = evaluated(row_of(**training))
        assert (answer["mathematics"], answer["changes"]) == ("exact", [])


def test_a_strategy_that_cannot_run_has_no_mathematics() -> None:
    answer = evaluated(row_of(strategy={"tp": 7}))
    assert (answer["verdict"], answer["mathematics"], answer["changes"]) == ("invalid", None, [])
    assert (answer["run"], answer["overlap_conditions"]) == (None, None)


def test_there_is_no_run_without_tokens() -> None:
    answer = evaluated(row_of(cluster={"reliability": LLAMA_3}, checkpoint={"save_s": 60}))
    assert answer["run"] is None
    assert not {"power_w_per_gpu", "pue"} & answer["assumed"].keys()


def test_a_run_follows_from_the_step() -> None:
    """1e12 tokens in steps of 64 · 8,192: 1,907,348.6 steps on 16 GPUs of 700 W at a PUE of 1, which are then both assumed."""
    answer = evaluated(row_of(total_tokens=TOKENS, cluster={"price_per_gpu_hour": 3.0, "carbon_g_per_kwh": 100.0}))
    seconds = TOKENS / (64 * 8192) * answer["step_time_s"]
    run = answer["run"]
    assert run["days"] == pytest.approx(seconds / 86_400)
    assert run["days_range"] == pytest.approx(
        [TOKENS / (64 * 8192) * end / 86_400 for end in answer["step_time_range_s"]]
    )
    assert run["gpu_hours"] == pytest.approx(16 * seconds / 3600)
    assert run["cost"] == pytest.approx(3.0 * 16 * seconds / 3600)
    assert run["energy_kwh"] == pytest.approx(16 * 0.7 * seconds / 3600)
    assert run["co2_kg"] == pytest.approx(0.1 * 16 * 0.7 * seconds / 3600)
    assert (run["goodput"], run["stops"]) == (None, None)
    assert {"power_w_per_gpu": 700.0, "pue": 1.0}.items() <= answer["assumed"].items()


def test_goodput_of_llama_3_on_as_many_gpus() -> None:
    """16,384 GPUs of 50,677 hours each, 60 s to save and 600 s to restart: 3.093 h between stops, 1,156 s between saves, 0.860."""
    row = row_of(
        num_nodes=2048,
        cluster={"reliability": LLAMA_3},
        global_batch_size=2048,
        total_tokens=TOKENS,
        checkpoint={"save_s": 60},
    )
    run = evaluated(row)["run"]
    assert run["stops"]["mean_time_between_s"] / 3600 == pytest.approx(3.093, abs=5e-4)
    assert run["stops"]["interval_s"] == pytest.approx(1156, abs=0.5)
    assert run["goodput"] == pytest.approx(0.860, abs=5e-4)
    assert run["stops"]["waiting_fraction"] is None
    # Of Young's interval, the optimal one and four multiples, the optimal one is hardly better, and the others are worse.
    best = max(run["stops"]["what_if"], key=lambda each: each["goodput"])
    assert best["interval_s"] == run["stops"]["optimal_interval_s"]
    assert best["goodput"] - run["goodput"] < 1e-4


def test_a_checkpoint_is_as_large_as_its_state() -> None:
    """14 bytes for each of 8,030,261,248 parameters over 10 GB/s are 11.2 s."""
    row = row_of(cluster={"reliability": LLAMA_3}, total_tokens=TOKENS, checkpoint={"storage_gb_per_s": 10})
    stops = evaluated(row)["run"]["stops"]
    assert stops["checkpoint_bytes"] == 14 * 8_030_261_248
    assert stops["save_s"] == pytest.approx(14 * 8_030_261_248 / 10e9)


def test_frequent_failures_are_told() -> None:
    row = row_of(cluster={"reliability": {**LLAMA_3, "gpu_mtbf_h": 10}}, total_tokens=TOKENS, checkpoint={"save_s": 60})
    answer = evaluated(row)
    assert "failures-too-frequent" in answer["warnings"]
    assert (
        "failures-too-frequent"
        not in evaluated({**row, "cluster": {**row["cluster"], "reliability": LLAMA_3}})["warnings"]
    )


def test_rows_of_one_batch_have_their_own_runs_and_conditions() -> None:
    """Rows that differ in their batch are priced together; each is still answered as it is alone."""
    rows = [
        row_of(total_tokens=tokens, global_batch_size=batch) for tokens, batch in ((1e12, 64), (1e12, 128), (2e12, 64))
    ]
    assert list(evaluate_rows(rows)) == [answer for row in rows for answer in evaluate_rows([row])]


def test_ranked_plans_tell_the_same_as_their_rows() -> None:
    request = request_of(dense_model(), cluster={"reliability": LLAMA_3}, total_tokens=1e10, checkpoint={"save_s": 5})
    (first, *_) = plan({**request, "top_k": 2})["plans"]
    answer = evaluated({**request, "strategy": first["strategy"]})
    told = first["evaluation"]
    for name in ("mathematics", "changes", "overlap_conditions"):
        assert told[name] == answer[name]
    # A plan states its framework's version, so that its step, and with it the days, have a narrower range than the row's.
    assert {**told["run"], "days_range": None} == {**answer["run"], "days_range": None}
    assert told["run"]["goodput"] is not None


@pytest.mark.parametrize(
    ("cluster", "training", "message"),
    [
        ({"reliability": {**LLAMA_3, "gpu_mtbf_h": 0}}, {}, "gpu_mtbf_h is 0; it must be at least 1e-06"),
        ({"reliability": {"gpu_mtbf_h": 1000}}, {}, "cluster.reliability.restart_s: restart_s is required"),
        ({"reliability": {**LLAMA_3, "spares": -1}}, {}, "spares is -1; it must be at least 0"),
        ({"reliability": {**LLAMA_3, "spare": 1}}, {}, "'spare' is not a known field"),
        ({"pue": 0.9}, {}, "pue is 0.9; it must be at least 1"),
        ({"power_w_per_gpu": 0.0}, {}, "power_w_per_gpu is 0.0; it must be at least 1e-06"),
        ({}, {"checkpoint": {}}, "neither of save_s and storage_gb_per_s is given; give one"),
        ({}, {"checkpoint": {"save_s": 1, "storage_gb_per_s": 1}}, "both of save_s and storage_gb_per_s are given"),
        ({}, {"checkpoint": {"save_s": float("inf")}}, "save_s is"),
        ({}, {"total_tokens": 1e9, "tokens_per_parameter": 20.0}, "total_tokens 1e+09 and tokens_per_parameter 20"),
    ],
)
def test_what_contradicts_itself_is_told_with_its_rule(cluster: Document, training: Document, message: str) -> None:
    answer = evaluated(row_of(cluster=cluster, **training))
    assert answer["verdict"] == "invalid"
    assert any(message in reason["message"] for reason in answer["reasons"])


def test_what_a_run_needs_can_be_posted_again() -> None:
    """The resolved request says the same as the given one."""
    sites = {"power_w_per_gpu": 900.0, "pue": 1.1, "carbon_g_per_kwh": 414.0}
    reliability = {**LLAMA_3, "detect_s": 30.0, "spares": 2, "repair_h": 12.0}
    given = request_of(
        dense_model(),
        cluster={**sites, "reliability": reliability},
        tokens_per_parameter=20.0,
        checkpoint={"storage_gb_per_s": 2.0, "asynchronous": True},
    )
    job = resolve_job(given)
    cluster, training = cluster_document(job.cluster), training_document(job.training)
    assert cluster["reliability"] == pytest.approx(reliability)
    assert {name: cluster[name] for name in sites} == pytest.approx(sites)
    assert training["checkpoint"] == {"storage_gb_per_s": 2.0, "asynchronous": True}
    again = resolve_job({**given, "cluster": cluster, "training": training})
    assert again.training.total_tokens == job.training.total_tokens
    assert again.cluster.reliability == job.cluster.reliability


def test_numbers_at_the_ends_of_their_ranges_stay_finite() -> None:
    """JSON has no infinity: GPUs that fail at once and take a century to repair make a run long, not endless."""
    reliability = {"gpu_mtbf_h": 1e-6, "restart_s": 0.0, "spares": 0, "repair_h": 1e6}
    run = evaluated(row_of(cluster={"reliability": reliability}, total_tokens=1e18, checkpoint={"save_s": 1e7}))["run"]
    assert 0.0 < run["goodput"] < 1e-9
    assert run["days"] < 1e300


def test_plans_on_pools_have_runs_and_no_conditions() -> None:
    """A100s of 400 W and H100s of 700 W, eight each: 8.8 kW."""
    pools = [
        {
            "name": name,
            "gpu": gpu,
            "num_nodes": 1,
            "gpus_per_node": 8,
            "reliability": LLAMA_3,
            "price_per_gpu_hour": price,
        }
        for name, gpu, price in (("old", "A100-SXM-80GB", 1.0), ("new", "H100-SXM-80GB", 3.0))
    ]
    base = request_of(dense_model(8), total_tokens=1e11, checkpoint={"save_s": 10})
    strategy = {"tp": 2, "pp": 2, "dp": 4, "micro_batch_size": 1, "pool_per_stage": ["old", "new"]}
    answer = evaluated({**base, "cluster": {"pools": pools}, "strategy": strategy})
    run = answer["run"]
    assert answer["overlap_conditions"] is None
    hours = run["days"] * 24
    assert run["energy_kwh"] == pytest.approx(8.8 * hours)
    assert run["cost"] == pytest.approx((8 * 1.0 + 8 * 3.0) * hours)
    assert answer["assumed"]["pools.old.power_w_per_gpu"] == 400.0
