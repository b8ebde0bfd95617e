"""A trial of a tiny model on this machine's processors: how it ends is told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from profiler.trial.launch import run_trial

MODEL = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 256, "qk_norm": True,
}  # fmt: skip


def _row(strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "training": {"seq_length": 32, "global_batch_size": 8},
        "strategy": {"micro_batch_size": 2, **strategy},
    }


def test_a_trial_that_overstays_is_ended() -> None:
    trial = run_trial(_row({"dp": 2}), world=2, deadline_s=0.5, device="cpu")
    assert trial.status == "hang"
