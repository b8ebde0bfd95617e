"""Every parallel form of a trial on real GPUs, once: pytest -m gpu tests/gpu/test_trials_gpu.py, on one GPU or two.

Deselected where there is no CUDA device. Here run what processors lack: the kernels of grouped products and of ring attention, and NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.trial_forms import ALONE, FORMS, job, kind
from tests.trial_processes import run_together

pytestmark = pytest.mark.gpu

# Heads and widths that the kernels of GPUs take.
WIDER = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "head_dim": 64,
}
MIXTURE = {"expert_intermediate_size": 256, "shared_expert_intermediate_size": 256}
# bf16 keeps three digits: what a sum in another order may move a loss of 5.5 by.
LOSS = 6e-3
NORM = 4e-2


def _wider(made: dict[str, Any], **training: Any) -> dict[str, Any]:
    row = made["row"]
    model = {**row["model"], **WIDER}
    if "moe" in model:
        model["moe"] = {**model["moe"], **MIXTURE}
    bf16 = {"seq_length": 256, "precision": "bf16", **training}
    return {**made, "row": {**row, "model": model, "training": {**row["training"], **bf16}}}


def _forms() -> dict[str, dict[str, Any]]:
    import torch

    here = torch.cuda.device_count()
    found = {}
    for name in ALONE:
        found[name] = _wider(job(name, {}, world=1))
    for world, forms in FORMS.items():
        if world <= here:
            found |= {name: _wider(job(name, strategy, world=world)) for name, strategy in forms.items()}
    found["attention of cuDNN"] = _wider(job("dense", {}, world=1), attention_kernel="cudnn")
    found["compiled"] = _wider(job("dense", {}, world=1), compile=True, cross_entropy="compiled")
    if here >= 2:
        sharded: Mapping[str, Any] = {"dp": 2, "zero": 3}
        found["compiled, ZeRO 3"] = _wider(job("dense", sharded, world=2), compile=True)
        found["mixture, compiled"] = _wider(job("mixture", {**sharded, "ep": 2}, world=2), compile=True)
    return found


@pytest.mark.timeout(600)
def test_every_form_has_the_losses_of_one_gpu() -> None:
    forms = _forms()
    found = dict(zip(forms, run_together(list(forms.values()), device="cuda", timeout_s=580.0), strict=True))
    wrong = {}
    for name, answer in found.items():
        alone = found[kind(name)]
        if "error" in answer:
            wrong[name] = answer["error"][-400:]
            continue
        losses = max(abs(a - b) for a, b in zip(answer["losses"], alone["losses"], strict=True))
        norms = max(abs(a / b - 1.0) for a, b in zip(answer["norms"], alone["norms"], strict=True))
        if losses > LOSS or norms > NORM:
            wrong[name] = f"losses are {losses:.2g} off, norms {norms:.2g}"
    assert not wrong, wrong
