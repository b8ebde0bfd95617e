"""What Accelerate and transformers' Trainer say alike of a plan for PyTorch's FSDP around Hugging Face's modules, and its types.

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/fsdp_utils.py (fsdp2_prepare_model) and
parallelism_config.py of 1.15; transformers/training_args.py (fsdp_config) of 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.frameworks.optimizers import updates_dtensors
from planner.export.copies import say_no_expert_parallelism
from planner.export.quantities import Quantities
from planner.export.settings import Settings
from planner.export.spellings import Spelling, peeked, taken, written

RESHARD, OFFLOAD, CHECKPOINTS, CHECKPOINTS_OFFLOAD = (
    "reshard_after_forward", "offload_params", "activation_checkpointing", "activation_checkpointing_offload",
)  # fmt: skip
VERSION: Final = "version"
RESHARDS: Final[Mapping[int, bool]] = {2: False, 3: True}
"""`reshard_after_forward` by ZeRO stage."""
OPTIMIZERS: Final = Spelling(
    "optim", "training.optimizer", {
        "adam": "adamw_torch_fused", "sgd": "sgd", "adam-8bit": "adamw_bnb_8bit", "adam-4bit": "adamw_torch_4bit", "lion": "lion_32bit",
        "adafactor": "adafactor",
    },
    why="transformers has no such optimizer here (OptimizerNames)",
)  # fmt: skip
_OF_SHARDS: Final = Spelling(
    OPTIMIZERS.key, OPTIMIZERS.field, {**(OPTIMIZERS.values or {}), "adam-8bit": "adamw_torch_8bit"}, why=OPTIMIZERS.why,
)  # fmt: skip
"""FSDP2's parameters are DTensors, which bitsandbytes' operators refuse and torchao's take."""
REDUCED, DTYPE, EACH = "reduce_dtype", "dtype", "sync_each_batch"
FIRST_NOTE: Final = "The files are for FSDP1, which is priced as FSDP2."
STRATEGIES: Final[Mapping[str, int]] = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2, "HYBRID_SHARD_ZERO2": 2,
    "1": 3, "2": 2, "3": 0, "4": 3, "5": 2, "TRUE": 3, "FALSE": 2,
}  # fmt: skip
"""ZeRO stages by FSDP1's strategy (torch/distributed/fsdp/api.py, ShardingStrategy) or FSDP2's switch, either of which may stand in
somebody's file. Numbers are those of the enumeration, as accelerate's questionnaire once wrote them."""
_WITHIN_NODES: Final = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD_ZERO2", "4", "5"})
"""Strategies that shard among the ranks of a node and replicate over the nodes."""
_WITHOUT_COST: Final = (
    "state_dict_type", "cpu_ram_efficient_loading", "transformer_layer_cls_to_wrap", "use_orig_params", "sync_module_states", VERSION,
)  # fmt: skip
"""Checkpoints, loading and names, which change neither time nor memory of a step."""
_ONE_WAY: Final[Mapping[str, tuple[Any, ...]]] = {
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",), "backward_prefetch": ("BACKWARD_PRE", "BACKWARD_PRE_POLICY"),
    "forward_prefetch": (False,), "min_num_params": (0,),
}  # fmt: skip
"""Settings of which only the usual value is modelled; another one stays unknown."""
_SMALL: Final = ("bf16", "fp16")


