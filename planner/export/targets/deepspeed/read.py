"""DeepSpeed's JSON, and what the scripts beside it say, as a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.export.hf import adapter_file, train_file
from planner.export.hf.model_file import holds, read_model
from planner.export.settings import InputFile, Setting, Settings
from planner.export.spellings import Understood, peeked, taken, whole
from planner.export.target import RowParts
from planner.export.targets.deepspeed import catalogue as keys


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether one of the files is DeepSpeed's."""
    return holds(files, "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")


def read(settings: Settings) -> RowParts:
    """What the files say of a DeepSpeed run."""
    found = read_config(settings)
    scripted, ranks = train_file.read_train(settings)
    found |= scripted
    adapter = adapter_file.read_adapter(settings)
    if adapter is not None:
        found["training.adapter"] = adapter
    parts = Understood(found).parts()
    training = {"framework": "deepspeed", **parts.training}
    return RowParts(training, parts.strategy, read_model(settings), ranks, num_micro_batches=_accumulated(settings))


def _accumulated(settings: Settings) -> int | None:
    """Micro-batches of each replica in a step; runtime/config.py (_set_batch_related_parameters)."""
    if peeked(settings, keys.ACCUMULATION) is not None:
        return whole(settings, keys.ACCUMULATION, "num_micro_batches")
    # Of one size alone DeepSpeed makes one micro-batch; with both the rest follows.
    sizes = [peeked(settings, spelling.key) for spelling in keys.BATCH]
    return 1 if sum(type(size) is int for size in sizes) == 1 and None in sizes else None


def read_config(settings: Settings) -> dict[str, Any]:
    """The fields that `ds_config.json` says, by name."""
    settings.rename(keys.OLDER)
    settings.restate(_offload_switch)
    found: dict[str, Any] = {"zero": 0, **taken(settings, keys.ROWS), **_read_types(settings)}
    _read_optimizer(settings, found)
    _read_offload(settings, found)
    _read_ahead(settings, found)
    for key, value, _when in keys.FIXED:
        if peeked(settings, key) in (value, "auto"):
            settings.take(key)
    for key in (keys.EXPERTS, keys.PARTITION):
        settings.take(key)
    # Whole sections are taken: a report or a checkpoint has many settings, and none of them has a cost here.
    for key in keys.WITHOUT_COST:
        settings.take_under(key)
    _pass_over_auto(settings)
    return found


def _offload_switch(setting: Setting) -> Setting:
    device = keys.CPU_OFFLOADS.get(setting.key)
    if device is None or not isinstance(setting.value, bool):
        return setting
    return replace(setting, key=device, value="cpu" if setting.value else "none")


def _pass_over_auto(settings: Settings) -> None:
    """Takes what Hugging Face's integration fills in from its own arguments: such a value says nothing by itself."""
    for setting in list(settings):
        if setting.value == "auto" and setting.file.endswith(".json"):
            settings.take_one(setting)


def _read_types(settings: Settings) -> dict[str, Any]:
    # Where nothing is said, DeepSpeed computes in fp32 (and shards nothing).
    enabled = [peeked(settings, f"{precision}.enabled") for precision in ("bf16", "fp16")]
    found: dict[str, Any] = {} if "auto" in enabled else {"training.precision": "fp32"}
    for precision, says in zip(("bf16", "fp16"), enabled, strict=True):
        if isinstance(says, bool):
            settings.take(f"{precision}.enabled", "training.precision")
        elif says not in (None, "auto"):
            settings.doubt(f"{precision}.enabled", "training.precision")
        if says is True:
            found["training.precision"] = precision
    if settings.value(keys.MASTERS.get(found.get("training.precision", ""), ""), "training.main_param_dtype") is True:
        found["training.main_param_dtype"] = found["training.precision"]
    if settings.value(keys.STATES, "training.optimizer_state_dtype") is True:
        found["training.optimizer_state_dtype"] = "bf16"
    for field, key in (("training.grad_dtype", keys.GRADIENTS), ("training.grad_reduce_dtype", keys.REDUCTION)):
        if peeked(settings, key) in ("bf16", "fp16", "fp32"):
            found[field] = settings.value(key, field)
    return found


