"""A trial record reads back as it was written, and what is no record is refused by the field that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from profiler.trial.record import LONGEST_REASON, TrialRecord, one_line

ROW = {
    "id": "1.3b-0",
    "model": {"num_layers": 24, "hidden_size": 2048},
    "cluster": {"gpu": "H200-SXM-141GB", "gpus_per_node": 2},
    "training": {"seq_length": 4096, "global_batch_size": 16},
    "strategy": {"dp": 2, "zero": 3},
}


def _document(**changed: Any) -> dict[str, Any]:
    """A measured trial as JSON: the first line of data/measured_h200/trials_1.jsonl, whose median lies between 0.79477 and 0.80402."""
    return {
        "row": ROW, "backend": "pytorch", "status": "ok", "reason": None, "step_time_s": 0.79939,
        "step_s": [4.67109, 0.80402, 0.79477], "warm_up": 1, "peak_allocated_bytes": 29702414336,
        "peak_reserved_bytes": 32516341760, "peak_device_bytes": 34203303936,
        "ranks": [
            {"peak_allocated_bytes": 29702414336, "peak_reserved_bytes": 32516341760, "device_bytes": 34203303936,
             "losses": [10.78, 10.77, None]},
        ],
        "terms_s": {"gemm": 0.6, "launch": 0.19939}, "extrapolated": None, "took_s": 25.4, "gpu_seconds": 50.8,
        "machine": {"gpu": "H200-SXM-141GB", "gpus": 2, "torch": "2.11.0+cu130", "nccl": "2.28.9", "driver": "580.159.04"},
        "started_at": "2026-11-29T10:00:00Z", "notes": [], **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"status": "hang", "reason": "nothing came for 75 s after 3 steps", "step_time_s": None},
        {"extrapolated": {"layers_run": [2, 4], "layers": 80}, "notes": ["another program used GPU 1"]},
        {"terms_s": None, "ranks": [], "peak_device_bytes": None},
    ],
)
def test_a_record_is_read_as_it_was_written(changed: dict[str, Any]) -> None:
    document = _document(**changed)
    record = TrialRecord.from_json(json.loads(json.dumps(document)))
    assert json.loads(json.dumps(record.to_json())) == document
    assert TrialRecord.from_json(record.to_json()) == record


def test_times_are_kept_in_utc() -> None:
    assert TrialRecord.from_json(_document(started_at="2026-11-29T12:00:00+02:00")).started_at == "2026-11-29T10:00:00Z"


@pytest.mark.parametrize(
    ("changed", "pointer", "said"),
    [
        ({"status": "slow"}, "/trial/status", "it must be one of 'ok', 'oom', 'hang' or 'crash'"),
        ({"status": "oom"}, "/trial", "step_time_s is given, but status is oom"),
        ({"step_time_s": None}, "/trial", "step_time_s is missing, but status is ok"),
        ({"reason": "CUDA out of memory"}, "/trial", "reason is given, but status is ok"),
        ({"status": "crash", "step_time_s": None}, "/trial", "reason is missing, but status is crash"),
        ({"status": "crash", "step_time_s": None, "reason": "one\ntwo"}, "/trial/reason", "a string like"),
        ({"terms_s": {"magic": 1.0}}, "/trial", "terms_s names 'magic', which is no term of time"),
        ({"terms_s": {"gemm": float("nan")}}, "/trial/terms_s/gemm", "a finite number"),
        ({"step_s": [-1.0]}, "/trial/step_s/0", "at least 1e-06"),
        # No step takes less than launching one kernel; a study that believes in a step of no time orders nothing any more.
        ({"step_time_s": 0.0}, "/trial/step_time_s", "at least 1e-06"),
        ({"step_time_s": 1e-300}, "/trial/step_time_s", "at least 1e-06"),
        ({"step_time_s": 0.5}, "/trial", "step_time_s is 0.5, but the steps that count took 0.79477 to 0.80402 s"),
        ({"warm_up": 9}, "/trial", "warm_up is 9, but only 3 steps ran"),
        ({"step_s": [], "warm_up": 0}, "/trial", "step_time_s is 0.79939, but no step that counts ran"),
        ({"extrapolated": {"layers_run": [4, 4], "layers": 80}}, "/trial", "4, 4 and 80 layers do not rise"),
        ({"extrapolated": {"layers_run": [4, 8], "layers": 8}}, "/trial", "4, 8 and 8 layers do not rise"),
        ({"gpu_seconds": 1.0}, "/trial", "gpu_seconds is 1, but 2 GPUs were held for 25.4 s"),
        ({"started_at": "0001-01-01T00:00:00+23:00"}, "/trial/started_at", "at least 2000"),
        ({"started_at": "9999-12-31T23:59:59-23:00"}, "/trial/started_at", "less than 3000"),
        ({"row": {"model": {}}}, "/trial", "row has no strategy"),
        ({"peak_allocated_bytes": 1.5}, "/trial/peak_allocated_bytes", "a whole number"),
        ({"started_at": "2026-11-29T10:00:00"}, "/trial/started_at", "timezone"),
        ({"speed": 1}, "/trial/speed", "'speed' is not a known field"),
    ],
)
def test_what_is_no_record_is_refused_by_field(changed: dict[str, Any], pointer: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        TrialRecord.from_json(_document(**changed), pointer="/trial")
    problem = caught.value.problems[0]
    assert problem.pointer == pointer
    assert said in problem.message


def test_a_reason_is_one_line_that_a_record_takes() -> None:
    assert one_line(" CUDA error:\n  an illegal\taccess ") == "CUDA error: an illegal access"
    assert len(one_line("x" * 5000)) == LONGEST_REASON