def check_degrees(q: Quantities, *, context: bool) -> None:
    """Refuses what FSDP2 around models that are made from their configuration does not do.

    Args:
        context: whether the target has context parallelism.
    """
    q.only(
        "tp",
        [1],
        why="the script makes the model from its configuration, which transformers does not split (tp_plan is from_pretrained's)",
    )
    q.only(
        "cp",
        [1] if not context else [q.peek("cp")],
        why="its Trainer is told no context parallelism here; accelerate is",
    )
    for field in ("pp", "vpp"):
        q.only(field, [1], why="accelerate's parallelism_config has no such degree")
    say_no_expert_parallelism(q, why="accelerate's parallelism_config has no such degree")
    q.only("zero", [0, 2, 3], why="FSDP2 shards all three states, or DistributedDataParallel none", nearest={"zero": 2})
    for field in ("overlap.grad_reduce", "overlap.param_gather"):
        q.only(field, [True], why="FSDP2 and DistributedDataParallel always overlap it")
    for field in ("sequence_parallel", "overlap.tp_comm", "overlap.p2p", "overlap.moe_all_to_all"):
        q.only(field, [False], why="it has no setting for it")
    for field, values in (
        ("recompute_method", [None]),
        ("recompute_num_layers", [None]),
        ("recompute_per_stage", [None, ()]),
    ):
        q.only(field, values, why="it recomputes every layer or none", nearest={field: None})
    if q["layers_per_stage"]:
        q["schedule"]


def said_shards(q: Quantities) -> dict[str, Any]:
    """Keys of FSDP's own part, without their prefix; empty where whole parameters are replicated."""
    zero, layers = q["zero"], q["offload.activation_layers"]
    fraction, parameters = q["offload.optimizer_fraction"], q["offload.parameters"]
    if zero == 0:
        for field, value in (
            ("offload.optimizer_fraction", fraction),
            ("offload.parameters", parameters),
            ("offload.activation_layers", layers),
        ):
            if value:
                raise q.refusal(field, why="DistributedDataParallel offloads nothing", nearest={"zero": 3})
        return {}
    # CPUOffloadPolicy keeps shards on the host, where the optimizer updates them.
    if parameters != (fraction == 1) or fraction not in (0, 1):
        why = "offload_params moves parameters and optimizer together"
        raise q.refusal(
            "offload.optimizer_fraction", why=why, nearest={"offload.optimizer_fraction": float(parameters)}
        )
    full = q["recompute"] == "full"
    every = max(q.plan.layers_per_stage)
    if layers and not (full and layers == every):
        why = "activation_checkpointing_offload moves the inputs of all recomputed layers"
        raise q.refusal(
            "offload.activation_layers", why=why, nearest={"offload.activation_layers": every if full else 0}
        )
    return {
        VERSION: 2,
        RESHARD: RESHARDS[zero],
        OFFLOAD: bool(parameters),
        CHECKPOINTS: full,
        **({CHECKPOINTS_OFFLOAD: True} if layers else {}),
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": False,
    }


def read_shards(settings: Settings, prefix: str) -> dict[str, Any]:
    """The fields that FSDP's part says, whose keys begin with `prefix`."""
    found: dict[str, Any] = {}
    found["zero"] = 3
    for key in (prefix + "sharding_strategy", prefix + RESHARD):
        said = peeked(settings, key)
        if said is None:
            continue
        zero = STRATEGIES.get(str(said).upper())
        if zero is None:
            settings.doubt(key, "zero")
            continue
        settings.take(key, "zero")
        found["zero"] = zero
        if str(said).upper() in _WITHIN_NODES:
            found |= _within_nodes(settings, key)
    offloads = settings.value(prefix + OFFLOAD, "offload.parameters", "offload.optimizer_fraction")
    if isinstance(offloads, bool):
        found |= {"offload.parameters": offloads, "offload.optimizer_fraction": float(offloads)}
    checkpoints = settings.value(prefix + CHECKPOINTS, "recompute")
    if isinstance(checkpoints, bool):
        found["recompute"] = "full" if checkpoints else "none"
    settings.pass_over(*(prefix + key for key in _WITHOUT_COST))
    for key, values in _ONE_WAY.items():
        if peeked(settings, prefix + key) in values:
            settings.take(prefix + key)
    return found


