"""What trials with PyTorch's own parallelism do not run, each with its reason and what to do.

A field that this back end does not know is refused, too: a trial that leaves out part of a plan would measure another one under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import Problem
from cost_models.specs.model import Model

# What this back end runs of each field that is given.
_STRATEGY: Mapping[str, tuple[Any, ...]] = {
    "etp": (1,), "recompute": ("none", "selective", "full"), "recompute_method": ("block", None),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v"),
    "cp_comm": ("allgather", "p2p"),
}  # fmt: skip
_ANY_OF_STRATEGY = frozenset(
    {
        "tp", "pp", "dp", "cp", "ep", "vpp", "zero", "zero_shard_size", "sequence_parallel", "micro_batch_size", "layers_per_stage",
        "recompute_num_layers", "overlap", "offload", "grad_sync", "zero_param_shard_size", "moe_dispatcher", "flex_backend",
    }
)  # fmt: skip
_TRAINING: Mapping[str, tuple[Any, ...]] = {
    "precision": ("bf16", "fp32"), "attention": ("flash",), "attention_kernel": ("sdpa", "cudnn", "flex"),
    "cross_entropy": ("unfused", "compiled"), "optimizer": ("adam", "sgd"), "dropout": (0,), "param_dtype": ("fp32", "bf16"),
    "main_param_dtype": ("none",), "grad_dtype": ("fp32", "bf16"), "grad_reduce_dtype": ("fp32", "bf16"),
    "optimizer_state_dtype": ("fp32", "bf16"), "model_impl": ("native",),
}  # fmt: skip
# The framework too: whose predictions a trial is held against is for its caller to say.
_ANY_OF_TRAINING = frozenset(
    {"framework", "seq_length", "global_batch_size", "compile", "software_date", "framework_version"}
)
_ONE_CHUNK = ("1f1b", "gpipe")
_TWO_CHUNKS = ("zb-v", "dualpipe-v")
_SPLIT_BACKWARD = ("zb-h1", "zb-v", "dualpipe-v")


def refusals(model: Model, training: Mapping[str, Any], strategy: Mapping[str, Any]) -> list[Problem]:
    """Everything of a row that this back end does not run; empty where a trial is what the row says."""
    return [
        *_unknown("/strategy", strategy, _STRATEGY, _ANY_OF_STRATEGY),
        *_unknown("/training", training, _TRAINING, _ANY_OF_TRAINING),
        *_unlike(model),
        *_states(training),
        *_replicas(strategy),
        *_tensors(model, training, strategy),
        *_experts(model, strategy),
        *_pipeline(model, training, strategy),
        *_beside(strategy),
    ]


def _unknown(
    pointer: str, given: Mapping[str, Any], run: Mapping[str, tuple[Any, ...]], any_value: frozenset[str]
) -> list[Problem]:
    found = []
    for name, value in given.items():
        if name not in any_value and value not in run.get(name, ()):
            some = (
                " or ".join(str(each) for each in run[name] if each is not None)
                if name in run
                else "it at its default only"
            )
            message = f"{name} is {value}; trials with PyTorch's own parallelism run {some}"
            found.append(
                Problem(f"{pointer}/{name}", message, "Leave it out, or measure this plan in its own framework.")
            )
    return found


def _unlike(model: Model) -> list[Problem]:
    """What the model has that the modules of trials lack."""
    parts = {
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
        "a classification head": model.classes is not None,
        "experts with a capacity, which drop tokens": model.moe is not None and model.moe.capacity_factor is not None,
    }
    hint = "Measure a model without it, or this one in its own framework."
    return [Problem("/model", f"the model has {name}, which trials do not", hint) for name, has in parts.items() if has]


def _states(training: Mapping[str, Any]) -> list[Problem]:
    """PyTorch gives gradients and optimizer states the type of their parameters."""
    kept = training.get("param_dtype", "fp32")
    found = [
        Problem(
            f"/training/{name}",
            f"{name} is {training[name]} with param_dtype {kept}; trials keep gradients and states in their parameters' type",
            f"Set {name} to {kept}.",
        )
        for name in ("grad_dtype", "optimizer_state_dtype")
        if training.get(name, kept) != kept
    ]
    if training.get("precision") == "fp32" and kept != "fp32":
        message = f"precision is fp32 with param_dtype {kept}"
        found.append(Problem("/training/param_dtype", message, "Set param_dtype to fp32, or precision to bf16."))
    return found


def _degrees(strategy: Mapping[str, Any]) -> tuple[int, ...]:
    """tp, cp, pp, dp, ep, vpp."""
    return tuple(int(strategy.get(name, 1)) for name in ("tp", "cp", "pp", "dp", "ep", "vpp"))


def _replicas(strategy: Mapping[str, Any]) -> list[Problem]:
    """How data and context parallel ranks share state and reduce gradients."""
    tp, cp, pp, dp, *_ = _degrees(strategy)
    zero, ranks = int(strategy.get("zero", 0)), dp * cp
    shared = int(strategy.get("zero_shard_size", ranks))
    found = []
    if zero == 1 and shared != ranks:
        message = f"zero_shard_size is {shared}; trials with zero 1 spread the optimizer over all {ranks} replicas"
        found.append(Problem("/strategy/zero_shard_size", message, "Leave it out."))
    if zero >= 2 and ranks % shared:
        message = f"zero_shard_size {shared} does not divide the {ranks} ranks of dp x cp"
        found.append(Problem("/strategy/zero_shard_size", message, "Choose a divisor."))
    if zero == 1 and (tp > 1 or pp > 1) and ranks > 1:
        message = (
            "zero is 1; PyTorch's ZeroRedundancyOptimizer sends no parts of tensors, which trials with tp or pp have"
        )
        found.append(Problem("/strategy/zero", message, "Set zero to 0, 2 or 3."))
    gathered = int(strategy.get("zero_param_shard_size", shared))
    if zero == 3 and gathered != shared:
        message = (
            f"zero_param_shard_size is {gathered}; trials gather parameters from all {shared} ranks that share them"
        )
        found.append(Problem("/strategy/zero_param_shard_size", message, "Leave it out."))
    if strategy.get("grad_sync") == "each" and zero < 2 and ranks > 1:
        message = f"grad_sync is each with zero {zero}; trials reduce gradients of replicas after the last micro-batch"
        found.append(Problem("/strategy/grad_sync", message, "Set grad_sync to last."))
    return found


def _tensors(model: Model, training: Mapping[str, Any], strategy: Mapping[str, Any]) -> list[Problem]:
    """How heads and tokens are split."""
    tp, cp, *_ = _degrees(strategy)
    tokens, found = int(training["seq_length"]), []
    if tp > 1 and not strategy.get("sequence_parallel", False):
        message = "trials with tensor parallelism run it with sequence parallelism"
        found.append(Problem("/strategy/sequence_parallel", message, "Set sequence_parallel to true."))
    if model.num_key_value_heads % tp or model.num_attention_heads % tp:
        message = f"tp {tp} does not divide {model.num_attention_heads} heads of queries and {model.num_key_value_heads} of keys"
        found.append(Problem("/strategy/tp", message, "Choose a divisor of both."))
    if cp > 1 and training.get("attention_kernel") == "flex":
        message = (
            "attention_kernel is flex; trials share a sequence between ranks with scaled_dot_product_attention only"
        )
        found.append(Problem("/training/attention_kernel", message, "Set attention_kernel to sdpa, or cp to 1."))
    # A rank of the ring holds one piece from the head and one from the tail of a sequence, so that all have as much to attend to.
    pieces = 2 * cp if cp > 1 else 1
    if tokens % (pieces * tp):
        message = (
            f"seq_length {tokens} is not a multiple of {pieces * tp}, the pieces that cp {cp} and tp {tp} make of it"
        )
        found.append(Problem("/training/seq_length", message, "Choose a multiple."))
    return found


def _experts(model: Model, strategy: Mapping[str, Any]) -> list[Problem]:
    """How experts are spread. Their ranks are taken from those that share one copy of the state, and from tensor parallel ones."""
    tp, cp, _, dp, ep, _ = _degrees(strategy)
    zero = int(strategy.get("zero", 0))
    found = []
    if model.moe is None:
        if ep > 1:
            found.append(Problem("/strategy/ep", f"ep is {ep}, but the model has no experts", "Set ep to 1."))
        return found
    dispatcher = strategy.get("moe_dispatcher", "alltoall")
    if ep > 1 and dispatcher != "alltoall":
        message = f"moe_dispatcher is {dispatcher}; trials send tokens to their experts by all-to-all"
        found.append(Problem("/strategy/moe_dispatcher", message, "Set moe_dispatcher to alltoall."))
    if model.moe.num_experts % ep:
        message = f"ep {ep} does not divide {model.moe.num_experts} experts"
        found.append(Problem("/strategy/ep", message, "Choose a divisor."))
    if ep > 1 and zero < 2 and dp * cp > 1:
        message = f"zero is {zero}; beside expert parallelism trials shard with zero 2 or 3, as torchtitan does"
        found.append(Problem("/strategy/zero", message, "Set zero to 2 or 3."))
    ranks = tp * (int(strategy.get("zero_shard_size", dp * cp)) if zero >= 2 else 1)
    if ep > 1 and ranks % ep:
        message = f"ep {ep} does not divide the {ranks} ranks of tp x zero_shard_size that hold different parameters"
        found.append(Problem("/strategy/ep", message, "Choose a divisor."))
    return found


def _pipeline(model: Model, training: Mapping[str, Any], strategy: Mapping[str, Any]) -> list[Problem]:
    """What PyTorch's pipelines ask for (`torch/distributed/pipelining/schedules.py`)."""
    _, _, pp, dp, _, vpp = _degrees(strategy)
    if pp == 1:
        hint = "Set vpp to 1."
        return [Problem("/strategy/vpp", f"vpp is {vpp} without a pipeline", hint)] if vpp > 1 else []
    schedule = strategy.get("schedule", "interleaved" if vpp > 1 else "1f1b")
    micro = int(training["global_batch_size"]) // (dp * int(strategy.get("micro_batch_size", 1)))
    found = []
    if model.tie_word_embeddings:
        message = "trials run no pipeline of a model whose embedding is its output projection: PyTorch's stages share no weights"
        found.append(Problem("/strategy/pp", message, "Set tie_word_embeddings to false, or pp to 1."))
    if (schedule in _ONE_CHUNK and vpp > 1) or (schedule in _TWO_CHUNKS and vpp != 2):
        needed = 1 if schedule in _ONE_CHUNK else 2
        message = f"vpp is {vpp}; schedule {schedule} runs {needed} of them on each rank in PyTorch"
        found.append(Problem("/strategy/vpp", message, f"Set vpp to {needed}, or choose another schedule."))
    least = {"1f1b": pp, "dualpipe-v": 2 * pp}.get(schedule, 1)
    if micro < least:
        message = f"schedule {schedule} needs at least {least} micro-batches, and there are {micro}"
        found.append(Problem("/strategy/schedule", message, "Choose a larger global_batch_size, or gpipe."))
    rounds = max(1, micro // pp)
    if schedule in ("interleaved", "zb-h1") and micro % rounds:
        message = f"schedule {schedule} runs micro-batches in {rounds} rounds, and there are {micro}"
        found.append(Problem("/strategy/schedule", message, f"Choose a multiple of {rounds} micro-batches."))
    if schedule in _SPLIT_BACKWARD and training.get("compile", False):
        message = f"PyTorch's schedule {schedule} cannot split the backward pass of compiled layers"
        found.append(Problem("/training/compile", message, "Set compile to false, or choose another schedule."))
    layers = strategy.get("layers_per_stage")
    if layers is not None and (len(layers) != pp * vpp or sum(layers) != model.num_layers):
        message = f"layers_per_stage {list(layers)} does not spread {model.num_layers} layers over {pp * vpp} stages"
        found.append(Problem("/strategy/layers_per_stage", message, f"Give {pp * vpp} numbers with that sum."))
    # The first and the last chunk have the embedding and the head.
    given = layers or [model.num_layers // (pp * vpp) + (i < model.num_layers % (pp * vpp)) for i in range(pp * vpp)]
    if vpp == 1 and 0 in given[1:-1]:
        message = f"stages {list(given)} leave a rank between the first and the last without anything to train"
        found.append(Problem("/strategy/layers_per_stage", message, "Give it a layer, or choose a smaller pp."))
    return found


def _beside(strategy: Mapping[str, Any]) -> list[Problem]:
    """What runs beside computation, and what lives in host memory: as PyTorch has it without being asked, and nothing else."""
    found = []
    overlap, offload = strategy.get("overlap") or {}, strategy.get("offload") or {}
    for name in ("tp_comm", "moe_all_to_all"):
        if overlap.get(name):
            message = f"overlap.{name} is true; trials run it at its default only"
            found.append(Problem(f"/strategy/overlap/{name}", message, f"Set overlap.{name} to false."))
    sharded = int(strategy.get("zero", 0)) >= 2
    for name in ("grad_reduce", "param_gather") if sharded else ("grad_reduce",):
        if overlap.get(name) is False:
            message = f"overlap.{name} is false; PyTorch overlaps it"
            found.append(Problem(f"/strategy/overlap/{name}", message, f"Set overlap.{name} to true."))
    found += [
        Problem(
            f"/strategy/offload/{name}",
            f"offload.{name} is {value}; trials keep everything on the GPU",
            "Leave it out.",
        )
        for name, value in offload.items()
        if value
    ]
    return found
