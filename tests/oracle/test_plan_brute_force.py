"""What `plan` claims against every strategy of small jobs, each priced by `evaluate`: plan 1, the ranking, bounds, proofs, counts.

`brute_force.py` enumerates and judges, `brute_force_jobs.py` and `brute_force_listed.py` make the jobs. A part of each kind
runs with every change, the rest is marked slow (`-m slow`).
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from brute_force import SAME, Finding, judged, judged_listed, priced, strategies_of, times_of
from brute_force_jobs import drawn_model, made_up_gpu, open_split_request, pools_request
from brute_force_listed import LISTED, with_time_limit, without_knobs
from meshwright import plan

KNOWN = json.loads((Path(__file__).parent / "open_splits_found_by_hand.json").read_text())
"""Requests whose open splits were once answered with a slower plan and a proof, and the strategy that was found by hand."""
OFTEN = ("megatron-tight", "megatron-shards", "megatron-fsdp", "megatron-mixed", "megatron-deepspeed-tight",
         "deepspeed-overlap", "torchtitan-schedules", "fsdp-shards", "nanotron-degrees")  # fmt: skip
SLOW = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(600)]


def said(contradicted: list[Finding]) -> str:
    return "\n".join(
        f"{each.kind}: {each.text}; {each.better_s} s against {each.answered_s} s: {each.strategy}"
        for each in contradicted
    )


@pytest.mark.parametrize("seed", range(40))
def test_open_splits(seed: int) -> None:
    request, per_stage = open_split_request(seed, most_rows=500)
    rows = priced(request, list(strategies_of(request, per_stage=per_stage)))
    contradicted = judged(request, plan(request), rows)
    assert not contradicted, said(contradicted)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("seed", range(300))
def test_open_splits_of_more_rows(seed: int) -> None:
    request, per_stage = open_split_request(seed, most_rows=1500)
    rows = priced(request, list(strategies_of(request, per_stage=per_stage)))
    contradicted = judged(request, plan(request), rows)
    assert not contradicted, said(contradicted)


@pytest.mark.parametrize("seed", range(10))
def test_virtual_stages_on_pools(seed: int) -> None:
    request = pools_request(seed, most_rows=800)
    contradicted = judged(request, plan(request), priced(request, list(strategies_of(request))))
    assert not contradicted, said(contradicted)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("seed", range(45))
def test_virtual_stages_on_pools_of_more_rows(seed: int) -> None:
    request = pools_request(seed, most_rows=3000)
    contradicted = judged(request, plan(request), priced(request, list(strategies_of(request))))
    assert not contradicted, said(contradicted)


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=SLOW) for name in LISTED])
def test_listed_knobs(name: str) -> None:
    """The whole ranking, time by time, with room for every plan that fits, and what the search counted."""
    request = LISTED[name]
    contradicted = judged_listed(request, plan(request), priced(request, list(strategies_of(request))))
    assert not contradicted, said(contradicted)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name in LISTED if without_knobs(LISTED[name]) != LISTED[name]])
def test_knobs_that_are_not_listed(name: str) -> None:
    """No value of a knob that a user could set makes a plan faster than the one that is found without listing it."""
    rows = priced(LISTED[name], list(strategies_of(LISTED[name])))
    best_s = min(row.step_s for row in rows if row.fits)
    assert times_of(plan(without_knobs(LISTED[name])))[0] <= best_s * (1 + SAME)


@pytest.mark.parametrize("name", ["megatron-top-5", "megatron-experts"])
def test_a_search_that_is_stopped_claims_no_more_than_it_knows(name: str) -> None:
    """Whatever was reached, no row beats the bound, and a plan that is called optimal is the best."""
    request = with_time_limit(LISTED[name], 0.001)
    response = plan(request)
    rows = [row for row in priced(request, list(strategies_of(request))) if row.fits]
    best_s, proof = min(row.step_s for row in rows), response["search"]["proof"]
    assert proof["lower_bound_s"] is None or proof["lower_bound_s"] <= best_s * (1 + SAME)
    assert not proof["optimal"] or times_of(response)[0] == pytest.approx(best_s, rel=SAME)


@pytest.mark.parametrize("case", KNOWN, ids=[case["name"] for case in KNOWN])
def test_a_split_found_by_hand_is_not_faster(case: dict) -> None:
    (row,) = priced(case["request"], [case["strategy"]])
    assert row.verdict != "invalid"
    times = times_of(plan(case["request"]))
    assert not row.fits or times[0] <= row.step_s * (1 + SAME)


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_empty_virtual_stages_make_no_pipeline_faster(pp: int) -> None:
    """With nothing on its first virtual stages an interleaved pipeline is the plain one with more sends.

    Of equal stages the last, which has the head, is the slowest. It waits for the forward of all others before its first
    micro-batch, and they do their backward after its last: no order of tasks is faster than plain 1F1B.
    """
    gpu = made_up_gpu("X", 1000)
    request = {
        "model": drawn_model(Random(0), layers=2 * pp, experts=False),
        "cluster": {"gpu": gpu, "num_nodes": 1, "gpus_per_node": pp},
        "training": {"framework": "megatron", "precision": "bf16", "seq_length": 2048, "global_batch_size": 2 * pp},
    }
    shared = {"pp": pp, "micro_batch_size": 1, "zero": 0, "recompute": "none"}
    plain = {**shared, "vpp": 1, "layers_per_stage": [2] * pp}
    hollow = {**shared, "vpp": 2, "layers_per_stage": [0] * pp + [2] * pp}
    once, twice = priced(request, [plain, hollow])
    assert once.fits
    assert twice.step_s is None or twice.step_s >= once.step_s * (1 - SAME)
