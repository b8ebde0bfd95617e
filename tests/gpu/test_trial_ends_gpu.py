"""Trials on a real GPU: what is measured adds up, what ends badly is told, and the GPU is free afterwards.

Deselected where there is no CUDA device. `benchmarks/trial_forms_on_gpu.py` runs the same where there is no pytest.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.trial_forms.ends import checks
from profiler.machine.nvml import Nvml
from profiler.trial.gpus import visible

pytestmark = pytest.mark.gpu
NVML = Nvml.open()
CHECKS = checks(len(visible(NVML, {})) if NVML is not None else 0)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_trial_on_real_gpus(check: Callable[[], None]) -> None:
    check()
