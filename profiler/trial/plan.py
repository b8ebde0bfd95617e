"""What a trial runs: the evaluate row, read into the few facts that a training step consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import Model
from profiler.trial.refusals import refusals

Recompute = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One plan as it is run. Sizes are counts, `seq_length` in tokens."""

    model: Model
    seq_length: int
    micro_batch_size: int
    num_micro_batches: int
    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    vpp: int
    zero: int
    shard_size: int
    """Ranks over which optimizer state, and with zero 3 parameters, are spread; 1 without ZeRO."""
    sequence_parallel: bool
    recompute: Recompute
    recompute_layers: int | None
    """The first so many layers of each chunk are recomputed; None means all of them."""
    grad_sync_each: bool
    """Whether FSDP reduces gradients after each micro-batch; a pipeline always waits for the last one."""
    schedule: str
    layers_per_stage: tuple[int, ...]
    cp_comm: Literal["allgather", "p2p"]
    precision: Precision
    param_dtype: Precision
    """Type in which parameters are kept; gradients and the optimizer's states have it, too."""
    reduce_dtype: Precision
    """Type in which FSDP sums gradients."""
    optimizer: Literal["adam", "sgd"]
    attention_kernel: Literal["sdpa", "cudnn", "flex"]
    compile: bool
    compiled_loss: bool

    @property
    def replicas(self) -> int:
        """Ranks that hold the same layers and heads, and other tokens: data and context parallel ones."""
        return self.dp * self.cp

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def uses_fsdp(self) -> bool:
        """Whether `fully_shard` reduces gradients; else PyTorch's DDP does.

        DDP knows no tensor that is split over other ranks, and reduces the gradients of a pipeline after each micro-batch. There plain
        replicas are groups of FSDP whose shards are whole, which is how PyTorch's own `replicate` of modules is built from release 2.9.
        """
        return self.replicas > 1 and (self.zero >= 2 or self.tp > 1 or self.pp > 1)

    @property
    def spans_all(self) -> str | None:
        """The degree that holds all ranks, apart from replicas and shards; None where none does, or where DDP shares its group.

        Shards may lie on all ranks beside context and experts. FSDP marks its own collectives in a trace, and DDP does not.
        """
        degrees = ("tp", "pp", *(("cp", "ep") if self.uses_fsdp else ()))
        return next((name for name in degrees if 1 < getattr(self, name) == self.world), None)


def trial_plan(row: Mapping[str, Any]) -> TrialPlan:
    """The plan of an evaluate row whose strategy states every degree.

    Raises:
        InvalidInputError: the row is incomplete, or this back end cannot run it.
    """
    strategy, training = row["strategy"], row["training"]
    model = resolve_model(row["model"])
    problems = refusals(model, training, strategy)
    if problems:
        raise InvalidInputError(problems)
    tp, cp, pp, dp, ep, vpp = (int(strategy.get(name, 1)) for name in ("tp", "cp", "pp", "dp", "ep", "vpp"))
    micro = int(strategy.get("micro_batch_size", 1))
    per_replica, rest = divmod(int(training["global_batch_size"]), dp * micro)
    if rest:
        message = (
            f"global_batch_size {training['global_batch_size']} is not a multiple of dp x micro_batch_size {dp * micro}"
        )
        raise InvalidInputError([Problem("/training/global_batch_size", message, "Choose a multiple.")])
    zero = int(strategy.get("zero", 0))
    count = strategy.get("recompute_num_layers")
    param_dtype = training.get("param_dtype", "fp32")
    return TrialPlan(
        model=model,
        seq_length=int(training["seq_length"]),
        micro_batch_size=micro,
        num_micro_batches=per_replica,
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=ep,
        vpp=vpp,
        zero=zero,
        shard_size=int(strategy.get("zero_shard_size", dp * cp)) if zero else 1,
        sequence_parallel=bool(strategy.get("sequence_parallel", False)),
        recompute=strategy.get("recompute", "none"),
        recompute_layers=None if count is None else int(count),
        grad_sync_each=strategy.get("grad_sync", "each" if zero >= 2 else "last") == "each",
        schedule=strategy.get("schedule", "interleaved" if vpp > 1 else "1f1b"),
        layers_per_stage=tuple(strategy.get("layers_per_stage", balanced(model.num_layers, pp * vpp))),
        cp_comm=strategy.get("cp_comm", "allgather"),
        precision=training.get("precision", "bf16"),
        param_dtype=param_dtype,
        reduce_dtype=training.get("grad_reduce_dtype", "fp32"),
        optimizer=training.get("optimizer", "adam"),
        attention_kernel=training.get("attention_kernel", "sdpa"),
        compile=bool(training.get("compile", False)),
        compiled_loss=training.get("cross_entropy", "unfused") == "compiled",
    )


def balanced(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk; the first ones take what does not divide."""
    each, more = divmod(layers, chunks)
    return [each + (place < more) for place in range(chunks)]
