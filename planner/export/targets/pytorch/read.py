"""Reads train_plan.json of the generated PyTorch script."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.errors import InvalidInputError
from planner.export.formats.documents import loaded_json
from planner.export.settings import InputFile, Settings
from planner.export.spellings import Understood, peeked, taken, whole
from planner.export.target import RowParts
from planner.export.targets.pytorch import keys

_OF_NO_PLAN = ("--tokens", "--steps", "--mock-data")
"""Arguments of the script."""


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether a file is a train_plan.json of the script."""
    for file in files:
        if file.path.endswith(".json"):
            try:
                document = loaded_json(file)
            except InvalidInputError:
                continue
            if isinstance(document, dict) and isinstance(document.get("mesh"), dict) and "dp_shard" in document["mesh"]:
                return True
    return False


def read(settings: Settings) -> RowParts:
    """What train_plan.json says."""
    found = Understood(taken(settings, keys.SPELLINGS))
    row = found.fields
    row["training.framework"] = "fsdp"
    replicas, shards = (
        whole(settings, keys.REPLICAS, "dp", "zero_shard_size"),
        whole(settings, keys.SHARDS, "dp", "zero_shard_size"),
    )
    if replicas is not None and shards is not None:
        row["dp"] = replicas * shards
        row["zero_shard_size"] = shards * row.get("cp", 1) if row.get("zero", 0) else None
        found.world_size = replicas * shards * row.get("pp", 1) * row.get("cp", 1) * row.get("tp", 1)
    if row.get("sync.sync_every") is not None:
        row["sync.method"] = "local-sgd"
        settings.take(keys.LOCAL_RANKS, "sync.method")
    stages, pp = row.get("layers_per_stage"), row.get("pp", 1)
    if stages:
        row["model.num_layers"] = sum(stages)
        row["vpp"] = len(stages) // pp
        if pp == 1:
            row["layers_per_stage"] = None
    if pp == 1:
        row["schedule"] = None
    if row.get("cp", 1) == 1:
        row["cp_comm"] = None
    if row.get("tp", 1) == 1:
        row["sequence_parallel"] = None
    if settings.value(keys.OFFLOAD, "offload.parameters", "offload.optimizer_fraction") is True:
        row["offload.parameters"], row["offload.optimizer_fraction"] = True, 1.0
    average = {name: settings.value(f"{keys.AVERAGE}.{name}", "training.ema") for name in ("device", "decay")}
    if average["device"] is not None:
        row["training.ema"] = average
    _types(settings, row)
    _model(settings, row)
    settings.pass_over(*_OF_NO_PLAN)
    return found.parts()


def _types(settings: Settings, row: dict[str, object]) -> None:
    computed = settings.value(keys.COMPUTE, "training.precision")
    row["training.precision"] = next((plans for plans, files in keys.PRECISIONS.items() if files == computed), None)
    recipe = settings.value(keys.FLOAT8, "training.precision", "training.fp8_recipe")
    if recipe is not None:
        row["training.precision"], row["training.fp8_recipe"] = "fp8", recipe
    attention = settings.value(keys.ATTENTION, "training.attention", "training.attention_kernel")
    row["training.attention"] = "math" if attention == "math" else "flash"
    row["training.attention_kernel"] = next(
        (plans for plans, files in keys.KERNELS.items() if files == attention), None
    )
    row["training.dropout"] = settings.value(keys.DROPOUT, "training.dropout")
    row["training.expandable_segments"] = "expandable_segments:True" in str(
        settings.value("$PYTORCH_ALLOC_CONF", "training.expandable_segments")
        or settings.value("$PYTORCH_CUDA_ALLOC_CONF", "training.expandable_segments")
    )
    if row.get("training.grad_reduce_dtype") is None:
        row.pop("training.grad_reduce_dtype", None)


def _model(settings: Settings, row: dict[str, object]) -> None:
    # transformers' model stands in a file of its own, which the row can hold as it is.
    config = next((file for file in settings.files if file.path.endswith("config.json")), None)
    if config is not None:
        row["model.hf_config"] = loaded_json(config)
        for setting in settings:
            if setting.file == config.path:
                settings.take(setting.key, "model.hf_config")
        row.pop("model.num_layers", None)
        settings.take(f"{keys.MODEL}.vocab_size", "model.vocab_size")
        return
    for name in keys.SHAPE:
        row[f"model.{name}"] = settings.value(f"{keys.MODEL}.{name}", f"model.{name}")
    norm = settings.value(f"{keys.MODEL}.qk_norm", "model.qk_norm")
    row["model.qk_norm"] = None if norm is None else "per_head" if norm else "none"
    settings.take(f"{keys.MODEL}.rope_theta")  # it costs nothing, and no field says it
    if peeked(settings, f"{keys.MODEL}.qkv_bias") is not None:
        qkv = settings.value(f"{keys.MODEL}.qkv_bias", "model.attention_bias")
        out = settings.value(f"{keys.MODEL}.attention_out_bias", "model.attention_bias")
        row["model.attention_bias"] = qkv if qkv == out else "qkv" if qkv else "out"