def _within_nodes(settings: Settings, key: str) -> dict[str, Any]:
    # Accelerate's YAML says both numbers; other files leave the nodes to the launch line.
    ranks, nodes = peeked(settings, "num_processes"), peeked(settings, "num_machines")
    if type(ranks) is int and type(nodes) is int and nodes > 0 and ranks % nodes == 0:
        return {"zero_shard_size": ranks // nodes}
    settings.doubt(key, "zero_shard_size")
    return {}


def said_optimizer(q: Quantities) -> dict[str, Any]:
    """The optimizer's name in transformers, which depends on what it updates."""
    of_shards = updates_dtensors(q.plan.job.training, int(q.peek("zero")))
    return written(q, (_OF_SHARDS if of_shards else OPTIMIZERS,))


def read_optimizer(settings: Settings) -> dict[str, Any]:
    """The optimizer of either name."""
    of_shards = _OF_SHARDS.read(peeked(settings, OPTIMIZERS.key)) is not None
    return taken(settings, (_OF_SHARDS if of_shards else OPTIMIZERS,))


def is_first(settings: Settings, prefix: str) -> bool:
    """Whether files are for FSDP1, which shards flattened groups of parameters."""
    version = peeked(settings, prefix + VERSION)
    return version == 1 or (version is None and peeked(settings, prefix + "sharding_strategy") is not None)


def said_types(q: Quantities, *, precisions: tuple[str, ...], why: str) -> tuple[str, dict[str, Any]]:
    """Accelerate's `mixed_precision`, and what the script has to do for the types: `dtype` and `reduce_dtype`.

    Args:
        precisions: that the target has, "fp32" apart.
        why: the reason that there are no others.
    """
    precision = q.only("training.precision", [*precisions, "fp32"], why=why)
    param = q["training.param_dtype"]
    compute = precision if precision in (*_SMALL, "fp32") else "bf16"
    q.only(
        "training.param_dtype",
        list(dict.fromkeys(["fp32", compute])),
        why="parameters are stored in fp32 or in the type that is computed in",
    )
    q.only("training.main_param_dtype", ["none"], why="the optimizer updates the parameters themselves")
    q.only("training.grad_dtype", [param], why="gradients have the type of their parameters")
    # bitsandbytes' Lion keeps fp32, as its name says, and so do Adafactor's sums.
    state = {"adam-8bit": "fp8", "adam-4bit": "fp8", "lion": "fp32", "adafactor": "fp32"}.get(
        q.peek("training.optimizer"), param
    )
    q.only(
        "training.optimizer_state_dtype",
        [state],
        why="the optimizer's state has its parameters' type, fp32 or fewer bits, as its name says",
    )
    # fully_shard casts from stored fp32 to the compute type; parameters that are stored in it need no mixed precision.
    mixed = param == "fp32" and precision != "fp32"
    reduced = q.only(
        "training.grad_reduce_dtype", list(dict.fromkeys([compute if mixed else param, param])),
        why="gradients are reduced in the type that is computed in, or in their own",
    )  # fmt: skip
    # Beside adapters the frozen base is stored in the type that is computed in.
    document: dict[str, Any] = {DTYPE: compute if q.peek("training.adapter") else param}
    if q.matters("training.grad_reduce_dtype"):
        document[REDUCED] = reduced
    return (precision if mixed else "no"), document


def read_types(settings: Settings, mixed: str) -> dict[str, Any]:
    """The types that `mixed_precision` and the script's part say."""
    stored, reduced = peeked(settings, DTYPE), peeked(settings, REDUCED)
    adapted = peeked(settings, "peft_type") is not None
    settings.take(DTYPE, "training.param_dtype", "training.precision")
    found: dict[str, Any] = {}
    if mixed != "no":
        found["training.precision"] = mixed
        if stored is not None:
            found["training.param_dtype"] = "fp32"
    elif stored is not None:
        found |= {"training.precision": stored, "training.param_dtype": stored}
    elif not adapted:
        found["training.precision"] = "fp32"
    if reduced is not None:
        found["training.grad_reduce_dtype"] = settings.value(REDUCED, "training.grad_reduce_dtype")
    return found
