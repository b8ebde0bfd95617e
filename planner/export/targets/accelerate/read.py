"""Accelerate's YAML, and what the scripts beside it say, as a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from planner.export.hf import adapter_file, fsdp, train_file
from planner.export.hf.model_file import read_model
from planner.export.settings import InputFile, Settings
from planner.export.spellings import Understood, peeked, taken, whole
from planner.export.target import RowParts
from planner.export.targets.accelerate import catalogue as keys
from planner.export.targets.deepspeed.read import read_config as read_deepspeed

_IS_OURS = re.compile(rf"^{keys.TYPE}\s*:", re.MULTILINE)


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether one of the files is Accelerate's, which must say its `distributed_type`."""
    return any(file.path.endswith((".yaml", ".yml")) and _IS_OURS.search(file.content) for file in files)


def read(settings: Settings) -> RowParts:
    """What the files say of an Accelerate run."""
    settings.rename(keys.OLDER)
    for key, usual in keys.USUAL.items():
        if peeked(settings, key) in usual:
            settings.pass_over(key)
    kind = peeked(settings, keys.TYPE)
    framework = keys.TYPES.get(kind, "") if isinstance(kind, str) else ""
    found: dict[str, Any] = {}
    if framework:
        settings.take(keys.TYPE, "training.framework", "zero")
        found["training.framework"] = framework
    if not framework:
        settings.doubt(keys.TYPE, "training.framework", "zero")
    if framework == "deepspeed":
        found |= _read_deepspeed(settings)
    else:
        found |= _read_fsdp(settings, kind)
    scripted, ranks = train_file.read_train(settings)
    # A script's checkpoints and FSDP's are one thing in the plan, and either may be on.
    if found.get("recompute") == "full":
        scripted.pop("recompute", None)
    found |= scripted | fsdp.read_optimizer(settings)
    found |= {field: value for field, value in taken(settings, (keys.DYNAMO,)).items() if value}
    adapter = adapter_file.read_adapter(settings)
    if adapter is not None:
        found["training.adapter"] = adapter
    for key in keys.WITHOUT_COST:
        settings.take(key)
    processes = settings.value(keys.PROCESSES, "dp")
    settings.take(keys.MACHINES, "dp")
    _read_batch(settings, found)
    parts = Understood(found).parts()
    world_size = processes if isinstance(processes, int) else ranks
    steps = whole(settings, keys.ACCUMULATION, "num_micro_batches") or whole(
        settings, f"deepspeed_config.{keys.ACCUMULATION}", "num_micro_batches"
    )
    notes = (fsdp.FIRST_NOTE,) if framework == "fsdp" and fsdp.is_first(settings, keys.FSDP) else ()
    return RowParts(
        parts.training, parts.strategy, read_model(settings), world_size, num_micro_batches=steps, notes=notes
    )


def _read_deepspeed(settings: Settings) -> dict[str, Any]:
    beside = peeked(settings, keys.DEEPSPEED_FILE)
    inside = any(each.key.startswith("zero_optimization.") for each in settings)
    if beside is not None and not inside and not settings.is_given(beside):
        # Accelerate takes the file's settings and not those beside its name (utils/dataclasses.py, DeepSpeedPlugin).
        settings.doubt(
            keys.DEEPSPEED_FILE, "zero", "training.precision", "offload.optimizer_fraction", "offload.parameters"
        )
        return {}
    settings.take(keys.DEEPSPEED_FILE)
    found = read_deepspeed(settings)
    if beside is None:
        stage = settings.value("deepspeed_config.zero_stage", "zero")
        found |= {"zero": stage} if isinstance(stage, int) else {}
        for field, key, words in (
            ("offload.optimizer_fraction", "deepspeed_config.offload_optimizer_device", {"cpu": 1.0, "none": 0.0}),
            ("offload.parameters", "deepspeed_config.offload_param_device", {"cpu": True, "none": False}),
        ):
            if (device := peeked(settings, key)) in words:
                settings.take(key, field)
                found[field] = words[device]
        settings.pass_over("deepspeed_config.gradient_clipping")
        mixed = peeked(settings, keys.MIXED)
        if mixed in ("bf16", "fp16"):
            settings.take(keys.MIXED, "training.precision")
            found["training.precision"] = mixed
    settings.take(fsdp.DTYPE, "training.param_dtype")
    return found


def _read_fsdp(settings: Settings, kind: Any) -> dict[str, Any]:
    mixed = peeked(settings, keys.MIXED)
    found: dict[str, Any] = {}
    if mixed in (None, "no", "bf16", "fp16"):
        settings.take(keys.MIXED, "training.precision")
        found |= fsdp.read_types(settings, mixed or "no")
    found |= fsdp.read_shards(settings, keys.FSDP) if kind == "FSDP" else {"zero": 0}
    offloads = settings.value(keys.FSDP + fsdp.CHECKPOINTS_OFFLOAD, "offload.activation_layers")
    layers = peeked(settings, "num_hidden_layers")
    if offloads is True and isinstance(layers, int):
        found["offload.activation_layers"] = layers
    cp, shard = settings.value(keys.CONTEXT, "cp", default=1), settings.value(keys.SHARDED, "zero_shard_size")
    replicas = settings.value(keys.REPLICATED, "dp")
    if isinstance(cp, int) and isinstance(shard, int):
        found |= {"cp": cp, "zero_shard_size": shard * cp, "dp": shard * (replicas or 1)}
        found |= taken(settings, (keys.TRANSPORTS,))
    # Sizes that do nothing are understood; others, such as Ulysses' sp_size, stay unknown.
    for part, value in keys.ALONE.items():
        if peeked(settings, keys.MESH + part) == value:
            settings.take(keys.MESH + part)
    tp = peeked(settings, keys.MESH + "tp_size")
    if isinstance(tp, int) and tp > 1:
        found["tp"] = settings.value(keys.MESH + "tp_size", "tp")
    each = settings.value(fsdp.EACH, "grad_sync")
    if isinstance(each, bool):
        found["grad_sync"] = "each" if each else "last"
    return found


def _read_batch(settings: Settings, found: dict[str, Any]) -> None:
    micro, steps = (
        settings.value(keys.BATCH, "micro_batch_size"),
        settings.value(keys.ACCUMULATION, "num_micro_batches"),
    )
    if isinstance(micro, int):
        found["micro_batch_size"] = micro
    processes = peeked(settings, keys.PROCESSES)
    if isinstance(micro, int) and isinstance(steps, int) and isinstance(processes, int):
        ways = found.get("tp", 1) * found.get("cp", 1)
        found.setdefault("training.global_batch_size", micro * steps * (processes // ways))
