"""A plan's `ds_config.json`, for DeepSpeed's own engine, for Accelerate and for transformers' Trainer."""

from __future__ import annotations

from typing import Any

from cost_models.frameworks import precedes
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.targets.deepspeed import catalogue as keys


def said_config(q: Quantities, *, release: str) -> dict[str, Any]:
    """The document that says a plan's batch, degrees, sharding, types, optimizer and offload.

    Args:
        release: DeepSpeed's, which is the target's own version or the plan's.

    Raises:
        FieldNotExpressibleError: DeepSpeed has no key for the value of a field.
    """
    config = written(q, keys.BATCH)
    # All three of the batch's numbers are written, so that DeepSpeed asserts their product (runtime/config.py, _batch_assertion).
    config[keys.ACCUMULATION] = q.plan.num_micro_batches
    _check_schedule(q)
    config |= written(q, keys.DEGREES)
    if q.matters("ep") and q["ep"] > 1:
        # Before AutoEP experts were modules of DeepSpeed's own (moe/layer.py), which no configuration puts into a model.
        if precedes(release, keys.EXPERTS_SINCE):
            raise q.refusal("ep", why=f"expert_parallel came with {keys.EXPERTS_SINCE}", nearest={"ep": 1})
        put(config, keys.EXPERTS, True)
    q.only("etp", [1], why="expert_parallel.expert_tensor_parallel_size takes 1 alone")
    q.implied("moe_dispatcher", "alltoall", why="AutoEP exchanges tokens by all-to-all")
    q.implied("cp_comm", "a2a", why="Ulysses exchanges heads by all-to-all")
    for key, value in written(q, keys.ZERO).items():
        config[key] = value
    _say_sharding(q, config, release)
    _say_types(q, config, release)
    _say_optimizer(q, config)
    _say_offload(q, config)
    config["gradient_clipping"] = 1.0
    return config


def _check_schedule(q: Quantities) -> None:
    q.only("vpp", [1], why="its pipeline engine has one stage on each rank")
    q.only("schedule", ["1f1b"], why="its pipeline engine runs 1F1B alone")
    for field in ("sequence_parallel", "overlap.p2p", "overlap.moe_all_to_all"):
        q.only(field, [False], why="it has no key for it", nearest={field: False})


def _say_sharding(q: Quantities, config: dict[str, Any], release: str) -> None:
    zero = q.peek("zero")
    # Stages 0 and 1 reduce once, at the boundary of accumulation; 2 and 3 after every micro-batch (runtime/engine.py, no_sync).
    q.only("grad_sync", ["each" if zero >= 2 else "last"], why=f"its engine reduces so at stage {zero}")
    if zero == 0:
        q.only("overlap.grad_reduce", [False], why="without ZeRO the engine reduces after the backward pass")
    gathers = q.only(
        "overlap.param_gather", [True, False] if zero == 3 else [False], why="only stage 3 gathers ahead of use"
    )
    if zero == 3:
        put(config, keys.PREFETCH, keys.PREFETCHED[bool(gathers)])
    # MiCS shards over groups; runtime/config.py refuses its key from 0.19.7 on.
    whole = q.peek("dp") * q.peek("cp")
    shard = q["zero_shard_size"]
    if q.matters("zero_shard_size") and shard != whole:
        if not precedes(release, "0.19.7") or zero != 3:
            raise q.refusal("zero_shard_size", why="it shards over all replicas", nearest={"zero_shard_size": whole})
        put(config, "zero_optimization.mics_shard_size", shard)
    for key, value, when in keys.FIXED:
        if when(q):
            put(config, key, value)


def _say_types(q: Quantities, config: dict[str, Any], release: str) -> None:
    why = "its JSON has no fp8, which would have to be put into the model's code"
    precision = q.only("training.precision", ["bf16", "fp16", "fp32"], why=why)
    q.only("training.param_dtype", [precision], why="its engine stores parameters in the type that it computes in")
    if precision != "fp32":
        put(config, f"{precision}.enabled", True)
    whole = "none" if precision == "fp32" else "fp32"
    masters = [whole, precision] if precision != "fp32" and q.peek("zero") >= 1 else [whole]
    main = q.only(
        "training.main_param_dtype", masters, why="ZeRO keeps main parameters in fp32, or in the type it computes in"
    )
    if main == precision:
        if precedes(release, keys.MASTERS_SINCE) and precision == "bf16":
            why = f"{keys.MASTERS[precision]} is known from {keys.MASTERS_SINCE} on"
            raise q.refusal("training.main_param_dtype", why=why, nearest={"training.main_param_dtype": "fp32"})
        put(config, keys.MASTERS[precision], True)
    # runtime/engine.py (_do_optimizer_sanity_check): unequal types are not implemented without ZeRO.
    gradients = [precision] if q.peek("zero") == 0 or main == precision else [precision, "fp32"]
    grad = q.only(
        "training.grad_dtype",
        gradients,
        why="without ZeRO, and beside masters of the same type, gradients have the parameters' type",
    )
    put(config, keys.GRADIENTS, grad)
    config[keys.REDUCTION] = q.only(
        "training.grad_reduce_dtype", ["bf16", "fp16", "fp32"], why="communication_data_type has no such type"
    )
    state = q["training.optimizer_state_dtype"]
    if q.peek("training.optimizer") == "adam-8bit":
        q.only("training.optimizer_state_dtype", ["fp8"], why="bitsandbytes keeps the state in 8 bits")
    elif main == "bf16" and state == "bf16":
        put(config, keys.STATES, True)
    else:
        q.only("training.optimizer_state_dtype", ["fp32"], why="the optimizer keeps its state in fp32")


