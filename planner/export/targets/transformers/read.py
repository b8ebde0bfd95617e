"""The arguments of transformers' Trainer, and what the scripts beside them say, as a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.export.hf import adapter_file, distributed_config, fsdp, train_file
from planner.export.hf.model_file import holds, read_model
from planner.export.hf.trainer_options import LENGTH_NOTE, LENGTHS, as_argument
from planner.export.launchers.launch_line import read_launch
from planner.export.settings import InputFile, Setting, Settings
from planner.export.spellings import Understood, peeked, taken
from planner.export.target import RowParts
from planner.export.targets.deepspeed.read import read_config as read_deepspeed
from planner.export.targets.transformers import catalogue as keys

_OPTION = re.compile(
    r"(^|\s)--per[-_]device[-_]train[-_]batch[-_]size\b|^per_device_train_batch_size\s*:", re.MULTILINE
)


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether one of the files holds the Trainer's arguments."""
    return holds(files, "per_device_train_batch_size", "output_dir") or any(
        _OPTION.search(file.content) for file in files
    )


def read(settings: Settings) -> RowParts:
    """What the files say of a run of transformers' Trainer."""
    _restate(settings)
    # The configuration may stand in a file beside the arguments, or in a text inside the script.
    inside = any(each.key.startswith("zero_optimization.") for each in settings)
    deepspeed = inside or peeked(settings, keys.DEEPSPEED) not in (None, "")
    found: dict[str, Any] = {"training.framework": "deepspeed" if deepspeed else "fsdp"}
    mixed = next((name for name in ("bf16", "fp16") if settings.value(name, "training.precision") is True), "no")
    settings.take("bf16", "training.precision")
    scripted, ranks = train_file.read_train(settings)
    ranks = ranks or read_launch(settings)
    scripted |= taken(settings, (keys.CHECKPOINTING,))
    if deepspeed:
        found |= _read_deepspeed(settings, mixed, inside=inside)
    else:
        found |= _read_fsdp(settings, mixed)
        found |= distributed_config.read(settings)
        if found.get("recompute") == "full":
            scripted.pop("recompute", None)
    found |= scripted | taken(settings, keys.BATCH) | fsdp.read_optimizer(settings) | _read_adapter(settings)
    steps = settings.value(keys.ACCUMULATION, "num_micro_batches", default=1)
    micro = found.get("micro_batch_size")
    if isinstance(ranks, int) and isinstance(steps, int) and isinstance(micro, int):
        # Tensor-parallel ranks train on the same sequences.
        found.setdefault("training.global_batch_size", micro * steps * (ranks // found.get("tp", 1)))
    notes = [fsdp.FIRST_NOTE] if not deepspeed and fsdp.is_first(settings, keys.FSDP_CONFIG) else []
    length = next((each for each in LENGTHS if type(peeked(settings, each)) is int), None)
    if length is not None and "training.seq_length" not in found:
        found["training.seq_length"] = settings.value(length, "training.seq_length")
        notes.append(LENGTH_NOTE)
    settings.pass_over(*keys.WITHOUT_COST, *keys.OF_DATA)
    for key, values in keys.SAYS_NOTHING.items():
        if settings.has(key) and peeked(settings, key) in values:
            settings.pass_over(key)
    parts = Understood(found).parts()
    micro_batches = steps if isinstance(steps, int) else None
    return RowParts(
        parts.training, parts.strategy, read_model(settings), ranks, num_micro_batches=micro_batches, notes=tuple(notes)
    )


def _read_deepspeed(settings: Settings, mixed: str, *, inside: bool) -> dict[str, Any]:
    settings.take(fsdp.DTYPE, "training.param_dtype")
    found: dict[str, Any] = {}
    if inside or settings.is_given(peeked(settings, keys.DEEPSPEED)):
        settings.take(keys.DEEPSPEED, "training.framework")
        found |= read_deepspeed(settings)
    else:
        settings.doubt(keys.DEEPSPEED, "zero", "offload.optimizer_fraction", "offload.parameters")
    if mixed != "no" or "training.precision" not in found:
        found["training.precision"] = mixed if mixed != "no" else "fp32"
    return found


def _read_adapter(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if peeked(settings, keys.PURE) is True:
        settings.take(keys.PURE, "training.precision", "training.param_dtype")
        found |= {"training.precision": "bf16", "training.param_dtype": "bf16"}
    adapter = adapter_file.read_adapter(settings) or _read_finetuning(settings)
    return found if adapter is None else {**found, "training.adapter": adapter}


def _read_finetuning(settings: Settings) -> dict[str, Any] | None:
    """The adapter of LLaMA-Factory's arguments, with its defaults (hparams/finetuning_args.py)."""
    # Other ways of storing the base (gptq, awq, hqq) have kernels that are not modelled, so that they stay unknown.
    kind = peeked(settings, keys.ADAPTED)
    bits, method = peeked(settings, keys.BITS), peeked(settings, "quantization_method")
    stored = {4: "nf4", 8: "int8", None: None}.get(bits, "") if method in (None, "bnb", "bitsandbytes") else ""
    if kind != "lora" or stored == "":
        if kind not in (None, "full"):
            settings.doubt(keys.ADAPTED, "training.adapter")
        return None
    settings.take(keys.ADAPTED, "training.adapter")
    settings.pass_over("lora_alpha", "loraplus_lr_ratio")
    targets = settings.value("lora_target", "training.adapter", default="all")
    rank = settings.value("lora_rank", "training.adapter", default=8)
    adapter: dict[str, Any] = {
        "rank": rank,
        "target_modules": "all-linear" if targets == "all" else str(targets).replace(" ", "").split(","),
    }
    if (dropout := settings.value("lora_dropout", "training.adapter")) is not None:
        adapter["dropout"] = dropout
    if stored:
        settings.take(keys.BITS, "training.adapter")
        settings.take("quantization_method", "training.adapter")
        adapter[adapter_file.QUANTIZED] = stored
    return adapter


def _restate(settings: Settings) -> None:
    settings.restate(lambda each: as_argument(each, keys.NAMES))
    settings.restate(_attention)


def _attention(setting: Setting) -> Setting:
    if setting.key != "flash_attn" or setting.value not in keys.ATTENTIONS:
        return setting
    return replace(setting, key="attn_implementation", value=keys.ATTENTIONS[setting.value])


def _read_fsdp(settings: Settings, mixed: str) -> dict[str, Any]:
    found = fsdp.read_types(settings, mixed)
    # Up to 5.19 this may be a text such as "full_shard auto_wrap" (training_args.py, _apply_legacy_fsdp_to_config).
    named = settings.value(keys.FSDP, "zero")
    if named not in (None, False, "", ()):
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
