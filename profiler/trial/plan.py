"""What a trial runs: the evaluate row, read into the few facts that a training step consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import Model

Recompute = Literal["none", "selective", "full"]
# What this back end runs of each field that is given. A field that it does not know is refused, too: a trial that leaves out part of a
# plan would measure another one under its name.
_STRATEGY: Mapping[str, tuple[Any, ...]] = {
    "cp": (1,), "ep": (1,), "etp": (1,), "recompute": ("none", "full"),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v"),
}  # fmt: skip
_ANY_OF_STRATEGY = frozenset(
    {"tp", "pp", "dp", "vpp", "zero", "zero_shard_size", "sequence_parallel", "micro_batch_size", "layers_per_stage"}
)
_TRAINING: Mapping[str, tuple[Any, ...]] = {
    "precision": ("bf16",), "attention": ("flash",), "attention_kernel": ("sdpa",),
    "cross_entropy": ("unfused",), "optimizer": ("adam",), "dropout": (0,), "param_dtype": ("fp32",), "grad_dtype": ("fp32",),
    "model_impl": ("native",),
}  # fmt: skip
# The framework too: whose predictions a trial is held against is for its caller to say.
_ANY_OF_TRAINING = frozenset(
    {"framework", "seq_length", "global_batch_size", "compile", "software_date", "framework_version"}
)


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
    model = resolve_model(row["model"])
    problems = [
        *_unknown("/strategy", strategy, _STRATEGY, _ANY_OF_STRATEGY),
        *_unknown("/training", training, _TRAINING, _ANY_OF_TRAINING),
        *_unlike(model),
        *_combined(model, strategy),
    ]
    if problems:
        raise InvalidInputError(problems)
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


def _unknown(
    pointer: str, given: Mapping[str, Any], run: Mapping[str, tuple[Any, ...]], any_value: frozenset[str]
) -> list[Problem]:
    found = []
    for name, value in given.items():
        if name not in any_value and value not in run.get(name, ()):
            some = " or ".join(map(str, run[name])) if name in run else "it at its default only"
            message = f"{name} is {value}; trials with PyTorch's own parallelism run {some}"
            found.append(
                Problem(f"{pointer}/{name}", message, "Leave it out, or measure this plan in its own framework.")
            )
    return found


def _unlike(model: Model) -> list[Problem]:
    """What the model has that the modules of trials lack."""
    parts = {
        "experts": model.moe is not None,
        "latent attention": model.mla is not None,
        "a sliding window": any(kind.window is not None for kind in model.distinct_kinds),
        "positions other than rope": model.position_embedding != "rope",
        "norms other than two a layer and a last one": model.norms_per_layer != 2 or not model.final_norm,
        "a norm of the embedding": model.embedding_norm,
        "norms of whole queries": model.qk_norm == "full",
        "norms without weights": not model.norm_weight,
        "attention and MLP side by side": model.parallel_block,
        "attention sinks": model.attention_sinks,
        "a gate of attention": model.attention_gate,
        "an activation with parameters": model.activation_parameters > 0,
        "layers that predict further tokens": model.mtp_num_layers > 0,
    }
    hint = "Measure a model without it, or this one in its own framework."
    return [Problem("/model", f"the model has {name}, which trials do not", hint) for name, has in parts.items() if has]


def _combined(model: Model, strategy: Mapping[str, Any]) -> list[Problem]:
    """Combinations that each part allows and PyTorch, or this back end, does not."""
    tp, pp, dp, zero = (
        int(strategy.get(name, default)) for name, default in (("tp", 1), ("pp", 1), ("dp", 1), ("zero", 0))
    )
    found = []
    if tp > 1 and not strategy.get("sequence_parallel", False):
        message = "trials with tensor parallelism run it with sequence parallelism"
        found.append(Problem("/strategy/sequence_parallel", message, "Set sequence_parallel to true."))
    if tp > 1 and dp > 1 and zero < 2:
        message = f"zero is {zero}; beside tensor parallelism trials shard with zero 2 or 3"
        found.append(Problem("/strategy/zero", message, "Set zero to 2 or 3."))
    if zero == 1 and int(strategy.get("zero_shard_size", dp)) != dp:
        message = "trials with zero 1 spread the optimizer over all replicas"
        found.append(Problem("/strategy/zero_shard_size", message, "Leave it out."))
    if pp > 1 and model.tie_word_embeddings:
        message = "trials run no pipeline of a model whose embedding is its output projection"
        found.append(Problem("/strategy/pp", message, "Set tie_word_embeddings to false, or pp to 1."))
    return found


def _balanced(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk; the first ones take what does not divide."""
    each, more = divmod(layers, chunks)
    return [each + (place < more) for place in range(chunks)]