def _read_ahead(settings: Settings, found: dict[str, Any]) -> None:
    prefetched = peeked(settings, keys.PREFETCH)
    if prefetched in keys.PREFETCHED.values() and not isinstance(prefetched, bool):
        settings.take(keys.PREFETCH, "overlap.param_gather")
        found["overlap.param_gather"] = prefetched > 0
    interval = peeked(settings, keys.INTERVAL)
    if isinstance(interval, int) and interval > 0:
        settings.take(keys.INTERVAL, "recompute_method", "recompute_num_layers")
        found |= {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": interval}
    elif interval == 0:
        settings.take(keys.INTERVAL, "recompute")


def _read_optimizer(settings: Settings, found: dict[str, Any]) -> None:
    # Adam is AdamW in DeepSpeed unless adam_w_mode says otherwise; both keep the same state (runtime/engine.py).
    named = peeked(settings, keys.OPTIMIZER)
    words = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "lion": "lion", "muon": "muon"}
    if isinstance(named, str) and named.lower() in words:
        settings.take(keys.OPTIMIZER, "training.optimizer")
        found["training.optimizer"] = words[named.lower()]
        momentum = peeked(settings, keys.MOMENTUM)
        if isinstance(momentum, int | float) and named.lower() in ("sgd", "muon"):
            settings.take(keys.MOMENTUM, "training.optimizer")
            if named.lower() == "sgd" and momentum:
                found["training.optimizer"] = "sgd-momentum"
        if named.lower() == "muon" and peeked(settings, keys.SCATTER) is False:
            settings.take(keys.SCATTER, "training.optimizer")
    elif kind := next((kind for kind, (name, _) in keys.ONEBIT.items() if name == named), None):
        settings.take(keys.OPTIMIZER, "training.optimizer", "compression.kind")
        found["training.optimizer"], found["compression.kind"] = "adam", kind
        frozen = f"{keys.OPTIMIZER_PARAMETERS}.{keys.ONEBIT[kind][1]}"
        found["compression.freeze_steps"] = settings.value(frozen, "compression.freeze_steps")
        if kind == "zero-one":
            local = f"{keys.OPTIMIZER_PARAMETERS}.{keys.LOCAL_STEPS}"
            found["compression.sync_every"] = settings.value(local, "compression.sync_every")
    elif named is None and peeked(settings, keys.SUPPORT) is True and peeked(settings, "world_size") is not None:
        found["training.optimizer"] = "adam-8bit"


def _read_offload(settings: Settings, found: dict[str, Any]) -> None:
    device = peeked(settings, keys.OPTIMIZER_DEVICE)
    if device in ("cpu", "nvme", "none"):
        settings.take(keys.OPTIMIZER_DEVICE, "offload.optimizer_fraction", "offload.optimizer_device")
        ratio = settings.value(keys.OPTIMIZER_RATIO, "offload.optimizer_fraction", default=1.0)
        found["offload.optimizer_fraction"] = float(ratio) if device != "none" else 0.0
    if device == "nvme":
        found["offload.optimizer_device"] = device
    piped = [settings.value(key, "offload.optimizer_overlap") for key in keys.PIPELINES]
    # Either of the two chooses the swapper that pipelines both (offload_config.py, set_pipeline).
    if device == "nvme" and True in piped:
        found["offload.optimizer_overlap"] = "pipelined"
    if settings.take_under(keys.ZENFLOW, "offload.optimizer_overlap") and device == "cpu":
        found["offload.optimizer_overlap"] = "zenflow"
    device = peeked(settings, keys.PARAMETER_DEVICE)
    if device in ("cpu", "nvme", "none"):
        settings.take(keys.PARAMETER_DEVICE, "offload.parameters", "offload.parameter_device")
        found["offload.parameters"] = device != "none"
    if device == "nvme":
        found["offload.parameter_device"] = device
