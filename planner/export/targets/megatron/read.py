"""A row from Megatron-LM's arguments.

Where an option is not there, the parser's own default is stated, which is seldom what recipes say: without
--use-distributed-optimizer nothing is sharded. Options that no plan decides are taken without a field; every other one that
is not understood, or whose value cannot be read, stays with the unknown ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from planner.export.formats.arguments import LISTS_OPTIONS
from planner.export.launchers.launch_line import read_launch
from planner.export.settings import InputFile, Settings
from planner.export.target import RowParts
from planner.export.targets.megatron.environment import ALLOCATOR, CONNECTIONS, OFFLOAD_VERSION
from planner.export.targets.megatron.hybrid_pattern import layers_of_pattern
from planner.export.targets.megatron.hybrid_row import oldest_release
from planner.export.targets.megatron.hybrid_settings import STACKS
from planner.export.targets.megatron.layout import layers_of_layout, numbers_of_pattern
from planner.export.targets.megatron.model_settings import NORMS, POSITIONS
from planner.export.targets.megatron.names import ALL, NAMES, Name, Values
from planner.export.targets.megatron.of_no_plan import OF_NO_PLAN
from planner.export.targets.megatron.older_names import FLASH, MEANT, dashed, today, value_of
from planner.export.targets.megatron.rows_of_settings import model_row, strategy_row, training_row
from planner.export.targets.megatron.strategy_settings import CP_COMMS, SHARDING
from planner.export.targets.megatron.training_settings import FP8_FORMATS

_DTYPES = frozenset({"fp32", "bf16", "fp16", "fp8"})
_FSDP_DTYPES = frozenset({"fp32", "bf16", "fp16", "auto"})
READABLE: Mapping[str, Collection[str]] = {
    "data_parallel_sharding_strategy": {"no_shard", *SHARDING.values()}, "position_embedding_type": {"yarn", *POSITIONS.values()},
    "normalization": NORMS.values(), "attention_backend": {"flash", "fused", "unfused", "local", "auto"},
    "softmax_type": {"vanilla", "learnable"}, "recompute_granularity": {"full", "selective"},
    "recompute_method": {"uniform", "block"}, "cp_comm_type": {"allgather", *CP_COMMS.values()},
    "cross_entropy_fusion_impl": {"native", "te"}, "exp_avg_dtype": _DTYPES, "exp_avg_sq_dtype": _DTYPES,
    "main_params_dtype": {"fp32", "fp16"}, "megatron_fsdp_main_grads_dtype": _FSDP_DTYPES,
    "megatron_fsdp_grad_comm_dtype": _FSDP_DTYPES, "cuda_graph_impl": {"none", "local", "transformer_engine", "full_iteration"},
    "transformer_impl": {"local", "transformer_engine"}, "fp8_recipe": FP8_FORMATS, "fp8": {"e4m3", "hybrid"}, "fp4": {"e2m1"},
    "fp4_recipe": {"nvfp4"}, "optimizer": {"adam", "sgd", "muon", "dist_muon", "lion"}, "moe_token_dispatcher_type": {"allgather", "alltoall", "flex"},
    "moe_flex_dispatcher_backend": {"deepep", "hybridep"}, "experimental_attention_variant": {"dsa", "gated_delta_net"},
}  # fmt: skip
"""The values of texts that a row has a word for; others stay unknown."""
_PAIRS = {"attention_dropout": "--hidden-dropout", "exp_avg_sq_dtype": "--exp-avg-dtype"}
"""Settings that a row has one field for together with another one, and can only say where both agree."""
_OWN_OPTIONS = re.compile(r"--(tensor[-_]model[-_]parallel[-_]size|num-attention-heads|micro[-_]batch[-_]size)\b")
_DEEPSPEED = "--deepspeed"
_MAIN = frozenset({
    "tp", "pp", "cp", "vpp", "ep", "zero", "sequence_parallel", "recompute", "training.precision", "training.seq_length", "micro_batch_size",
    "training.global_batch_size",
})  # fmt: skip
"""The fields that are asked for where they may stand in options that are not known; others keep the parser's default."""
_MAY_BE_ZERO = frozenset({"mtp_num_layers", "cpu_offloading_num_layers"})
"""Counts that mean nothing at 0; of everything else that is counted there is at least one."""


