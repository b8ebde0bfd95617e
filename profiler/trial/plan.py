"""What a trial runs: the evaluate row, read into the few facts that a training step consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import Model

Recompute = Literal["none", "selective", "full"]
# What the modules of this back end can be told to do; anything else in a strategy must have its neutral value.
_NEUTRAL: Mapping[str, Any] = {"cp": 1, "ep": 1, "etp": 1}


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One plan as it is run. Sizes are counts, `seq_length` in tokens."""

    model: Model
    seq_length: int
    micro_batch_size: int
    num_micro_batches: int
    tp: int
    pp: int
    dp: int
    vpp: int
    zero: int
    zero_shard_size: int
    """Ranks over which optimizer state, and with zero 3 parameters, are spread; `dp` without replicas."""
    sequence_parallel: bool
    recompute: Recompute
    schedule: str
    layers_per_stage: tuple[int, ...]
    compile: bool

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp


def trial_plan(row: Mapping[str, Any]) -> TrialPlan:
    """The plan of an evaluate row whose strategy states every degree.

    Raises:
        InvalidInputError: the row is incomplete, or this back end cannot run it.
    """
    strategy, training = row["strategy"], row["training"]
    problems = [
        Problem(f"/strategy/{name}", f"{name} is {strategy[name]}; trials with PyTorch's own parallelism run {neutral}")
        for name, neutral in _NEUTRAL.items()
        if strategy.get(name, neutral) != neutral
    ]
    if problems:
        raise InvalidInputError(problems)
    model = resolve_model(row["model"])
    tp, pp, dp = (int(strategy.get(name, 1)) for name in ("tp", "pp", "dp"))
    vpp = int(strategy.get("vpp", 1))
    micro = int(strategy.get("micro_batch_size", 1))
    per_replica, rest = divmod(int(training["global_batch_size"]), dp * micro)
    if rest:
        message = (
            f"global_batch_size {training['global_batch_size']} is not a multiple of dp x micro_batch_size {dp * micro}"
        )
        raise InvalidInputError([Problem("/training/global_batch_size", message, "Choose a multiple.")])
    zero = int(strategy.get("zero", 0))
    return TrialPlan(
        model=model,
        seq_length=int(training["seq_length"]),
        micro_batch_size=micro,
        num_micro_batches=per_replica,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        zero=zero,
        zero_shard_size=int(strategy.get("zero_shard_size", dp)) if zero else 1,
        sequence_parallel=bool(strategy.get("sequence_parallel", False)),
        recompute=strategy.get("recompute", "none"),
        schedule=strategy.get("schedule", "interleaved" if vpp > 1 else "1f1b"),
        layers_per_stage=tuple(strategy.get("layers_per_stage", _balanced(model.num_layers, pp * vpp))),
        compile=bool(training.get("compile", False)),
    )


def _balanced(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk; the first ones take what does not divide."""
    each, more = divmod(layers, chunks)
    return [each + (place < more) for place in range(chunks)]
