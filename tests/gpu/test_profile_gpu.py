"""The agent on a real GPU: what it measures lies under the data sheet and near what such parts reach; nothing is changed.

Deselected where there is no CUDA device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cost_models.calibration import CalibrationDocument
from cost_models.hardware import read_document

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> CalibrationDocument:
    out = tmp_path_factory.mktemp("gpu") / "one.json"
    command = [sys.executable, "-m", "meshwright", "profile", "run", "--out", str(out), "--budget", "25s"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return read_document(Path(out))


def test_products_lie_under_the_peak(measured: CalibrationDocument) -> None:
    """bf16 products of 8192 cubed reach 45 to 100 % of the dense peak on any data-centre part."""
    peak = measured.device.half_flops_per_s
    shares = {(s.m, s.n, s.k): 2.0 * s.m * s.n * s.k / s.time_s / peak for s in measured.gemm if s.dtype == "bf16"}
    assert 0.45 < shares[8192, 8192, 8192] <= 1.0
    assert max(shares.values()) <= 1.0


def test_streams_lie_under_the_memory_bandwidth(measured: CalibrationDocument) -> None:
    rates = [s.bytes_per_s for s in measured.memory_bandwidth if s.kind in {"copy", "elementwise"}]
    assert rates
    assert all(0.5 < rate / measured.device.memory_bytes_per_s <= 1.0 for rate in rates)


def test_memory_facts_are_those_of_the_driver(measured: CalibrationDocument) -> None:
    """A context takes a few hundred MiB of what the driver offers."""
    assert measured.memory.context_bytes is not None
    assert measured.memory.capacity_bytes is not None
    assert 100e6 < measured.memory.context_bytes < 3e9
    assert measured.memory.capacity_bytes > 10e9


def test_the_device_was_watched(measured: CalibrationDocument) -> None:
    (state,) = measured.devices
    assert state.sm_clock_hz is not None
    assert 0.3e9 < state.sm_clock_hz[0] <= state.sm_clock_hz[1] < 4e9
