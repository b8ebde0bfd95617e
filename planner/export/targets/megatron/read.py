"""A row from Megatron-LM's arguments.

Where an option is not there, the parser's own default is stated, which is seldom what recipes say: without
--use-distributed-optimizer nothing is sharded. Options that no plan decides are taken without a field; every other one that
is not understood, or whose value cannot be read, stays with the unknown ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from planner.export.settings import InputFile, Settings
from planner.export.target import RowParts
from planner.export.targets.megatron.environment import ALLOCATOR, CONNECTIONS
from planner.export.targets.megatron.layout import layers_of_layout
from planner.export.targets.megatron.names import ALL, Name, Values
from planner.export.targets.megatron.rows_of_settings import model_row, strategy_row, training_row

OF_NO_PLAN = re.compile(
    r"--(lr|min-lr|weight-decay|adam-|clip-grad|data-|train-data|valid-data|test-data|split|tokenizer-|vocab-file|merge-file|save|load|log-"
    r"|eval-|train-|exit-|tensorboard|wandb-|init-method-std|seed|distributed-|no-load|no-save|rotary-|norm-epsilon|use-mcore-models"
    r"|mock-data|num-workers|ckpt-|dist-ckpt|async-save|override-opt|use-checkpoint|finetune|timing-|one-logger|use-rope-scaling"
    r"|rope-|manual-gc|moe-aux-loss|moe-z-loss|moe-router-load-balancing|moe-router-dtype|moe-router-topk-scaling|moe-router-bias-update"
    r"|moe-router-pre-softmax|mtp-loss|attention-softmax-in-fp32|reset-|eod-mask-loss|no-create-attention-mask|no-mmap|legacy-tokenizer"
    r"|master-|rdzv-|node-rank|max-restarts|standalone|tee|redirects)"
)
"""Options on data, schedule, checkpoints, logs and the launcher's meeting point, by how they begin."""
_RANKS = ("--nproc-per-node", "--nproc_per_node")
_NODES = ("--nnodes", "#SBATCH --nodes", "#SBATCH -N")


def read(settings: Settings) -> RowParts:
    """What the arguments say, in the contract's names."""
    values = _values(settings)
    world_size = _world_size(settings)
    training = training_row(values)
    allocator = [
        settings.value(f"${name}", "training.expandable_segments") for name in (ALLOCATOR, "PYTORCH_ALLOC_CONF")
    ]
    training["expandable_segments"] = any("expandable_segments:True" in str(each) for each in allocator)
    settings.take(f"${CONNECTIONS}")
    _take_others(settings)
    return RowParts(
        training=training, strategy=strategy_row(values, world_size=world_size), model=model_row(values), world_size=world_size
    )  # fmt: skip


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether files give options that Megatron-LM alone has."""
    return any(re.search(r"--(tensor-model-parallel-size|num-attention-heads|micro-batch-size)\b", each.content) for each in files)  # fmt: skip


def _values(settings: Settings) -> Values:
    """The settings by Megatron Core's names; those that can be read are taken."""
    given = {each.key: each.value for each in settings if not each.is_open}
    values: Values = {}
    for name in ALL:
        if name.option not in given:
            continue
        value = _read_value(name, given[name.option])
        if value is None:
            continue
        values[name.name] = value
        settings.take(name.option, *name.fields)
    return values


def _read_value(name: Name, given: Any) -> Any:
    """A value in its type; None where it has another one."""
    if name.kind in ("switch", "off"):
        return (name.kind == "switch") if given is True else None
    if name.kind == "texts":
        return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, tuple) else None
    if not isinstance(given, str):
        return None
    if name.kind in ("int", "float"):
        kind = int if name.kind == "int" else float
        return kind(given) if re.fullmatch(r"\d{1,12}" if kind is int else r"[\d.]{1,20}(e-?\d{1,3})?", given) else None
    if name.kind == "layout":
        return given if layers_of_layout(given) else None
    return given


def _world_size(settings: Settings) -> int | None:
    ranks, nodes = (_first_count(settings, keys) for keys in (_RANKS, _NODES))
    return None if ranks is None else ranks * (nodes or 1)


def _first_count(settings: Settings, keys: Sequence[str]) -> int | None:
    for key in keys:
        for setting in settings:
            if setting.key == key and not setting.is_open and re.fullmatch(r"\d{1,6}", str(setting.value)):
                settings.take(key, "dp")
                return int(setting.value)
    return None


def _take_others(settings: Settings) -> None:
    for setting in list(settings):
        if OF_NO_PLAN.match(setting.key) or (setting.key == "@" and str(setting.value).endswith((".py", "torchrun"))):
            settings.take(setting.key)
