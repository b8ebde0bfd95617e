"""The arguments of transformers' Trainer, and what the scripts beside them say, as a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.export.hf import adapter_file, fsdp, train_file
from planner.export.hf.model_file import holds, read_model
from planner.export.settings import InputFile, Settings
from planner.export.spellings import Understood, peeked, taken
from planner.export.target import RowParts
from planner.export.targets.deepspeed.read import read_config as read_deepspeed
from planner.export.targets.transformers import catalogue as keys


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether one of the files holds the Trainer's arguments."""
    return holds(files, "per_device_train_batch_size", "output_dir")


def read(settings: Settings) -> RowParts:
    """What the files say of a run of transformers' Trainer."""
    deepspeed = peeked(settings, keys.DEEPSPEED) is not None or settings.has(
        keys.DEEPSPEED + ".zero_optimization.stage"
    )
    found: dict[str, Any] = {"training.framework": "deepspeed" if deepspeed else "fsdp"}
    mixed = next((name for name in ("bf16", "fp16") if settings.value(name, "training.precision") is True), "no")
    settings.take("bf16", "training.precision")
    scripted, ranks = train_file.read_train(settings)
    scripted |= taken(settings, (keys.CHECKPOINTING,))
    if deepspeed:
        settings.take(keys.DEEPSPEED, "training.framework")
        settings.take(fsdp.DTYPE, "training.param_dtype")
        found |= read_deepspeed(settings)
        if mixed != "no" or "training.precision" not in found:
            found["training.precision"] = mixed if mixed != "no" else "fp32"
    else:
        found |= _read_fsdp(settings, mixed)
        if found.get("recompute") == "full":
            scripted.pop("recompute", None)
    found |= scripted | taken(settings, (*keys.BATCH, fsdp.OPTIMIZERS))
    adapter = adapter_file.read_adapter(settings)
    if adapter is not None:
        found["training.adapter"] = adapter
    steps, micro = (
        settings.value(keys.ACCUMULATION, "training.global_batch_size", default=1),
        found.get("micro_batch_size"),
    )
    if isinstance(ranks, int) and isinstance(steps, int) and isinstance(micro, int):
        found.setdefault("training.global_batch_size", micro * steps * ranks)
    notes = (fsdp.FIRST_NOTE,) if not deepspeed and fsdp.is_first(settings, keys.FSDP_CONFIG) else ()
    for key in keys.WITHOUT_COST:
        settings.take(key)
    parts = Understood(found).parts()
    return RowParts(
        parts.training,
        parts.strategy,
        read_model(settings),
        ranks,
        num_micro_batches=steps if isinstance(steps, int) else None,
        notes=notes,
    )


def _read_fsdp(settings: Settings, mixed: str) -> dict[str, Any]:
    found = fsdp.read_types(settings, mixed)
    # Up to 5.19 this may be a text such as "full_shard auto_wrap" (training_args.py, _apply_legacy_fsdp_to_config).
    named = settings.value(keys.FSDP, "zero")
    if named not in (None, False, ""):
        found |= fsdp.read_shards(settings, keys.FSDP_CONFIG)
        if isinstance(named, str) and "shard_grad_op" in named:
            found["zero"] = 2
        offloads = settings.value(keys.FSDP_CONFIG + keys.OFFLOAD, "offload.parameters", "offload.optimizer_fraction")
        if isinstance(offloads, bool):
            found |= {"offload.parameters": offloads, "offload.optimizer_fraction": float(offloads)}
    else:
        found["zero"] = 0
    each = settings.value(keys.EACH, "grad_sync")
    if isinstance(each, bool):
        found["grad_sync"] = "each" if each else "last"
    return found