def _say_optimizer(q: Quantities, config: dict[str, Any]) -> None:
    optimizer = q.only(
        "training.optimizer", [*keys.OPTIMIZERS, "adam-8bit"], why="the launch's script hands over no such optimizer"
    )
    # bitsandbytes' optimizer is an object that the script makes, so that the file names none.
    kind = q["compression.kind"]
    if kind in keys.ONEBIT:
        name, freeze = keys.ONEBIT[kind]
        parameters = {
            "lr": 1e-5,
            freeze: q["compression.freeze_steps"],
            "comm_backend_name": "nccl",
            "cuda_aware": False,
        }
        if kind == "zero-one":
            parameters[keys.LOCAL_STEPS] = q["compression.sync_every"]
        put(config, keys.OPTIMIZER, name)
        put(config, keys.OPTIMIZER_PARAMETERS, parameters)
    elif optimizer in keys.OPTIMIZERS:
        put(config, keys.OPTIMIZER, keys.OPTIMIZERS[optimizer])
        put(config, keys.OPTIMIZER_PARAMETERS, {"lr": 1e-5})
    if optimizer in keys.MOMENTA:
        put(config, keys.MOMENTUM, keys.MOMENTA[optimizer])
    if optimizer == "muon":
        put(config, keys.SCATTER, False)
    if optimizer != "adam":
        config[keys.SUPPORT] = (
            True  # ZeRO refuses an optimizer that it does not list (zero/utils.py) unless it is told to take it
        )


def _say_offload(q: Quantities, config: dict[str, Any]) -> None:
    fraction, zero = q["offload.optimizer_fraction"], q.peek("zero")
    if fraction:
        put(config, keys.OPTIMIZER_DEVICE, q["offload.optimizer_device"] or "cpu")
        _say_overlap(q, config)
        if zero == 3:
            put(config, keys.OPTIMIZER_RATIO, fraction)
        elif fraction != 1:
            raise q.refusal(
                "offload.optimizer_fraction",
                why="only stage 3 has a ratio",
                nearest={"offload.optimizer_fraction": 1.0},
            )
    if q["offload.parameters"]:
        put(config, keys.PARAMETER_DEVICE, q["offload.parameter_device"] or "cpu")
    for device, path in zip((keys.OPTIMIZER_DEVICE, keys.PARAMETER_DEVICE), keys.PATHS, strict=True):
        # The engine refuses the device without a folder on the drives.
        section, name = device.split(".")[1:]
        if config["zero_optimization"].get(section, {}).get(name) == "nvme":
            put(config, path, "/local_nvme")
    layers = q["offload.activation_layers"]
    if layers:
        every = max(q.plan.layers_per_stage)
        if layers != every:
            why = "cpu_checkpointing moves the inputs of all checkpointed layers"
            raise q.refusal("offload.activation_layers", why=why, nearest={"offload.activation_layers": every})
        put(config, keys.CPU_CHECKPOINTS, True)


def _say_overlap(q: Quantities, config: dict[str, Any]) -> None:
    overlap = q["offload.optimizer_overlap"]
    if overlap == "pipelined":
        for key in keys.PIPELINES:
            put(config, key, True)
    elif overlap == "zenflow":
        for name, value in keys.ZENFLOW_SETTINGS.items():
            put(config, f"{keys.ZENFLOW}.{name}", value)


def said_units(q: Quantities) -> int:
    """Layers of each unit that is recomputed: one without a pipeline.

    Raises:
        FieldNotExpressibleError: units are cut in another way.
    """
    q.only("recompute_method", [None, "uniform"], why="it recomputes units of equal numbers of layers")
    q.only(
        "recompute_per_stage",
        [None, ()],
        why="the interval is the same on every stage",
        nearest={"recompute_per_stage": None},
    )
    if q.peek("pp") == 1:
        q.only("recompute_num_layers", [None], why="without a pipeline transformers recomputes single layers")
    q["layers_per_stage"]  # the rules admit DeepSpeed's own split alone, which the script's partition method makes
    return int(q["recompute_num_layers"] or 1)
