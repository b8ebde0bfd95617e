"""Optimizers that take one tensor after another, held against tensors alike on one H200 (data/measured_h200/optimizer_rates.json)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builders import dense_model, job_of, row_of
from cost_models.step.looped_optimizers import Loop, looped_s

MEASURED = json.loads((Path(__file__).parents[4] / "data" / "measured_h200" / "optimizer_rates.json").read_text())[
    "measured"
]
OPTIMIZERS = {"adam-8bit-bitsandbytes": "adam-8bit", "lion": "lion", "adam-4bit-torchao": "adam-4bit"}
LARGE = [
    each
    for each in MEASURED
    if "error" not in each and each["optimizer"] in OPTIMIZERS and each["rows"] * each["columns"] > 1e7
]


def seconds_of(optimizer: str, *, elements: float, tensors: float, framework="fsdp", zero=0) -> float:
    asked = job_of(dense_model(), framework, gpu="H200-SXM-141GB", optimizer=optimizer, param_dtype="fp32")
    nothing = np.zeros(1)
    loop = Loop(
        clip_s=nothing, update_s=nothing, owned=np.array([elements]), launches_s=0.0, tensors=np.array([tensors])
    )
    found = looped_s(asked, row_of(asked, zero=zero), loop)
    assert found is not None
    return float(found[0])


@pytest.mark.parametrize(
    "run", LARGE, ids=lambda run: f"{run['optimizer']}-{run['dtype'][6:]}-{run['rows']}-{run['tensors']}"
)
def test_large_tensors_take_what_was_measured(run) -> None:
    found = seconds_of(
        OPTIMIZERS[run["optimizer"]], elements=run["rows"] * run["columns"] * run["tensors"], tensors=run["tensors"]
    )
    # Between what the device took by itself and what passed on the clock: torchao's host is slower in some runs than in others.
    assert 0.85 * run["device_s"] <= found <= 1.15 * run["wall_s"]


def test_it_waits_for_bitsandbytes_and_runs_ahead_of_torchao() -> None:
    """One tensor's device time comes on top of the host's in bitsandbytes; in torchao the slower of the two counts."""
    few, many = (seconds_of("adam-8bit", elements=1e9, tensors=count) for count in (1.0, 1001.0))
    small, large = (
        next(each for each in LARGE if each["optimizer"] == "adam-8bit-bitsandbytes" and each["rows"] == rows)
        for rows in (2048, 8192)
    )
    # What a tensor costs whatever its size: the line through two sizes, at none.
    each_s = 2 * small["wall_s"] / small["tensors"] - large["wall_s"] / large["tensors"]
    assert (many - few) / 1000 == pytest.approx(each_s, rel=0.3)
    assert seconds_of("adam-4bit", elements=1e9, tensors=1.0) == pytest.approx(1e9 * 1820 / 66.9e12, rel=0.01)
    assert seconds_of("adam-4bit", elements=1e6, tensors=1000.0) == pytest.approx(0.5)


@pytest.mark.parametrize("optimizer", ["adam-8bit", "adam-4bit"])
def test_dtensors_are_torchaos(optimizer: str) -> None:
    sharded = seconds_of(optimizer, elements=1e6, tensors=1000.0, zero=3)
    assert sharded == pytest.approx(0.8)


def test_deepspeeds_lion_is_one_fused_kernel() -> None:
    asked = job_of(dense_model(), "deepspeed", gpu="H200-SXM-141GB", optimizer="lion")
    nothing = np.zeros(1)
    loop = Loop(clip_s=nothing, update_s=nothing, owned=nothing, launches_s=0.0, tensors=nothing)
    assert looped_s(asked, row_of(asked, zero=1), loop) is None