def read(settings: Settings) -> RowParts:
    """What the arguments say, in the contract's names."""
    values = _values(settings)
    world_size = read_launch(settings)
    training = training_row(values)
    if (release := oldest_release(values)) is not None:
        training["framework_version"] = release
    # Before core 0.10 local layers had a flash kernel too, for which the option asked.
    flash = settings.has(FLASH) and values.get("attention_backend") == "flash"
    if flash and training.get("attention") == "math":
        training |= {"attention": "flash", "attention_kernel": "fa2"}
    allocator = [
        settings.value(f"${name}", "training.expandable_segments") for name in (ALLOCATOR, "PYTORCH_ALLOC_CONF")
    ]
    training["expandable_segments"] = any("expandable_segments:True" in str(each) for each in allocator)
    settings.take(f"${CONNECTIONS}")
    settings.take(f"${OFFLOAD_VERSION}")
    settings.pass_over(*(each.key for each in settings if each.key in OF_NO_PLAN or dashed(each.key) in OF_NO_PLAN))
    # Megatron-DeepSpeed hands the states to DeepSpeed's engine, which a row for Megatron Core cannot say.
    settings.doubt(_DEEPSPEED, "training.framework", "zero")
    return RowParts(
        training=training, strategy=strategy_row(values, world_size=world_size), model=model_row(values), world_size=world_size,
        notes=_in_doubt(settings, values),
    )  # fmt: skip


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether files give options that Megatron-LM alone has."""
    return any(_OWN_OPTIONS.search(each.content) for each in files)


def _in_doubt(settings: Settings, values: Values) -> tuple[str, ...]:
    """Leaves out what further options may say that only a shell could tell, and says so."""
    lists = [each for each in settings if each.key == "@" and each.is_open and LISTS_OPTIONS.fullmatch(str(each.value))]
    if not lists:
        return ()
    decided = {field for name in values for field in NAMES[name].fields}
    open_fields = {field for name in ALL if name.name not in values for field in name.fields} - decided
    settings.doubt_one(lists[-1], *sorted(open_fields & _MAIN))
    named = ", ".join(dict.fromkeys(str(each.value) for each in lists[:5]))
    return (
        f"{lists[-1].file}, line {lists[-1].line}: what {named} holds is not known, and options in it are not read.",
    )


def _values(settings: Settings) -> Values:
    """The settings by Megatron Core's names; those that can be read are taken."""
    # A later option overrides an earlier one, even if only a shell could tell its value.
    last = {today(each.key): each for each in settings}
    given = {key: value_of(key, each) for key, each in last.items() if not each.is_open}
    values: Values = {}
    for name in ALL:
        key = last[name.option].key if name.option in last else name.option
        if name.option not in given:
            settings.take(key, *name.fields)
            continue
        value = _read_value(name, given[name.option])
        if value is None or _differs(name, given):
            settings.doubt(key, *name.fields)
            continue
        # A pattern means something only with the number of layers that it is for.
        layers = str(given.get("--num-layers"))
        if name.kind == "pattern" and not (layers.isdigit() and numbers_of_pattern(value, num_layers=int(layers))):
            settings.doubt(key, *name.fields)
            continue
        values[name.name] = value
        settings.take(key, *name.fields)
    _read_older(settings, values)
    return values


def _read_older(settings: Settings, values: Values) -> None:
    last = {dashed(each.key): each for each in settings}
    for option, meant in MEANT.items():
        setting = last.get(option)
        if setting is not None and not setting.is_open:
            settings.take(setting.key, *(field for name in meant for field in NAMES[name].fields))
            for name, value in meant.items():
                values.setdefault(name, value)
    # Learned positions are the default that it takes away; with others it says nothing.
    if values.get("position_embedding_type", "") not in ("", "learned_absolute") or values.get(
        "use_rotary_position_embeddings"
    ):
        settings.pass_over("--no-position-embedding")


def _differs(name: Name, given: Mapping[str, Any]) -> bool:
    other = _PAIRS.get(name.name)
    if other is None:
        return False
    default = {"attention_dropout": "0.1", "exp_avg_sq_dtype": "fp32"}[name.name]
    return bool(given[name.option] != given.get(other, default))


def _read_value(name: Name, given: Any) -> Any:
    """A value in its type; None where it has another one."""
    if name.kind in ("switch", "off"):
        return (name.kind == "switch") if given is True else None
    if name.kind == "texts":
        texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, tuple) else ()
        known = READABLE.get(name.name)
        # Another stack has other layers than its pattern's letters say.
        if name.name == "spec":
            return texts if texts in STACKS else None
        # One transport for all layers is all that a row can say.
        if known is not None and (len(set(texts)) != 1 or texts[0] not in known):
            return None
        return texts or None
    if name.kind == "counts":
        words = given if isinstance(given, tuple) else ()
        counts = tuple(int(word) for word in words if re.fullmatch(r"[1-9]\d{0,5}", str(word)))
        # Transformer Engine takes two levels and no other number of them.
        return counts if len(counts) == len(words) == 2 else None
    if not isinstance(given, str):
        return None
    return _read_number(name, given) if name.kind in ("int", "float") else _read_text(name, given)


def _read_number(name: Name, given: str) -> int | float | None:
    if name.kind == "float":
        return float(given) if re.fullmatch(r"\d{1,12}(\.\d{0,17})?(e-?\d{1,3})?|\.\d{1,17}", given) else None
    number = int(given) if re.fullmatch(r"\d{1,12}", given) else None
    return None if number == 0 and name.name not in _MAY_BE_ZERO else number


def _read_text(name: Name, given: str) -> str | None:
    if name.kind == "layout":
        return given if layers_of_layout(given) else None
    if name.name in ("hybrid_layer_pattern", "hybrid_override_pattern"):
        return given if layers_of_pattern(given) else None
    if name.name == "window_size":
        return given if re.fullmatch(r"\(?\d{1,9},\s*0\)?", given) else None
    return given if given in READABLE.get(name.name, (given,)) else None
