"""Every parallel form of a trial on real GPUs, once: pytest -m gpu tests/gpu/test_trials_gpu.py, on one GPU or two.

Deselected where there is no CUDA device. `benchmarks/trial_forms_on_gpu.py` runs the same where there is no pytest, in more steps.
"""

from __future__ import annotations

import pytest

from benchmarks.trial_forms.forms import forms_on_gpus
from benchmarks.trial_forms.processes import run_together
from benchmarks.trial_forms.table import failures, table
from benchmarks.trial_forms_on_gpu import LIMITS

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(600)
def test_every_form_has_the_losses_of_one_gpu() -> None:
    import torch

    jobs = list(forms_on_gpus(torch.cuda.device_count()))
    lines = table(jobs, run_together(jobs, device="cuda", timeout_s=580.0))
    loss, norm = LIMITS["bf16"]
    assert not failures(lines, loss=loss, norm=norm)
