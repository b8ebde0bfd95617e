"""Which documents teach something, and that they are set beside what the models alone predict."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.corrections import Measured, fit_corrections
from cost_models.inputs.corrections import corrections_document
from cost_models.units import GIB
from planner.learning.measured import Left, measured_of, measured_runs
from planner.rows import evaluate_rows

ROW: dict[str, Any] = {
    "id": "fsdp-2",
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 4096, "global_batch_size": 8, "precision": "bf16", "framework": "torchtitan"},
    "strategy": {"tp": 1, "dp": 2, "zero": 3, "micro_batch_size": 2},
}
(PLAIN,) = evaluate_rows([ROW])
PIPELINED = ROW | {"model": {"preset": "llama-3.1-8b"}, "strategy": {"tp": 1, "pp": 2, "micro_batch_size": 1}}


def trial(**fields: Any) -> dict[str, Any]:
    return {"row": ROW, "status": "ok", "step_time_s": 0.5, "peak_allocated_bytes": 30 * GIB, **fields}


def observation(**measured: Any) -> dict[str, Any]:
    return {"id": "obs-1", "row": ROW, "used": True, "flags": [], "measured": {"step_time_s": 0.5, **measured}}


def left(document: dict[str, Any]) -> str:
    found = measured_of(document)
    assert isinstance(found, Left)
    return found.reason


def run(document: dict[str, Any]) -> Measured:
    found = measured_of(document)
    assert isinstance(found, Measured)
    return found


def test_a_trial_stands_beside_the_plain_prediction_of_its_row() -> None:
    found = run(trial(terms_s={"gemm": 0.3}))
    assert found.terms_s == PLAIN["time_breakdown_s"]
    assert found.range_s == tuple(PLAIN["step_time_range_s"])
    assert (found.step_time_s, found.allocated_bytes, found.measured_terms_s) == (0.5, 30 * GIB, {"gemm": 0.3})
    assert sum(found.memory_bytes.values()) == pytest.approx(PLAIN["memory"]["peak_allocated_bytes"])
    assert (found.scope.framework, found.scope.gpu, found.source) == ("torchtitan", "H200-SXM-141GB", "fsdp-2")
    assert min(found.widths.values()) > 0


@pytest.mark.parametrize("value", ["0.3", {"a": 1}, 10**400, float("nan"), -0.3, None, True])
def test_traced_seconds_that_are_none_are_left_out(value: object) -> None:
    assert run(trial(terms_s={"gemm": value, "head": 0.1})).measured_terms_s == {"head": 0.1}


def test_a_row_that_brings_corrections_is_still_compared_without_them() -> None:
    """Else what is learnt would be learnt about what was learnt before."""
    runs = [run(trial(row=ROW | {"training": ROW["training"] | {"seq_length": n}})) for n in (1024, 2048, 8192)]
    learnt = corrections_document(fit_corrections(runs))
    assert any(each["kept"] for each in learnt["corrections"])
    assert run(trial(row=ROW | {"corrections": learnt})).terms_s == PLAIN["time_breakdown_s"]


def test_an_observation_teaches_time_and_allocated_memory() -> None:
    found = run(observation(peak_memory_gib=31.5, memory_counter="allocated"))
    assert (found.step_time_s, found.allocated_bytes, found.source) == (0.5, 31.5 * GIB, "obs-1")


@pytest.mark.parametrize("counter", ["reserved", "device"])
def test_other_peaks_teach_no_memory(counter: str) -> None:
    assert run(observation(peak_memory_gib=31.5, memory_counter=counter)).allocated_bytes is None


def test_the_peak_of_one_rank_of_a_pipeline_teaches_no_memory() -> None:
    """Rank 0 holds the first stage, which need not be the fullest."""
    piped = observation(peak_memory_gib=31.5, memory_rank=0) | {"row": PIPELINED}
    assert run(piped).allocated_bytes is None
    assert run(observation(peak_memory_gib=31.5, memory_rank=0)).allocated_bytes == 31.5 * GIB


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (trial(status="oom", step_time_s=None), "status is oom"),
        (trial(step_time_s=PLAIN["step_time_s"] * 60), "60 times the predicted one"),
        (trial(step_time_s=PLAIN["step_time_s"] / 60), "0.0167 times the predicted one"),
        (trial(peak_allocated_bytes=1.0), "allocated memory is"),
        (trial(step_time_s=None, peak_allocated_bytes=None), "neither a step time nor"),
        (trial(step_time_s=float("nan"), peak_allocated_bytes=True), "neither a step time nor"),
        (trial(row=ROW | {"strategy": {"tp": 64}}), "cannot be priced"),
        (trial(row=None), "has no row"),
        (trial(step_time_s=10**400, peak_allocated_bytes=10**400), "neither a step time nor"),
        (trial(used=False, flags=5), "not used (no flag)"),
        (trial(machine={"gpu": "CPU", "gpus": 2}), "ran on processors"),
        (trial(machine={"gpu": "H100-SXM-80GB", "gpus": 2}), "ran on H100-SXM-80GB, but its row is of H200-SXM-141GB"),
        (trial(row=ROW | {"cluster": {"pools": []}}), "several kinds of node"),
        (observation() | {"used": False, "flags": ["implausible"]}, "not used (implausible)"),
    ],
)
def test_what_teaches_nothing_is_left_out_with_its_reason(document: dict[str, Any], reason: str) -> None:
    assert reason in left(document)


def test_runs_keep_their_order_and_what_is_left_out_its_place() -> None:
    found = measured_runs([trial(step_time_s=0.5), trial(status="hang"), trial(step_time_s=0.6)])
    assert [each.step_time_s for each in found.runs] == [0.5, 0.6]
    assert [(each.position, each.id) for each in found.left] == [(1, "fsdp-2")]
