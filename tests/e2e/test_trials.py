"""Real steps of tiny models on this machine's processors: every split of a model trains it alike, and how a trial ends is told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from cost_models.errors import InvalidInputError
from profiler.trial.launch import run_trial
from profiler.trial.plan import trial_plan

MODEL = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 256, "qk_norm": True,
}  # fmt: skip
SPLITS: dict[str, dict[str, Any]] = {
    "replicas": {"dp": 2},
    "sharded": {"dp": 2, "zero": 3},
    "tensor parallel": {"tp": 2, "sequence_parallel": True},
    "pipeline": {"pp": 2, "vpp": 2},
}


def _row(strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "training": {"seq_length": 32, "global_batch_size": 8},
        "strategy": {"micro_batch_size": 2, **strategy},
    }


def _losses(strategy: dict[str, Any], *, world: int) -> list[float]:
    # With this rate five steps move the losses by 0.018, nine times what is let pass, so that gradients which were not reduced are seen.
    # With the usual one they move by 0.0014.
    trial = run_trial(_row(strategy), world=world, deadline_s=120, device="cpu", warm_up=0, steps=5, learning_rate=3e-3)
    assert trial.status == "ok", trial.reason
    by_rank = [rank.losses for rank in trial.ranks]
    # Ranks of a pipeline that hold no head know no loss.
    told = [losses for losses in by_rank if losses[0] is not None]
    return [sum(each) / len(told) for each in zip(*told, strict=True)]


def test_every_split_of_a_model_has_the_losses_of_one_process() -> None:
    alone = _losses({}, world=1)
    # An untrained model of 256 tokens is as good as a guess: log(256) = 5.545.
    assert alone[0] == pytest.approx(5.545, abs=0.05)
    for name, strategy in SPLITS.items():
        assert _losses(strategy, world=2) == pytest.approx(alone, abs=2e-3), name


@pytest.mark.parametrize(
    ("strategy", "model", "said"),
    [
        ({"recompute": "selective"}, {}, "/strategy/recompute: recompute is selective"),
        ({"offload": {"optimizer_fraction": 1.0}}, {}, "/strategy/offload"),
        ({"tp": 2}, {}, "/strategy/sequence_parallel"),
        ({"tp": 2, "sequence_parallel": True, "dp": 2, "zero": 1}, {}, "/strategy/zero"),
        ({"pp": 2}, {"tie_word_embeddings": True}, "/strategy/pp"),
        ({}, {"sliding_window": 16}, "a sliding window"),
        ({}, {"qk_norm": "full"}, "norms of whole queries"),
    ],
)
def test_what_a_trial_would_leave_out_is_refused(strategy: dict[str, Any], model: dict[str, Any], said: str) -> None:
    row = _row(strategy) | {"model": MODEL | model}
    with pytest.raises(InvalidInputError, match=said):
        trial_plan(row)


def test_a_trial_that_overstays_is_ended() -> None:
    trial = run_trial(_row({"dp": 2}), world=2, deadline_s=0.5, device="cpu")
    assert trial.status == "hang"
